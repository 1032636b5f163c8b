"""The Responses API: the body, and the parts of its members."""

from field_tables.generation import (
    CONSTRAINTS,
    NO_CONSTRAINTS,
    SCHEMA,
    number,
    param,
    param_null,
    room,
    streamed,
    switch,
)
from field_tables.rows import (
    BAD,
    OMIT,
    REFUSED,
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
    response_id,
    sampling,
    wrong,
)
from ortloom.runtime.sampling_params import StructuredOutput
from ortloom.server.openai.responses.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    ItemReference,
    MessageItem,
    ReasoningItem,
)
from ortloom.server.openai.responses.tools import AllowedTools, FunctionTool, NamespaceTool
from ortloom.server.openai.responses.wire import Reasoning, ResponsesRequest, TextConfig, TextFormat

PATH = "/v1/responses"
FUNCTION = {"type": "function", "name": "get_w", "parameters": {"type": "object"}}
WRITTEN = {"type": "json_schema", "name": "n", "schema": SCHEMA}
LOGPROBS = "message.output_text.logprobs"
CALLS = '</r>[[get_w {"a": 1}]][[get_w {}]]'
HEAD = "<|im_start|>user\n"
TAIL = "<|im_end|>\n<|im_start|>assistant\n"


def constraint(sight):
    return sight.request.sampling.structured_output


def kind_of(sight):
    return None if constraint(sight) is None else constraint(sight).kind


def items(sight, kind):
    return [item for item in sight.json["output"] if item["type"] == kind]


def calls(sight):
    return len(items(sight, "function_call"))


def text_of(sight):
    return items(sight, "message")[0]["content"][0]


def effort(sight):
    return ("think" in sight.prompt, "quick" in sight.prompt)


def item(**fields):
    return {"input": [fields]}


def part(**fields):
    return [{"role": "user", "content": [fields]}]


def body(fields):
    return {"input": "Say hi", "max_output_tokens": 4, **fields}


def echoed(name, default, *pairs, refused, **more):
    """A field that the response repeats."""
    return Field(reply(name), default, [ok(v, seen) for v, seen in pairs], refused, **more)


TABLE = {
    "input": Field(
        lambda s: s.prompt,
        None,
        [
            ok("hi", HEAD + "hi" + TAIL),
            ok([{"role": "user", "content": "hi"}], HEAD + "hi" + TAIL),
            ok(part(type="input_text", text="hi"), HEAD + "hi" + TAIL),
        ],
        [
            *wrong("input", 5, {}),
            no([5], BAD, "body.input.0"),
            no([{"role": "wizard", "content": "x"}], BAD, "body.input.0.role"),
            no([{"role": "user"}], BAD, "body.input.0.content"),
            no([{"role": "user", "content": [{}]}], BAD, "body.input.0.content.0"),
            no(part(type="input_text"), BAD, "body.input.0.content.0.text"),
            no(part(type="hologram"), REFUSED, "type"),
            no(part(type="input_image", image_url="x"), REFUSED, None, "text only"),
            no([{"type": "computer_call"}], REFUSED, "input"),
            no([{"type": "function_call", "name": "f"}], BAD, "body.input.0.call_id"),
            no([{"type": "function_call", "name": "f", "call_id": "c", "arguments": "{"}],
               REFUSED, "input"),
            no([], REFUSED, "input", "no message"),
            no("sea " * 200, RULE, "input", "64"),
            no("sea " * 9000, RULE, "input", "64"),
        ],
        missing=no(OMIT, BAD, "body.input", "required"),
        null=no(None, BAD, "body.input"),
    ),
    "model": Field(
        reply("model"),
        "tiny",
        [ok("tiny", "tiny"), ok("other", "tiny"), ok("", "tiny")],
        [*wrong("model", 5), no("nope", "NotFoundError", "model", "`nope`", status=404)],
    ),
    "instructions": Field(
        lambda s: (s.json["instructions"], s.prompt.startswith("<|im_start|>system\nBe brief.<|")),
        (None, False),
        [ok("Be brief.", ("Be brief.", True)), ok("", ("", False))],
        wrong("instructions", ["x"], 5),
    ),
    "background": Field(
        lambda s: (s.json["background"], s.json["status"], s.finished()),
        (False, "incomplete", None),
        [ok(False, SAME), ok(True, (True, "queued", "incomplete"), on="open")],
        [
            *wrong("background", "x", 5),
            no(True, BAD, "background", store=False),
            no(True, RULE, "background", on="plain"),
        ],
    ),
    "include": Field(
        lambda s: len(text_of(s)["logprobs"] or ()),
        0,
        [ok([], 0), ok([LOGPROBS], 4), ok(["reasoning.encrypted_content"], 0)],
        [*wrong("include", LOGPROBS, 5), no(["everything"], BAD, "body.include.0")],
    ),
    "max_output_tokens": Field(
        sampling("max_tokens"),
        room,
        [ok(5, 5), ok(-1, room), ok(0, room), ok(64, room)],
        [
            *wrong("max_output_tokens", "x", 1.5),
            no(65, REFUSED, "max_output_tokens", "max_tokens"),
        ],
    ),
    "max_tool_calls": echoed(
        "max_tool_calls", None, (3, 3), refused=wrong("max_tool_calls", -1, "x")
    ),
    "metadata": echoed(
        "metadata", None, ({"k": "v"}, {"k": "v"}), refused=wrong("metadata", {"a": 5}, "x")
    ),
    "parallel_tool_calls": Field(
        lambda s: (s.json["parallel_tool_calls"], calls(s)),
        (True, 2),
        [ok(True, (True, 2)), ok(False, (False, 1))],
        wrong("parallel_tool_calls", "x", 5),
        beside={"tools": [FUNCTION], "_say": CALLS, "max_output_tokens": OMIT},
        on="open",
    ),
    "previous_response_id": Field(
        reply("previous_response_id"),
        None,
        [],
        [
            *wrong("previous_response_id", 5),
            no("nope", RULE, "response_id", "resp_"),
            no("resp_nope", RULE, "response_id", "resp_nope", status=404),
        ],
    ),
    "prompt": ignored(refused=[no({"id": "p"}, BAD, "prompt")]),
    "prompt_cache_key": ignored("k", refused=wrong("prompt_cache_key", 5)),
    "reasoning": Field(
        lambda s: (s.json["reasoning"], *effort(s)),
        (None, False, False),
        [
            ok({"effort": "low"},
               ({"effort": "low", "generate_summary": None, "summary": None}, True, False)),
            ok({}, ({"effort": None, "generate_summary": None, "summary": None}, False, False)),
        ],
        [*wrong("reasoning", "x", 5), no({"effort": "huge"}, BAD, "body.reasoning.effort")],
    ),
    "service_tier": echoed(
        "service_tier",
        "auto",
        *((tier, tier) for tier in ("auto", "default", "flex", "scale", "priority")),
        refused=wrong("service_tier", "gold", 5),
    ),
    "store": Field(
        lambda s: s.kept,
        True,
        [ok(True, True), ok(False, False)],
        wrong("store", "x", 5),
        on="open",
    ),
    "stream": Field(
        streamed,
        "application/json",
        [ok(False, "application/json"), ok(True, "text/event-stream; charset=utf-8")],
        wrong("stream", "perhaps", 5),
    ),
    "temperature": number(
        1.0, [0, 0.5, 2], [2.5, -0.1], name="temperature", told=True, configured=0.3
    ),
    "text": Field(
        lambda s: (s.json["text"], constraint(s)),
        (None, None),
        [
            ok({"format": {"type": "text"}},
               ({"format": {"type": "text"}, "verbosity": None}, None)),
            ok({"format": {"type": "json_object"}},
               ({"format": {"type": "json_object"}, "verbosity": None},
                StructuredOutput("json_object"))),
            ok({"verbosity": "low"}, ({"format": None, "verbosity": "low"}, None)),
        ],
        [
            *wrong("text", "x", 5),
            no({"format": {"type": "text"}}, REFUSED, "text", structured_outputs={"regex": "a"}),
        ],
    ),
    "tool_choice": Field(
        lambda s: (s.json["tool_choice"], kind_of(s), calls(s)),
        ("auto", None, 2),
        [
            ok("auto", SAME),
            ok("none", ("none", None, 0)),
            ok("auto", ("none", None, 0), tools=OMIT),
            ok("required", ("required", "json", 1),
               _say='</r>[{"name": "get_w", "parameters": {}}]'),
            ok({"type": "function", "name": "get_w"},
               ({"type": "function", "name": "get_w"}, "json", 1), _say="</r>{}"),
        ],
        [
            *wrong("tool_choice", 5, []),
            no("required", REFUSED, "tool_choice", tools=OMIT),
            no("sometimes", REFUSED, "tool_choice"),
            no({"type": "function"}, REFUSED, "tool_choice"),
            no({"type": "web_search"}, REFUSED, "tool_choice"),
            no({"type": "function", "name": "other"}, REFUSED, "tool_choice"),
        ],
        beside={"tools": [FUNCTION], "_say": CALLS, "max_output_tokens": OMIT},
        on="open",
    ),
    "tools": Field(
        lambda s: (s.json["tools"], "get_w" in s.prompt),
        ([], False),
        [
            ok([], ([], False)),
            ok([{"type": "web_search"}], ([{"type": "web_search"}], False)),
            ok([FUNCTION], ([{**FUNCTION, "strict": None, "description": None}], True), on="open"),
        ],
        [
            *wrong("tools", {}, "x"),
            no([5], BAD, "body.tools.0"),
            no([{"type": "telepathy"}], BAD, "body.tools.0.type"),
            no([{"type": "function"}], BAD, "body.tools.0.name"),
            no([FUNCTION], REFUSED, None, "--tool-call-parser"),
        ],
    ),
    "top_logprobs": Field(
        lambda s: (len(text_of(s)["logprobs"][0]["top_logprobs"]), s.request.sampling.logprobs),
        (0, 0),
        [ok(3, (3, 3)), ok(0, (0, 0))],
        [*wrong("top_logprobs", "x", 1.5), *param("top_logprobs", 21, -1)],
        beside={"include": [LOGPROBS]},
    ),
    "top_p": number(1.0, [1, 0.5], [0, 1.5], name="top_p", told=True, configured=0.9),
    "truncation": Field(
        lambda s: (s.json["truncation"], len(s.request.prompt_token_ids)),
        ("disabled", 22),
        [ok("auto", ("auto", 22)), ok("disabled", ("disabled", 22)),
         ok("auto", ("auto", 60), input="sea " * 200)],
        wrong("truncation", "some", 5),
    ),
    "user": echoed("user", None, ("u", "u"), refused=wrong("user", 5)),
    "top_k": Field(
        sampling("top_k"),
        0,
        [ok(5, 5), ok(-1, -1), ok(OMIT, 7, on="configured")],
        [*wrong("top_k", "x", 1.5), *param_null("top_k", -2)],
    ),
    "presence_penalty": Field(
        lambda s: (s.json["presence_penalty"], s.request.sampling.presence_penalty),
        (0.0, 0.0),
        [ok(0.5, (0.5, 0.5)), ok(-2, (-2.0, -2.0))],
        [*wrong("presence_penalty", "x"), *param_null("presence_penalty", 3, -2.5)],
    ),
    "frequency_penalty": Field(
        lambda s: (s.json["frequency_penalty"], s.request.sampling.frequency_penalty),
        (0.0, 0.0),
        [ok(-0.5, (-0.5, -0.5)), ok(2, (2.0, 2.0))],
        [*wrong("frequency_penalty", "x"), *param_null("frequency_penalty", -3, 2.5)],
    ),
    "repetition_penalty": number(
        1.0, [0.5, 1.5], [0, -1], name="repetition_penalty", configured=1.1
    ),
    "logit_bias": Field(
        sampling("logit_bias"),
        None,
        [ok({"5": 2}, {5: 2.0}), ok({"5": 500}, {5: 100.0})],
        [*param("logit_bias", {"abc": 1}, {"99999999": 1}),
         *wrong("logit_bias", {"5": "x"}, [5])],
    ),
    "seed": Field(
        sampling("seed"), None, [ok(7, 7), ok(-1, None)], wrong("seed", 2**70, "x", 1.5)
    ),
    "stop": Field(
        sampling("stop"),
        [],
        [ok("x", ["x"]), ok(["a", "b"], ["a", "b"])],
        [*wrong("stop", ["a", "b", "c", "d", "e"], 5), *param_null("stop", "")],
    ),
    "ignore_eos": switch("ignore_eos"),
    "skip_special_tokens": switch("skip_special_tokens", default=True),
    "include_stop_str_in_output": switch("include_stop_str_in_output"),
    "logprobs_detail": Field(
        lambda s: (s.request.sampling.logprobs, s.request.sampling.logprobs_detail,
                   s.request.sampling.sampling_mask),
        (None, False, False),
        [ok(True, (0, True, True)), ok(True, (3, True, True), top_logprobs=3),
         ok(False, (None, False, False))],
        wrong("logprobs_detail", "x", 5),
    ),
    "structured_outputs": Field(
        sampling("structured_output"),
        None,
        [ok(value, seen) for value, seen in CONSTRAINTS],
        [
            *NO_CONSTRAINTS,
            no({"regex": "a"}, REFUSED, "structured_outputs", on="open", tools=[FUNCTION],
               tool_choice={"type": "function", "name": "get_w"}),
        ],
    ),
    "chat_template_kwargs": Field(
        lambda s: "glad" in s.prompt,
        False,
        [ok({"mood": "glad"}, True), ok({}, False)],
        [*wrong("chat_template_kwargs", 5, []), no({"tools": []}, REFUSED, None, "tools")],
    ),
    "mm_processor_kwargs": ignored(
        refused=[*wrong("mm_processor_kwargs", 5), no({}, REFUSED, None)]
    ),
    "media_io_kwargs": ignored(refused=[*wrong("media_io_kwargs", 5), no({}, REFUSED, None)]),
    "include_reasoning": Field(
        lambda s: [item["content"][0]["text"] for item in s.json["output"]],
        ["hm", "sea"],
        [ok(True, ["hm", "sea"]), ok(False, ["sea"])],
        wrong("include_reasoning", "x", 5),
        beside={"_say": "hm</r>sea", "max_output_tokens": OMIT},
        on="open",
    ),
    "enable_response_messages": Field(
        lambda s: (s.json["input_messages"] is None, s.json["output_messages"] is None),
        (True, True),
        [ok(True, (False, False)), ok(False, (True, True))],
        wrong("enable_response_messages", "x", 5),
    ),
    "previous_input_messages": Field(
        lambda s: s.prompt,
        HEAD + "Say hi" + TAIL,
        [
            ok([], SAME),
            ok([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
               HEAD + "a<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n" + HEAD + "Say hi" + TAIL),
        ],
        [
            *wrong("previous_input_messages", "x"),
            no([{"content": "x"}], BAD, "body.previous_input_messages.0.role"),
            no([{"role": "user", "content": "x"}], RULE, "previous_response_id",
               previous_response_id="resp_x"),
        ],
    ),
    "request_id": Field(
        response_id,
        "RANDOM",
        [ok("mine", "mine"), ok("resp_mine", "mine")],
        [*wrong("request_id", 5), *param("request_id", "x" * 257)],
    ),
    "session_id": ignored("s", refused=wrong("session_id", 5)),
    "priority": Field(asked("priority"), 0, [ok(3, 3), ok(-2, -2)], wrong("priority", "x", 2**63)),
    "cache_salt": Field(
        asked("cache_salt"),
        None,
        [ok("s", "s")],
        [*wrong("cache_salt", 1), *param("cache_salt", "", "a@b", "x" * 129)],
    ),
    "vllm_xargs": Field(
        sampling("extra_args"),
        None,
        [ok({"a": 1, "b": ["x"]}, {"a": 1, "b": ["x"]})],
        wrong("vllm_xargs", 5, {"a": {}}),
    ),
    "kv_transfer_params": ignored({}, {"a": 1}, refused=wrong("kv_transfer_params", 5)),
    "ec_transfer_params": ignored({}, {"a": 1}, refused=wrong("ec_transfer_params", 5)),
}  # fmt: skip


def required(place, missing=True):
    return {"missing": no(OMIT, BAD, place, "required"), "null": no(None, BAD, place)}


REASONING = {
    "effort": Field(
        effort,
        (False, False),
        [ok("none", (False, True)), ok("max", (True, False)), ok("minimal", (True, False))],
        wrong("reasoning.effort", "huge", 5),
    ),
    "summary": Field(
        reply("reasoning", "summary"),
        None,
        [ok(value, value) for value in ("auto", "concise", "detailed")],
        wrong("reasoning.summary", "x", 5),
    ),
    "generate_summary": Field(
        reply("reasoning", "generate_summary"),
        None,
        [ok(value, value) for value in ("auto", "concise", "detailed")],
        wrong("reasoning.generate_summary", "x", 5),
    ),
}

TEXT = {
    "format": Field(
        lambda s: (s.json["text"]["format"], constraint(s)),
        (None, None),
        [ok({"type": "text"}, ({"type": "text"}, None))],
        [*wrong("text.format", "x", 5), no({}, BAD, "body.text.format.type", "required")],
    ),
    "verbosity": Field(
        reply("text", "verbosity"),
        None,
        [ok(value, value) for value in ("low", "medium", "high")],
        wrong("text.verbosity", "x", 5),
    ),
}


def form(name):
    return reply("text", "format", name)


FORMAT = {
    "type": Field(
        kind_of,
        None,
        [ok("json_schema", "json"), ok("json_object", "json_object"), ok("text", None)],
        wrong("text.format.type", "x", 5),
        **required("body.text.format.type"),
    ),
    "name": Field(form("name"), None, [ok("n", "n")], wrong("text.format.name", 5)),
    "schema": Field(
        lambda s: constraint(s).value,
        None,
        [ok({"type": "object"}, '{"type": "object"}'), ok(True, "true")],
        [no(5, REFUSED, "text", "schema"), no("{", REFUSED, "text", "schema")],
        missing=no(OMIT, REFUSED, "text"),
        null=no(None, REFUSED, "text"),
    ),
    "description": Field(
        form("description"), None, [ok("d", "d")], wrong("text.format.description", 5)
    ),
    "strict": Field(
        form("strict"), None, [ok(True, True), ok(False, False)], wrong("text.format.strict", "x")
    ),
}


def tool(name):
    return reply("tools", 0, name)


FUNCTION_TOOL = {
    "type": Field(
        tool("type"),
        None,
        [ok("function", "function")],
        [no("telepathy", BAD, "body.tools.0.type"), no(5, BAD, "body.tools.0", "type")],
        missing=no(OMIT, BAD, "body.tools.0", "type"),
        null=no(None, BAD, "body.tools.0", "type"),
    ),
    "name": Field(
        tool("name"), None, [ok("f", "f")], wrong("tools.0.name", 5),
        **required("body.tools.0.name"),
    ),
    "parameters": Field(
        tool("parameters"),
        None,
        [ok({"type": "object"}, {"type": "object"})],
        wrong("tools.0.parameters", "x"),
    ),
    "strict": Field(tool("strict"), None, [ok(True, True)], wrong("tools.0.strict", "x")),
    "description": Field(
        lambda s: "some words" in s.prompt,
        False,
        [ok("some words", True)],
        wrong("tools.0.description", 5),
    ),
}  # fmt: skip

NAMESPACE = {
    "type": FUNCTION_TOOL["type"].but(seen=lambda s: "ns__get_w" in s.prompt,
                                      taken=[ok("namespace", True)]),
    "name": Field(
        lambda s: "other__get_w" in s.prompt,
        None,
        [ok("other", True), ok("ns", False)],
        wrong("tools.0.name", 5),
        **required("body.tools.0.name"),
    ),
    "tools": Field(
        lambda s: "ns__get_w" in s.prompt,
        None,
        [ok([FUNCTION], True), ok([{"type": "custom", "name": "get_w"}], False), ok([], False)],
        [
            *wrong("tools.0.tools", "x"),
            no([5], BAD, "body.tools.0.tools.0"),
            no([{"type": "function"}], BAD, "body.tools.0.tools.0.name"),
        ],
        **required("body.tools.0.tools"),
    ),
    "description": Field(
        tool("name"), "ns", [ok("d", "ns")], wrong("tools.0.description", 5)
    ),
}  # fmt: skip

ALLOWED = {
    "type": Field(
        lambda s: "get_w" in s.prompt,
        None,
        [ok("allowed_tools", True)],
        [no("x", REFUSED, "tool_choice"), no(5, REFUSED, "tool_choice")],
        missing=no(OMIT, REFUSED, "tool_choice", "tool_choice"),
        null=no(None, REFUSED, "tool_choice", "tool_choice"),
    ),
    "mode": Field(
        kind_of,
        None,
        [ok("auto", None), ok("required", "json", _say='</r>[{"name":"get_w","parameters":{}}]')],
        wrong("tool_choice.mode", "x", 5),
        **required("body.tool_choice.mode"),
    ),
    "tools": Field(
        lambda s: "get_w" in s.prompt,
        None,
        [ok([{"type": "function", "name": "get_w"}], True), ok([], False)],
        [
            *wrong("tool_choice.tools", "x"),
            no([5], BAD, "body.tool_choice.tools.0"),
            no([{"type": "function", "name": "other"}], REFUSED, "tool_choice", "other"),
            no([{"type": "function"}], REFUSED, "tool_choice", "name"),
        ],
        **required("body.tool_choice.tools"),
    ),
}

MESSAGE = {
    "role": Field(
        lambda s: s.prompt,
        None,
        [ok(role, f"<|im_start|>{role}\nhi<|im_end|>\n<|im_start|>assistant\n")
         for role in ("user", "assistant", "system", "developer")],
        wrong("input.0.role", "wizard", 5),
        **required("body.input.0.role"),
    ),
    "content": Field(
        lambda s: s.prompt,
        None,
        [ok("a", HEAD + "a" + TAIL), ok(["a", {"type": "input_text", "text": "b"}],
                                         HEAD + "a\nb" + TAIL)],
        wrong("input.0.content", 5),
        **required("body.input.0.content"),
    ),
    "type": Field(
        lambda s: s.prompt,
        HEAD + "hi" + TAIL,
        [ok("message", SAME)],
        [no("hologram", REFUSED, "input", "hologram")],
    ),
    "status": Field(
        lambda s: s.prompt.endswith("<|im_start|>assistant\nhi"),
        False,
        [ok("completed", False), ok("incomplete", True), ok("in_progress", True)],
        wrong("input.0.status", "x", 5),
        beside={"role": "assistant"},
    ),
}  # fmt: skip


def called(text):
    return lambda s: text in s.prompt


CALL = {
    "type": Field(
        called("call get_w Oslo"),
        None,
        [ok("function_call", True)],
        [no("hologram", REFUSED, "input", "hologram")],
        missing=no(OMIT, BAD, "body.input.0.role", "required"),
        null=no(None, BAD, "body.input.0.role", "required"),
    ),
    "call_id": Field(
        called("@c7"), None, [ok("c7", True)], wrong("input.0.call_id", 5),
        **required("body.input.0.call_id"),
    ),
    "name": Field(
        called("call other Oslo"), None, [ok("other", True)], wrong("input.0.name", 5),
        **required("body.input.0.name"),
    ),
    "arguments": Field(
        called("call get_w Bergen"),
        None,
        [ok('{"city": "Bergen"}', True)],
        [*wrong("input.0.arguments", {}), no("{", REFUSED, "input")],
        **required("body.input.0.arguments"),
    ),
    "namespace": Field(
        called("call ns__get_w"), False, [ok("ns", True)], wrong("input.0.namespace", 5)
    ),
    "status": Field(
        called("call get_w Oslo"),
        True,
        [ok(value, True) for value in ("completed", "incomplete", "in_progress")],
        wrong("input.0.status", "x"),
    ),
}  # fmt: skip

OUTPUT = {
    "type": Field(
        called("rain"),
        None,
        [ok("function_call_output", True)],
        [no("hologram", REFUSED, "input", "hologram")],
        missing=no(OMIT, BAD, "body.input.0.role", "required"),
        null=no(None, BAD, "body.input.0.role", "required"),
    ),
    "call_id": Field(
        called("#c7 rain"), None, [ok("c7", True)], wrong("input.0.call_id", 5),
        **required("body.input.0.call_id"),
    ),
    "output": Field(
        called("#c sun"),
        None,
        [ok("sun", True), ok([{"type": "input_text", "text": "sun"}], True)],
        [*wrong("input.0.output", 5), no([5], BAD, "body.input.0.output.0")],
        **required("body.input.0.output"),
    ),
}  # fmt: skip

THOUGHT = {
    "type": Field(
        called("{hm}"),
        None,
        [ok("reasoning", True)],
        [no("hologram", REFUSED, "input", "hologram")],
        missing=no(OMIT, BAD, "body.input.0.role", "required"),
        null=no(None, BAD, "body.input.0.role", "required"),
    ),
    "content": Field(
        called("{so}"),
        False,
        [ok([{"type": "reasoning_text", "text": "so"}], True)],
        [*wrong("input.0.content", "x"), no([5], BAD, "body.input.0.content.0")],
    ),
    "summary": Field(
        called("{so}"),
        False,
        [ok([{"type": "summary_text", "text": "so"}], True, content=OMIT)],
        [*wrong("input.0.summary", "x"), no([5], BAD, "body.input.0.summary.0", content=OMIT)],
    ),
    "encrypted_content": Field(
        called("{hm}"),
        True,
        [ok("", True)],
        [*wrong("input.0.encrypted_content", 5), no("xyz", REFUSED, "input")],
    ),
    "status": Field(
        called("{hm}"), True, [ok("completed", True)], wrong("input.0.status", "x")
    ),
}  # fmt: skip

REFERENCE = {
    "id": Field(
        everything,
        None,
        [],
        [
            *wrong("input.0.id", 5),
            no("msg_nope", RULE, "input", "msg_nope", status=404),
        ],
        missing=no(OMIT, BAD, "body.input.0.id", "required"),
        null=no(None, BAD, "body.input.0.id"),
    ),
    "type": Field(
        everything,
        None,
        [],
        [no("hologram", REFUSED, "input", "hologram")],
        missing=no(OMIT, RULE, "input", "msg_x", status=404),
        null=no(None, RULE, "input", "msg_x", status=404),
    ),
}


def within(*path, **base):
    """A part of the body: `fields` on top of `base`, at a place."""

    def whole(fields):
        value = {**base, **fields}
        for name in reversed(path):
            value = [value] if name == 0 else {name: value}
        return body(value)

    return whole


KINDS = [
    Kind("responses", PATH, (ResponsesRequest,), TABLE, body),
    Kind("responses reasoning", PATH, (Reasoning,), REASONING, within("reasoning")),
    Kind("responses text", PATH, (TextConfig,), TEXT, within("text")),
    Kind("responses format", PATH, (TextFormat,), FORMAT, within("text", "format", **WRITTEN)),
    Kind("responses function", PATH, (FunctionTool,), FUNCTION_TOOL,
         within("tools", 0, type="function", name="f"), on="open"),
    Kind("responses namespace", PATH, (NamespaceTool,), NAMESPACE,
         within("tools", 0, type="namespace", name="ns", tools=[FUNCTION]), on="open"),
    Kind("responses allowed tools", PATH, (AllowedTools,), ALLOWED,
         lambda fields: body({"tools": [FUNCTION], "tool_choice": {
             "type": "allowed_tools", "mode": "auto",
             "tools": [{"type": "function", "name": "get_w"}], **fields}}), on="open"),
    Kind("responses message", PATH, (MessageItem,), MESSAGE,
         within("input", 0, role="user", content="hi")),
    Kind("responses call", PATH, (FunctionCallItem,), CALL,
         within("input", 0, type="function_call", call_id="c", name="get_w",
                arguments='{"city": "Oslo"}'), on="open"),
    Kind("responses call output", PATH, (FunctionCallOutputItem,), OUTPUT,
         within("input", 0, type="function_call_output", call_id="c", output="rain"), on="open"),
    Kind("responses thought", PATH, (ReasoningItem,), THOUGHT,
         within("input", 0, type="reasoning", content=[{"type": "reasoning_text", "text": "hm"}]),
         on="open"),
    Kind("responses reference", PATH, (ItemReference,), REFERENCE,
         within("input", 0, type="item_reference", id="msg_x"), on="open"),
]  # fmt: skip
