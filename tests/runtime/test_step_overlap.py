"""Overlap of a step with what is read and sent, the step watchdog, and the heartbeat."""

import asyncio
import logging
import threading
import time

import pytest
from engines import collect, run, thread_client
from fakes import FakeModelRunner, Harness, make_request, solo_tokens

from ortloom.runtime import step_watchdog
from ortloom.runtime.messages import ProviderReport
from ortloom.runtime.step_watchdog import StepWatchdog

PROMPT = solo_tokens([9], 64)


def replies(**options):
    """What twelve requests get that come while others run; and the runner."""

    async def main():
        async with thread_client(None, {"num_blocks": 20}, max_num_seqs=4, **options) as client:
            jobs = [
                collect(client, make_request(f"r{i}", PROMPT[i : i + 20], 6 + i % 3))
                for i in range(12)
            ]
            found = await asyncio.gather(*jobs)
            assert await client.reset_prefix_cache()
            core = client._core
            return [tokens for tokens, _ in found], core.runner

    return run(main())


def test_overlap_changes_no_result():
    plain, runner = replies(async_scheduling=False)
    assert runner.num_overlapped == 0
    overlapped, runner = replies(async_scheduling=True)
    assert runner.num_overlapped == runner.num_steps > 0
    assert overlapped == plain
    assert plain == [solo_tokens(PROMPT[i : i + 20], 6 + i % 3) for i in range(12)]


def test_aborts_and_resets_during_a_step_wait_for_it_or_do_no_harm():
    async def main():
        options = {"step_seconds": 0.01, "num_blocks": 200}
        async with thread_client(None, options, async_scheduling=True) as client:
            stream = client.generate(make_request("gone", PROMPT[:20], 100))
            await anext(stream)
            kept = asyncio.create_task(collect(client, make_request("kept", PROMPT[:30], 20)))
            await asyncio.sleep(0.05)
            await client.reset_prefix_cache(reset_running_requests=True)
            await stream.aclose()
            tokens, _ = await kept
            assert tokens == solo_tokens(PROMPT[:30], 20)

    run(main())


def test_overlap_is_chosen_where_the_model_leaves_the_processors_free():
    runner = FakeModelRunner()
    assert not Harness(runner).core._async
    runner.provider_report = ProviderReport("cuda", "cuda")
    assert Harness(runner).core._async
    assert not Harness(runner, async_scheduling=False).core._async


def watched(limit, seconds):
    found = []
    watchdog = StepWatchdog(limit, found.append)
    watchdog.start()
    with watchdog.step():
        time.sleep(seconds)
    watchdog.stop()
    return found


def test_a_step_that_does_not_come_back_is_reported_once(capfd):
    (line,) = watched(0.1, 1.0)
    assert line == "step 1 has not come back for 0.1 s"
    assert "test_step_overlap.py" in capfd.readouterr().err
    assert watched(30.0, 0.01) == []


@pytest.mark.parametrize("busy", [False, True])
def test_without_a_limit_only_idle_time_counts(monkeypatch, busy):
    monkeypatch.setattr(step_watchdog, "DEFAULT_LIMIT", 0.4)
    found = []
    watchdog = StepWatchdog(None, found.append)
    watchdog.start()
    with watchdog.step():
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            if not busy:
                time.sleep(0.1)
    watchdog.stop()
    assert len(found) == (0 if busy else 1)


def test_many_steps_within_the_limit_are_not_one_long_one():
    found = []
    watchdog = StepWatchdog(0.8, found.append)
    watchdog.start()
    for _ in range(60):
        with watchdog.step():
            time.sleep(0.02)
    watchdog.stop()
    assert found == []


def test_the_engine_reports_a_stuck_step():
    stuck = threading.Event()

    async def main():
        options = {"step_timeout": 0.2}
        async with thread_client(None, {"step_seconds": 1.5}, **options) as client:
            client._core.on_stuck = lambda text: stuck.set()
            await collect(client, make_request("r", PROMPT[:4], 1))

    run(main())
    assert stuck.is_set()


def test_the_heartbeat_is_a_line_a_step(caplog):
    engine = Harness(step_log=True)
    engine.add("r", PROMPT[:20], 3)
    with caplog.at_level(logging.INFO, "ortloom.engine"):
        engine.run()
    lines = [r.message for r in caplog.records if r.message.startswith("step ")]
    assert len(lines) == engine.runner.num_steps == 3
    assert lines[0].startswith("step 1: 1 requests, 20 tokens, 1 sampled, 0 preempted, running 1")
    quiet = Harness()
    quiet.add("r", PROMPT[:20], 3)
    caplog.clear()
    quiet.run()
    assert not [r for r in caplog.records if r.message.startswith("step ")]
