"""Tool calls and reasoning through the chat route, over a scripted engine."""

import json
import sys
from pathlib import Path

import openai
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from parser_doubles import AngleThinking, BracketCalls, OwnIdCalls

from ortloom.models.tool_parsers.registry import tool_parser
from ortloom.server.call_forms import CallForm
from ortloom.server.output_parsers import OutputParsers
from ortloom.server.own_syntax import OWN_SYNTAX

PATH = "/v1/chat/completions"
TOOLS = [
    {"type": "function", "function": {"name": "get_w", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "noop"}},
]
NAMED = {"type": "function", "function": {"name": "get_w"}}


def body(**fields):
    messages = [{"role": "user", "content": "Say hi"}]
    return {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 60, **fields}


@pytest.fixture(scope="module")
def calling(start):
    with start(parsers=OutputParsers(tool=BracketCalls, auto=True)) as running:
        yield running


@pytest.fixture(scope="module")
def thinking(start):
    parsers = OutputParsers(tool=BracketCalls, auto=True, reasoning=AngleThinking)
    with start(parsers=parsers) as running:
        yield running


@pytest.fixture(autouse=True)
def fresh(engine):
    """The engine behind every app is as new for each test."""


def choice_of(app, **fields):
    response = app.post(PATH, body(**fields))
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def chunks_of(app, **fields):
    return [e["choices"][0] for e in app.events(PATH, body(**fields)) if e["choices"]]


def rebuilt(chunks):
    """(reasoning, content, calls, finish reason) of a stream's chunks."""
    reasoning = content = ""
    calls, reasons = {}, []
    for chunk in chunks:
        delta = chunk["delta"]
        reasoning += delta.get("reasoning") or ""
        content += delta.get("content") or ""
        for part in delta.get("tool_calls") or ():
            if part["index"] not in calls:
                assert part["id"]
                assert part["type"] == "function"
                calls[part["index"]] = [part["function"]["name"], ""]
            else:
                assert set(part) == {"index", "function"}
                assert set(part["function"]) == {"arguments"}
            calls[part["index"]][1] += part["function"].get("arguments") or ""
        if chunk["finish_reason"] is not None:
            reasons.append(chunk["finish_reason"])
    assert len(reasons) == 1
    listed = [(name, json.loads(arguments)) for _, (name, arguments) in sorted(calls.items())]
    return reasoning, content, listed, reasons[0]


def test_automatic_calls_whole_and_streamed(calling, say):
    say('Sure. [[get_w {"c": "Oslo"}]][[noop]]')
    choice = choice_of(calling, tools=TOOLS)
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == "Sure. "
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["get_w", "noop"]
    assert message["tool_calls"][0]["function"]["arguments"] == '{"c": "Oslo"}'
    assert all(c["type"] == "function" for c in message["tool_calls"])
    assert rebuilt(chunks_of(calling, tools=TOOLS)) == (
        "",
        "Sure. ",
        [("get_w", {"c": "Oslo"}), ("noop", {})],
        "tool_calls",
    )


def test_a_call_alone_has_null_content(calling, say):
    say("[[noop]]")
    message = choice_of(calling, tools=TOOLS)["message"]
    assert message["content"] is None
    assert list(message)[-2:] == ["tool_calls", "reasoning"]


def test_text_without_a_call_stays_text(calling, say):
    say("The sea")
    choice = choice_of(calling, tools=TOOLS)
    assert choice["message"]["content"] == "The sea"
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"
    assert rebuilt(chunks_of(calling, tools=TOOLS)) == ("", "The sea", [], "stop")


def test_each_thing_of_a_step_has_a_chunk_of_its_own(calling, say, engine):
    say('Sure. [[get_w {"c": 1}]]')
    engine.step = 60
    deltas = [c["delta"] for c in chunks_of(calling, tools=TOOLS)]
    assert deltas[1] == {"content": "Sure. "}
    call = deltas[2]["tool_calls"][0]
    assert deltas[2] == {
        "content": None,
        "tool_calls": [
            {"id": call["id"], "type": "function", "index": 0, "function": {"name": "get_w"}}
        ],
    }
    function = {"arguments": '{"c": 1}'}
    assert deltas[3] == {"content": None, "tool_calls": [{"index": 0, "function": function}]}
    assert len(deltas) == 4


def test_steps_that_show_nothing_send_nothing_but_ids(calling, say):
    ids = say("[[noop]]")
    plain = chunks_of(calling, tools=TOOLS)
    assert [c["delta"] for c in plain][-1] == {}
    assert len(plain) == 4  # role, call, arguments, end
    asked = chunks_of(calling, tools=TOOLS, return_token_ids=True)
    assert [i for c in asked for i in c.get("token_ids") or ()] == ids


def test_logprobs_of_skipped_steps_come_with_the_next_chunk(calling, say):
    ids = say("[[noop]]")
    chunks = chunks_of(calling, tools=TOOLS, logprobs=True)
    listed = [entry for c in chunks if c["logprobs"] for entry in c["logprobs"]["content"]]
    assert len(listed) == len(ids)


def test_a_server_with_a_parser_ends_a_stream_with_an_empty_delta(calling, say):
    say("The sea")
    assert [c["delta"] for c in chunks_of(calling)][-1] == {}


def test_only_the_first_call_without_parallel_calls(calling, say):
    say("[[get_w {}]][[noop]]")
    fields = {"tools": TOOLS, "parallel_tool_calls": False}
    assert len(choice_of(calling, **fields)["message"]["tool_calls"]) == 1
    assert rebuilt(chunks_of(calling, **fields))[2] == [("get_w", {})]


def test_tool_choice_none_leaves_the_text(calling, say):
    say("[[noop]]")
    choice = choice_of(calling, tools=TOOLS, tool_choice="none")
    assert choice["message"]["content"] == "[[noop]]"
    assert choice["finish_reason"] == "stop"


def test_a_parser_without_automatic_calls_leaves_the_text(serve, say):
    say("[[noop]]")
    with serve(parsers=OutputParsers(tool=BracketCalls)) as app:
        assert choice_of(app, tools=TOOLS)["message"]["content"] == "[[noop]]"


def test_required_calls_need_no_parser(app, say, engine):
    say('[{"name": "get_w", "parameters": {"c": 1}}]')
    choice = choice_of(app, tools=TOOLS, tool_choice="required")
    assert choice["message"]["content"] == ""
    (call,) = choice["message"]["tool_calls"]
    assert call["id"].startswith("chatcmpl-tool-")
    assert call["function"] == {"name": "get_w", "arguments": '{"c": 1}'}
    assert choice["finish_reason"] == "tool_calls"
    schema = json.loads(engine.requests[0].sampling.structured_output.value)
    assert schema["minItems"] == 1
    assert "maxItems" not in schema
    chunks = chunks_of(app, tools=TOOLS, tool_choice="required")
    assert rebuilt(chunks) == ("", "", [("get_w", {"c": 1})], "tool_calls")


def test_required_with_one_call_at_most(app, say, engine):
    say('[{"name": "noop", "parameters": {}}]')
    choice_of(app, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert json.loads(engine.requests[0].sampling.structured_output.value)["maxItems"] == 1


def test_a_named_function_is_answered_by_its_arguments(app, say, engine):
    say('{"c": "Oslo"}')
    choice = choice_of(app, tools=TOOLS, tool_choice=NAMED)
    assert choice["message"]["content"] == ""
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"c": "Oslo"}'
    assert choice["finish_reason"] == "stop"
    assert json.loads(engine.requests[0].sampling.structured_output.value) == {"type": "object"}
    chunks = chunks_of(app, tools=TOOLS, tool_choice=NAMED)
    assert rebuilt(chunks) == ("", "", [("get_w", {"c": "Oslo"})], "stop")


def test_a_forced_call_that_is_cut_in_the_middle(app, say):
    say('[{"name": "get_w", "parameters": {"c": "Oslo"}}]', end=False)
    fields = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 12}
    choice = choice_of(app, **fields)
    assert choice["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"]


def test_a_format_that_keeps_its_own_syntax(serve, say, engine):
    say("[[noop]]")
    with serve(parsers=OutputParsers(tool=OwnIdCalls, auto=True)) as app:
        choice = choice_of(app, tools=TOOLS, tool_choice="required")
        assert choice["message"]["tool_calls"][0]["id"] == "own:0"
        assert choice["finish_reason"] == "tool_calls"
        sampling = engine.requests[0].sampling
        assert sampling.structured_output is None
        assert not sampling.skip_special_tokens
        choice_of(app)
        assert engine.requests[1].sampling.skip_special_tokens


def test_a_built_in_format_is_held_to_its_own_syntax(serve, say, engine):
    days = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": days}}]
    named = {"type": "function", "function": {"name": "f"}}
    text = "<|tool_call>call:f{n:3}<tool_call|>"
    parsers = OutputParsers(tool=tool_parser("gemma4"), auto=True, syntax=OWN_SYNTAX["gemma4"])
    say(text)
    with serve(parsers=parsers) as app:
        for choice, told in (("required", "tool_calls"), (named, "stop")):
            got = choice_of(app, tools=tools, tool_choice=choice)
            (call,) = got["message"]["tool_calls"]
            assert call["function"] == {"name": "f", "arguments": '{"n": 3}'}
            assert got["finish_reason"] == told
            constraint = engine.requests[-1].sampling.structured_output
            assert constraint.kind == "structural_tag"
            assert "<|tool_call>call:f{" in constraint.value
            chunks = chunks_of(app, tools=tools, tool_choice=choice)
            assert rebuilt(chunks) == ("", "", [("f", {"n": 3})], told)
        say('[{"name": "get_w", "parameters": {"c": 1}}]')
        got = choice_of(app, tools=TOOLS, tool_choice="required")  # its members are not known
        assert got["message"]["tool_calls"][0]["function"]["arguments"] == '{"c": 1}'
        assert engine.requests[-1].sampling.structured_output.kind == "json"


def test_special_tokens_that_are_no_markers_stay_hidden(serve, engine, tokenizer):
    end = tokenizer.eos_token_id
    (start,) = tokenizer.encode("<|im_start|>")
    ids = [*tokenizer.encode("a"), end, *tokenizer.encode("b"), start]
    engine.reply = lambda request: ids
    fields = {"tools": TOOLS, "ignore_eos": True, "max_tokens": 4}
    with serve(parsers=OutputParsers(tool=OwnIdCalls, auto=True)) as app:
        assert choice_of(app, **fields)["message"]["content"] == "ab<|im_start|>"
        shown = choice_of(app, **fields, skip_special_tokens=False)
        assert shown["message"]["content"] == "a<|im_end|>b<|im_start|>"
        assert choice_of(app, ignore_eos=True, max_tokens=4)["message"]["content"] == "ab"


def test_named_and_structured_outputs_exclude_each_other(app):
    fields = {"tools": TOOLS, "tool_choice": NAMED, "structured_outputs": {"regex": "a"}}
    response = app.post(PATH, body(**fields))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "structured_outputs"


@pytest.mark.parametrize("hides", [True, False])
def test_tools_can_be_hidden_from_the_template(serve, say, engine, hides, tokenizer):
    say("hi")
    template = "{% if tools %}{{ tools[0].function.name }}{% endif %}x"
    front = {"exclude_tools_when_tool_choice_none": hides}
    with serve(front=front, template=template) as app:
        choice_of(app, tools=TOOLS, tool_choice="none")
    text = tokenizer.decode(engine.requests[0].prompt_token_ids)
    assert text == ("x" if hides else "get_wx")


def test_reasoning_is_a_member_of_its_own(thinking, say):
    say("I think</r>The sea")
    choice = choice_of(thinking)
    assert choice["message"]["reasoning"] == "I think"
    assert choice["message"]["content"] == "The sea"
    assert rebuilt(chunks_of(thinking)) == ("I think", "The sea", [], "stop")


def test_reasoning_then_a_call(thinking, say, engine):
    say("I [[think]]</r>[[noop]]")
    for step in (1, 3, 60):
        engine.step = step
        assert rebuilt(chunks_of(thinking, tools=TOOLS)) == (
            "I [[think]]",
            "",
            [("noop", {})],
            "tool_calls",
        )


def test_reasoning_that_uses_up_the_budget(thinking, say):
    say("I think and think", end=False)
    choice = choice_of(thinking, max_tokens=4)
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning"]
    assert choice["finish_reason"] == "length"
    reasoning, content, _, reason = rebuilt(chunks_of(thinking, max_tokens=4))
    assert (reasoning, content, reason) == (choice["message"]["reasoning"], "", "length")


def test_reasoning_can_be_left_out(thinking, say):
    ids = say("I think</r>The sea")
    response = thinking.post(PATH, body(include_reasoning=False)).json()
    assert response["choices"][0]["message"]["reasoning"] is None
    assert response["choices"][0]["message"]["content"] == "The sea"
    assert response["usage"]["completion_tokens"] == len(ids)
    fields = {"include_reasoning": False, "logprobs": True, "return_token_ids": True}
    chunks = chunks_of(thinking, **fields)
    assert rebuilt(chunks) == ("", "The sea", [], "stop")
    assert all(c["logprobs"] is None and c.get("token_ids") is None for c in chunks)


def test_samples_do_not_mix(calling, engine, tokenizer):
    texts = ["[[noop]]", 'one [[get_w {"c": 2}]]', "plain"]
    eos = tokenizer.eos_token_id

    def reply(request):
        return [*tokenizer.encode(texts[request.sampling.sample_index]), eos]

    engine.reply = reply
    events = calling.events(PATH, body(tools=TOOLS, n=3, temperature=1.0))
    by_index = {i: [] for i in range(3)}
    for event in events:
        by_index[event["choices"][0]["index"]].append(event["choices"][0])
    assert rebuilt(by_index[0]) == ("", "", [("noop", {})], "tool_calls")
    assert rebuilt(by_index[1]) == ("", "one ", [("get_w", {"c": 2})], "tool_calls")
    assert rebuilt(by_index[2]) == ("", "plain", [], "stop")


def test_the_openai_client_puts_a_streamed_call_together(calling, say):
    say('Sure. [[get_w {"c": "Oslo"}]]')
    client = openai.OpenAI(base_url=f"{calling.url}/v1", api_key="none")
    with client, client.chat.completions.stream(**body(tools=TOOLS)) as stream:
        for _ in stream:
            pass
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert call.function.name == "get_w"
    assert json.loads(call.function.arguments) == {"c": "Oslo"}


CITY = {"type": "object", "properties": {"c": {"enum": ["Oslo"]}}}


def tag_of(request):
    constraint = request.sampling.structured_output
    return None if constraint is None else json.loads(constraint.value)["format"]


@pytest.mark.parametrize(
    ("level", "strict", "schemas"),
    [
        ("auto", False, None),
        ("auto", True, [True, False]),
        ("function", False, [False, False]),
        ("function", True, [True, False]),
        ("parameter", False, [True, True]),
    ],
)
def test_automatic_calls_are_as_strict_as_asked_for(serve, say, engine, level, strict, schemas):
    """--tool-strict-level, VLLM_ENFORCE_STRICT_TOOL_CALLING"""
    say("hi")
    form = CallForm("<c>", "<c>NAME ", "</c>")
    parsers = OutputParsers(tool=BracketCalls, auto=True, form=form, strict=level)
    first = {"name": "get_w", "parameters": CITY, "strict": strict}
    tools = [{"type": "function", "function": first}, TOOLS[1]]
    with serve(parsers=parsers) as app:
        choice_of(app, tools=tools, parallel_tool_calls=False)
        choice_of(app, tools=tools, tool_choice="none")
        choice_of(app)
    made = tag_of(engine.requests[0])
    assert tag_of(engine.requests[1]) is None
    assert tag_of(engine.requests[2]) is None
    if schemas is None:
        assert made is None
        return
    assert made["type"] == "triggered_tags"
    assert made["triggers"] == ["<c>"]
    assert made["stop_after_first"]
    assert [(t["begin"], t["end"]) for t in made["tags"]] == [
        ('<c>"get_w" ', "</c>"),
        ('<c>"noop" ', "</c>"),
    ]
    found = [t["content"]["json_schema"] != {"type": "object"} for t in made["tags"]]
    assert found == schemas


def test_a_request_with_a_constraint_of_its_own_keeps_it(serve, say, engine):
    say("hi")
    form = CallForm("<c>", "<c>NAME ", "</c>")
    parsers = OutputParsers(tool=BracketCalls, auto=True, form=form, strict="parameter")
    with serve(parsers=parsers) as app:
        choice_of(app, tools=TOOLS, structured_outputs={"regex": "a"})
    assert engine.requests[0].sampling.structured_output.kind == "regex"


def test_forced_usage_is_in_every_chunk_with_reasoning_tokens(serve, say):
    ids = say("I think</r>The sea")
    parsers = OutputParsers(reasoning=AngleThinking)
    with serve(parsers=parsers, front={"enable_force_include_usage": True}) as app:
        events = app.events(PATH, body())
        assert all("usage" in event for event in events)
        assert events[0]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
        last = events[-1]
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == len(ids)
        streamed = last["usage"]["completion_tokens_details"]["reasoning_tokens"]
        whole = app.post(PATH, body()).json()["usage"]["completion_tokens_details"]
        assert whole["reasoning_tokens"] == streamed
        assert 0 < streamed < len(ids)


def parser_uses(app):
    """(mode, outcome, request type) -> uses of the parser so far, without zeros."""
    uses = {}
    for family in app.context.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "vllm:tool_call_parser_invocations_total" and sample.value:
                labels = sample.labels
                key = labels["mode"], labels["outcome"], labels["request_type"]
                uses[key] = sample.value
    return uses


def test_uses_of_the_parser_are_counted(serve, say):
    with serve(parsers=OutputParsers(tool=BracketCalls, auto=True)) as app:
        say("[[noop]]")
        choice_of(app, tools=TOOLS)
        whole = {("non_streaming", "tool_call", "chat_completions"): 1.0}
        assert parser_uses(app) == whole
        choice_of(app, tools=TOOLS, tool_choice="none")
        assert parser_uses(app) == whole
        say("The sea")
        choice_of(app, tools=TOOLS)
        whole["non_streaming", "no_tool_call", "chat_completions"] = 1.0
        assert parser_uses(app) == whole
        say("[[noop]]")
        chunks_of(app, tools=TOOLS)
        uses = parser_uses(app)
        assert uses.pop(("streaming", "tool_call", "chat_completions")) >= 1.0
        uses.pop(("streaming", "no_tool_call", "chat_completions"), None)
        assert uses == whole
