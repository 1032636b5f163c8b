"""What a request head may look like: limits in size, number and time, and nothing ambiguous."""

import time

import pytest
from serving import body, read_until, status_of

from ortloom.server.head import HeadRejected, check_head, chunk_size_fits, strip_root_path


def head(*fields, line=b"GET /x HTTP/1.1", host=True):
    return b"\r\n".join([line, *([b"Host: a"] if host else []), *fields])


@pytest.mark.parametrize(
    "good",
    [
        head(),
        head(b"X-A:b"),
        head(b"X-A:\tb \t"),
        head(b"X-A: caf\xc3\xa9"),
        head(b"Content-Length: 12"),
        head(host=False, line=b"GET / HTTP/1.0"),
    ],
)
def test_good_heads(good):
    check_head(good, 10, 32 * 1024)


@pytest.mark.parametrize(
    ("status", "bad"),
    [
        (400, head(b"Content-Length : 3")),
        (400, head(b"X-A: a", b" folded: b")),
        (400, head(b"X-A: a\x00b")),
        (400, head(b"X-A: a\nX-B: c")),
        (400, head(b"X-A: a\rX-B: c")),
        (400, head(b"X A: b")),
        (400, head(b": b")),
        (400, head(b"novalue")),
        (400, head(host=False)),
        (400, head(b"host: b")),
        (400, head(b"Content-Length: +3")),
        (400, head(b"Content-Length: 1_0")),
        (400, head(b"Content-Length: \xd9\xa3")),
        (400, head(b"Content-Length: 3, 3")),
        (400, head(b"Content-Length:")),
        (400, head(line=b"GET /x y HTTP/1.1")),
        (400, head(line=b"GET  /x HTTP/1.1")),
        (400, head(line=b"GET /x HTTP/2.0")),
        (400, head(line=b"G(T /x HTTP/1.1")),
        (400, head(line=b"GET /\xc3\xa9 HTTP/1.1")),
        (400, head(line=b"GET foo HTTP/1.1")),
        (400, head(line=b"GET http://[/x HTTP/1.1")),
        (400, head(line=b"CONNECT x:80 HTTP/1.1")),
        (414, head(line=b"GET /" + b"x" * 9000 + b" HTTP/1.1")),
        (431, head(*[b"X-%d: b" % i for i in range(10)])),
        (431, head(*[b"X-%d: %b" % (i, b"b" * 5000) for i in range(8)])),
    ],
)
def test_bad_heads(status, bad):
    with pytest.raises(HeadRejected) as caught:
        check_head(bad, 10, 32 * 1024)
    assert caught.value.status_code == status


def test_root_path_is_stripped_only_at_a_border():
    for path, want in ((b"/api/v1", b"/v1"), (b"/apiv1", b"/apiv1"), (b"/v1", b"/v1")):
        buffer = bytearray(b"GET %b HTTP/1.1\r\n" % path)
        strip_root_path(buffer, b"/api")
        assert buffer == b"GET %b HTTP/1.1\r\n" % want


def plain_works(server):
    return server.complete().status_code == 200


def test_one_huge_field_is_431(server):
    reply = server.raw(server.request(body(), headers=["X-Big: " + "a" * 200_000]))
    assert status_of(reply) == 431
    assert b"connection: close" in reply
    assert b'"error":{' in reply
    assert plain_works(server)


def test_many_fields_are_431(server):
    reply = server.raw(server.request(body(), headers=[f"X-{i}: b" for i in range(300)]))
    assert status_of(reply) == 431
    reply = server.raw(server.request(body(), headers=[f"X-{i}: {'b' * 60}" for i in range(2000)]))
    assert status_of(reply) == 431


def test_as_many_fields_as_allowed_work(server):
    fields = [f"X-{i}: {'b' * 60}" for i in range(250)] + ["Connection: close"]
    assert status_of(server.raw(server.request(body(), headers=fields))) == 200


def test_a_head_over_sanics_own_ceiling_of_16_kib_works(server):
    fields = ["X-Big: " + "a" * 20_000, "Connection: close"]
    assert status_of(server.raw(server.request(body(), headers=fields))) == 200


def sized(server, size, count):
    """A request whose head has `size` bytes (without the empty line) and `count` fields."""
    fields = ["Connection: close"]
    known = server.request(body(), headers=fields).count(b"\r\n") - 2
    fields += [f"X-{i}: b" for i in range(count - known - 1)]
    lacking = size - server.request(body(), headers=[*fields, "X: "]).index(b"\r\n\r\n")
    return server.request(body(), headers=[*fields, "X: " + "a" * lacking])


def test_size_and_count_bind_to_the_byte_and_field(server, guarded):
    """`guarded` has limits above the default ones and above what is read at a time."""
    for running, size, count in ((server, 32 * 1024, 256), (guarded, 200_000, 400)):
        assert status_of(running.raw(sized(running, size, count))) == 200
        assert status_of(running.raw(sized(running, size + 1, count))) == 431
        assert status_of(running.raw(sized(running, size, count + 1))) == 431


def test_huge_url_is_414(server):
    for size in (9_000, 200_000):
        reply = server.raw(server.request(body(), path="/v1/completions?" + "c" * size))
        assert status_of(reply) == 414


@pytest.mark.parametrize(
    "data",
    [
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length : 3\r\n\r\n{}x",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /health HTTP/1.1\nHost: a\n\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nX: a\x01\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_ambiguous_heads_are_400_and_end_the_connection(server, data):
    reply = server.raw(data)
    assert status_of(reply) == 400
    assert b"connection: close" in reply
    assert reply.count(b"HTTP/1.1 ") == 1


def test_a_dripping_head_ends_after_its_total_time(server):
    start = time.monotonic()
    with server.connect() as sock:
        sock.settimeout(0.1)
        out = b""
        for byte in b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 200:
            try:
                sock.sendall(bytes([byte]))
                out += sock.recv(4096)
                break
            except TimeoutError:
                continue
    assert status_of(out) == 408
    assert 0.9 < time.monotonic() - start < 5


def test_blank_lines_before_a_request_are_skipped(server):
    data = b"\r\n\r\n" + server.request(method="GET", path="/health", length=False)
    with server.connect() as sock:
        sock.sendall(data)
        assert status_of(read_until(sock, b"\r\n\r\n")) == 200


def test_pipelined_requests_are_answered_in_order(server):
    one = server.request(method="GET", path="/version", length=False)
    two = server.request(method="GET", path="/nope", length=False)
    three = server.request(
        method="GET", path="/health", length=False, headers=["Connection: close"]
    )
    reply = server.raw(one + two + three)
    assert [part[:3] for part in reply.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]


def test_an_upgrade_request_is_an_ordinary_one(server):
    fields = ["Upgrade: websocket", "Connection: close"]
    assert status_of(server.raw(server.request(body(), headers=fields))) == 200


def test_keep_alive_over_errors_streams_and_pauses(server):
    with server.connect() as sock:
        for payload, status in (
            (body(temperature=-1), 400),
            (b"{", 400),
            (body(model="other"), 404),
            (body(), 200),
        ):
            sock.sendall(server.request(payload))
            first = read_until(sock, b"\r\n\r\n")
            assert status_of(first) == status
            assert b"connection: keep-alive" in first
            text, _, rest = first.partition(b"\r\n\r\n")
            size = int(text.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            while len(rest) < size:
                rest += sock.recv(65536)
        sock.sendall(server.request(body(stream=True)))
        read_until(sock, b"data: [DONE]\n\n\r\n0\r\n\r\n")
        time.sleep(1.5)  # over the head timeout: an idle connection is not a slow head
        sock.sendall(server.request(body()))
        assert status_of(read_until(sock, b"\r\n\r\n")) == 200


@pytest.mark.parametrize(
    ("fits", "start"),
    [
        (None, b""),
        (None, b"\r"),
        (None, b"\r\n1"),
        (True, b"\r\n1f\r\n"),
        (True, b"\r\n0\r\nrest"),
        (True, b"\r\nA ;name=value\r\n"),
        (False, b"\n1\r\n"),
        (False, b"XX1\r\n"),
        (False, b"\r\n\r\n"),
        (False, b"\r\n-1\r\n"),
        (False, b"\r\n+1\r\n"),
        (False, b"\r\n0x1\r\n"),
        (False, b"\r\n 1\r\n"),
        (False, b"\r\n1_0\r\n"),
        (False, b"\r\n" + b"0" * 17 + b"\r\n"),
    ],
)
def test_chunk_sizes(fits, start):
    assert chunk_size_fits(bytearray(start)) is fits


@pytest.mark.parametrize("target", ["foo", "http://[/x", "x:80"])
def test_a_target_that_is_no_url_is_answered(server, target):
    reply = server.raw(server.request(path=target))
    assert status_of(reply) == 400
    assert b'"error":{' in reply
    assert "Traceback" not in server.text()


@pytest.mark.parametrize("header", [b"\xff\xfe", "\u00e9".encode(), b"x" * 300, b"a\tb"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_request_id_that_cannot_be_repeated_is_replaced(server, header, streamed):
    data = server.request(body(stream=streamed), headers=["Connection: close", "X-Request-Id: ~"])
    reply = server.raw(data.replace(b"~", header))
    assert status_of(reply) == 200
    assert b'"cmpl-' in reply
    assert header not in reply
