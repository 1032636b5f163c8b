"""What the processes of a server log with the logging flags, as JSON lines."""

import json

import pytest
from serving import Server, body, until

from ortloom.config import LogConfig


@pytest.fixture(scope="module")
def talking(bundle):
    log = LogConfig(formatter="json", error_stack=True, iteration_details=True, reply_bodies=True)
    with Server(bundle, log=log, access_log_skip=("/version",)) as running:
        yield running


def records(server):
    return [json.loads(line) for line in server.text().splitlines() if line.startswith("{")]


def found(server, **members):
    return [r for r in records(server) if all(r.get(k) == v for k, v in members.items())]


def test_steps_are_logged(talking):
    talking.complete(prompt="abcdef", max_tokens=3)

    def steps():
        made = [r["message"] for r in found(talking, vllm_process_name="engine")]
        return [m for m in made if m.startswith("Iteration(")][-3:]

    first, second, third = until(lambda: len(steps()) == 3 and steps())
    assert "1 context requests, 6 context tokens, 0 generation requests, 0 generation" in first
    for line in (second, third):
        assert "0 context requests, 0 context tokens, 1 generation requests, 1 generation" in line
    assert first.endswith(" ms")


@pytest.mark.parametrize("path", ["/v1/completions", "/nowhere"])
def test_error_replies_have_their_stack(talking, path):
    reply = talking.client.post(path, json=body(temperature=-1))
    assert reply.status_code in (400, 404)

    def stacks():
        made = found(talking, name="ortloom.server", levelname="ERROR")
        return [r for r in made if f"answer {reply.status_code}" in r["message"]]

    assert "Traceback" in until(stacks)[0]["exc_info"]


def test_access_lines_leave_out_what_was_asked(talking):
    for path in ("/version", "/ping"):
        assert talking.client.get(path).status_code == 200
    made = until(
        lambda: [r for r in found(talking, name="ortloom.access") if "/ping" in r["message"]]
    )
    assert made[0]["vllm_process_name"] == "front-0"
    assert not [r for r in found(talking, name="ortloom.access") if "/version" in r["message"]]


def test_bodies_of_replies_are_logged(talking):
    reply = talking.complete(max_tokens=2)
    stream = talking.complete(max_tokens=2, stream=True)

    def bodies():
        return [
            r["message"].partition("response_body=")[2]
            for r in found(talking, name="ortloom.replies")
        ]

    assert until(lambda: reply.text in bodies())
    assert until(lambda: stream.text in "".join(bodies()))
