"""Every tool-call parser against its corpus: at once, and cut in every way.

tests/data/tool_parsers/<family>.jsonl: the first line names the parsers, each further line is one
output with what is expected of it:

- text, content, calls: the output and what it says; `id` of a call where the model gives one.
- stream: content that a stream has sent where that differs.
- kind: "malformed" or "cut" where only the whole output says what is expected; a stream may have
  sent a part by then, which must be the beginning of JSON.
"""

import json
import random
from pathlib import Path

import pytest

from ortloom.models.tool_parsers.registry import tool_parser, tool_parser_names
from ortloom.models.tool_parsers.tool_parser import (
    ArgumentsDelta,
    CallStart,
    ContentDelta,
    ParsedTools,
    ToolCall,
    ToolSpec,
)

DATA = Path(__file__).parents[1] / "data" / "tool_parsers"

TOOLS = [
    ToolSpec(
        "get_temp",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "ratio": {"type": "number"},
                "celsius": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "where": {
                    "type": "object",
                    "properties": {
                        "lat": {"type": "number"},
                        "near": {"type": "array", "items": {"type": "string"}},
                        "sea": {"type": "boolean"},
                    },
                },
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
        },
    ),
    ToolSpec("get_time"),
]


def _corpora():
    """name → [(where, row), …]"""
    corpora = {}
    for path in sorted(DATA.glob("*.jsonl")):
        head, *rows = [json.loads(line) for line in path.read_text().splitlines()]
        for name in head["parsers"]:
            corpora[name] = [(f"{path.name}:{line}", row) for line, row in enumerate(rows, 2)]
    return corpora


CORPORA = _corpora()

CLASSES = {tool_parser(name): name for name in reversed(CORPORA)}
"""One name of each class: equal classes need not be cut twice."""


def stream(name, pieces):
    """(content, calls) of the events of a stream; checks what every stream must keep to."""
    parser = tool_parser(name)(TOOLS)
    text = "".join(pieces)
    events = [event for piece in pieces for event in parser.push(piece)]
    events += parser.finish()
    content, calls = [], []
    for event in events:
        if isinstance(event, ContentDelta):
            assert event.text
            content.append(event.text)
        elif isinstance(event, CallStart):
            assert event.index == len(calls)
            assert event.name
            calls.append([event.name, "", event.call_id])
        else:
            assert isinstance(event, ArgumentsDelta)
            assert event.fragment
            assert event.index == len(calls) - 1, "a call that is not the last one"
            calls[event.index][1] += event.fragment
    for call in calls:
        if name == "mistral":  # the model's own, or drawn at random
            assert len(call[2]) == 9
            assert call[2].isalnum()
            call[2] = call[2] if call[2] in text else None
    return "".join(content), [ToolCall(*call) for call in calls]


def comparable(value):
    """A JSON value so that 1, 1.0 and true differ."""
    return json.dumps(value, sort_keys=True)


def check_calls(calls, row, where):
    assert [call.name for call in calls] == [want["name"] for want in row["calls"]], where
    for call, want in zip(calls, row["calls"], strict=True):
        assert comparable(json.loads(call.arguments)) == comparable(want["arguments"]), where
        if "id" in want:
            assert call.call_id == want["id"], where


def cuttings(text):
    """One character a time, every two-way split (every third of a long text), a few random ones."""
    yield list(text)
    for cut in range(1, len(text), 1 if len(text) < 140 else 3):
        yield [text[:cut], text[cut:]]
    rng = random.Random(len(text))
    for _ in range(5):
        cuts = sorted(rng.sample(range(len(text) + 1), min(len(text), rng.randint(2, 9))))
        yield [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def begins_json(text):
    """Whether text is JSON or the beginning of some."""
    closers, in_string, escaped = [], False, False
    for char in text:
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
        elif char == '"':
            in_string = True
        elif char in "{[":
            closers.append("}" if char == "{" else "]")
        elif char in "}]":
            closers.pop()
    end = "".join(reversed(closers))
    heads = (
        [text + '"', text[:-1] + '"', text + '0000"', text + '00"', text + '0"']
        if in_string
        else [text]
    )
    heads += [
        text + tail for tail in ("e", "ue", "rue", "l", "ll", "ull", "se", "lse", "alse", "0")
    ]
    ends = ["", ": null", "null", '"x": null', "0"]
    for head in heads:
        for tail in ends:
            try:
                json.loads(head + tail + end)
            except ValueError:
                continue
            return True
    return False


@pytest.mark.parametrize("name", CORPORA)
def test_a_whole_output(name):
    for where, row in CORPORA[name]:
        parsed = tool_parser(name)(TOOLS).parse(row["text"])
        assert parsed.content == row["content"], where
        check_calls(parsed.calls, row, where)


@pytest.mark.parametrize("name", sorted(CLASSES.values()))
def test_a_stream_says_the_same_however_it_is_cut(name):
    for where, row in CORPORA[name]:
        text = row["text"]
        first = stream(name, [text])
        if "kind" not in row:
            assert first[0] == row.get("stream", row["content"] or ""), where
            check_calls(first[1], row, where)
        for call in first[1]:
            assert begins_json(call.arguments), (where, call.arguments)
        for pieces in cuttings(text):
            assert stream(name, pieces) == first, (where, pieces)


def test_every_parser_has_a_corpus():
    assert set(CORPORA) == set(tool_parser_names()) - {"plugged", "plugged_too"}


def test_every_corpus_has_every_kind_of_row():
    for path in DATA.glob("*.jsonl"):
        _, *rows = [json.loads(line) for line in path.read_text().splitlines()]
        kinds = {row.get("kind", "whole") for row in rows}
        assert {"whole", "malformed", "cut"} <= kinds, path.name
        assert any(len(row["calls"]) > 1 for row in rows), path.name
        assert any(call["arguments"] == {} for row in rows for call in row["calls"]), path.name


def test_llama_has_no_content_beside_calls():
    parsed = tool_parser("llama3_json")(TOOLS).parse(
        'Well.<|python_tag|>{"name": "get_time", "parameters": {}}'
    )
    assert parsed.content is None
    assert [call.name for call in parsed.calls] == ["get_time"]


def test_a_call_is_known_as_early_as_can_be():
    """A name once it is whole; a string's text as it comes; other values once they are whole."""
    parser = tool_parser("qwen3_coder")(TOOLS)
    assert parser.push("<tool_call>\n<function=get_temp>") == [CallStart(0, "get_temp")]
    assert parser.push("\n<parameter=city>\nOs") == [ArgumentsDelta(0, '{"city": "Os')]
    assert parser.push("lo\n") == [ArgumentsDelta(0, "lo")]
    assert parser.push("</parameter>\n<parameter=days>\n1") == [ArgumentsDelta(0, '"')]
    assert parser.push("2\n</parameter>") == [ArgumentsDelta(0, ', "days": 12')]
    assert parser.push("\n</function>") == [ArgumentsDelta(0, "}")]
    parser = tool_parser("hermes")(TOOLS)
    assert parser.push('<tool_call>{"name": "get_t') == []
    assert parser.push('emp"') == [CallStart(0, "get_temp")]
    assert parser.push(', "arguments": {"ci') == [ArgumentsDelta(0, '{"ci')]


def test_two_calls_in_one_piece_and_parts_held_back():
    parser = tool_parser("kimi_k2")(TOOLS)
    one = (
        "<|tool_call_begin|>functions.get_time:{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    )
    text = "Hi <|tool_calls_section_begin|>" + one.format(0) + one.format(1)
    assert parser.push(text) == [
        ContentDelta("Hi "),
        CallStart(0, "get_time", "functions.get_time:0"),
        ArgumentsDelta(0, "{}"),
        CallStart(1, "get_time", "functions.get_time:1"),
        ArgumentsDelta(1, "{}"),
    ]
    parser = tool_parser("kimi_k2")(TOOLS)
    assert parser.push("a <|tool_calls_sec") == [ContentDelta("a ")]
    assert parser.push("ret") == [ContentDelta("<|tool_calls_secret")]


def test_a_call_without_arguments_has_sent_an_object_when_it_is_cut():
    for name, text in [
        ("hermes", '<tool_call>{"name": "get_time"'),
        ("qwen3_coder", "<tool_call>\n<function=get_time>\n"),
        ("openai", "<|channel|>commentary to=functions.get_time<|message|>"),
    ]:
        content, calls = stream(name, [text])
        assert content == ""
        assert calls == [ToolCall("get_time", "{}")], name


def test_work_on_what_never_becomes_a_call_is_bounded():
    """After thousands of openings without a call the rest is text, whatever it is."""
    text = "<tool_call>" * 5000 + '<tool_call>{"name": "get_time"}</tool_call>'
    assert stream("hermes", [text]) == (text, [])
    assert stream("hermes", [text[i : i + 7] for i in range(0, len(text), 7)]) == (text, [])


@pytest.mark.parametrize("name", ["qwen3_coder", "deepseek_v31", "gemma4", "dots", "minimax_m3"])
def test_one_bad_block_does_not_cost_the_good_ones(name):
    rows = [row for _, row in CORPORA[name]]
    good = rows[1]["text"]
    bad = next(row["text"] for row in rows if row.get("kind") == "malformed")
    for text in (f"{bad}\n{good}", f"{good}\n{bad}"):
        parsed = tool_parser(name)(TOOLS).parse(text)
        assert [call.name for call in parsed.calls] == ["get_temp", "get_time"], text


@pytest.mark.parametrize("name", ["hermes", "jamba", "lfm2", "apertus"])
def test_one_bad_block_of_plain_json_or_python_costs_all(name):
    rows = [row for _, row in CORPORA[name]]
    bad = next(row["text"] for row in rows if row.get("kind") == "malformed")
    text = f"{rows[0]['text']}\n{bad}"
    assert tool_parser(name)(TOOLS).parse(text) == ParsedTools(text)


def test_which_formats_keep_their_own_syntax():
    """Special tokens are kept where markers are some; a forced choice keeps these formats."""
    own = {name for name in tool_parser_names() if not tool_parser(name).grammar_calls}
    assert own >= {
        "dots",
        "gemma4",
        "glm45",
        "glm47",
        "inkling",
        "kimi_k3",
        "ling3",
        "mistral",
        "muse_glimmer",
        "poolside_v1",
    }
    assert {"hermes", "pythonic", "llama3_json", "deepseek_v3"}.isdisjoint(own)
    for name in [
        "hermes",
        "granite4",
        "internlm",
        "jamba",
        "kimi_k2",
        "kimi_k3",
        "gemma4",
        "lfm2",
        "gigachat3",
        "apertus",
        "cohere_command3",
        "cohere_command4",
        "functiongemma",
        "minicpm5",
        "openai",
        "mistral",
    ]:
        assert tool_parser(name).keeps_special_tokens, name
    assert not tool_parser("pythonic").keeps_special_tokens
