"""Tokens in, tokens out: the body and its sampling parameters."""

from field_tables.generation import LOGPROBS, last_usage, shared, streamed
from field_tables.rows import (
    BAD,
    MISSING,
    OMIT,
    REFUSED,
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
from ortloom.server.openai.wire_generate import (
    GenerateRequest,
    GenerateSampling,
    ReasoningParserKwargs,
)

PATH = "/inference/v1/generate"
ONE = "choices", 0


def body(fields):
    return {"token_ids": [5, 6], "sampling_params": {"max_tokens": 4}, **fields}


def with_sampling(fields):
    return {"token_ids": [5, 6], "sampling_params": {"max_tokens": 4, **fields}}


def opened(sight):
    """How the constraint waits for reasoning: not at all (None), or open True, False, unknown."""
    thinking = sight.request.sampling.thinking
    return None if thinking is None else (thinking.open,)


REGEX = {"max_tokens": 4, "structured_outputs": {"regex": "a"}}

TABLE = {
    "token_ids": Field(
        asked("prompt_token_ids"),
        None,
        [ok([1, 2], [1, 2]), ok([0], [0])],
        [
            *wrong("token_ids", "x", [], [-1]),
            no(["x"], BAD, "body.token_ids.0"),
            no([10**9], REFUSED, None, str(10**9)),
            no([1] * 64, REFUSED, "input_tokens", "64"),
        ],
        missing=no(OMIT, BAD, "body.token_ids", "required"),
        null=no(None, BAD, "body.token_ids"),
    ),
    "sampling_params": Field(
        sampling("max_tokens"),
        None,
        [ok({}, 62), ok({"max_tokens": 3}, 3)],
        wrong("sampling_params", [], "x"),
        missing=no(OMIT, BAD, "body.sampling_params", "required"),
        null=no(None, BAD, "body.sampling_params"),
    ),
    "request_id": Field(
        response_id,
        "RANDOM",
        [ok("mine", "mine")],
        [*wrong("request_id", 5), no("x" * 257, REFUSED, "request_id")],
    ),
    "model": Field(
        reply("model"),
        "tiny",
        [ok("other", "tiny"), ok("", "tiny")],
        [*wrong("model", 5), no("nope", "NotFoundError", "model", "`nope`", status=404)],
    ),
    "token_offsets": ignored([[0, 1], [1, 2]], refused=wrong("token_offsets", "x", 5)),
    "content_parts": ignored(
        [],
        refused=[
            *wrong("content_parts", "x"),
            no([{"type": "image_url"}], REFUSED, "content_parts", "image_url"),
            no([{"type": "image_url"}], REFUSED, "content_parts", features={"a": 1}),
        ],
    ),
    "features": ignored(
        refused=[*wrong("features", 1), no({"mm_hashes": {}}, REFUSED, "features")]
    ),
    "return_token_ids": Field(
        reply("prompt_token_ids"),
        None,
        [ok(True, [5, 6]), ok(False, None)],
        wrong("return_token_ids", "x", 5),
    ),
    "output_mode": Field(
        lambda s: (s.json["output_mode"], reply(*ONE, "text")(s)),
        ("tokens", MISSING),
        [ok("tokens", ("tokens", MISSING)), ok("text", ("text", " is a place"))],
        [
            *wrong("output_mode", "x", 5),
            no("text", REFUSED, "output_mode",
               sampling_params={"max_tokens": 4, "detokenize": False}),
        ],
    ),
    "return_token_logprobs": Field(
        lambda s: (reply(*ONE, "logprobs")(s) or {}).get("sampled"),
        None,
        [ok(True, [-1.5] * 4), ok(False, None)],
        [
            *wrong("return_token_logprobs", "x", 5),
            no(True, REFUSED, "return_token_logprobs", stream=True),
            no(True, REFUSED, "return_token_logprobs", output_mode="text"),
        ],
    ),
    "return_top_k_logprobs": Field(
        lambda s: sorted(reply(*ONE, "logprobs")(s)),
        SAME,
        [ok(False, SAME)],
        [
            *wrong("return_top_k_logprobs", "x", 5),
            no(True, REFUSED, "return_top_k_logprobs", sampling_params={"max_tokens": 4}),
            no(True, REFUSED, "return_top_k_logprobs", output_mode="text"),
        ],
        beside={"sampling_params": {"max_tokens": 4, "logprobs": 1}},
    ),
    "logprobs_detail": Field(
        sampling("logprobs_detail"),
        False,
        [ok(True, True), ok(False, False)],
        wrong("logprobs_detail", "x", 5),
    ),
    "reasoning_ended": Field(
        opened,
        (None,),
        [ok(True, None), ok(False, (True,))],
        wrong("reasoning_ended", "x", 5),
        beside={"sampling_params": REGEX},
        on="open",
    ),
    "reasoning_parser_kwargs": ignored(
        {"chat_template_kwargs": {"a": 1}},
        {},
        refused=[
            *wrong("reasoning_parser_kwargs", "x"),
            no({"other": 1}, BAD, "body.reasoning_parser_kwargs"),
        ],
    ),
    "stream": Field(
        streamed,
        "application/json",
        [ok(False, "application/json"), ok(True, "text/event-stream; charset=utf-8")],
        wrong("stream", "perhaps", 5),
    ),
    "stream_options": Field(
        last_usage,
        False,
        [ok({}, False), ok({"include_usage": True}, True), ok({"include_usage": False}, False)],
        [
            *wrong("stream_options", "x", 5),
            no({"include_usage": True}, REFUSED, "stream_options", stream=OMIT),
        ],
        beside={"stream": True},
    ),
    "stream_interval": Field(
        lambda s: [len(e["choices"][0]["token_ids"]) for e in s.events[:-1]],
        [1, 1, 1, 1],
        [ok(1, [1, 1, 1, 1]), ok(2, [1, 2, 1])],
        wrong("stream_interval", 0, "x"),
        beside={"stream": True},
    ),
    "cache_salt": Field(
        asked("cache_salt"),
        None,
        [ok("s", "s")],
        [*wrong("cache_salt", 1), no("", REFUSED, "cache_salt"), no("a@", REFUSED, "cache_salt")],
    ),
    "session_id": ignored("s", refused=wrong("session_id", 1)),
    "priority": Field(asked("priority"), 0, [ok(-3, -3)], wrong("priority", "x", 2**70)),
    "kv_transfer_params": ignored({}, {"a": 1}, refused=wrong("kv_transfer_params", "x")),
    "ec_transfer_params": ignored({}, {"a": 1}, refused=wrong("ec_transfer_params", "x")),
}  # fmt: skip

OUTSIDE = frozenset({
    "model", "use_beam_search", "length_penalty", "echo", "truncate_prompt_tokens",
    "truncation_side", "add_special_tokens", "response_format", "stream", "stream_options",
    "stream_interval", "priority", "request_id", "session_id", "return_token_ids",
    "return_tokens_as_token_ids", "cache_salt", "kv_transfer_params", "ec_transfer_params",
})  # fmt: skip
"""Members of the base type that are no sampling parameters."""


def _sampling_table():
    table = {name: field for name, field in shared(False).items() if name not in OUTSIDE}
    for name in ("prompt_logprobs",):  # `stream` stands outside
        table[name] = table[name].but(
            taken=[row for row in table[name].taken if not row.beside],
            refused=[row for row in table[name].refused if not row.beside],
        )
    for name, field in table.items():
        table[name] = _moved(field)
    table["max_tokens"] = Field(
        sampling("max_tokens"),
        62,
        [ok(2, 2), ok(64, 62)],
        [
            *wrong("sampling_params.max_tokens", "x", 1.5),
            *(no(value, REFUSED, "max_tokens") for value in (0, -1, 65)),
        ],
    )
    table["n"] = table["n"].but(
        refused=[
            *(row for row in table["n"].refused if not isinstance(row.value, int) or row.value < 9),
            *(no(value, REFUSED, "n", "at most 8") for value in (9, 16385, 3_000_000)),
        ],
    )
    table["logprobs"] = _moved(LOGPROBS)
    table["detokenize"] = Field(
        everything,
        SAME,
        [ok(True, SAME), ok(False, SAME)],
        [*wrong("sampling_params.detokenize", "x", 5), no(False, REFUSED, "stop", stop=["x"])],
    )
    for name in ("skip_reading_prefix_cache", "skip_clone", "flat_logprobs"):
        table[name] = ignored(True, False, refused=wrong(f"sampling_params.{name}", "x", 5))
    table["output_kind"] = ignored(0, 1, 2, refused=wrong("sampling_params.output_kind", "x"))
    table["extra_args"] = ignored({"a": 1}, refused=wrong("sampling_params.extra_args", "x"))
    return table


def _moved(field):
    """The same field inside `sampling_params`: errors of the schema name that place. A server
    with defaults of its own is not tried again."""
    refused = [
        no(row.value, row.type,
           row.param.replace("body.", "body.sampling_params.", 1)
           if row.type == BAD and row.param else row.param,
           row.says, on=row.on, status=row.status, **row.beside)
        for row in field.refused if row.value not in ([5] * 64,)
    ]  # fmt: skip
    return field.but(refused=refused, taken=[t for t in field.taken if t.on != "configured"])


KINDS = [
    Kind("generate", PATH, (GenerateRequest,), TABLE, body, on="scale_out"),
    Kind("sampling parameters", PATH, (GenerateSampling,), _sampling_table(), with_sampling,
         on="scale_out", left_out=OUTSIDE),
    Kind("reasoning parser kwargs", PATH, (ReasoningParserKwargs,),
         {"chat_template_kwargs": ignored(
             {"a": 1}, refused=wrong("reasoning_parser_kwargs.chat_template_kwargs", "x", 5))},
         lambda fields: body({"reasoning_parser_kwargs": fields}), on="scale_out"),
]  # fmt: skip
