"""Streams and slow or vanishing clients, against the real engine loop."""

import json
import os
import signal
import socket
import time
from contextlib import contextmanager

import pytest
from serving import (
    COMPLETIONS,
    Server,
    body,
    events,
    long_body,
    read_until,
    status_of,
    until,
)


@pytest.fixture(scope="module")
def slow(bundle):
    """Steps of 10 ms: a full generation takes 40 s."""
    with Server(
        bundle,
        sse_keep_alive_interval=0.3,
        send_timeout=1.0,
        enable_server_load_tracking=True,
        env={"FAKE_STEP": "0.01"},
    ) as running:
        yield running


@contextmanager
def open_stream(server, **fields):
    with server.connect() as sock:
        sock.sendall(server.request(long_body(**fields)))
        read_until(sock, b"data: {")
        yield sock


def test_a_stream_has_one_done_at_its_end(server):
    reply = server.client.post(COMPLETIONS, json=body(stream=True))
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    found = events(reply.text)
    assert found[-1] == "[DONE]"
    assert found.count("[DONE]") == 1
    assert json.loads(found[-2])["choices"][0]["finish_reason"] == "length"


def test_errors_before_the_first_byte_have_their_status(server):
    reply = server.client.post(COMPLETIONS, json=body(stream=True, temperature=-1))
    assert reply.status_code == 400
    assert reply.headers["content-type"] == "application/json"
    too_long = server.client.post(COMPLETIONS, json=body(stream=True, prompt=[97] * 5000))
    assert too_long.status_code == 400


def made_less_than(server, before, tokens):
    return server.metric("vllm:generation_tokens_total") - before < tokens


def test_a_client_that_closes_ends_the_generation(slow):
    before = slow.metric("vllm:generation_tokens_total")
    with open_stream(slow, n=4, temperature=1):
        pass
    slow.idle(5)
    assert slow.metric("vllm:kv_cache_usage_perc") == 0
    assert made_less_than(slow, before, 2000)
    assert " 499 " in until(lambda: slow.text() if " 499 " in slow.text() else "")
    assert "ERROR" not in slow.text()


def test_a_client_that_closes_without_stream_ends_the_generation(slow):
    with slow.connect() as sock:
        sock.sendall(slow.request(long_body(stream=False)))
        until(lambda: slow.metric("vllm:num_requests_running") == 1)
    slow.idle(5)


def test_half_close_ends_the_generation(slow):
    with open_stream(slow) as sock:
        sock.shutdown(socket.SHUT_WR)
        slow.idle(5)


def test_many_clients_that_hang_up_together(slow):
    for _ in range(2):
        socks = [slow.connect() for _ in range(50)]
        for sock in socks:
            sock.sendall(slow.request(long_body()))
        for sock in socks:
            read_until(sock, b"data: {")
        for sock in socks:
            sock.close()
    slow.idle(10)
    assert slow.metric("vllm:kv_cache_usage_perc") == 0
    assert slow.complete().status_code == 200


def test_pipelining_over_64_kib_delays_nothing_for_others(slow):
    """Reading is paused then, so the hang-up is only noticed by a write: a chunk or comment."""
    with slow.connect() as sock:
        sock.sendall(slow.request(long_body()))
        read_until(sock, b"data: {")
        more = slow.request(b"{" + b" " * 1000)
        sock.settimeout(0.5)
        sent = 0
        try:
            while sent < 4_000_000:
                sent += sock.send(more * 20)
        except TimeoutError:
            pass
        assert sent > 65536
        assert slow.complete().status_code == 200
    slow.idle(10)


def test_a_reader_that_stops_gives_its_blocks_back(bundle):
    """Big chunks (logprobs) fill the socket; after the send timeout the generation ends."""
    with Server(bundle, send_timeout=0.5, env={"FAKE_STEP": "0.0005"}) as server:
        with server.connect(rcvbuf=4096) as sock:
            ids = list(range(97, 122))
            payload = long_body(n=8, temperature=1, logprobs=5, prompt=ids * 4)
            sock.sendall(server.request(payload))
            until(
                lambda: server.metric("vllm:request_success_total", finished_reason="abort") == 8,
                20,
            )
            server.idle(20)
        assert server.complete().status_code == 200
        assert server.metric("vllm:kv_cache_usage_perc") == 0


def test_load_counts_what_is_in_flight(slow):
    with open_stream(slow):
        assert slow.client.get("/load").json() == {"server_load": 1}
    until(lambda: slow.client.get("/load").json() == {"server_load": 0})


def test_reset_prefix_cache_says_whether_it_could(slow):
    slow.idle()
    assert slow.client.post("/reset_prefix_cache").json() == {"success": True}
    with open_stream(slow, prompt="a" * 40):
        assert slow.client.post("/reset_prefix_cache").json() == {"success": False}
    slow.idle()


def test_killing_the_engine_mid_stream(bundle):
    """Streams get an error event and [DONE], /health turns 503, the supervisor exits non-zero."""
    with Server(bundle, env={"FAKE_STEP": "0.01"}) as server, open_stream(server) as sock:
        with server.connect() as waiting:
            waiting.sendall(server.request(long_body(stream=False)))
            until(lambda: server.metric("vllm:num_requests_running") == 2)
            os.kill(server.engine_pid, signal.SIGKILL)
            tail = read_until(sock, b"data: [DONE]\n\n\r\n0\r\n\r\n")
            last = tail.split(b"data: ")[-2]
            error = json.loads(last.split(b"\n\n")[0])["error"]
            assert error["code"] == 503
            assert status_of(read_until(waiting, b"}}")) == 503
        assert server.client.get("/health").status_code == 503
        refused = server.complete()
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert server.client.get("/metrics").status_code == 200
        assert server.wait_end() == 1
        assert "the engine is gone (signal SIGKILL)" in server.text()


def test_sigterm_aborts_with_an_event_when_there_is_no_shutdown_timeout(bundle):
    with Server(bundle, env={"FAKE_STEP": "0.01"}) as server, open_stream(server) as sock:
        with server.connect() as waiting:
            waiting.sendall(server.request(long_body(stream=False)))
            until(lambda: server.metric("vllm:num_requests_running") == 2)
            start = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            tail = read_until(sock, b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert b'"ServiceUnavailableError"' in tail
            reply = read_until(waiting, b"}}")
            assert status_of(reply) == 503
            assert b"connection: close" in reply
        assert server.wait_end() == 0
        assert time.monotonic() - start < 5


def test_sigterm_lets_requests_finish_within_the_shutdown_timeout(bundle):
    with Server(bundle, shutdown_timeout=10, env={"FAKE_STEP": "0.01"}) as server:
        with server.connect() as sock, server.connect() as idle:
            idle.sendall(server.request(method="GET", path="/version", length=False))
            read_until(idle, b"}")
            sock.sendall(server.request({**long_body(), "max_tokens": 100}))
            first = read_until(sock, b"data: {")
            server.process.send_signal(signal.SIGTERM)
            assert idle.recv(10) == b"", "idle connections are closed at once"
            tail = first + read_until(sock, b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert b'"finish_reason":"length"' in tail
            assert b'"error"' not in tail
            assert sock.recv(10) == b""
        assert server.wait_end() == 0


def test_a_shutdown_timeout_is_not_exceeded(bundle):
    running = Server(bundle, shutdown_timeout=0.7, env={"FAKE_STEP": "0.01"})
    with running as server, open_stream(server) as sock:
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert b'"error"' in read_until(sock, b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert 0.6 < time.monotonic() - start < 4
        assert server.wait_end() == 0
