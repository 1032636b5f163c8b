"""Bodies: their length, time, type and depth."""

import json
import time

import msgspec
import pytest
from serving import COMPLETIONS, body, read_until, status_of, until

from ortloom.errors import SchemaViolation
from ortloom.server.limits import decode_json


class Message(msgspec.Struct):
    role: str


class Chat(msgspec.Struct):
    messages: list[Message]
    bias: dict[str, float] = {}


@pytest.mark.parametrize(
    ("text", "param"),
    [
        (b"", "body.0"),
        (b"{", "body.1"),
        (b"[]", "body"),
        (b"5", "body"),
        (b"{}", "body.messages"),
        (b'{"messages":[{"role":1}]}', "body.messages.0.role"),
        (b'{"messages":[{}]}', "body.messages.0.role"),
        (b'{"messages":[],"bias":{"a":"b"}}', "body.bias"),
        (b'{"messages":[]} x', "body.17"),
        (b'{"messages":[],"t":NaN}', "body.19"),
        (b'{"messages":[{"role":"\xff"}]}', "body.22"),
        (b'{"messages":[],"left out":"\xff"}', "body.27"),
        (b'{"messages":[],"x":' + b"[" * 100_000, "body"),
        (b'{"messages":[],"x":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}", "body"),
    ],
)
def test_decode_json_names_the_place(text, param):
    with pytest.raises(SchemaViolation) as caught:
        decode_json(text, Chat)
    assert caught.value.param == param
    assert caught.value.wire_type == "Bad Request"


def error_of(reply):
    found = reply.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    assert found["code"] == reply.status_code
    assert found["message"]
    return found


def post(server, data, content_type="application/json"):
    return server.client.post(COMPLETIONS, content=data, headers={"content-type": content_type})


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"5", b"\xff\xfe", b"model=a", b'"t"'])
def test_what_is_no_json_object_is_400(server, data):
    found = error_of(post(server, data))
    assert (found["code"], found["type"]) == (400, "Bad Request")


def test_deep_nesting_is_400_and_nothing_dies(server):
    deep = b"[" * 100_000 + b"]" * 100_000
    pids = server.front_pids
    for data in (deep, json.dumps(body()).encode()[:-1] + b',"x":' + deep + b"}"):
        assert post(server, data).status_code == 400
    assert server.complete().status_code == 200
    assert server.front_pids == pids


@pytest.mark.parametrize("content_type", ["text/plain", "", "application/x-www-form-urlencoded"])
def test_other_content_types_are_400(server, content_type):
    found = error_of(post(server, json.dumps(body()), content_type))
    assert found["code"] == 400
    assert found["param"] is None
    assert "application/json" in found["message"]


def test_a_charset_is_fine(server):
    assert post(server, json.dumps(body()), "Application/JSON; charset=utf-8").status_code == 200


def test_too_large_by_content_length_is_413_unread(server):
    with server.connect() as sock:
        sock.sendall(server.request(b"", length=10**9))
        reply = read_until(sock, b"}}")
        assert status_of(reply) == 413
        assert b"connection: close" in reply
        assert sock.recv(100) == b""


def test_too_large_with_expect_gets_no_continue(server):
    reply = server.raw(server.request(b"", length=10**9, headers=["Expect: 100-continue"]))
    assert status_of(reply) == 413
    assert b"100 Continue" not in reply


def test_expect_continue_works_and_others_are_417(server):
    payload = json.dumps(body()).encode()
    with server.connect() as sock:
        fields = ["Expect: 100-continue", "Connection: close"]
        sock.sendall(server.request(b"", length=len(payload), headers=fields))
        assert read_until(sock, b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        sock.sendall(payload)
        assert status_of(read_until(sock, b"\r\n\r\n")) == 200
    reply = server.raw(server.request(b"", length=2, headers=["Expect: magic"]))
    assert status_of(reply) == 417
    assert b'"error":{' in reply


def test_too_large_in_chunks_is_413(server):
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    data = server.request(length=False, headers=["Transfer-Encoding: chunked"]) + chunk * 20
    assert status_of(server.raw(data)) == 413
    assert server.complete().status_code == 200


def test_a_chunked_body_works(server):
    payload = json.dumps(body()).encode()
    parts = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (payload[:5], payload[5:]))
    fields = ["Transfer-Encoding: chunked", "Content-Type: application/json", "Connection: close"]
    reply = server.raw(server.request(length=False, headers=fields) + parts + b"0\r\n\r\n")
    assert status_of(reply) == 200


def test_a_body_that_stalls_is_408_and_the_connection_ends(server):
    start = time.monotonic()
    reply = server.raw(server.request(b"{", length=50))
    assert status_of(reply) == 408
    assert b"connection: close" in reply or reply.endswith(b"}")
    assert 0.9 < time.monotonic() - start < 5


def test_a_body_that_drips_is_408(server):
    start = time.monotonic()
    with server.connect() as sock:
        sock.settimeout(0.1)
        sock.sendall(server.request(b"", length=5000))
        out = b""
        while not out and time.monotonic() - start < 10:
            sock.sendall(b" ")
            try:
                out = sock.recv(4096)
            except TimeoutError:
                continue
    assert status_of(out) == 408
    assert time.monotonic() - start < 5


def test_lengths_that_lie(server):
    payload = json.dumps(body(max_tokens=1)).encode()
    made = server.metric("vllm:request_success_total")
    assert status_of(server.raw(server.request(payload, length=len(payload) + 500), True)) is None
    assert status_of(server.raw(server.request(payload, length=len(payload) - 5))) == 400
    assert status_of(server.raw(server.request(payload, length=-1))) == 400
    assert status_of(server.raw(server.request(payload, headers=["Content-Length: 3"]))) == 400
    smuggled = b"0\r\n\r\n" + server.request(payload)
    fields = ["Transfer-Encoding: chunked"]
    assert status_of(server.raw(server.request(smuggled, headers=fields))) == 400
    both = server.request(length=False, headers=["Transfer-Encoding: x, chunked"]) + smuggled
    assert status_of(server.raw(both)) == 400
    assert server.metric("vllm:request_success_total") == made, "left-over bytes were executed"
    assert "ERROR" not in server.text()


def test_left_over_bytes_are_no_second_answer(server):
    payload = json.dumps(body(max_tokens=1)).encode()
    reply = server.raw(server.request(payload, length=len(payload) - 5))
    assert reply.count(b"HTTP/1.1 200") == 0


def test_bodies_to_unknown_routes_and_methods(server):
    for method, path, status, detail in (
        ("POST", "/nope", 404, "Not Found"),
        ("GET", COMPLETIONS, 405, "Method Not Allowed"),
        ("DELETE", "/health", 405, "Method Not Allowed"),
        ("HEAD", COMPLETIONS, 405, None),
        ("OPTIONS", COMPLETIONS, 405, "Method Not Allowed"),
    ):
        reply = server.client.request(method, path)
        assert reply.status_code == status
        if detail:
            assert reply.json() == {"detail": detail}
        if status == 405:
            assert reply.headers["allow"]


def test_head_of_health_has_no_body(server):
    reply = server.client.head("/health")
    assert (reply.status_code, reply.content) == (200, b"")
    assert server.client.head("/version").content == b""


def test_the_connection_of_a_refused_body_is_closed_by_us(server):
    with server.connect() as sock:
        sock.sendall(server.request(b"{", length=50))
        read_until(sock, b"}}")
        until(lambda: sock.recv(10) == b"", 5)


@pytest.mark.parametrize(
    "frames",
    [b"%x\r\n%bXX0\r\n\r\n", b"0x%x\r\n%b\r\n0\r\n\r\n", b" %x\r\n%b\r\n0\r\n\r\n"],
    ids=["no line end", "0x", "blank"],
)
def test_chunks_that_only_lenient_readers_understand_are_refused(server, frames):
    payload = json.dumps(body()).encode()
    made = server.metric("vllm:request_success_total")
    fields = ["Transfer-Encoding: chunked", "Content-Type: application/json"]
    data = server.request(length=False, headers=fields) + frames % (len(payload), payload)
    assert status_of(server.raw(data)) == 400
    assert server.metric("vllm:request_success_total") == made


def test_chunks_after_a_continue_are_checked_too(server):
    fields = ["Transfer-Encoding: chunked", "Expect: 100-continue"]
    with server.connect() as sock:
        sock.sendall(server.request(length=False, headers=fields))
        assert read_until(sock, b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        sock.sendall(b"+1\r\n{\r\n")
        assert status_of(read_until(sock, b"}}")) == 400


@pytest.mark.parametrize("size", [100, 60_000, 70_000, 150_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_leaves_after_a_body_of_any_size_is_noticed(server, size, chunked):
    """A body that fills the buffer stops the reading; it goes on once the body was taken."""
    payload = json.dumps({**body(max_tokens=4000, ignore_eos=True), "padding": "x" * size}).encode()
    with server.connect() as sock:
        if chunked:
            named = ["Content-Type: application/json", "Transfer-Encoding: chunked"]
            head = server.request(length=False, headers=named)
            sock.sendall(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(payload), payload))
        else:
            sock.sendall(server.request(payload))
        until(lambda: server.metric("vllm:num_requests_running") == 1)
    server.idle(5)
