"""--middleware: classes and functions around every request, streams included."""

import asyncio
import json

import pytest
from serving import Server, body, events, long_body, read_until, status_of, until

from ortloom.commands.serve import make_plan
from ortloom.environment import read_environment
from ortloom.errors import ConfigError
from ortloom.flags import flag_table
from ortloom.server.middleware import load_chain

CHAIN = ("Shout", "louder", "timing", "Stamp")  # the last one is the outermost


@pytest.fixture(scope="module")
def wrapped(bundle):
    names = tuple(f"user_middleware.{name}" for name in CHAIN)
    with Server(bundle, middleware=names, api_keys=("k",), env={"FAKE_STEP": "0.01"}) as running:
        yield running


def test_each_flag_adds_one():
    tokens = ["--middleware", "a.B", "--middleware=c.d"]
    plan = make_plan([*tokens, "m"], read_environment({}), flag_table())[1]
    assert plan.config.front.middleware == ("a.B", "c.d")
    assert plan.config.model.bundle == "m"
    assert not plan.notices


def test_replies_go_through_all(wrapped):
    reply = wrapped.complete(prompt="ab")
    assert reply.status_code == 200
    assert reply.json()["id"] == "cmpl-shouted"
    assert reply.headers["x-stamp"] == "class"
    size = len(json.dumps(body(prompt="ab"), separators=(",", ":")))
    assert reply.headers["x-seen"] == f"POST /v1/completions {size}"
    assert float(reply.headers["x-process-time"]) > 0
    echoed = wrapped.complete(prompt="ab", echo=True, max_tokens=1).json()
    assert echoed["choices"][0]["text"].startswith("AB")
    assert wrapped.client.get("/old").json()["object"] == "list"


def test_streams_arrive_piece_by_piece(wrapped):
    reply = wrapped.complete(stream=True)
    made = events(reply.text)
    assert made[-1] == "[DONE]"
    assert len(made) == 5
    assert reply.headers["x-stamp"] == "class"
    with wrapped.connect() as sock:
        sock.sendall(wrapped.request(long_body()))
        read_until(sock, b"data: ")  # long before the end
        assert wrapped.metric("vllm:num_requests_running") == 1
    wrapped.idle()  # the client left: the request is given up
    assert until(lambda: wrapped.metric("vllm:request_success_total", finished_reason="abort"))


def test_a_middleware_may_answer_itself(wrapped):
    reply = wrapped.client.post("/stamp")
    assert (reply.status_code, reply.text) == (201, "POST begun")
    assert "x-process-time" not in reply.headers
    reply = wrapped.client.get("/health", headers={"x-refuse": "1"})
    assert (reply.status_code, reply.text, reply.headers["x-by"]) == (418, "not you", "timing")
    reply = wrapped.client.get("/version")
    assert reply.status_code == 202
    assert reply.text.endswith("}!")


def test_errors_keep_their_form(wrapped):
    reply = wrapped.complete(temperature=-1)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "temperature"
    assert reply.headers["x-stamp"] == "class"
    # keys are asked for behind the middlewares
    reply = wrapped.client.get("/v1/models", headers={"authorization": "Bearer wrong"})
    assert reply.status_code == 401
    assert reply.headers["x-stamp"] == "class"
    reply = wrapped.client.get("/health?fail=1")
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert "a secret of the middleware" in wrapped.text()
    huge = wrapped.request(b"", length=10**9, headers=["Connection: close"])
    assert status_of(wrapped.raw(huge)) == 413


def test_preflights_pass_through(wrapped):
    asked = {"origin": "http://a.example", "access-control-request-method": "POST"}
    reply = wrapped.client.options("/v1/completions", headers=asked)
    assert reply.status_code == 204
    assert reply.headers["x-stamp"] == "class"
    assert "access-control-allow-origin" in reply.headers


def test_a_stream_is_ended_in_order_at_shutdown(bundle):
    names = ("user_middleware.timing",)
    with Server(bundle, middleware=names, env={"FAKE_STEP": "0.02"}) as server:
        with server.connect() as sock:
            sock.sendall(server.request(long_body()))
            read_until(sock, b"data: ")
            assert server.stop(limit=60) == 0
            rest = b""
            while part := sock.recv(65536):
                rest += part
        assert b'"error"' in rest
        assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nodot", "no import path"),
        ("no.such.module", "cannot import 'no.such.module': ModuleNotFoundError"),
        ("user_middleware.nothing", "cannot import 'user_middleware.nothing': AttributeError"),
        ("user_middleware.NOT_ONE", "neither a class nor an async function"),
        ("user_middleware.text", "neither a class nor an async function"),
        ("user_middleware.NeedsMore", "cannot be made: TypeError"),
    ],
)
def test_what_is_none_is_refused(path, words):
    with pytest.raises(ConfigError, match=words):
        load_chain([path])


def test_a_server_with_a_bad_one_ends(bundle):
    with Server(bundle, middleware=("no.such",), wait=False) as server:
        assert server.wait_end(60) == 2
        assert "argument --middleware: cannot import 'no.such'" in server.text()


def test_the_lifespan_is_optional_and_may_fail():
    async def live(name):
        chain = load_chain([f"user_middleware.{name}"])
        await chain.start()
        await chain.stop()

    asyncio.run(live("HttpOnly"))
    asyncio.run(live("Stamp"))
    with pytest.raises(ConfigError, match="no licence"):
        asyncio.run(live("Broken"))
    assert load_chain(()) is None
