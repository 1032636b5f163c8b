"""Tool use and thinking of the Messages API, over a scripted engine."""

import json
import sys
from pathlib import Path

import anthropic
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from parser_doubles import AngleThinking, BracketCalls

from ortloom.models.tool_parsers.tool_parser import (
    ArgumentsDelta,
    CallStart,
    ContentDelta,
    ParsedTools,
    ToolCall,
    ToolParser,
)
from ortloom.server.anthropic.events import BlockEvents
from ortloom.server.output_parsers import OutputParsers, ThinkingMarkers

TOOLS = [
    {"name": "get_w", "input_schema": {"type": "object", "properties": {"c": {"type": "string"}}}},
    {"name": "noop", "input_schema": {}},
]


def asked(**fields):
    messages = [{"role": "user", "content": "hi"}]
    fields = {"model": "tiny", "max_tokens": 60, "messages": messages, **fields}
    return {"extra_body": {"temperature": 0}, **fields}


class Interrupted(ToolParser):
    """Says something in the middle of a call."""

    def push(self, text):
        return []

    def finish(self):
        return [
            CallStart(0, "get_w"),
            ArgumentsDelta(0, '{"c":'),
            ContentDelta("wait"),
            ArgumentsDelta(0, '"x"}'),
            CallStart(1, "noop"),
            ArgumentsDelta(1, "{}"),
        ]

    def parse(self, text):
        return ParsedTools("wait", (ToolCall("get_w", '{"c":"x"}'), ToolCall("noop", "{}")))


def client_of(app):
    return anthropic.Anthropic(base_url=app.url, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def calling(start):
    with start(parsers=OutputParsers(tool=BracketCalls, auto=True)) as running:
        yield running


@pytest.fixture(scope="module")
def thinking(start, tokenizer):
    closing = tuple(tokenizer.encode("</r>"))
    markers = ThinkingMarkers("<r>", "</r>", None, None, (), closing)
    parsers = OutputParsers(tool=BracketCalls, auto=True, reasoning=AngleThinking, markers=markers)
    with start(parsers=parsers) as running:
        yield running


@pytest.fixture(autouse=True)
def fresh(engine):
    """The engine behind every app is as new for each test."""


def both(app, **fields):
    """The message, and the same message streamed."""
    with client_of(app) as client:
        plain = client.messages.create(**asked(**fields))
        with client.messages.stream(**asked(**fields)) as stream:
            streamed = stream.get_final_message()
    return plain, streamed


def shown(message):
    kinds = {"text": "text", "thinking": "thinking", "tool_use": "input"}
    return [(b.type, getattr(b, kinds[b.type])) for b in message.content]


def test_a_call(calling, say):
    say('ok [[get_w {"c": "a"}]]')
    for message in both(calling, tools=TOOLS):
        assert shown(message) == [("text", "ok "), ("tool_use", {"c": "a"})]
        assert message.content[1].name == "get_w"
        assert message.content[1].id
        assert message.stop_reason == "tool_use"
        assert message.stop_sequence is None


def test_events_of_a_call(calling, say):
    say('[[get_w {"c": "a"}]]')
    body = {**asked(tools=TOOLS), "stream": True, "temperature": 0}
    del body["extra_body"]
    text = calling.post("/v1/messages", body).text
    events = [json.loads(e.split("\n")[1][6:]) for e in text.split("\n\n") if e]
    assert [e["type"] for e in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    block = events[1]["content_block"]
    assert set(block) == {"type", "id", "name", "input"}
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "get_w", {})
    assert events[2]["delta"] == {"type": "input_json_delta", "partial_json": '{"c": "a"}'}
    assert events[4]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize("one", [False, True])
def test_several_calls(calling, say, one):
    say('[[get_w {"c": "a"}]][[noop]]')
    choice = {"type": "auto", "disable_parallel_tool_use": one}
    for message in both(calling, tools=TOOLS, tool_choice=choice):
        calls = [("tool_use", {"c": "a"}), ("tool_use", {})]
        assert shown(message) == calls[: 1 if one else 2]


def test_no_call_wanted(calling, say, engine):
    say("[[noop]]")
    for message in both(calling, tools=TOOLS, tool_choice={"type": "none"}):
        assert shown(message) == [("text", "[[noop]]")]
        assert message.stop_reason == "end_turn"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_w"}])
def test_a_call_that_must_be_made(app, say, engine, choice):
    call = {"name": "get_w", "parameters": {"c": "a"}}
    say(json.dumps([call] if choice["type"] == "any" else call["parameters"]))
    for message in both(app, tools=TOOLS, tool_choice=choice):
        assert shown(message) == [("tool_use", {"c": "a"})]
        assert message.stop_reason == "tool_use"
    assert all(r.sampling.structured_output is not None for r in engine.requests)


def test_a_call_cut_by_the_limit_is_told_as_such(calling, say):
    say("[[noop]] and more", end=False)
    for message in both(calling, tools=TOOLS):
        assert message.stop_reason == "max_tokens"


def test_thinking_words_and_call(thinking, say):
    say('hm</r>ok [[get_w {"c": "a"}]]')
    for message in both(thinking, tools=TOOLS):
        kinds = [("thinking", "hm"), ("text", "ok "), ("tool_use", {"c": "a"})]
        assert shown(message) == kinds
        assert message.content[0].signature
        assert message.stop_reason == "tool_use"


def test_events_of_thinking(thinking, say):
    say("hm</r>ok")
    body = {**asked(), "stream": True, "temperature": 0}
    del body["extra_body"]
    text = thinking.post("/v1/messages", body).text
    events = [json.loads(e.split("\n")[1][6:]) for e in text.split("\n\n") if e]
    start = next(e for e in events if e["type"] == "content_block_start")
    assert start["content_block"] == {"type": "thinking", "thinking": ""}
    deltas = [e["delta"]["type"] for e in events if e["type"] == "content_block_delta"]
    assert deltas == sorted(deltas, key=["thinking_delta", "signature_delta", "text_delta"].index)
    assert deltas.count("signature_delta") == 1


def test_only_thoughts(thinking, say):
    say("hm")
    for message in both(thinking):
        assert shown(message) == [("thinking", "hm")]
        assert message.stop_reason == "end_turn"


def test_a_turn_comes_back(thinking, say, engine, tokenizer):
    say('hm</r>ok [[get_w {"c": "a"}]]')
    plain, _ = both(thinking, tools=TOOLS)
    call = plain.content[2]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "5"}
    messages = [plain.to_param(), {"role": "user", "content": [result]}]
    with client_of(thinking) as client:
        client.messages.create(**asked(messages=messages, tools=TOOLS, max_tokens=5))
    text = tokenizer.decode(engine.requests[-1].prompt_token_ids, False)
    assert text == (
        "<|im_start|>assistant\nok <|im_end|>\n<|im_start|>tool\n5<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_thinking_budget_bounds_it_where_it_can(thinking, app, say, engine):
    given = {"type": "enabled", "budget_tokens": 3}
    for running in (thinking, app):
        say("hm</r>ok")
        with client_of(running) as client:
            client.messages.create(**asked(thinking=given))
    bounded, free = (request.sampling.thinking for request in engine.requests)
    assert bounded.budget == 3
    assert free is None


def test_words_in_the_middle_of_a_call_come_after_it(start, say):
    say("x")
    with start(parsers=OutputParsers(tool=Interrupted, auto=True)) as app:
        plain, streamed = both(app, tools=TOOLS)
    calls = [("tool_use", {"c": "x"}), ("tool_use", {})]
    assert shown(plain) == [("text", "wait"), *calls]
    assert shown(streamed) == [calls[0], ("text", "wait"), calls[1]]


def test_blocks_open_and_close_one_by_one():
    blocks = BlockEvents()
    data = [
        *blocks.thinking("a"),
        *blocks.thinking(""),
        *blocks.text("b"),
        *blocks.call(0, "i", "n"),
        *blocks.arguments(0, "{}"),
        *blocks.arguments(1, "lost"),
        *blocks.text("c"),
        *blocks.thinking("d"),
        *blocks.close(),
        *blocks.close(),
    ]
    events = [json.loads(e.split(b"\n")[1][6:]) for e in data]
    opened = None
    for event in events:
        if event["type"] == "content_block_start":
            assert opened is None
            opened = event["index"]
        assert event["index"] == opened
        if event["type"] == "content_block_stop":
            opened = None
    assert opened is None
    starts = [e["content_block"]["type"] for e in events if e["type"] == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use", "text", "thinking"]
    assert [e["index"] for e in events if e["type"] == "content_block_start"] == [0, 1, 2, 3, 4]
