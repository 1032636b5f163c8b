"""Pieces that go round their handler: the events are those of the long way, in the same order."""

import json

import pytest

from ortloom.config import LogConfig, RouteConfig
from ortloom.server.openai import completions
from ortloom.server.openai.chat_chunks import ChatChunks
from ortloom.server.openai.output_log import OutputLog

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = "/v1/messages"
TOKENS = "/inference/v1/generate"
RESPONSES = "/v1/responses"
BODIES = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 12},
    TEXT: {"model": "tiny", "prompt": "The sea", "max_tokens": 12},
}
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
CASES = {
    "chat": (CHAT, {}),
    "chat, logprobs": (CHAT, {"logprobs": True, "top_logprobs": 3}),
    "chat, own logprobs": (CHAT, {"logprobs": True}),
    "chat, names as ids": (
        CHAT,
        {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True},
    ),
    "chat, usage": (CHAT, USAGE),
    "chat, samples": (CHAT, {"n": 3, "logprobs": True, **USAGE}),
    "chat, ids": (CHAT, {"return_token_ids": True}),
    "chat, detail": (CHAT, {"logprobs_detail": True}),
    "chat, interval": (CHAT, {"stream_interval": 3, "logprobs": True}),
    "chat, stop": (CHAT, {"stop": ["and mystery"]}),
    "text": (TEXT, {}),
    "text, logprobs": (TEXT, {"logprobs": 3}),
    "text, all logprobs": (TEXT, {"logprobs": 0, "logprob_token_ids": [5, 6]}),
    "text, names as ids": (TEXT, {"logprobs": 2, "return_tokens_as_token_ids": True}),
    "text, usage": (TEXT, {"n": 2, **USAGE}),
    "text, echo": (TEXT, {"echo": True, "logprobs": 1}),
    "text, ids": (TEXT, {"return_token_ids": True}),
    "text, detail": (TEXT, {"logprobs_detail": True}),
    "text, interval": (TEXT, {"stream_interval": 4, "logprobs": 1}),
    "text, stop": (TEXT, {"stop": ["and"], "include_stop_str_in_output": True}),
    "text, prompts": (TEXT, {"prompt": ["The sea", "Small boats"], "n": 2}),
}


def events_of(app, engine, path, fields, offers):
    engine.offers = offers
    engine.taken = 0
    found = app.events(path, {**BODIES[path], "ignore_eos": True, **fields})
    for event in found:
        del event["id"], event["created"]
    return found


def by_choice(events):
    """Samples may be interleaved otherwise; each one's own order is fixed."""
    found = {}
    for event in events:
        found.setdefault(event["choices"][0]["index"] if event["choices"] else -1, []).append(event)
    return found


def without_usage(grouped):
    """Running usage counts all samples, so it depends on how they are interleaved."""
    for events in grouped.values():
        for event in events:
            event.pop("usage", None)
    return grouped


@pytest.fixture
def without_templates(monkeypatch):
    """Every event is built as a whole."""

    def patched(kind):
        begin = kind.__init__

        def init(self, *arguments):
            begin(self, *arguments)
            self._plain = False

        monkeypatch.setattr(kind, "__init__", init)

    def patch():
        patched(ChatChunks)
        patched(completions._Chunks)

    return patch


@pytest.mark.parametrize("name", list(CASES))
def test_the_events_are_those_of_the_long_way(app, engine, say, name, without_templates):
    path, fields = CASES[name]
    say(' place of 日本 100% "endless" wonder and mystery. a👍🏽b {x} %s\n', end=False)
    short = events_of(app, engine, path, fields, offers=True)
    assert engine.taken > 0
    without_templates()
    long = events_of(app, engine, path, fields, offers=False)
    assert engine.taken == 0
    assert len(short) == len(long)
    several = fields.get("n") or isinstance(fields.get("prompt"), list)
    if several:
        assert without_usage(by_choice(short)) == without_usage(by_choice(long))
    else:
        assert short == long


def unnamed(value):
    """Without what no two replies have in common."""
    if isinstance(value, list):
        return [unnamed(item) for item in value]
    if not isinstance(value, dict):
        return value
    own = ("id", "item_id", "request_id", "created_at", "completed_at")
    return {name: unnamed(item) for name, item in value.items() if name not in own}


@pytest.mark.parametrize("path", [MESSAGES, TOKENS, RESPONSES])
def test_other_routes_too(serve, engine, say, path):
    body = {
        MESSAGES: {
            "model": "tiny",
            "max_tokens": 12,
            "messages": [{"role": "user", "content": "hi"}],
        },
        TOKENS: {
            "token_ids": [1, 2, 3],
            "sampling_params": {"max_tokens": 12, "ignore_eos": True, "logprobs": 1},
        },
        RESPONSES: {"model": "tiny", "input": "hi", "max_output_tokens": 12},
    }[path]
    say(" a place of endless wonder", end=False)
    texts = []
    for offers in (False, True):
        engine.offers = offers
        with serve(front={"routes": RouteConfig(scale_out=True)}) as app:
            reply = app.post(path, {**body, "stream": True, "request_id": "same"})
        assert reply.status_code == 200, reply.text
        datas = [x[6:] for x in reply.text.splitlines() if x.startswith("data: {")]
        parsed = [unnamed(json.loads(data)) for data in datas]
        texts.append(parsed)
    assert texts[0] == texts[1]
    assert len(texts[0]) > 10
    assert engine.taken > 5


def test_the_role_comes_first_behind_a_keep_alive_comment(serve, engine, say):
    say(" a place", end=False)
    engine.delay = 0.3
    with serve(front={"sse_keep_alive_interval": 0.05}) as app:
        reply = app.post(CHAT, {**BODIES[CHAT], "stream": True})
    parts = [part for part in reply.text.split("\n\n") if part]
    assert parts[0] == ": keep-alive"
    first = next(part for part in parts if part.startswith("data: "))
    assert json.loads(first[6:])["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert engine.taken > 5


def test_a_failure_on_the_short_way_ends_the_stream_and_the_request(app, engine, say, monkeypatch):
    """What is raised there reaches the handler, which tells the client."""

    made = ChatChunks._plain_event

    def fail(self, piece):
        if engine.taken > 2:
            raise ZeroDivisionError
        return made(self, piece)

    say(" a place of endless wonder", end=False)
    monkeypatch.setattr(ChatChunks, "_plain_event", fail)
    reply = app.post(CHAT, {**BODIES[CHAT], "stream": True})
    assert reply.status_code == 200
    error, done, _ = reply.text.split("\n\n")[-3:]
    assert json.loads(error[6:])["error"]["code"] == 500
    assert done == "data: [DONE]"
    assert engine.taken == 3
    assert engine.all_closed.wait(5)


def test_logs_of_deltas_see_every_piece(app, engine, say, monkeypatch):
    noted = []
    monkeypatch.setattr(
        "ortloom.server.openai.to_engine.output_log",
        lambda response, stream, config: OutputLog(response, stream, LogConfig(log_outputs=True)),
    )
    monkeypatch.setattr(OutputLog, "_line", lambda self, *line: noted.append(line))
    ids = say(" a place of endless wonder", end=False)
    events_of(app, engine, TEXT, {}, offers=True)
    assert engine.taken > 5
    pieces = [line for line in noted if line[1] == " (streaming delta)"]
    assert [token for line in pieces for token in line[3]] == [ids[i % len(ids)] for i in range(12)]
