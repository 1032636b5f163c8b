import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from parser_doubles import AngleThinking, BracketCalls, OwnIdCalls, folded

from ortloom.models.reasoning_parsers.registry import reasoning_parser
from ortloom.models.tool_parsers.registry import tool_parser
from ortloom.models.tool_parsers.tool_parser import ArgumentsDelta, CallStart, ToolSpec
from ortloom.server.openai.chat_chunks import joined
from ortloom.server.openai.forced_calls import ForcedCalls
from ortloom.server.openai.output_parts import OutputPlan

TOOLS = (ToolSpec("get_w", {"type": "object"}), ToolSpec("noop"))
TWO = (
    '[{"name": "get_w", "parameters": {"c": "a\\"}],[{b", "n": [1, {"x": 2.5}]}}, '
    '{"name":"noop","parameters":{}}]'
)
TWO_CALLS = [("get_w", {"c": 'a"}],[{b', "n": [1, {"x": 2.5}]}), ("noop", {})]


def every_cut(plan, text):
    """The folded events of a text pushed whole, by character, and cut at every position."""
    cuts = [[text], list(text)] + [[text[:i], text[i:]] for i in range(len(text) + 1)]
    results = []
    for pieces in cuts:
        parts = plan.follow()
        events = [event for piece in pieces for event in parts.push(piece)] + parts.finish()
        results.append(folded(joined(events)))
        assert parts.called == bool(results[-1][2])
    assert all(result == results[0] for result in results)
    return results[0]


def agrees(plan, text):
    """The stream's result, which must equal that of the whole text."""
    reasoning, content, calls = every_cut(plan, text)
    whole = plan.whole(text)
    assert (whole.reasoning or "", whole.content or "") == (reasoning, content)
    assert [(c.name, json.loads(c.arguments)) for c in whole.calls] == calls
    assert all(call.call_id for call in whole.calls)
    return whole


def test_without_parsers_text_is_content():
    whole = agrees(OutputPlan(), "[[get_w {}]] </r> x")
    assert (whole.reasoning, whole.content, whole.calls) == (None, "[[get_w {}]] </r> x", ())


def test_forced_calls_at_every_cut():
    whole = agrees(OutputPlan(mode="required", tools=TOOLS), TWO)
    assert [(c.name, json.loads(c.arguments)) for c in whole.calls] == TWO_CALLS
    assert whole.content == ""
    assert len({c.call_id for c in whole.calls}) == 2
    assert whole.calls[0].call_id.startswith("chatcmpl-tool-")


@pytest.mark.parametrize("value", ["3", "-1.5e3", "null", '"a,}"', "[1,2]", "true"])
def test_forced_arguments_of_any_type(value):
    text = f'[{{"name":"noop","parameters":{value} }} , {{"name":"noop","parameters":{value}}}]'
    whole = agrees(OutputPlan(mode="required", tools=TOOLS), text)
    assert [c.arguments for c in whole.calls] == [value, value]


def test_forced_names_with_escapes_and_swapped_members():
    text = '[{"parameters": {"a": 1}, "name": "g\\u0065t\\"w"}]'
    whole = agrees(OutputPlan(mode="required"), text)
    assert [(c.name, c.arguments) for c in whole.calls] == [('get"w', '{"a": 1}')]


def test_a_forced_list_that_was_cut_keeps_whole_calls_only():
    plan = OutputPlan(mode="required")
    cut = TWO[: TWO.index("noop") + 8]
    assert [c.name for c in plan.whole(cut).calls] == ["get_w"]
    nothing = plan.whole(TWO[:30])
    assert (nothing.content, nothing.calls) == (TWO[:30], ())


def test_a_cut_stream_keeps_what_was_sent():
    parts = OutputPlan(mode="required").follow()
    events = joined(parts.push('[{"name":"noop","parameters":{"a": tr') + parts.finish())
    assert [type(e) for e in events] == [CallStart, ArgumentsDelta]
    assert events[1].fragment == '{"a": tr'


def test_arguments_are_sent_as_they_come():
    parts = ForcedCalls()
    assert parts.push('[{"name":"noop","parameters":{"a"') == [
        CallStart(0, "noop"),
        ArgumentsDelta(0, '{"a"'),
    ]
    assert parts.push(': "x') == [ArgumentsDelta(0, ': "x')]


def test_a_named_function_takes_the_whole_text():
    plan = OutputPlan(mode="named", named="get_w", tools=TOOLS)
    whole = agrees(plan, '{"city": "Oslo"}')
    assert [(c.name, c.arguments) for c in whole.calls] == [("get_w", '{"city": "Oslo"}')]
    assert whole.content == ""
    assert [(c.name, c.arguments) for c in agrees(plan, "").calls] == [("get_w", "{}")]


def test_automatic_calls():
    plan = OutputPlan(mode="auto", tools=TOOLS, tool_parser=BracketCalls)
    whole = agrees(plan, 'Well [ok. [[get_w {"c": 1}]] [[noop]] rest')
    assert whole.content == "Well [ok. "
    assert [c.name for c in whole.calls] == ["get_w", "noop"]
    assert agrees(plan, "only [text [").content == "only [text ["
    assert plan.whole("[[noop]]").content is None


def test_a_formats_own_ids_are_kept():
    plan = OutputPlan(mode="auto", tools=TOOLS, tool_parser=OwnIdCalls)
    assert plan.whole("[[noop]]").calls[0].call_id == "own:0"
    (start, _) = plan.follow().push("[[noop]]")
    assert start.call_id == "own:0"


@pytest.mark.parametrize("mode", ["required", "auto"])
def test_without_parallel_calls_the_first_one_stays(mode):
    parser = BracketCalls if mode == "auto" else None
    text = TWO if mode == "required" else "[[get_w {}]] [[noop]]"
    plan = OutputPlan(mode=mode, tools=TOOLS, tool_parser=parser, parallel=False)
    assert [c.name for c in agrees(plan, text).calls] == ["get_w"]


def test_reasoning_comes_before_calls():
    plan = OutputPlan(
        mode="auto", tools=TOOLS, tool_parser=BracketCalls, reasoning_parser=AngleThinking
    )
    whole = agrees(plan, "<r>I [[could]] call</r>Now [[noop]]")
    assert whole.reasoning == "I [[could]] call"
    assert whole.content == "Now "
    assert [c.name for c in whole.calls] == ["noop"]


def test_reasoning_that_never_ends():
    plan = OutputPlan(reasoning_parser=AngleThinking)
    whole = agrees(plan, "never ends </")
    assert (whole.reasoning, whole.content) == ("never ends </", None)
    named = OutputPlan(mode="named", named="noop", reasoning_parser=AngleThinking)
    assert agrees(named, "never ends").calls == ()


def test_reasoning_can_be_dropped_and_switched_off():
    hidden = OutputPlan(reasoning_parser=AngleThinking, include_reasoning=False)
    assert agrees(hidden, "a</r>b").content == "b"
    assert agrees(hidden, "a</r>b").reasoning is None
    off = OutputPlan(reasoning_parser=AngleThinking, template_kwargs={"enable_thinking": False})
    assert agrees(off, "a</r>b").content == "a</r>b"


def test_forced_calls_after_reasoning():
    plan = OutputPlan(mode="required", tools=TOOLS, reasoning_parser=AngleThinking)
    whole = agrees(plan, f"hm [{{</r>{TWO}")
    assert whole.reasoning == "hm [{"
    assert [(c.name, json.loads(c.arguments)) for c in whole.calls] == TWO_CALLS


@pytest.mark.parametrize(
    ("mode", "reason", "called", "told"),
    [
        ("auto", "stop", True, "tool_calls"),
        ("auto", "length", True, "tool_calls"),
        ("auto", "length", False, "length"),
        ("required", "stop", True, "tool_calls"),
        ("required", "length", False, "length"),
        ("named", "stop", True, "stop"),
        ("named", "length", True, "length"),
        ("off", "stop", False, "stop"),
        ("auto", None, True, None),
    ],
)
def test_finish_reasons(mode, reason, called, told):
    assert OutputPlan(mode=mode).finish_reason(reason, called) == told


CALL = '<tool_call>{"name": "get_w", "arguments": {"city": "Oslo"}}</tool_call>'


@pytest.mark.parametrize(
    ("reasoning", "text", "thought", "content"),
    [
        ("qwen3", f"<think>hm</think>\n\n{CALL}", "hm", None),
        ("qwen3", f"<think>hm {CALL}", "hm ", None),  # the call ends the reasoning
        ("qwen3", f"hm</think>Well. {CALL}", "hm", "Well. "),
        ("deepseek_r1", f"hm {CALL}</think>Well. {CALL}", f"hm {CALL}", "Well. "),
        (None, f"Well. {CALL}", None, "Well. "),
    ],
)
def test_the_parsers_of_real_families_together(reasoning, text, thought, content):
    plan = OutputPlan(
        mode="auto",
        tools=TOOLS,
        tool_parser=tool_parser("hermes"),
        reasoning_parser=None if reasoning is None else reasoning_parser(reasoning),
    )
    whole = agrees(plan, text)
    assert [(c.name, json.loads(c.arguments)) for c in whole.calls] == [("get_w", {"city": "Oslo"})]
    assert whole.reasoning == thought
    assert (whole.content or "").strip() == (content or "").strip()


def test_a_prompt_that_closed_the_reasoning_leaves_content():
    plan = OutputPlan(reasoning_parser=reasoning_parser("qwen3"), prompt="x<think>\n\n</think>\n\n")
    assert agrees(plan, "The sea").content == "The sea"
