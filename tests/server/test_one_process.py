"""--disable-frontend-multiprocessing: everything in one process, and how it ends."""

import os
import signal
from pathlib import Path

import pytest
from serving import Server, events, long_body, read_until

from ortloom.commands.serve import make_plan
from ortloom.environment import read_environment
from ortloom.errors import ConfigError
from ortloom.flags import flag_table


def front(*tokens):
    return make_plan(["m", *tokens], read_environment({}), flag_table())[1].config.front


def test_the_flag_reaches_the_configuration():
    assert front("--disable-frontend-multiprocessing").one_process
    assert not front().one_process
    with pytest.raises(ConfigError, match="--api-server-count cannot be combined"):
        front("--disable-frontend-multiprocessing", "--api-server-count", "2")


def test_one_process_does_it_all(bundle):
    with Server(bundle, module="in_one_process", env={"FAKE_STEP": "0.01"}) as server:
        tasks = Path(f"/proc/{server.process.pid}/task")
        assert all((task / "children").read_text() == "" for task in tasks.iterdir())
        assert server.complete().json()["usage"]["completion_tokens"] == 4
        assert events(server.complete(stream=True).text)[-1] == "[DONE]"
        assert server.metric("vllm:generation_tokens_total") == 8
        assert server.metric("vllm:request_success_total") == 2
        assert "Application startup complete." in server.text()
        with server.connect() as sock:
            sock.sendall(server.request(long_body()))
            read_until(sock, b"data: ")
            assert server.stop(limit=60) == 0
            rest = b""
            while part := sock.recv(65536):
                rest += part
        assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert "Traceback" not in server.text()


def test_a_second_signal_ends_it_at_once(bundle):
    slow = {"FAKE_STEP": "0.05"}
    with Server(bundle, module="in_one_process", env=slow, shutdown_timeout=600.0) as server:
        with server.connect() as sock:
            sock.sendall(server.request(long_body()))
            read_until(sock, b"data: ")
            os.kill(server.process.pid, signal.SIGTERM)
            while "shutting down" not in server.text():
                pass
            assert server.stop(limit=60) == 0
        assert "shutting down at once" in server.text()


def test_an_engine_that_cannot_start_ends_it(bundle):
    fail = {"FAKE_FAIL": "1"}
    with Server(bundle, module="in_one_process", env=fail, wait=False) as server:
        assert server.wait_end(60) == 1
        assert "ortloom: error: the fake bundle was changed" in server.text()
        assert "Traceback" not in server.text()


def test_an_engine_that_dies_ends_it(bundle):
    die = {"FAKE_DIE_AFTER": "20"}
    with Server(bundle, module="in_one_process", env=die) as server:
        reply = server.complete(stream=True, max_tokens=500, ignore_eos=True)
        assert '"error"' in reply.text
        assert server.client.get("/health").status_code == 503
        assert server.wait_end(60) == 1
