"""Reasoning and function calls as output items, and on the next turn as input."""

import json
import sys
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import itertools

from parser_doubles import AngleThinking, BracketCalls

from ortloom.models.reasoning_parsers.registry import reasoning_parser
from ortloom.models.tool_parsers.registry import tool_parser
from ortloom.server.output_parsers import OutputParsers

PATH = "/v1/responses"
GET_W = {"type": "function", "name": "get_w", "parameters": {"type": "object"}}
TOOLS = [GET_W, {"type": "function", "name": "noop"}]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}{% if m.tool_call_id %} {{ m.tool_call_id }}{% endif %}>"
    "{{ m.content }}{% if m.reasoning %}({{ m.reasoning }}){% endif %}"
    "{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }} "
    "{{ c.function.arguments | tojson }}]{% endfor %}{% endfor %}"
    "{% for t in tools or [] %}{{ '{' }}{{ t.function.name }}{{ '}' }}{% endfor %}"
)


@pytest.fixture(scope="module")
def app(start):
    parsers = OutputParsers(tool=BracketCalls, auto=True, reasoning=AngleThinking)
    front = {"enable_responses_store": True}
    with start(front=front, parsers=parsers, template=TEMPLATE) as running:
        yield running


@pytest.fixture(autouse=True)
def fresh(engine):
    """The engine behind the app is as new for each test."""


def body(**fields):
    return {"input": "Say hi", "temperature": 0, "max_output_tokens": 60, **fields}


def quick(**fields):
    """Without reasoning."""
    return body(chat_template_kwargs={"enable_thinking": False}, **fields)


def reply_of(app, fields):
    response = app.post(PATH, fields)
    assert response.status_code == 200, response.text
    return response.json()


def without_ids(output):
    volatile = ("id", "call_id")
    return [{k: v for k, v in item.items() if k not in volatile} for item in output]


def prompt_of(engine, tokenizer):
    return tokenizer.decode(engine.requests[-1].prompt_token_ids, False)


def test_reasoning_text_and_calls_are_items(app, say, events_of):
    say('so</r>sea[[get_w {"a": 1}]][[noop]]')
    reply = reply_of(app, body(tools=TOOLS))
    thought, message, first, second = reply["output"]
    assert [i["id"].split("_")[0] for i in reply["output"]] == ["rs", "msg", "fc", "fc"]
    assert thought == {
        "id": thought["id"],
        "summary": [],
        "type": "reasoning",
        "content": [{"text": "so", "type": "reasoning_text"}],
        "encrypted_content": None,
        "status": "completed",
    }
    assert message["content"][0]["text"] == "sea"
    assert first == {
        "arguments": '{"a": 1}',
        "call_id": first["call_id"],
        "name": "get_w",
        "type": "function_call",
        "id": first["id"],
        "namespace": None,
        "status": "completed",
    }
    assert (second["name"], second["arguments"]) == ("noop", "{}")
    assert len({first["call_id"], second["call_id"], ""}) == 3
    assert (reply["status"], reply["tool_choice"]) == ("completed", "auto")
    assert reply["tools"][0] == {**GET_W, "strict": None, "description": None}
    events = events_of(app.post(PATH, body(tools=TOOLS, stream=True)))
    folded = [events[0]["type"]]
    folded += [b["type"] for a, b in itertools.pairwise(events) if a["type"] != b["type"]]
    assert folded == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.reasoning_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.reasoning_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        *[
            "response.output_item.done",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
        ]
        * 2,
        "response.output_item.done",
        "response.completed",
    ]
    output = events[-1]["response"]["output"]
    assert without_ids(output) == without_ids(reply["output"])
    done = [e for e in events if e["type"] == "response.output_item.done"]
    assert [e["item"] for e in done] == output
    assert [e["output_index"] for e in done] == [0, 1, 2, 3]
    added = [e for e in events if e["type"] == "response.output_item.added"]
    assert added[0]["item"] == {**output[0], "content": None, "status": "in_progress"}
    assert added[2]["item"] == {**output[2], "arguments": "", "status": "in_progress"}
    arguments = [e for e in events if e["type"] == "response.function_call_arguments.done"]
    assert [(e["name"], e["arguments"]) for e in arguments] == [
        ("get_w", '{"a": 1}'),
        ("noop", "{}"),
    ]


def test_reasoning_is_counted_and_may_be_hidden(app, say, tokenizer):
    ids = say("so it is</r>sea")
    shown = reply_of(app, body())
    hidden = reply_of(app, body(include_reasoning=False))
    assert [i["type"] for i in shown["output"]] == ["reasoning", "message"]
    assert without_ids(hidden["output"]) == without_ids(shown["output"][1:])
    for reply in (shown, hidden):
        count = reply["usage"]["output_tokens_details"]["reasoning_tokens"]
        assert 0 < count <= len(tokenizer.encode("so it is</r>"))
        assert reply["usage"]["output_tokens"] == len(ids)


def test_logprobs_are_those_of_the_text(app, say):
    say("so it is</r> sea")
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    reply = reply_of(app, body(**fields))
    logprobs = reply["output"][1]["content"][0]["logprobs"]
    assert [entry["token"] for entry in logprobs][-2:] == [" sea", "<|im_end|>"]
    assert "so" not in "".join(entry["token"] for entry in logprobs)


def test_one_call_if_only_one_is_wanted(app, say):
    say("[[noop]][[noop]]")
    reply = reply_of(app, quick(tools=TOOLS, parallel_tool_calls=False))
    assert [i["type"] for i in reply["output"]] == ["function_call"]


def test_a_call_that_is_cut_off_is_incomplete(app, say, engine):
    say('[{"name": "get_w", "parameters": {"a": "long long long"}}]', end=False)
    fields = quick(tools=TOOLS, tool_choice="required")
    fields["max_output_tokens"] = 34
    reply = reply_of(app, fields)
    (call,) = reply["output"]
    assert (call["status"], reply["status"]) == ("incomplete", "incomplete")
    assert engine.requests[0].sampling.structured_output.kind == "json"
    # the next turn leaves it out: no template could show it
    assert reply_of(app, quick(previous_response_id=reply["id"]))["status"] == "incomplete"


@pytest.mark.parametrize(
    ("choice", "echo"),
    [
        ({"type": "function", "name": "get_w"}, {"type": "function", "name": "get_w"}),
        ("required", "required"),
    ],
)
def test_a_forced_call(app, say, choice, echo):
    arguments = '{"a": 1}'
    calls = json.dumps([{"name": "get_w", "parameters": {"a": 1}}])
    say(calls if choice == "required" else arguments)
    reply = reply_of(app, quick(tools=TOOLS, tool_choice=choice))
    (call,) = reply["output"]
    assert (call["name"], json.loads(call["arguments"])) == ("get_w", {"a": 1})
    assert reply["tool_choice"] == echo


def test_no_calls_with_tool_choice_none(app, say, engine, tokenizer):
    say("[[noop]]")
    reply = reply_of(app, quick(tools=TOOLS, tool_choice="none"))
    assert reply["output"][0]["content"][0]["text"] == "[[noop]]"
    assert prompt_of(engine, tokenizer).endswith("{get_w}{noop}")


def test_allowed_tools_are_the_ones_offered(app, say, engine, tokenizer):
    say("sea")
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [TOOLS[1]]}
    reply = reply_of(app, quick(tools=TOOLS, tool_choice=choice))
    assert reply["tool_choice"] == choice
    assert prompt_of(engine, tokenizer).endswith("hi{noop}")


def test_functions_in_a_namespace(app, say, engine, tokenizer, events_of):
    say("[[crm__find]]")
    space = {"type": "namespace", "name": "crm", "tools": [{"type": "function", "name": "find"}]}
    reply = reply_of(app, quick(tools=[space]))
    (call,) = reply["output"]
    assert (call["namespace"], call["name"]) == ("crm", "find")
    assert prompt_of(engine, tokenizer).endswith("{crm__find}")
    say("sea")
    reply_of(app, quick(previous_response_id=reply["id"], input=[]))
    assert f"[{call['call_id']} crm__find {{}}]" in prompt_of(engine, tokenizer)


def test_tools_of_openais_own_are_not_offered(app, say, engine, tokenizer):
    say("sea")
    tools = [{"type": "web_search"}, GET_W, {"type": "custom", "name": "c"}]
    assert reply_of(app, quick(tools=tools))["tools"][0] == {"type": "web_search"}
    assert prompt_of(engine, tokenizer).endswith("hi{get_w}")


def test_a_call_goes_on_with_its_output(app, say, engine, tokenizer):
    """The loop of an agent, by id and with all items sent anew: the same prompt."""
    engine.ready = msgspec.structs.replace(engine.ready, max_model_len=400)
    say('so</r>[[get_w {"a": 1}]]')
    first = reply_of(app, body(tools=TOOLS, instructions="Old."))
    call = first["output"][1]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sun"}
    say("x</r>sea")
    want = (
        f'<system>New.<user>Say hi<assistant>(so)[{call["call_id"]} get_w {{"a": 1}}]'
        f"<tool {call['call_id']}>sun"
    )
    user = {"role": "user", "content": "Say hi"}
    parts = [{"type": "input_text", "text": "sun"}]
    for fields in (
        {"previous_response_id": first["id"], "input": [result]},
        {"input": [user, *first["output"], result]},
        {"input": [user, *first["output"], {**result, "output": parts}]},
        {"input": [user, *({"id": i["id"]} for i in first["output"]), result]},
    ):
        reply_of(app, body(instructions="New.", **fields))
        assert prompt_of(engine, tokenizer) == want


@pytest.fixture(scope="module")
def hermes(start):
    parsers = OutputParsers(
        tool=tool_parser("hermes"), auto=True, reasoning=reasoning_parser("qwen3")
    )
    with start(parsers=parsers, template=TEMPLATE) as running:
        yield running


@pytest.mark.parametrize("step", [1, 3, 7, 60])
def test_steps_of_any_size_give_the_same_items(hermes, say, engine, events_of, step):
    """With parsers that models really have: what is held back comes out in its own item."""
    engine.ready = msgspec.structs.replace(engine.ready, max_model_len=400)
    engine.step = step
    say(
        "<think>\nso it is\n</think>\n\nThe sea.\n"
        '<tool_call>\n{"name": "get_w", "arguments": {"a": [1, "b"]}}\n</tool_call>\n'
        '<tool_call>\n{"name": "noop", "arguments": {}}\n</tool_call>'
    )
    fields = body(tools=TOOLS, max_output_tokens=300)
    reply = reply_of(hermes, fields)
    assert [i["type"] for i in reply["output"]] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    thought, message, *calls = reply["output"]
    assert thought["content"][0]["text"].strip() == "so it is"
    assert message["content"][0]["text"].strip() == "The sea."
    assert [(c["name"], json.loads(c["arguments"])) for c in calls] == [
        ("get_w", {"a": [1, "b"]}),
        ("noop", {}),
    ]
    events = events_of(hermes.post(PATH, {**fields, "stream": True}))
    last = events[-1]["response"]
    assert without_ids(last["output"]) == without_ids(reply["output"])
    assert last["usage"] == reply["usage"]
    for kind in ("reasoning_text", "output_text", "function_call_arguments"):
        texts = {}
        for event in events:
            if event["type"] == f"response.{kind}.delta":
                texts.setdefault(event["item_id"], []).append(event["delta"])
            elif event["type"] == f"response.{kind}.done":
                whole = event["arguments" if kind.startswith("function") else "text"]
                assert "".join(texts[event["item_id"]]) == whole
