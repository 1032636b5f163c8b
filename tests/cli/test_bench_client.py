"""The load client: HTTP and event streams in any packets, and what becomes of odd answers."""

import asyncio
import json
import socket
import sys

import msgspec
import pytest

from ortloom.bench import event_loop
from ortloom.bench.event_stream import EventParser
from ortloom.bench.generation import Target, generate
from ortloom.bench.http_client import HttpClient
from ortloom.bench.http_response import ProtocolError, ResponseParser
from ortloom.bench.samples import Sample, Workload
from ortloom.bench.serving_run import Load, run_load
from ortloom.errors import BenchmarkFailed, ConfigError

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n"
    b"4\r\nwiki\r\n5;note=1\r\npedia\r\n0\r\nTrailer: 1\r\n\r\n"
)
SIZED = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nConnection: Close\r\n\r\nhello"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("wire", "status", "body", "reusable"),
    [
        (CHUNKED, 200, b"wikipedia", True),
        (SIZED, 404, b"hello", False),
        (INTERIM, 404, b"hello", False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    ],
)
def test_responses_in_packets_of_any_size(wire, size, status, body, reusable):
    parser = ResponseParser()
    got = b""
    for at in range(0, len(wire), size):
        assert not parser.finished
        got += parser.feed(wire[at : at + size])
    assert (parser.status, got, parser.finished) == (status, body, True)
    assert parser.reusable is reusable


def test_a_body_up_to_the_close():
    parser = ResponseParser()
    assert parser.feed(b"HTTP/1.0 200 OK\r\n\r\nab") == b"ab"
    assert not parser.finished
    parser.feed_end()
    assert parser.finished
    assert not parser.reusable


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        b"x" * 300_000,
    ],
)
def test_what_is_no_response_is_an_error(wire):
    with pytest.raises(ProtocolError):
        ResponseParser().feed(wire)


def test_a_close_in_the_middle_is_an_error():
    for wire in (b"", SIZED[:-1], CHUNKED[:-3]):
        parser = ResponseParser()
        parser.feed(wire)
        with pytest.raises(ProtocolError):
            parser.feed_end()


def test_events_in_packets_of_any_size():
    wire = b": note\n\ndata: a\r\n\r\nevent: x\ndata:b\ndata: c\n\ndata: [DONE]\n\ndata: open"
    for size in (1, 2, 5, 100):
        parser = EventParser()
        events = []
        for at in range(0, len(wire), size):
            events += parser.feed(wire[at : at + size])
        assert events == [b"a", b"b\nc", b"[DONE]"]


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://x", "http://", "http://h:99999", "http://[::1"]
)
def test_urls_that_cannot_be_used(url):
    with pytest.raises(ConfigError, match="URL"):
        HttpClient(url)


def test_a_header_cannot_smuggle_a_line():
    with pytest.raises(ConfigError, match="line breaks"):
        HttpClient("http://h", {"X": "a\r\nY: b"})


class Scripted:
    """A server that answers request after request of each connection with the next script; None
    drops the connection."""

    def __init__(self, *scripts):
        self.scripts = list(scripts)
        self.requests = []
        self.connections = 0

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        self.client = HttpClient(f"http://127.0.0.1:{port}/base/", {"X-Key": "k"})
        return self

    async def __aexit__(self, *_):
        self.client.close()
        self.server.close()
        await self.server.wait_closed()

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.split(b"\r\n"):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                self.requests.append((head, await reader.readexactly(length)))
                script = self.scripts.pop(0)
                for piece in script:
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client or the test is done
        finally:
            writer.close()


def reply(status, body, kind=b"application/json"):
    head = b"HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
    return [head % (status, kind, len(body)) + body]


def stream(*events, end=(b"0\r\n\r\n",)):
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = []
    for event in events:
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        text = b"data: " + data + b"\n\n"
        pieces.append(b"%x\r\n%s\r\n" % (len(text), text))
    return [head, *pieces, *end]


def text(piece, finish=None):
    return {"choices": [{"index": 0, "text": piece, "finish_reason": finish}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
TARGET = Target(
    api="completions",
    path="/v1/completions",
    models=("m",),
    ignore_eos=True,
    fields={"temperature": 0},
    request_id_prefix="p-",
)
SAMPLE = Sample("hello", 5, 9)


def ask(script, target=TARGET):
    async def go():
        async with Scripted(script) as server:
            record = await generate(server.client, target, SAMPLE, "m", "1")
            return record, server.requests[0]

    return asyncio.run(go())


def test_a_stream_is_measured_and_counted_by_usage():
    record, (head, body) = ask(stream(text("a"), text("b"), text("", "length"), USAGE, b"[DONE]"))
    assert record.error == ""
    assert (record.prompt_tokens, record.output_tokens, record.text) == (7, 3, "ab")
    assert len(record.itls) == 1  # the last event brings no token
    assert 0 < record.ttft <= record.ttft + record.itls[0] <= record.latency
    assert head.startswith(b"POST /base/v1/completions HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"X-Key: k\r\n" in head
    assert b"X-Request-Id: p-1\r\n" in head
    assert json.loads(body) == {
        "model": "m",
        "prompt": "hello",
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0,
    }


def test_a_chat_stream():
    def delta(finish=None, **fields):
        return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}

    target = Target(api="chat", path="/c", models=("m",), logprobs=2)
    script = stream(
        delta(role="assistant", content=""),
        delta(reasoning="so "),
        delta(content="it"),
        delta("stop"),
        USAGE,
        b"[DONE]",
    )
    record, (_, body) = ask(script, target)
    assert record.error == ""
    assert record.text == "so it"
    assert len(record.itls) == 1
    assert json.loads(body) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_completion_tokens": 9,
        "logprobs": True,
        "top_logprobs": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_tokens_without_text_count_as_arrivals():
    record, _ = ask(stream(text(""), text(""), text("é", "stop"), b"[DONE]"))
    assert len(record.itls) == 2
    assert record.output_tokens is None


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (reply(400, b'{"error": {"message": "too long", "code": 400}}'), "HTTP 400: too long"),
        (reply(500, b"<html>\n no </html>"), "HTTP 500: <html> no </html>"),
        (stream(text("a"), {"error": {"message": "engine died"}}), "error in the stream: engine"),
        (stream(text("a"), b"{nonsense"), "not what was expected: {nonsense"),
        (stream(text("a")), "the stream ended before the answer did"),
        (stream(b"[DONE]"), "the stream ended before the answer did"),
        (stream(text("a"), end=(None,)), "closed the connection in the middle"),
        ([None], "closed the connection in the middle"),
    ],
)
def test_failures_become_errors_of_the_record(script, error):
    record, _ = ask(script)
    assert not record.success
    assert error in record.error


def test_connections_are_kept_and_a_dropped_one_is_replaced():
    async def go():
        async with Scripted(
            reply(200, b"1"), [*reply(200, b"2"), None], reply(200, b"3")
        ) as server:
            bodies = [(await server.client.get("/x")).body for _ in range(2)]
            assert server.connections == 1
            # the server has closed the idle connection behind its second answer
            bodies.append((await server.client.get("/x")).body)
            assert server.connections == 2
            return bodies

    assert asyncio.run(go()) == [b"1", b"2", b"3"]


def test_no_server():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]  # bound, not listening

        async def go():
            client = HttpClient(f"http://127.0.0.1:{port}")
            return await generate(client, TARGET, SAMPLE, "m", "1")

        assert asyncio.run(go()).error == "Connection refused"


@pytest.mark.parametrize("fast", [True, False])
def test_the_event_loop_with_and_without_uvloop(monkeypatch, fast):
    if not fast:
        monkeypatch.setitem(sys.modules, "uvloop", None)

    async def name():
        return type(asyncio.get_running_loop()).__module__

    assert event_loop.run(name()).startswith("uvloop" if fast else "asyncio")


def run_load_on(*scripts, wait=0.0, **load):
    """A load of two requests against scripted answers; each needs a connection of its own."""

    async def go():
        async with Scripted(*scripts) as server:
            return await run_load(
                server.client,
                TARGET,
                Workload([SAMPLE] * 2, SAMPLE),
                Load(arrivals=[0.0, 0.0], max_concurrency=1, **load),
                wait_seconds=wait,
            ), [head.split(b" ")[1].decode() for head, _ in server.requests]

    return asyncio.run(go())


GOOD = stream(text("a"), text("b", "length"), USAGE, b"[DONE]")
PLAIN = stream(text("a"), text("b"), text("c", "length"), b"[DONE]")
NO_METRICS = reply(404, b"{}")


def test_the_order_of_a_run():
    on = reply(200, b"")
    outcome, paths = run_load_on(
        *(GOOD, GOOD, NO_METRICS, on, GOOD, PLAIN, on, NO_METRICS), num_warmups=1, profile=True
    )
    generate_path = "/base/v1/completions"
    assert paths == [
        *(generate_path, generate_path, "/base/metrics", "/base/start_profile"),
        *(generate_path, generate_path, "/base/stop_profile", "/base/metrics"),
    ]
    assert [record.output_tokens for record in outcome.records] == [3, 3]  # usage; pieces
    assert outcome.duration > 0
    assert outcome.speculation is None


def test_counters_of_speculation_are_those_of_the_load():
    def counters(drafts):
        line = b'vllm:spec_decode_num_drafts_total{engine="0"} %d.0\n' % drafts
        return reply(200, line, b"text/plain")

    outcome, _ = run_load_on(GOOD, counters(5), GOOD, GOOD, counters(9))
    assert outcome.speculation.drafts == 4


def test_a_test_request_waits_for_the_server_but_not_for_a_refusal():
    busy = reply(503, b'{"error": {"message": "loading"}}')
    outcome, _ = run_load_on(busy, GOOD, NO_METRICS, GOOD, GOOD, NO_METRICS, wait=20.0)
    assert len(outcome.records) == 2
    with pytest.raises(BenchmarkFailed, match="HTTP 503: loading"):
        run_load_on(busy)
    with pytest.raises(BenchmarkFailed, match="HTTP 404"):
        run_load_on(reply(404, b"{}"), wait=20.0)
    with pytest.raises(BenchmarkFailed, match="/start_profile answered HTTP 404"):
        run_load_on(GOOD, NO_METRICS, reply(404, b"{}"), profile=True)


def test_models_take_turns():
    target = msgspec.structs.replace(TARGET, models=("a", "b"))

    async def go():
        async with Scripted(GOOD, NO_METRICS, *[GOOD] * 4, NO_METRICS) as server:
            load = Load(arrivals=[0.0] * 4, max_concurrency=1, pick="round-robin")
            await run_load(server.client, target, Workload([SAMPLE] * 4, SAMPLE), load)
            return [json.loads(body)["model"] for _, body in server.requests if body]

    assert asyncio.run(go()) == ["a", "a", "b", "a", "b"]
