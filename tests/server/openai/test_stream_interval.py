"""--stream-interval on the routes that stream; a request's own value wins."""

import json
from contextlib import contextmanager

import msgspec
import pytest

from ortloom.config import SchedulerConfig
from ortloom.models.tool_parsers.bare_json import LlamaJsonParser
from ortloom.server.output_parsers import OutputParsers


@pytest.fixture
def threes(app):
    """The shared server as if it had been started with --stream-interval 3."""
    with interval(app, 3):
        yield app


@contextmanager
def interval(app, tokens):
    before = app.context.config
    app.context.config = msgspec.structs.replace(
        before, scheduler=SchedulerConfig(stream_interval=tokens)
    )
    yield
    app.context.config = before


PROMPTS = {
    "/v1/completions": {"prompt": "The sea is"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}


@pytest.mark.parametrize("path", list(PROMPTS))
@pytest.mark.parametrize(("own", "sizes"), [(None, [1, 3, 3, 1]), (4, [1, 4, 3]), (1, [1] * 8)])
def test_the_servers_interval_holds_where_a_request_has_none(threes, say, path, own, sizes):
    say(" a place of endless wonder", end=False)
    fields = {"model": "tiny", "temperature": 0, "max_tokens": 8, "ignore_eos": True}
    fields |= {"return_token_ids": True, **PROMPTS[path]}
    if own is not None:
        fields["stream_interval"] = own
    events = threes.events(path, fields)
    found = [len(e["choices"][0].get("token_ids") or ()) for e in events]
    assert [count for count in found if count] == sizes


@pytest.fixture(scope="module")
def calling(start):
    """Reads tool calls, and stores responses."""
    parsers = OutputParsers(tool=LlamaJsonParser, auto=True)
    with start(front={"enable_responses_store": True}, parsers=parsers) as running:
        yield running


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FORCED = '{"city": "Small boats drift"}'
CALL = f'{{"name":"f","parameters":{FORCED}}}'
CALLERS = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
    },
    "/v1/messages": {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "f", "input_schema": SCHEMA}],
    },
    "/v1/responses": {
        "input": "hi",
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
    },
}
NAMED = {
    "/v1/chat/completions": {"type": "function", "function": {"name": "f"}},
    "/v1/messages": {"type": "tool", "name": "f"},
    "/v1/responses": {"type": "function", "name": "f"},
}


def fragments(response):
    """The pieces of a call's arguments in a stream of any of the routes, as they came."""
    assert response.status_code == 200, response.text
    found = []
    for line in response.text.splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line.removeprefix("data: "))
        if event.get("type") == "response.function_call_arguments.delta":
            found.append(event["delta"])
        elif event.get("type") == "content_block_delta":
            found.append(event["delta"].get("partial_json"))
        for choice in event.get("choices", ()):
            calls = choice["delta"].get("tool_calls") or ()
            found += [call["function"].get("arguments") for call in calls]
    return [fragment for fragment in found if fragment]


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("path", list(CALLERS))
def test_calls_come_in_fewer_pieces_too(calling, engine, say, path, forced):
    fields = {"model": "tiny", "temperature": 0, "stream": True, **CALLERS[path]}
    fields["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = 44
    if forced:
        fields["tool_choice"] = NAMED[path]
    counts = []
    for tokens in (1, 4):
        say(FORCED if forced else CALL)
        with interval(calling, tokens):
            found = fragments(calling.post(path, fields))
        assert json.loads("".join(found)) == json.loads(FORCED)
        counts.append(len(found))
    assert counts[0] > 8
    assert 1 < counts[1] <= counts[0] / 2


def test_a_response_comes_in_fewer_pieces(calling, engine, say):
    """In the foreground, and in the background, where the events are kept."""
    text = " a place of endless wonder"
    body = {"model": "tiny", "input": "hi", "temperature": 0, "stream": True}
    for more in ({}, {"background": True}):
        counts = []
        for tokens in (1, 3):
            say(text, end=False)
            with interval(calling, tokens):
                reply = calling.post("/v1/responses", {**body, "max_output_tokens": 8, **more})
            events = [
                json.loads(line.removeprefix("data: "))
                for line in reply.text.splitlines()
                if line.startswith("data: ")
            ]
            parts = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
            assert [e["sequence_number"] for e in events] == list(range(len(events)))
            assert events[-1]["response"]["output"][0]["content"][0]["text"] == "".join(parts)
            counts.append(len(parts))
        assert counts == [8, 4]
