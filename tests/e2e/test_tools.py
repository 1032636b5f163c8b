"""Tool calls and reasoning by the demo model. It calls nothing by itself, so a constraint makes it
write what a model with tools would."""

import json
import sys

import openai
import pytest

served = sys.modules["ortloom_test_served"]

PLUGIN = """
from ortloom.models.tool_parsers.hermes import HermesParser
from ortloom.models.tool_parsers.registry import register

register("mine", type("Mine", (HermesParser,), {}))
"""
TOOL = {
    "type": "function",
    "function": {
        "name": "get_w",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Oslo", '日本 👍 "q"']},
                "days": {"enum": [1.5]},
                "at": {
                    "type": "object",
                    "properties": {"hour": {"enum": [7]}},
                    "required": ["hour"],
                },
            },
            "required": ["city", "days", "at"],
        },
    },
}
CALL = '<tool_call>{"name": "get_w", "arguments": {"city": "Oslo"}}</tool_call>'


@pytest.fixture(scope="module")
def server(demo_bundle, tmp_path_factory):
    plugin = tmp_path_factory.mktemp("plugin") / "mine.py"
    plugin.write_text(PLUGIN)
    flags = [
        *("--max-model-len", "512", "--num-gpu-blocks-override", "64"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "mine"),
        *("--tool-parser-plugin", str(plugin), "--reasoning-parser", "deepseek_r1"),
        *("--reasoning-effort-budgets", '{"low": 4}'),
        *("--reasoning-config", '{"reasoning_end_str": "Enough.</think>"}'),
    ]
    with served.Served(demo_bundle, *flags) as running:
        yield running


@pytest.fixture(scope="module")
def create(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        model = client.models.list().data[0].id

        def call(extra=None, **fields):
            messages = [{"role": "user", "content": "Weather in Oslo?"}]
            base = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 90}
            extra = {"thinking_token_budget": 3, **(extra or {})}
            return client.chat.completions.create(**{**base, **fields}, extra_body=extra)

        yield call


def collected(stream):
    """(reasoning, content, {index: [name, arguments]}, finish reason) of a stream."""
    reasoning = content = ""
    calls, reason = {}, None
    for chunk in stream:
        for choice in chunk.choices:
            delta = choice.delta
            reasoning += getattr(delta, "reasoning", None) or ""
            content += delta.content or ""
            for part in delta.tool_calls or ():
                if part.id:
                    assert part.index not in calls
                    calls[part.index] = [part.function.name, ""]
                calls[part.index][1] += part.function.arguments or ""
            reason = choice.finish_reason or reason
    return reasoning, content, calls, reason


@pytest.mark.parametrize("choice", ["required", "named"])
def test_a_forced_call_after_reasoning_is_the_same_whole_and_streamed(create, choice):
    named = {"type": "function", "function": {"name": "get_w"}}
    fields = {"tools": [TOOL], "tool_choice": named if choice == "named" else choice}
    fields["parallel_tool_calls"] = False
    reply = create(**fields)
    message = reply.choices[0].message
    (call,) = message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] in ("Oslo", '日本 👍 "q"')
    assert (arguments["days"], arguments["at"]) == (1.5, {"hour": 7})
    assert call.function.name == "get_w"
    assert message.content == ""
    told = "stop" if choice == "named" else "tool_calls"
    assert reply.choices[0].finish_reason == told
    assert message.reasoning.endswith("Enough.")
    streamed = collected(create(**fields, stream=True))
    calls = {0: ["get_w", call.function.arguments]}
    assert streamed == (message.reasoning, "", calls, told)


def test_a_call_that_the_model_writes_by_itself(create):
    fields = {"tools": [TOOL], "extra": {"structured_outputs": {"choice": [CALL]}}}
    message = create(**fields).choices[0].message
    assert message.content is None
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_w", {"city": "Oslo"})
    reasoning, content, calls, reason = collected(create(**fields, stream=True))
    assert (reasoning, content, reason) == (message.reasoning, "", "tool_calls")
    assert [(n, json.loads(a)) for n, a in calls.values()] == [("get_w", {"city": "Oslo"})]


def test_budgets_of_reasoning(create):
    reply = create(max_tokens=16)
    # three free tokens, then those of the closing sentence
    assert reply.choices[0].message.reasoning.endswith("Enough.")
    counted = reply.usage.completion_tokens_details.reasoning_tokens
    assert 3 < counted < 3 + len("Enough.")
    none = create(extra={"thinking_token_budget": 0}, max_tokens=16)
    assert none.choices[0].message.reasoning == "Enough."
    assert none.usage.completion_tokens_details.reasoning_tokens == counted - 3
    by_effort = create(extra={"thinking_token_budget": None}, reasoning_effort="low", max_tokens=16)
    assert by_effort.usage.completion_tokens_details.reasoning_tokens == counted + 1
    free = create(extra={"thinking_token_budget": -1}, max_tokens=16)
    assert free.choices[0].message.content is None
    assert free.choices[0].finish_reason == "length"
    assert free.usage.completion_tokens_details.reasoning_tokens == 16


def test_content_after_reasoning_fits_its_schema(create):
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    asked = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    message = create(response_format=asked).choices[0].message
    assert json.loads(message.content) == {"a": "x"}
    assert message.reasoning


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_no_call_can_fit_is_refused_at_once(create, stream):
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 1}},
        "required": ["a"],
    }
    tool = {"type": "function", "function": {"name": "never", "parameters": parameters}}
    with pytest.raises(openai.BadRequestError):
        create(tools=[tool], tool_choice="required", stream=stream)


def test_bad_words_do_not_come_back_in_longer_tokens(create):
    extra = {"thinking_token_budget": 0, "ignore_eos": True}
    text = create(extra=extra, max_tokens=24).choices[0].message.content
    words = [word for word in text.split() if word.isalnum() and word.isascii()]
    for bad in (words[0], " ".join(words[:2]) if " ".join(words[:2]) in text else words[1]):
        reply = create(extra={**extra, "bad_words": [bad]}, max_tokens=24)
        assert bad not in reply.choices[0].message.content
        assert reply.usage.completion_tokens == 24
