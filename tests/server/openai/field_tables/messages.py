"""The Messages API: both routes, and the parts of their bodies."""

import json

from field_tables.generation import number, streamed
from field_tables.rows import (
    BAD,
    OMIT,
    RULE,
    SAME,
    Field,
    Kind,
    asked,
    everything,
    ignored,
    no,
    ok,
    reply,
    sampling,
    wrong,
)
from ortloom.server.anthropic.wire import (
    ContentBlock,
    CountTokensRequest,
    InputMessage,
    MessagesRequest,
    MessagesTool,
    MessagesToolChoice,
    OutputConfig,
    OutputFormat,
    Thinking,
)

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
HI = [{"role": "user", "content": "hi"}]
TOOL = {"name": "get_w", "input_schema": {"type": "object", "properties": {}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
HEAD = "<|im_start|>user\n"
TAIL = "<|im_end|>\n<|im_start|>assistant\n"
CALLS = '</r>[[get_w {"a": 1}]][[get_w {}]]'


def turn(content, role="user"):
    return {"role": role, "content": content}


def calls(sight):
    return sum(block["type"] == "tool_use" for block in sight.json["content"])


def kind_of(sight):
    constraint = sight.request.sampling.structured_output
    return None if constraint is None else constraint.kind


def effort(sight):
    return ("think" in sight.prompt, "quick" in sight.prompt)


def budget(sight):
    thinking = sight.request.sampling.thinking
    return None if thinking is None else thinking.budget


def missing(place):
    return {"missing": no(OMIT, BAD, place, "required"), "null": no(None, BAD, place)}


def prompt(sight):
    return sight.prompt


# Fields of both routes. Of counting only the number of tokens can be seen, so there the values are
# compared with those of the other route.
BOTH = {
    "model": Field(
        reply("model"),
        None,
        [ok("tiny", "tiny"), ok("other", "tiny")],
        [
            *wrong("model", 5, ""),
            no("nope", "not_found_error", None, "`nope`", status=404),
        ],
        **missing("body.model"),
    ),
    "messages": Field(
        prompt,
        None,
        [
            ok(HI, HEAD + "hi" + TAIL),
            ok([turn([{"type": "text", "text": "a"}])], HEAD + "a" + TAIL),
        ],
        [
            *wrong("messages", "hi", {}),
            no([5], BAD, "body.messages.0"),
            no([], RULE, None, "no message"),
            no([turn("many words " * 60)], RULE, None, "64", messages_only=True),
            no([turn("a"), turn([{"text": "a"}])], BAD, "body.messages.1.content.0.type"),
        ],
        **missing("body.messages"),
    ),
    "system": Field(
        prompt,
        HEAD + "hi" + TAIL,
        [
            ok("S", "<|im_start|>system\nS<|im_end|>\n" + HEAD + "hi" + TAIL),
            ok([{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
               "<|im_start|>system\nS<|im_end|>\n" + HEAD + "hi" + TAIL),
            ok("", SAME),
            ok([], SAME),
        ],
        [
            *wrong("system", 5, {}),
            no([{"type": "words", "text": "a"}], BAD, "body.system.0.type"),
        ],
    ),
    "tools": Field(
        lambda s: "get_w" in s.prompt,
        False,
        [ok([TOOL], True, on="open"), ok([], False)],
        [
            *wrong("tools", "x", {}),
            no([5], BAD, "body.tools.0"),
            no([TOOL], RULE, None, "--tool-call-parser", messages_only=True),
        ],
    ),
    "tool_choice": Field(
        lambda s: (kind_of(s), calls(s)),
        (None, 2),
        [
            ok({"type": "auto"}, (None, 2)),
            ok({"type": "any"}, ("json", 1), _say='</r>[{"name": "get_w", "parameters": {}}]'),
            ok({"type": "tool", "name": "get_w"}, ("json", 1), _say="</r>{}"),
            ok({"type": "none"}, (None, 0)),
        ],
        [
            *wrong("tool_choice", "auto", 5),
            no({"type": "auto"}, RULE, None, tools=OMIT, messages_only=True),
            no({"type": "tool", "name": "other"}, RULE, None, messages_only=True),
        ],
        beside={"tools": [TOOL], "_say": CALLS, "max_tokens": 400},
        on="open",
    ),
    "thinking": Field(
        effort,
        (False, False),
        [
            ok({"type": "disabled"}, (False, True)),
            ok({"type": "enabled", "budget_tokens": 5}, (False, False)),
            ok({"type": "adaptive"}, (False, False)),
            ok({"type": "disabled"}, (False, True), output_config={"effort": "low"}),
        ],
        [*wrong("thinking", True, "x"), no({}, BAD, "body.thinking.type", "required")],
    ),
    "output_config": Field(
        lambda s: (*effort(s), kind_of(s)),
        (False, False, None),
        [
            ok({"effort": "max"}, (True, False, None)),
            ok({"format": {"type": "json_schema", "schema": SCHEMA}}, (False, False, "json")),
            ok({}, (False, False, None)),
        ],
        wrong("output_config", "x", 5),
    ),
    "chat_template_kwargs": Field(
        lambda s: "calm" in s.prompt,
        False,
        [ok({"mood": "calm"}, True), ok({}, False)],
        [*wrong("chat_template_kwargs", 5), no({"tools": []}, RULE, None, "tools")],
    ),
}  # fmt: skip

ONLY_MESSAGES = {
    "max_tokens": Field(
        sampling("max_tokens"),
        None,
        [ok(3, 3), ok(64, lambda s: 64 - len(s.request.prompt_token_ids))],
        [*wrong("max_tokens", 0, -1, "ten", 1.5), no(65, RULE, None), no(10**9, RULE, None)],
        **missing("body.max_tokens"),
    ),
    "metadata": ignored({"user_id": "u"}, refused=wrong("metadata", "x", 5)),
    "stop_sequences": Field(
        sampling("stop"),
        [],
        [ok(["x", "y"], ["x", "y"]), ok([], [])],
        [
            *wrong("stop_sequences", "x", list("abcde")),
            no([1], BAD, "body.stop_sequences.0"),
            no([""], RULE, None),
        ],
    ),
    "stream": Field(
        streamed,
        "application/json",
        [ok(False, "application/json"), ok(True, "text/event-stream; charset=utf-8")],
        wrong("stream", "perhaps", 5),
    ),
    "temperature": number(1.0, [0, 0.5, 2], [], name="temperature", configured=0.3).but(
        refused=[*wrong("temperature", "x"), no(2.5, RULE, None), no(-1, RULE, None)]
    ),
    "top_k": Field(
        sampling("top_k"),
        0,
        [ok(7, 7), ok(-1, -1), ok(OMIT, 7, on="configured")],
        [*wrong("top_k", "x", 1.5), no(-2, RULE, None)],
    ),
    "top_p": number(1.0, [0.25, 1], [], name="top_p", configured=0.9).but(
        refused=[*wrong("top_p", "x", []), no(0, RULE, None), no(1.5, RULE, None)]
    ),
    "logprobs_detail": Field(
        lambda s: (s.request.sampling.logprobs_detail, "logprobs" in s.json),
        (False, False),
        [ok(True, (True, True)), ok(False, (False, False))],
        wrong("logprobs_detail", "x", 5),
    ),
    "cache_salt": Field(
        asked("cache_salt"),
        None,
        [ok("s", "s")],
        [*wrong("cache_salt", 1), no("", RULE, None), no("a@b", RULE, None)],
    ),
    "kv_transfer_params": ignored({}, {"a": 1}, refused=wrong("kv_transfer_params", 1)),
    "ec_transfer_params": ignored({}, {"a": 1}, refused=wrong("ec_transfer_params", 1)),
    "vllm_xargs": Field(
        sampling("extra_args"), None, [ok({"a": 1}, {"a": 1})], wrong("vllm_xargs", 1, {"a": {}})
    ),
}

BASE = {"model": "tiny", "messages": HI, "max_tokens": 4}


def body(fields):
    return {**BASE, **{k: v for k, v in fields.items() if k != "messages_only"}}


def within(*path, **base):
    """A part of the body: `fields` on top of `base`, at a place."""

    def whole(fields):
        value = {**base, **fields}
        for name in reversed(path):
            value = [value] if name == 0 else {name: value}
        return body(value)

    return whole


def block(name, seen, taken, *bad, **more):
    place = f"messages.0.content.0.{name}"
    return Field(seen, more.pop("default", False), taken, wrong(place, *bad), **more)


def text(wanted):
    return lambda s: wanted in s.prompt


USED = {"type": "tool_use", "id": "c", "name": "get_w", "input": {"city": "Oslo"}}
BLOCK = {
    "type": Field(
        prompt,
        None,
        [ok("text", HEAD + "hi<|im_end|>\n" + HEAD + "go" + TAIL),
         ok("redacted_thinking", HEAD + "go" + TAIL)],
        [
            *wrong("messages.0.content.0.type", "document", 5),
            no("image", RULE, None, "text only", source={"type": "url", "url": "x"}),
        ],
        **missing("body.messages.0.content.0.type"),
    ),
    "text": block("text", text("other"), [ok("other", True)], 1),
    "source": ignored(refused=[
        *wrong("messages.0.content.0.source", 5),
        no({"type": "url", "url": "x"}, RULE, None, "text only", type="image", text=OMIT),
    ]),
    "id": block("id", text("@c7"), [ok("c7", True)], 5, beside=USED, on="open"),
    "tool_use_id": block("tool_use_id", text("#c7"), [ok("c7", True)], 5,
                         beside={"type": "tool_result", "content": "rain"}, on="open"),
    "name": block("name", text("call other"), [ok("other", True)], 5, beside=USED, on="open"),
    "input": block("input", text("Bergen"), [ok({"city": "Bergen"}, True)], "{}", 5,
                   beside=USED, on="open"),
    "content": block("content", text("sun"),
                     [ok("sun", True), ok([{"type": "text", "text": "sun"}], True)], 5,
                     beside={"type": "tool_result", "tool_use_id": "c"}, on="open").but(
        refused=[
            *wrong("messages.0.content.0.content", 5),
            no([5], BAD, "body.messages.0.content.0.content.0"),
            no([{"type": "image"}], RULE, None, "text only"),
        ]
    ),
    "is_error": ignored(True, False, refused=wrong("messages.0.content.0.is_error", "x"),
                        beside={"type": "tool_result", "tool_use_id": "c", "content": "rain"}),
    # it is read where it is the content of a tool's result
    "tool_name": ignored("t", refused=wrong("messages.0.content.0.tool_name", 5),
                         beside={"type": "tool_reference"}),
    "thinking": block("thinking", text("{so}"), [ok("so", True)], 5,
                      beside={"type": "thinking", "_role": "assistant"}, on="open"),
    "signature": ignored("s", refused=wrong("messages.0.content.0.signature", 5),
                         beside={"type": "thinking", "thinking": "hm", "_role": "assistant"}),
    "data": ignored("xyz", refused=wrong("messages.0.content.0.data", 5),
                    beside={"type": "redacted_thinking"}),
}  # fmt: skip


def of_block(fields):
    fields = dict(fields)
    role = fields.pop("_role", "assistant" if fields.get("type") == "tool_use" else "user")
    return body(
        {
            "messages": [
                {"role": role, "content": [{"type": "text", "text": "hi", **fields}]},
                turn("go"),  # some blocks are dropped, and something must be left
            ]
        }
    )


MESSAGE = {
    "role": Field(
        prompt,
        None,
        [ok(role, f"<|im_start|>{role}\nhi<|im_end|>\n<|im_start|>assistant\n")
         for role in ("user", "assistant", "system")],
        wrong("messages.0.role", "tool", 5),
        **missing("body.messages.0.role"),
    ),
    "content": Field(
        prompt,
        None,
        [ok("a", HEAD + "a" + TAIL), ok([{"type": "text", "text": "a"}], HEAD + "a" + TAIL)],
        wrong("messages.0.content", 5),
        **missing("body.messages.0.content"),
    ),
}  # fmt: skip

TOOL_FIELDS = {
    "name": Field(text('"name": "other"'), None, [ok("other", True)], wrong("tools.0.name", 5),
                  **missing("body.tools.0.name")),
    "input_schema": Field(
        text('"parameters": {"a": 1, "type": "object"}'),
        None,
        [ok({"a": 1}, True), ok({"a": 1, "type": "object"}, True)],
        wrong("tools.0.input_schema", "x", 5),
        **missing("body.tools.0.input_schema"),
    ),
    "description": Field(text("some words"), False, [ok("some words", True)],
                         wrong("tools.0.description", 5)),
    "strict": Field(text('"strict": true'), False, [ok(True, True)], wrong("tools.0.strict", "x")),
    "defer_loading": ignored(True, False, refused=wrong("tools.0.defer_loading", "x")),
}  # fmt: skip

CHOICE = {
    "type": Field(
        kind_of,
        None,
        [ok("auto", None), ok("any", "json"), ok("none", None), ok("tool", "json", name="get_w")],
        [
            *wrong("tool_choice.type", "some", 5),
            no("tool", BAD, "body.tool_choice", "name"),
        ],
        **missing("body.tool_choice.type"),
    ),
    "name": Field(
        kind_of,
        None,
        [ok("get_w", "json")],
        [*wrong("tool_choice.name", 5), no("other", RULE, None, "other")],
        missing=no(OMIT, BAD, "body.tool_choice"),
        null=no(None, BAD, "body.tool_choice"),
        beside={"type": "tool"},
    ),
    "disable_parallel_tool_use": Field(
        calls,
        2,
        [ok(True, 1), ok(False, 2)],
        wrong("tool_choice.disable_parallel_tool_use", "x"),
        beside={"_say": CALLS},
    ),
}

CONFIG = {
    "effort": Field(
        effort,
        (False, False),
        [ok(level, (True, False)) for level in ("low", "medium", "high", "xhigh", "max")],
        wrong("output_config.effort", "some", 5),
    ),
    "format": Field(
        kind_of,
        None,
        [ok({"type": "json_schema", "schema": SCHEMA}, "json"), ok({"type": "json_schema"}, None)],
        wrong("output_config.format", "x", 5),
    ),
}
FORMAT = {
    "type": Field(kind_of, "json", [ok("json_schema", "json")],
                  wrong("output_config.format.type", "xml", 5),
                  null=no(None, BAD, "body.output_config.format.type")),
    "schema": Field(
        lambda s: kind_of(s) and json.loads(s.request.sampling.structured_output.value),
        None,
        [ok(SCHEMA, SCHEMA)],
        wrong("output_config.format.schema", "x", 5),
    ),
}  # fmt: skip
THINKING = {
    "type": Field(
        effort,
        None,
        [ok("disabled", (False, True)), ok("enabled", (False, False))],
        wrong("thinking.type", 5),
        **missing("body.thinking.type"),
    ),
    "budget_tokens": Field(
        budget,
        None,
        [ok(5, 5), ok(0, 0)],
        wrong("thinking.budget_tokens", -1, "x"),
        on="open",
    ),
}

KINDS = [
    Kind("messages", PATH, (MessagesRequest,), {**BOTH, **ONLY_MESSAGES}, body, anthropic=True),
    Kind("messages block", PATH, (ContentBlock,), BLOCK, of_block, anthropic=True),
    Kind("messages message", PATH, (InputMessage,), MESSAGE,
         lambda fields: body({"messages": [{"role": "user", "content": "hi", **fields}]}),
         anthropic=True),
    Kind("messages tool", PATH, (MessagesTool,), TOOL_FIELDS, within("tools", 0, **TOOL),
         on="open", anthropic=True),
    Kind("messages tool choice", PATH, (MessagesToolChoice,), CHOICE,
         lambda fields: body({"tools": [TOOL], "tool_choice": {"type": "auto", **fields},
                              "max_tokens": 400}),
         on="open", anthropic=True),
    Kind("messages output config", PATH, (OutputConfig,), CONFIG, within("output_config"),
         anthropic=True),
    Kind("messages output format", PATH, (OutputFormat,), FORMAT,
         within("output_config", "format", type="json_schema", schema=SCHEMA), anthropic=True),
    Kind("messages thinking", PATH, (Thinking,), THINKING, within("thinking", type="enabled"),
         anthropic=True),
]  # fmt: skip

COUNTED = (COUNT, CountTokensRequest, BOTH)

__all__ = ["COUNTED", "KINDS", "everything"]
