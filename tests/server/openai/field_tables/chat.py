"""Chat: the fields on top of the shared ones, the template's, and the parts of a body."""

from field_tables.generation import OMIT, shared
from field_tables.rows import (
    BAD,
    REFUSED,
    SAME,
    Field,
    Kind,
    ignored,
    no,
    ok,
    prompt,
    reply,
    sampling,
    wrong,
)
from ortloom.server.openai.wire_batch import BatchFields
from ortloom.server.openai.wire_chat import (
    ChatCompletionRequest,
    ChatMessage,
    FunctionDefinition,
    TemplateFields,
    Tool,
)

CHAT = "/v1/chat/completions"
BATCH = "/v1/chat/completions/batch"
HI = [{"role": "user", "content": "hi"}]
FUNCTION = {"name": "get_w", "description": "d", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
OPEN_END = {"add_generation_prompt": False, "continue_final_message": True}
ASSISTANT = [*HI, {"role": "assistant", "content": "The"}]
NAMED = {"type": "function", "function": {"name": "get_w"}}


def message(sight):
    return sight.json["choices"][0]["message"]


def role(sight):
    return message(sight)["role"]


def calls(sight):
    return len(message(sight).get("tool_calls", []))


def constrained(sight):
    constraint = sight.request.sampling.structured_output
    return None if constraint is None else constraint.kind


def listed(sight):
    """Numbers of top entries, -1 for none at all."""
    logprobs = sight.json["choices"][0]["logprobs"]
    return -1 if logprobs is None else len(logprobs["content"][0]["top_logprobs"])


CALLS = '[[get_w {"a": 1}]][[get_w {}]]'
MESSAGES = Field(
    prompt,
    None,
    [
        ok(HI, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
        ok([{"role": "user", "content": None}],
           "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"),
    ],
    [
        *wrong("messages", "hi", 5, {}),
        no([5], BAD, "body.messages.0"),
        no([{"role": "wizard", "content": "x"}], REFUSED, None, "wizards are not allowed"),
    ],
    missing=no(OMIT, BAD, "body.messages", "required"),
    null=no(None, BAD, "body.messages"),
)  # fmt: skip

TEMPLATE_FIELDS = {
    "messages": MESSAGES,
    "tools": Field(
        lambda s: "get_w" in s.prompt,
        False,
        [ok([TOOL], True, on="open"), ok([TOOL], False, tool_choice="none")],
        [
            *wrong("tools", "x", {}),
            no([5], BAD, "body.tools.0"),
            no([{}], BAD, "body.tools.0.function", "required"),
            no([], REFUSED, "tools"),
            no([TOOL], REFUSED, None, "--tool-call-parser"),
        ],
    ),
    "documents": Field(
        lambda s: '"text": "x"' in s.prompt,
        False,
        [ok([{"title": "t", "text": "x"}], True, on="open"), ok([], False)],
        [*wrong("documents", "x", 5), no(["x"], BAD, "body.documents.0")],
    ),
    "add_generation_prompt": Field(
        lambda s: s.prompt.endswith("assistant\n"),
        True,
        [ok(True, True), ok(False, False)],
        wrong("add_generation_prompt", "x", 5),
    ),
    "continue_final_message": Field(
        lambda s: s.prompt.endswith("<|im_start|>assistant\nThe"),
        False,
        [ok(True, True), ok(False, False)],
        [
            *wrong("continue_final_message", "x", 5),
            no(True, REFUSED, None, add_generation_prompt=OMIT),
            no(True, REFUSED, None, add_generation_prompt=True),
        ],
        beside={"add_generation_prompt": False, "messages": ASSISTANT},
    ),
    "chat_template": Field(
        prompt,
        SAME,
        [ok("{{ messages[0].content }}!", "hi!", on="open")],
        [
            *wrong("chat_template", 5, {}),
            no("{{ 1 }}", REFUSED, None, "--trust-request-chat-template"),
            no("{% if %}", REFUSED, None, "emplate", on="open"),
        ],
    ),
    "chat_template_kwargs": Field(
        lambda s: "calm" in s.prompt,
        False,
        [ok({"mood": "calm"}, True), ok({}, False), ok({"mood": None, "unread": 1}, False)],
        [
            *wrong("chat_template_kwargs", 5, "x", []),
            *(no({name: []}, REFUSED, None, name)
              for name in ("messages", "tools", "chat_template", "tokenize")),
        ],
    ),
    "reasoning_effort": Field(
        lambda s: ("think" in s.prompt, "quick" in s.prompt),
        (False, False),
        [
            ok("none", (False, True)),
            *(ok(effort, (True, False))
              for effort in ("minimal", "low", "medium", "high", "xhigh", "max")),
            ok("high", (False, True), chat_template_kwargs={"enable_thinking": False}),
        ],
        wrong("reasoning_effort", "huge", 5),
    ),
    "mm_processor_kwargs": ignored(
        refused=[
            *wrong("mm_processor_kwargs", 5),
            no({}, REFUSED, None),
            no({"a": 1}, REFUSED, None),
        ]
    ),
    "media_io_kwargs": ignored(
        refused=[*wrong("media_io_kwargs", 5), no({"image": {}}, REFUSED, None)]
    ),
}  # fmt: skip

CHAT_FIELDS = {
    "max_completion_tokens": Field(
        sampling("max_tokens"),
        4,
        [ok(2, 2), ok(-1, lambda s: 64 - len(s.request.prompt_token_ids))],
        [
            *wrong("max_completion_tokens", "ten", 1.5),
            no(65, REFUSED, "max_tokens", "max_tokens"),
        ],
    ),
    "logprobs": Field(
        listed,
        -1,
        [ok(True, 0), ok(False, -1), ok(True, 2, top_logprobs=2)],
        wrong("logprobs", "x", 5),
    ),
    "top_logprobs": Field(
        listed,
        0,
        [ok(0, 0), ok(20, 20), ok(-1, lambda s: s.engine.vocab_size - 10, on="configured")],
        [
            *wrong("top_logprobs", "x", 1.5),
            no(-2, REFUSED, "top_logprobs"),
            no(21, REFUSED, "logprobs", "20"),
            no(-1, REFUSED, "logprobs", "20"),
            no(1, REFUSED, "top_logprobs", logprobs=False),
            no(-1, REFUSED, "top_logprobs", logprobs=OMIT),
        ],
        beside={"logprobs": True},
    ),
    "tool_choice": Field(
        lambda s: (constrained(s), calls(s)),
        (None, 2),
        [
            ok("auto", (None, 2)),
            ok("none", (None, 0)),
            ok("required", ("json", 1), _say='</r>[{"name": "get_w", "parameters": {}}]'),
            ok(NAMED, ("json", 1), _say="</r>{}"),
        ],
        [
            *wrong("tool_choice", 5, []),
            no("sometimes", REFUSED, "tool_choice"),
            no({"type": "function"}, REFUSED, "tool_choice"),
            no({**NAMED, "function": {"name": "other"}}, REFUSED, "tool_choice"),
            no("required", REFUSED, "tool_choice", tools=OMIT),
            no("auto", REFUSED, "tool_choice", tools=OMIT),
            no("auto", REFUSED, None, on="plain"),
            no(NAMED, REFUSED, "structured_outputs", structured_outputs={"regex": "a"}),
        ],
        beside={"tools": [TOOL], "_say": "</r>" + CALLS, "max_tokens": OMIT},
        on="open",
    ),
    "parallel_tool_calls": Field(
        calls,
        2,
        [ok(True, 2), ok(False, 1)],
        wrong("parallel_tool_calls", "x", 5),
        beside={"tools": [TOOL], "_say": "</r>" + CALLS, "max_tokens": OMIT},
        on="open",
    ),
    "include_reasoning": Field(
        lambda s: (message(s)["reasoning"], message(s)["content"]),
        ("hm", "sea"),
        [ok(True, ("hm", "sea")), ok(False, (None, "sea"))],
        wrong("include_reasoning", "x", 5),
        beside={"_say": "hm</r>sea", "max_tokens": OMIT},
        on="open",
    ),
    "return_prompt_text": Field(
        reply("prompt_text"),
        None,
        [ok(True, lambda s: s.prompt), ok(False, None)],
        wrong("return_prompt_text", "x", 5),
    ),
    "return_assistant_tokens_mask": ignored(
        False,
        refused=[
            *wrong("return_assistant_tokens_mask", "x", 5),
            no(True, REFUSED, "return_assistant_tokens_mask"),
        ],
    ),
}


def _echo(sight):
    return message(sight)["content"].startswith("The sea")


def chat_table():
    table = {**shared(True), **TEMPLATE_FIELDS, **CHAT_FIELDS}
    table["echo"] = Field(
        _echo,
        False,
        [ok(True, True), ok(False, False)],
        wrong("echo", "x", 5),
        beside={**OPEN_END, "messages": [*HI, {"role": "assistant", "content": "The sea"}]},
    )
    return table


def batch_table():
    table = chat_table()
    table["messages"] = Field(
        lambda s: s.prompts,
        None,
        [ok([HI, HI], ["<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"] * 2)],
        [
            *wrong("messages", "hi", 5),
            no(HI, BAD, "body.messages.0"),
            no([], REFUSED, "messages"),
            no([HI] * 1025, REFUSED, "messages"),
            no([HI, [{"role": "wizard", "content": "x"}]], REFUSED, None, "wizards"),
        ],
        missing=no(OMIT, BAD, "body.messages", "required"),
        null=no(None, BAD, "body.messages"),
    )
    table["stream"] = ignored(
        False, refused=[*wrong("stream", "perhaps"), no(True, REFUSED, "stream")]
    )
    table["stream_options"] = ignored(
        refused=[*wrong("stream_options", 5), no({}, REFUSED, "stream_options")]
    )
    table["stream_interval"] = ignored(2, refused=wrong("stream_interval", 0, "x"))
    table["n"] = ignored(1, refused=[*wrong("n", "two"), no(2, REFUSED, "n"), no(0, REFUSED, "n")])
    table["use_beam_search"] = ignored(
        False, refused=[*wrong("use_beam_search", "x"), no(True, REFUSED, "use_beam_search")]
    )
    table["length_penalty"] = ignored(1, 2, refused=wrong("length_penalty", "x"))
    table["tools"] = ignored(
        refused=[*wrong("tools", "x"), no([TOOL], REFUSED, "tools"), no([], REFUSED, "tools")]
    )
    table["tool_choice"] = ignored(
        "none", refused=[*wrong("tool_choice", 5), no("required", REFUSED, "tool_choice")]
    )
    table["parallel_tool_calls"] = ignored(True, False, refused=wrong("parallel_tool_calls", "x"))
    table["continue_final_message"] = table["continue_final_message"].but(
        beside={"add_generation_prompt": False, "messages": [ASSISTANT]}
    )
    table["prompt_logprobs"] = table["prompt_logprobs"].but(
        taken=[row for row in table["prompt_logprobs"].taken if not row.beside],
        refused=[row for row in table["prompt_logprobs"].refused if not row.beside],
    )
    table["echo"] = table["echo"].but(
        beside={**OPEN_END, "messages": [[*HI, {"role": "assistant", "content": "The sea"}]]}
    )
    alone = table["chat_template"]  # which renders it in a process of its own
    table["chat_template"] = alone.but(
        taken=[], refused=[row for row in alone.refused if row.on is None]
    )
    table["return_prompt_text"] = Field(
        reply("choices", 0, "prompt_text"),
        None,
        [ok(True, lambda s: s.prompt), ok(False, None)],
        wrong("return_prompt_text", "x", 5),
    )
    return table


def body(fields):
    return {"messages": HI, "max_tokens": 4, **fields}


def of_message(fields):
    return body({"messages": [fields]})


def of_assistant(fields):
    return body({"messages": [*HI, {"role": "assistant", **fields}]})


MESSAGE = {
    "role": Field(
        prompt,
        None,
        [
            ok("user", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
            ok("developer", "<|im_start|>developer\nhi<|im_end|>\n<|im_start|>assistant\n"),
        ],
        [
            no(7, BAD, "body.messages.0.role"),
            no("wizard", REFUSED, None, "wizards are not allowed"),
        ],
        missing=no(OMIT, BAD, "body.messages.0.role", "required"),
        null=no(None, BAD, "body.messages.0.role"),
        beside={"content": "hi"},
    ),
    "content": Field(
        prompt,
        "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n",
        [
            ok("a", "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"),
            ok(["a", {"type": "text", "text": "b"}, {"type": "refusal", "refusal": "c"}],
               "<|im_start|>user\na\nb\nc<|im_end|>\n<|im_start|>assistant\n"),
            ok([], "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"),
        ],
        [
            no(5, BAD, "body.messages.0.content"),
            no([5], REFUSED, "messages.0.content.0"),
            no([{}], REFUSED, "type", "has no type; supported types: text"),
            no([{"type": "nope"}], REFUSED, None, "supported types: text"),
            no([{"type": "text"}], REFUSED, None, "text must be a string"),
            no([{"type": "text", "text": 5}], REFUSED, None, "text must be a string"),
            *(no([{"type": kind}], REFUSED, None, f"at most 0 {modality}")
              for kind, modality in (
                  ("image_url", "image"), ("input_image", "image"), ("image_pil", "image"),
                  ("image_embeds", "image"), ("input_audio", "audio"), ("audio_url", "audio"),
                  ("audio_embeds", "audio"), ("video_url", "video"))),
        ],
    ),
    "name": Field(
        lambda s: "(al)" in s.prompt, False, [ok("al", True), ok(5, False)], [], on="open"
    ),
    "tool_calls": Field(
        lambda s: "call get_w Oslo" in s.prompt,
        False,
        [
            ok([{"id": "c", "type": "function",
                 "function": {"name": "get_w", "arguments": '{"city": "Oslo"}'}}], True),
            ok([{"function": {"name": "get_w", "arguments": {"city": "Oslo"}}}], True),
            ok([], False),
        ],
        [
            no("x", BAD, "body.messages.0.tool_calls"),
            no([{}], REFUSED, "messages.0.tool_calls.0"),
            no([{"function": {}}], REFUSED, "messages.0.tool_calls.0"),
            no([{"function": {"name": "f", "arguments": "{"}}], REFUSED, "messages.0.tool_calls.0"),
        ],
        beside={"role": "assistant"},
        on="open",
    ),
    "tool_call_id": Field(
        lambda s: "#c7" in s.prompt,
        False,
        [ok("c7", True), ok(5, False)],
        [],
        beside={"role": "tool"},
        on="open",
    ),
    "reasoning": Field(
        lambda s: "{hm}" in s.prompt,
        False,
        [ok("hm", True), ok(5, False)],
        [],
        beside={"role": "assistant"},
        on="open",
    ),
    "reasoning_content": Field(
        lambda s: "{hm}" in s.prompt,
        False,
        [ok("hm", True), ok("no", True, reasoning="hm")],
        [],
        beside={"role": "assistant"},
        on="open",
    ),
}  # fmt: skip


def of_tool(fields):
    return body({"tools": [{"type": "function", "function": FUNCTION, **fields}]})


def of_function(fields):
    return body({"tools": [{"type": "function", "function": fields}]})


TOOL_FIELDS = {
    "function": Field(
        lambda s: "get_w" in s.prompt,
        None,
        [ok(FUNCTION, True)],
        [no("x", BAD, "body.tools.0.function")],
        missing=no(OMIT, BAD, "body.tools.0.function", "required"),
        null=no(None, BAD, "body.tools.0.function"),
    ),
    "type": Field(
        lambda s: '"type": "function"' in s.prompt,
        True,
        [ok("function", True)],
        [no("retrieval", BAD, "body.tools.0.type"), no(5, BAD, "body.tools.0.type")],
        null=no(None, BAD, "body.tools.0.type"),
    ),
}


def in_function(text):
    return lambda s: text in s.prompt


FUNCTION_FIELDS = {
    "name": Field(
        in_function('"name": "get_w"'),
        None,
        [ok("get_w", True)],
        [no(5, BAD, "body.tools.0.function.name")],
        missing=no(OMIT, BAD, "body.tools.0.function.name", "required"),
        null=no(None, BAD, "body.tools.0.function.name"),
    ),
    "description": Field(
        in_function('"description": null'),
        True,
        [ok("text", False)],
        [no(5, BAD, "body.tools.0.function.description")],
    ),
    "parameters": Field(
        in_function('"parameters": null'),
        True,
        [ok({"type": "object"}, False)],
        [no("x", BAD, "body.tools.0.function.parameters")],
    ),
    "strict": Field(
        in_function('"strict"'),
        False,
        [ok(True, True), ok(False, True)],
        [no("x", BAD, "body.tools.0.function.strict")],
    ),
}

KINDS = [
    Kind("chat", CHAT, (ChatCompletionRequest, TemplateFields), chat_table(), body),
    Kind("batch", BATCH, (ChatCompletionRequest, BatchFields), batch_table(),
         lambda fields: {"messages": [HI], "max_tokens": 4, **fields}),
    Kind("chat message", CHAT, (ChatMessage,), MESSAGE,
         lambda fields: of_message({"role": "user", **fields})),
    Kind("chat tool", CHAT, (Tool,), TOOL_FIELDS, of_tool, on="open"),
    Kind("chat function", CHAT, (FunctionDefinition,), FUNCTION_FIELDS,
         lambda fields: of_function({"name": "get_w", **fields}), on="open"),
]  # fmt: skip
