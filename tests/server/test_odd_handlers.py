"""Handlers that break or take their time: what the client gets to see."""

import json
import os
import signal
import subprocess
import sys
import time

import httpx
import odd_front
import pytest
from serving import HERE, Server, events, free_port, read_until, status_of, until


class Odd(Server):
    """Raw-socket helpers of Server around an odd front."""

    def __init__(self, port, process, log):
        self.port, self.process, self.log, self.headers = port, process, log, {}
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20)


@pytest.fixture(scope="module")
def odd(bundle, tmp_path_factory):
    port = free_port()
    log = tmp_path_factory.mktemp("odd") / "log"
    env = {**os.environ, "PYTHONPATH": str(HERE)}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "odd_front", str(port), str(bundle)],
            env=env,
            stdout=out,
            stderr=out,
        )
    front = Odd(port, process, log)

    def answers():
        assert process.poll() is None, front.text()
        try:
            return front.client.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    until(answers, 20)
    yield front
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0
    front.client.close()


def get(odd, path, **headers):
    fields = [f"{k}: {v}" for k, v in headers.items()]
    return odd.request(method="GET", path=f"/odd/{path}", length=False, headers=fields)


def test_a_raw_stream_that_breaks_has_no_valid_end(odd):
    reply = odd.raw(get(odd, "break_raw"))
    assert b"first" in reply
    assert not reply.endswith(b"0\r\n\r\n")
    assert b"secret" not in reply


@pytest.mark.parametrize(
    ("path", "text"), [("break_sse", "Request id"), ("break_sse_known", "step")]
)
def test_an_event_stream_that_breaks_says_so(odd, path, text):
    reply = odd.client.get(f"/odd/{path}")
    assert reply.status_code == 200
    found = events(reply.text)
    assert found[0] == '{"n":1}'
    error = json.loads(found[1])["error"]
    assert error["code"] == 500
    assert text in error["message"]
    assert found[2:] == ["[DONE]"]
    assert "secret" not in reply.text


def test_an_error_before_the_first_event_is_a_plain_response(odd):
    reply = odd.client.get("/odd/break_early")
    assert reply.status_code == 400
    assert reply.json()["error"] == {
        "message": "not like this",
        "type": "BadRequestError",
        "param": "field",
        "code": 400,
    }


def test_a_500_shows_the_request_id_and_the_log_the_rest(odd):
    reply = odd.client.get("/odd/break_plain", headers={"x-request-id": "my-id-7"})
    assert reply.status_code == 500
    assert "my-id-7" in reply.json()["error"]["message"]
    assert "secret" not in reply.text
    assert "secret text" in until(lambda: odd.text() if "my-id-7" in odd.text() else "")


def test_recursion_in_a_handler_is_400(odd):
    assert odd.client.get("/odd/recursion").status_code == 400


def test_silence_is_broken_by_comments(odd):
    reply = odd.client.get("/odd/silent?seconds=0.9")
    assert reply.text.startswith(": keep-alive\n\n: keep-alive\n\n")
    assert events(reply.text) == ["{}", "[DONE]"]


def test_a_short_silence_has_no_comment(odd):
    assert odd.client.get("/odd/silent?seconds=0.05").text == "data: {}\n\ndata: [DONE]\n\n"


def test_the_request_deadline_is_504(odd):
    start = time.monotonic()
    reply = odd.client.get("/odd/sleep?seconds=30")
    assert reply.status_code == 504
    assert reply.json()["error"]["type"] == "GatewayTimeout"
    assert 1.4 < time.monotonic() - start < 5


def test_the_request_deadline_ends_a_stream_with_an_event(odd):
    found = events(odd.client.get("/odd/silent?seconds=30").text)
    assert json.loads(found[0])["error"]["code"] == 504
    assert found[1:] == ["[DONE]"]


def test_a_request_over_every_idle_timer_is_answered(odd):
    """head and body timeouts are 1 s here: they end with the body, not with the handler."""
    assert odd.client.get("/odd/sleep?seconds=1.3").text == "slept"


def test_sanics_own_timers_stay_behind_ours(bundle):
    from ortloom.config import FrontConfig

    app = odd_front.build(str(bundle), FrontConfig())
    config = app.config
    assert config.RESPONSE_TIMEOUT > FrontConfig().request_deadline > 60
    assert config.KEEP_ALIVE_TIMEOUT == 75
    assert config.GRACEFUL_TCP_CLOSE_TIMEOUT == 30
    assert FrontConfig().head_timeout < config.REQUEST_TIMEOUT
    assert config.AUTO_EXTEND is False


def test_a_reader_that_stops_is_cut_off(odd):
    with odd.connect(rcvbuf=4096) as sock:
        sock.sendall(get(odd, "flood"))
        read_until(sock, b"data: ")
        line = until(lambda: [x for x in odd.text().splitlines() if "/odd/flood" in x], 10)[0]
        assert " 499 " in line


def test_a_slow_reader_gets_all_of_a_big_reply(odd):
    with odd.connect(rcvbuf=4096) as sock:
        sock.sendall(get(odd, "big", Connection="close"))
        time.sleep(0.4)  # well below the send timeout
        got = 0
        while part := sock.recv(1 << 18):
            got += len(part)
    assert got > odd_front.BIG


def test_a_large_upload_to_a_handler(odd):
    data = json.dumps({"a": "x" * 900_000}).encode()
    reply = odd.client.post("/odd/echo", content=data, headers={"content-type": "application/json"})
    assert reply.text == str(len(data))


def test_the_bound_on_connections_and_closing():
    from ortloom.server.connections import ConnectionRegistry

    class Fake:
        idle = True
        closed = 0

        def close(self):
            self.closed += 1

        abort = close

    registry = ConnectionRegistry(limit=2)
    fakes = [Fake() for _ in range(3)]
    assert [registry.add(f) for f in fakes] == [True, True, False]
    registry.discard(fakes[0])
    assert registry.add(fakes[2])
    registry.close_idle()
    assert [f.closed for f in fakes] == [0, 1, 1]
    registry.abort_all()
    assert not registry.add(fakes[0])


def test_more_connections_than_allowed_are_told_so(bundle, tmp_path):
    """The file limit bounds them; the ones inside go on working."""
    port = free_port()
    env = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-P", "-m", "odd_front", str(port), str(bundle)]
    with (tmp_path / "log").open("wb") as out:
        process = subprocess.Popen(
            ["sh", "-c", 'ulimit -n 140; exec "$@"', "sh", *command],
            env=env,
            stdout=out,
            stderr=out,
        )
    front = Odd(port, process, tmp_path / "log")
    socks = []
    try:
        until(lambda: _connects(front), 20)
        reply = b""
        while b"503" not in reply:
            assert len(socks) < 30, "no bound"
            sock = front.connect()
            socks.append(sock)
            sock.sendall(front.request(method="GET", path="/version", length=False))
            reply = sock.recv(4096)
        assert status_of(reply) == 503
        assert b"retry-after: 1" in reply
        assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"] == 503
        socks[0].sendall(front.request(method="GET", path="/version", length=False))
        assert status_of(read_until(socks[0], b"\r\n\r\n")) == 200
    finally:
        for sock in socks:
            sock.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0


def _connects(front):
    try:
        front.connect().close()
    except OSError:
        return False
    return True
