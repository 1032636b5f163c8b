"""Render routes of messages and responses, and rendering with reasoning and tools."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from parser_doubles import AngleThinking, BracketCalls

from ortloom.config import RouteConfig
from ortloom.server.output_parsers import OutputParsers

CHAT = "/v1/chat/completions"
GENERATE = "/inference/v1/generate"
HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "get_w", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def shared_thinking(start):
    parsers = OutputParsers(tool=BracketCalls, auto=True, reasoning=AngleThinking)
    with start(parsers=parsers, front={"routes": RouteConfig(scale_out=True)}) as running:
        yield running


@pytest.fixture
def thinking(shared_thinking, engine):
    return shared_thinking


@pytest.mark.parametrize("path", ["/v1/messages/render", "/v1/responses/render"])
def test_they_need_the_flag(app, path):
    assert app.post(path, {}).status_code == 403


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"model": "tiny", "messages": HI, "max_tokens": 5, "top_k": 3}),
        ("/v1/responses", {"model": "tiny", "input": "hi", "max_output_tokens": 5, "top_k": 3}),
    ],
)
def test_the_engine_is_asked_for_the_same(thinking, engine, say, path, body):
    say("x")
    assert thinking.post(path, body).status_code == 200
    rendered = thinking.post(f"{path}/render", body).json()
    assert thinking.post(GENERATE, rendered).status_code == 200
    direct, through = engine.requests
    assert through.prompt_token_ids == direct.prompt_token_ids
    assert through.sampling.top_k == direct.sampling.top_k == 3
    assert through.sampling.max_tokens == direct.sampling.max_tokens == 5


@pytest.mark.parametrize("ended", [None, True, False])
def test_a_constraint_waits_for_reasoning(thinking, engine, ended):
    params = {"max_tokens": 2, "structured_outputs": {"regex": "a"}}
    asked = {"token_ids": [5], "sampling_params": params, "reasoning_ended": ended}
    assert thinking.post(GENERATE, asked).status_code == 200
    sampling = engine.requests[-1].sampling
    if ended or thinking.context.parsers.markers is None:
        assert sampling.thinking is None
    else:
        assert sampling.thinking.open is (True if ended is False else None)


def without_ids(reply):
    for name in ("id", "created", "system_fingerprint"):
        reply.pop(name, None)
    for choice in reply["choices"]:
        for call in choice["message"].get("tool_calls") or ():
            call.pop("id")
    return reply


def folded(events):
    text = {"content": "", "reasoning": ""}
    calls, reasons = {}, []
    for event in events:
        for choice in event["choices"]:
            for name in text:
                text[name] += choice["delta"].get(name) or ""
            for part in choice["delta"].get("tool_calls") or ():
                call = calls.setdefault(part["index"], ["", ""])
                call[0] += part["function"].get("name") or ""
                call[1] += part["function"].get("arguments") or ""
            reasons.append(choice["finish_reason"])
    return text, calls, [reason for reason in reasons if reason]


@pytest.mark.parametrize(
    "text",
    [
        '<think>why</think>hi [[get_w {"a": 1}]]',
        "plain",
        '[[get_w {"a": 1}]][[get_w {}]]',
        "<think>on and on",
    ],
)
def test_calls_and_reasoning_come_back(thinking, say, text):
    say(text)
    asked = {"messages": HI, "tools": TOOLS, "max_tokens": 60}
    whole = thinking.post(CHAT, asked).json()
    rendered = thinking.post(f"{CHAT}/render", asked).json()
    ids = rendered["token_ids"]
    more = {"chat_request": asked, "prompt_token_ids": ids, "prompt_tokens": len(ids)}
    generated = thinking.post(GENERATE, rendered).json()
    back = thinking.post(f"{CHAT}/derender", {"generate_response": generated, **more}).json()
    assert without_ids(back) == without_ids(whole)

    asked = {**asked, "stream": True}
    direct = thinking.events(CHAT, asked)
    chunks = thinking.events(GENERATE, {**rendered, "stream": True})
    state, found = None, []
    for chunk in chunks:
        body = {"stream": True, "generate_chunk": chunk, "stream_state": state, **more}
        reply = thinking.post(f"{CHAT}/derender", body).json()
        found.append(reply["chunk"])
        state = reply["stream_state"]
    assert folded(found) == folded(direct)
