"""What the environment says about an engine that is late, gone, or asked by another name."""

import os
import signal

from serving import Server, until

from ortloom.config import SchedulerConfig


def test_an_engine_that_is_late_ends_the_server(bundle, tmp_path):
    env = {"FAKE_GATE": str(tmp_path / "gate")}
    with Server(bundle, wait=False, env=env, ready_timeout=0.5) as server:
        assert server.wait_end() == 1
        assert "error: the engine was not ready within 0.5 s" in server.text()


def test_a_server_may_outlive_its_engine_and_a_stuck_step_ends_one(bundle):
    """A step that takes longer than it may ends the engine; the fronts answer 503 from then on."""
    scheduler = SchedulerConfig(step_timeout=0.5)
    env = {"FAKE_STEP": "30"}
    with Server(
        bundle, wait=False, env=env, scheduler=scheduler, outlive_engine=True, any_model_name=True
    ) as server:
        until(lambda: "startup complete" in server.text(), 20)
        reply = server.complete(model="any name at all")
        assert reply.status_code in (500, 503)
        until(lambda: server.client.get("/health").status_code == 503)
        text = until(lambda: server.text() if "the engine is gone" in server.text() else None)
        assert "the engine is stuck: step 1 has not come back for 0.5 s" in text
        assert server.process.poll() is None
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.wait_end() == 1
