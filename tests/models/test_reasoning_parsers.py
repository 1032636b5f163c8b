"""Every reasoning parser against its corpus: at once, and cut in every way.

tests/data/reasoning_parsers/<family>.jsonl: the first line names the parsers, each further line is
one output with its reasoning and content; `kwargs` and `prompt` are what the parser is made with,
`stream` is what a stream gives where it differs.
"""

import json
import random
from pathlib import Path

import pytest

from ortloom.models.reasoning_parsers.registry import reasoning_parser, reasoning_parser_names
from ortloom.models.tool_parsers.registry import tool_parser

DATA = Path(__file__).parents[1] / "data" / "reasoning_parsers"


def _corpora():
    corpora = {}
    for path in sorted(DATA.glob("*.jsonl")):
        head, *rows = [json.loads(line) for line in path.read_text().splitlines()]
        for name in head["parsers"]:
            corpora[name] = [(f"{path.name}:{line}", row) for line, row in enumerate(rows, 2)]
    return corpora


CORPORA = _corpora()


def make(name, row):
    return reasoning_parser(name)(row.get("kwargs"), row.get("prompt"))


def stream(parser, pieces):
    splits = [parser.push(piece) for piece in pieces] + [parser.finish()]
    return "".join(s.reasoning for s in splits), "".join(s.content for s in splits)


def cuttings(text):
    yield list(text)
    for cut in range(1, len(text)):
        yield [text[:cut], text[cut:]]
    rng = random.Random(len(text))
    for _ in range(5):
        cuts = sorted(rng.sample(range(len(text) + 1), min(len(text), rng.randint(2, 9))))
        yield [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("name", CORPORA)
def test_a_whole_output(name):
    for where, row in CORPORA[name]:
        want = row["reasoning"], row["content"]
        assert make(name, row).parse(row["text"]) == want, where


@pytest.mark.parametrize("name", CORPORA)
def test_a_stream_says_the_same_however_it_is_cut(name):
    for where, row in CORPORA[name]:
        want = tuple(row.get("stream", (row["reasoning"] or "", row["content"] or "")))
        for pieces in cuttings(row["text"]):
            assert stream(make(name, row), pieces) == want, (where, pieces)


def test_every_parser_has_a_corpus():
    assert set(CORPORA) == {n for n in reasoning_parser_names() if not n.startswith("plugged")}


def test_whether_reasoning_comes_next():
    parser = reasoning_parser("qwen3")()
    seen = [parser.reasoning]
    for piece in ("<think>", "hm", "</thi", "nk>", "4"):
        parser.push(piece)
        seen.append(parser.reasoning)
    assert seen == [True, True, True, True, False, False]
    assert reasoning_parser("qwen3")({"enable_thinking": False}).reasoning is False
    assert reasoning_parser("mistral")().reasoning is False
    assert reasoning_parser("mistral")(prompt="hi[THINK]").reasoning is True
    assert reasoning_parser("think_auto")().reasoning is False
    assert reasoning_parser("think_auto")(prompt="hi<think>\n").reasoning is True
    assert reasoning_parser("minimax_m3")().reasoning is False
    assert reasoning_parser("openai_gptoss")().reasoning is True


def test_markers_for_a_thinking_budget():
    assert reasoning_parser("deepseek_r1").end == "</think>"
    assert reasoning_parser("mistral").start == "[THINK]"
    assert reasoning_parser("minimax_m2_append_think").end is None
    assert reasoning_parser("k2_horizon")({"reasoning_effort": "low"}).end == "</ifm|think_faster>"


CALL = {"name": "f", "arguments": {"a": "</think> <|end|>"}}


@pytest.mark.parametrize(
    ("reasoning", "tool", "text", "content"),
    [
        (
            "qwen3",
            "hermes",
            f"I call</think>\n<tool_call>{json.dumps(CALL)}</tool_call>",
            None,
        ),
        (
            "qwen3",
            "qwen3_coder",
            "I call<tool_call>\n<function=f>\n<parameter=a>\n</think> <|end|>\n</parameter>\n"
            "</function>\n</tool_call>",
            None,
        ),
        (
            "openai_gptoss",
            "openai",
            "<|channel|>analysis<|message|>I call<|end|><|start|>assistant<|channel|>commentary"
            f" to=functions.f <|constrain|>json<|message|>{json.dumps(CALL['arguments'])}<|call|>",
            None,
        ),
        (
            "muse_glimmer",
            "muse_glimmer",
            " to=self<|message|>I call<|eom|><|start|>assistant to=user<|message|>Yes.<|eom|>"
            '<|start|>assistant to=f<|message|><atem:function_calls><atem:invoke name="f">'
            '<atem:parameter name="a"></think> <|end|></atem:parameter></atem:invoke>'
            "</atem:function_calls><|eom|>",
            "Yes.",
        ),
        (
            "inkling",
            "inkling",
            "<|content_thinking|>I call<|end_message|><|message_model|><|content_invoke_tool_json|>"
            f'{{"name": "f", "args": {json.dumps(CALL["arguments"])}}}<|end_message|>',
            None,
        ),
        (
            "cohere_command3",
            "cohere_command3",
            "<|START_THINKING|>I call<|END_THINKING|><|START_ACTION|>["
            f'{{"tool_name": "f", "parameters": {json.dumps(CALL["arguments"])}}}]<|END_ACTION|>',
            None,
        ),
        (
            "kimi_k3",
            "kimi_k3",
            "I call<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|>"
            '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
            '<|open|>argument key="a" type="string"<|sep|></think> <|end|><|close|>argument<|sep|>'
            "<|close|>call<|sep|><|close|>tools<|sep|>",
            "Yes.",
        ),
        (
            "gemma4",
            "gemma4",
            "<|channel>thought\nI call<channel|>"
            '<|tool_call>call:f{a:<|"|></think> <|end|><|"|>}<tool_call|>',
            None,
        ),
    ],
)
def test_what_is_left_of_reasoning_is_for_the_tool_parser(reasoning, tool, text, content):
    for pieces in cuttings(text):
        thoughts, rest = stream(reasoning_parser(reasoning)(), pieces)
        parsed = tool_parser(tool)([]).parse(rest)
        assert (thoughts, parsed.content) == ("I call", content)
        (call,) = parsed.calls
        assert call.name == "f"
        assert json.loads(call.arguments) == CALL["arguments"]
