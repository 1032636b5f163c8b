"""Fields that completions, chat and the batch form share."""

import json

from field_tables.rows import (
    BAD,
    MISSING,
    OMIT,
    REFUSED,
    SAME,
    Field,
    asked,
    everything,
    ignored,
    no,
    ok,
    prompt,
    prompt_size,
    reply,
    response_id,
    samples,
    sampling,
    wrong,
)
from ortloom.runtime.sampling_params import (
    LogitsProcessorSpec,
    RepetitionDetection,
    StructuredOutput,
)

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TAG = {"type": "any_text"}
OLD_TAG = {"structures": [{"begin": "<f>", "schema": {}, "end": ""}], "triggers": ["<"]}
CONTEXT = 64
"""Tokens of the scripted engine's context."""


def room(sight):
    """What the prompt leaves of the context."""
    return CONTEXT - len(sight.request.prompt_token_ids)


def streamed(sight):
    return sight.response.headers["content-type"]


def last_usage(sight):
    """Whether the stream ends with a chunk that has usage and no choices."""
    last = sight.events[-2]
    return last["choices"] == [] and "usage" in last


def every_usage(sight):
    """Whether each chunk has usage."""
    return all("usage" in event for event in sight.events[:-1])


def shows_ids(sight):
    return sight.json["choices"][0]["token_ids"] is not None


def budget(sight):
    thinking = sight.request.sampling.thinking
    return None if thinking is None else thinking.budget


def beams(sight):
    """A search asks for single tokens and their likeliest neighbours."""
    params = sight.request.sampling
    return params.logprobs is not None and params.max_tokens == 1


def specials_added(sight):
    return sight.encoded[-1][1]


def param_null(name, *values, type=REFUSED, **more):
    """Out of range, told by the message alone."""
    return [no(value, type, None, **more) for value in values]


def param(name, *values, **more):
    """Out of range, told by param too."""
    return [no(value, REFUSED, name, **more) for value in values]


def number(default, inside, outside, *, name, told=False, configured=None):
    """A sampling parameter that is a number with a range."""
    refused = (param if told else param_null)(name, *outside)
    taken = [ok(value, float(value)) for value in inside]
    taken.append(ok(str(inside[0]), float(inside[0])))  # a number may be written as text
    if configured is not None:
        taken.append(ok(OMIT, configured, on="configured"))
        taken.append(ok(None, configured, on="configured"))
        taken.append(ok(inside[0], float(inside[0]), on="configured"))
    return Field(sampling(name), default, taken, [*wrong(name, "x", [], {}), *refused])


def switch(name, *, default=False, seen=None):
    """A sampling parameter that is true or false."""
    return Field(
        seen or sampling(name),
        default,
        [ok(True, True), ok(False, False), ok("true", True), ok(0, False)],
        wrong(name, "x", 5, []),
    )


CONSTRAINTS = [
    ({"json": SCHEMA, "disable_additional_properties": True},
     StructuredOutput("json", json.dumps(SCHEMA), disable_additional_properties=True)),
    ({"json": json.dumps(SCHEMA), "whitespace_pattern": "[ ]?"},
     StructuredOutput("json", json.dumps(SCHEMA), whitespace_pattern="[ ]?")),
    ({"json": True}, StructuredOutput("json", "true")),
    ({"json_object": True, "disable_any_whitespace": True},
     StructuredOutput("json_object", disable_any_whitespace=True)),
    ({"regex": "a+"}, StructuredOutput("regex", "a+")),
    ({"choice": ["a", "é"]}, StructuredOutput("choice", '["a", "é"]')),
    ({"grammar": "start: /a/"}, StructuredOutput("grammar", "start: /a/")),
    ({"structural_tag": json.dumps(OLD_TAG)},
     StructuredOutput("structural_tag", json.dumps(OLD_TAG))),
]  # fmt: skip
"""`structured_outputs` and what the engine gets."""

NO_CONSTRAINTS = [
    no({}, REFUSED, "structured_outputs"),
    no({"regex": "a", "choice": ["b"]}, REFUSED, "structured_outputs"),
    no({"structural_tag": {"a": 1e5}, "regex": "a"}, REFUSED, "structured_outputs"),
    no({"whitespace_pattern": "a"}, REFUSED, "structured_outputs"),
    no({"choice": []}, REFUSED, "structured_outputs"),
    no({"choice": [""]}, REFUSED, "structured_outputs"),
    no({"grammar": " "}, REFUSED, "structured_outputs"),
    no({"json": "{"}, REFUSED, "structured_outputs"),
    no({"json": 5}, REFUSED, "structured_outputs"),
    no({"regex": 5}, BAD, "body.structured_outputs.regex"),
    no({"choice": [5]}, BAD, "body.structured_outputs.choice.0"),
    *wrong("structured_outputs", "x", [], 5),
]

FORMATS = [
    ({"type": "text"}, None),
    ({"type": "json_object"}, StructuredOutput("json_object")),
    ({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
     StructuredOutput("json", json.dumps(SCHEMA))),
    ({"type": "structural_tag", "format": TAG},
     StructuredOutput("structural_tag", json.dumps({"format": TAG}))),
    ({"type": "structural_tag", **OLD_TAG},
     StructuredOutput("structural_tag", json.dumps(OLD_TAG))),
]  # fmt: skip
"""`response_format` and what the engine gets."""

FACTORY = {"qualname": "allowed.b", "args": [1], "kwargs": {"x": 2}}


def shared(chat):
    """The table of `GenerationRequest`.

    Args:
        chat: of a chat route; else of completions.
    """
    log = {"logprobs": True} if chat else {"logprobs": 1}
    name_of = (
        (lambda s: s.json["choices"][0]["logprobs"]["content"][0]["token"])
        if chat
        else (lambda s: s.json["choices"][0]["logprobs"]["tokens"][0])
    )
    return {
        "model": Field(
            reply("model"),
            "tiny",
            [ok("tiny", "tiny"), ok("other", "tiny"), ok("", "tiny")],
            [*wrong("model", 5, []), no("nope", "NotFoundError", "model", "`nope`", status=404)],
        ),
        "max_tokens": Field(
            sampling("max_tokens"),
            room if chat else 16,
            [ok(1, 1), ok("3", 3), ok(3.0, 3), ok(-1, room), ok(0, room), ok(CONTEXT, room)],
            [*wrong("max_tokens", "ten", 1.5, []), *param("max_tokens", CONTEXT + 1, 10**9)],
        ),
        "temperature": number(
            1.0, [0, 0.5, 2], [2.5, -0.1], name="temperature", told=True, configured=0.3
        ),
        "top_p": number(
            1.0, [1, 0.0001], [0, -0.1, 1.01], name="top_p", told=True, configured=0.9
        ),
        "top_k": Field(
            sampling("top_k"),
            0,
            [ok(-1, -1), ok(0, 0), ok(1, 1), ok(2**40, 2**31 - 1), ok(10**40, 2**31 - 1),
             ok(OMIT, 7, on="configured"), ok(0, 0, on="configured")],
            [*wrong("top_k", "x", 1.5, []), *param_null("top_k", -2)],
        ),
        "min_p": number(0.0, [0, 1], [2, -0.1], name="min_p", configured=0.1),
        "repetition_penalty": number(
            1.0, [0.01, 5], [0, -1], name="repetition_penalty", configured=1.1
        ),
        "frequency_penalty": number(0.0, [-2, 2], [-3, 2.5], name="frequency_penalty"),
        "presence_penalty": number(0.0, [-2, 2], [-2.5, 3], name="presence_penalty"),
        "n": Field(
            samples,
            1,
            [ok(8, 8), ok(1, 1)],
            [
                *wrong("n", "two", 1.5, []),
                *param_null("n", 0, -1, 16385, 3_000_000),
                no(2, REFUSED, None, temperature=0),
            ],
        ),
        "use_beam_search": Field(
            beams,
            False,
            [ok(True, True), ok(False, False)],
            [
                *wrong("use_beam_search", "x", 5),
                no(True, REFUSED, "stream", "streamed", stream=True),
                no(True, REFUSED, None, "n must be", n=0),
                no(True, REFUSED, "bad_words", bad_words=["x"]),
                no(True, REFUSED, "prompt_logprobs", prompt_logprobs=1),
                no(True, REFUSED, "logit_bias", logit_bias={"1": 1}),
                no(True, REFUSED, "allowed_token_ids", allowed_token_ids=[1]),
                no(True, REFUSED, "structured_outputs", structured_outputs={"regex": "a"}),
            ],
        ),
        # what a penalty does to a search is shown against an exhaustive one
        "length_penalty": Field(
            everything,
            SAME,
            [ok(1, SAME), ok(10, SAME), ok(-10, SAME)],
            [
                *wrong("length_penalty", "x", []),
                *param("length_penalty", 11, 99, -10.5, use_beam_search=True),
            ],
        ),
        "seed": Field(
            sampling("seed"),
            None,
            [ok(-(2**63), -(2**63)), ok(2**63 - 1, 2**63 - 1), ok(-1, None), ok(7, 7)],
            wrong("seed", "x", 1.5, 2**70, 2**63),
        ),
        "stop": Field(
            sampling("stop"),
            [],
            [ok("x", ["x"]), ok(["a", "b", "c", "d"], ["a", "b", "c", "d"]), ok([], [])],
            [
                *wrong("stop", 5, {}, ["a", "b", "c", "d", "e"]),
                no([5], BAD, "body.stop.0"),
                *param_null("stop", "", [""], ["a", ""]),
            ],
        ),
        "stop_token_ids": Field(
            sampling("stop_token_ids"),
            [],
            [ok([0, 5], [0, 5]), ok([], [])],
            [
                *wrong("stop_token_ids", "x", 5),
                no(["x"], BAD, "body.stop_token_ids.0"),
                *param_null("stop_token_ids", [10**6], [-1]),
            ],
        ),
        "include_stop_str_in_output": switch("include_stop_str_in_output"),
        "ignore_eos": switch("ignore_eos"),
        "min_tokens": Field(
            sampling("min_tokens"),
            0,
            [ok(4, 4), ok(0, 0)],
            [*wrong("min_tokens", "x", 1.5), *param_null("min_tokens", -1, 9)],
        ),
        "skip_special_tokens": switch("skip_special_tokens", default=True),
        "spaces_between_special_tokens": switch("spaces_between_special_tokens", default=True),
        "prompt_logprobs": Field(
            sampling("prompt_logprobs"),
            None,
            [ok(0, 0), ok(20, 20), ok(-1, -1, on="configured"), ok(0, 0, stream=True)],
            [
                *wrong("prompt_logprobs", "x", 1.5),
                *param("prompt_logprobs", 21, -1, -2),
                *param("prompt_logprobs", 1, -1, stream=True),
            ],
        ),
        "logprob_token_ids": Field(
            sampling("logprob_token_ids"),
            None,
            [ok([3, 4], [3, 4])],
            [
                *wrong("logprob_token_ids", "x", 5),
                no(["x"], BAD, "body.logprob_token_ids.0"),
                *param("logprob_token_ids", list(range(129)), [10**6], [-1]),
                no([1], REFUSED, "logprob_token_ids", logprobs=OMIT),
            ],
            beside=log,
        ),
        "logprobs_detail": Field(
            lambda s: (s.request.sampling.logprobs_detail, s.request.sampling.sampling_mask),
            (False, False),
            [ok(True, (True, True)), ok(False, (False, False))],
            wrong("logprobs_detail", "x", 5),
        ),
        "logit_bias": Field(
            sampling("logit_bias"),
            None,
            [ok({"0": 500, "5": -500, "6": 1}, {0: 100.0, 5: -100.0, 6: 1.0}), ok({}, {})],
            [
                *param("logit_bias", {"99999999": 1}, {"-1": 1}, {"abc": 1}, {"--5": 1}, {"-": 1},
                       {"1_0": 1}, {"\u0665": 1}),
                *wrong("logit_bias", {"5": "x"}, {"5": None}, [5], "x"),
            ],
        ),
        "allowed_token_ids": Field(
            sampling("allowed_token_ids"),
            None,
            [ok([3], [3])],
            [
                *wrong("allowed_token_ids", "x", 5),
                no(["x"], BAD, "body.allowed_token_ids.0"),
                *param_null("allowed_token_ids", [], [10**6], [-1]),
            ],
        ),
        "bad_words": Field(
            sampling("bad_words"),
            None,
            [ok(["sea", " sea"], ["sea"]), ok([], None)],
            [
                *wrong("bad_words", "x y", 5),
                no([5], BAD, "body.bad_words.0"),
                *param("bad_words", [""], [" "], ["x"] * 129, ["x" * 513]),
            ],
        ),
        "truncate_prompt_tokens": Field(
            prompt_size,
            SAME,
            [ok(1, 1), ok(-1, SAME), ok(CONTEXT, SAME)],
            [
                *wrong("truncate_prompt_tokens", "x", 1.5),
                *param("truncate_prompt_tokens", 0, -2, CONTEXT + 1),
            ],
        ),
        "truncation_side": Field(
            prompt,
            "nt\n" if chat else " sea",
            [ok("left", SAME), ok("right", "<|im_start|>u" if chat else "The")],
            wrong("truncation_side", "up", 5),
            beside={"truncate_prompt_tokens": 2 if chat else 1},
        ),
        "add_special_tokens": Field(
            specials_added,
            not chat,
            [ok(True, True), ok(False, False)],
            wrong("add_special_tokens", "x", 5),
        ),
        "response_format": Field(
            sampling("structured_output"),
            None,
            [ok(value, seen) for value, seen in FORMATS],
            [
                *wrong("response_format", "x", 5),
                no({}, BAD, "body.response_format.type", "required"),
                no({"type": 5}, BAD, "body.response_format.type"),
                no({"type": "nope"}, REFUSED, "response_format"),
                no({"type": "json_schema"}, REFUSED, "response_format"),
                no({"type": "json_schema", "json_schema": {"schema": 5}}, REFUSED,
                   "response_format", "JSON schema"),
                no({"type": "json_object"}, REFUSED, "structured_outputs",
                   structured_outputs={"regex": "a"}),
            ],
        ),
        "structured_outputs": Field(
            sampling("structured_output"),
            None,
            [ok(value, seen) for value, seen in CONSTRAINTS],
            NO_CONSTRAINTS,
        ),
        "stream": Field(
            streamed,
            "application/json",
            [ok(False, "application/json"), ok(True, "text/event-stream; charset=utf-8")],
            wrong("stream", "perhaps", 5, []),
        ),
        "stream_options": Field(
            lambda s: (last_usage(s), every_usage(s)),
            (False, False),
            [
                ok({}, (False, False)),
                ok({"include_usage": True}, (True, False)),
                ok({"include_usage": False}, (False, False)),
                ok({"continuous_usage_stats": True}, (False, False)),
                ok({"include_usage": True, "continuous_usage_stats": True}, (True, True)),
                ok({"include_usage": False, "continuous_usage_stats": True}, (False, False)),
            ],
            [
                *wrong("stream_options", 5, "x", []),
                no({"include_usage": "maybe"}, BAD, "body.stream_options.include_usage"),
                no({"continuous_usage_stats": "maybe"}, BAD,
                   "body.stream_options.continuous_usage_stats"),
                no({"include_usage": True}, REFUSED, "stream_options", stream=False),
                no({}, REFUSED, "stream_options", stream=OMIT),
            ],
            beside={"stream": True},
        ),
        "stream_interval": Field(
            lambda s: [len(e["choices"][0]["token_ids"]) for e in s.events[:-1]
                       if e["choices"][0].get("token_ids")],
            [1, 1, 1, 1],
            [ok(1, [1, 1, 1, 1]), ok(2, [1, 2, 1]), ok(9, [1, 3])],
            wrong("stream_interval", 0, -1, "x", 1.5),
            beside={"stream": True, "return_token_ids": True},
        ),
        "priority": Field(
            asked("priority"),
            0,
            [ok(-3, -3), ok(2**63 - 1, 2**63 - 1)],
            wrong("priority", "x", 2**63, 1.5),
        ),
        "request_id": Field(
            response_id,
            "RANDOM",
            [ok("mine", "mine"), ok("x" * 256, "x" * 256)],
            [*wrong("request_id", 5), *param("request_id", "x" * 257)],
        ),
        "session_id": ignored("s", refused=wrong("session_id", 5)),
        "return_token_ids": Field(
            shows_ids, False, [ok(True, True), ok(False, False)], wrong("return_token_ids", "x", 5)
        ),
        "return_tokens_as_token_ids": Field(
            lambda s: name_of(s).startswith("token_id:"),
            False,
            [ok(True, True), ok(False, False)],
            wrong("return_tokens_as_token_ids", "x", 5),
            beside=log,
        ),
        "cache_salt": Field(
            asked("cache_salt"),
            None,
            [ok("s", "s"), ok("x" * 128, "x" * 128)],
            [
                *wrong("cache_salt", 1, []),
                *param("cache_salt", "", "a@b", "a/b", "a\\b", "a\0", "x" * 129),
            ],
        ),
        "kv_transfer_params": ignored({}, {"a": 1}, refused=wrong("kv_transfer_params", 5, "x")),
        "ec_transfer_params": ignored({}, {"a": 1}, refused=wrong("ec_transfer_params", 5, "x")),
        "vllm_xargs": Field(
            sampling("extra_args"),
            None,
            [ok({"a": 1, "b": ["x", 2], "c": 0.5, "d": True, "e": "1"},
                   {"a": 1, "b": ["x", 2], "c": 0.5, "d": True, "e": "1"})],
            [
                *wrong("vllm_xargs", 5, "x", [], {"a": {"b": 1}}, {"a": None}),
                *param("vllm_xargs", {"trace_decode_token_ids": "x"},
                       {"trace_decode_token_ids": ["x"]}),
            ],
        ),
        "repetition_detection": Field(
            sampling("repetition_detection"),
            None,
            [
                ok({"max_pattern_size": 4, "min_count": 2}, RepetitionDetection(4, 0, 2)),
                ok({}, RepetitionDetection()),
            ],
            [
                *wrong("repetition_detection", 5, "x"),
                no({"max_pattern_size": "x"}, BAD, "body.repetition_detection.max_pattern_size"),
                *param("repetition_detection",
                       {"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2},
                       {"max_pattern_size": 2, "min_count": 1},
                       {"max_pattern_size": -1}),
            ],
        ),
        "logits_processors": Field(
            sampling("logits_processors"),
            None,
            [
                ok([], None),
                ok(["allowed.a", FACTORY],
                   [LogitsProcessorSpec("allowed.a"),
                    LogitsProcessorSpec("allowed.b", [1], {"x": 2})], on="open"),
            ],
            [
                *wrong("logits_processors", "x", 5),
                no([5], BAD, "body.logits_processors.0"),
                no([{}], BAD, "body.logits_processors.0.qualname", "required"),
                no(["a.b"], REFUSED, "logits_processors"),
            ],
        ),
        "thinking_token_budget": Field(
            budget,
            None,
            [ok(5, 5, on="open"), ok(-1, None, on="open"), ok(0, 0, on="open")],
            [
                *wrong("thinking_token_budget", "x", 1.5),
                *param("thinking_token_budget", 5, -1),
                *param("thinking_token_budget", -2, on="open"),
            ],
        ),
    }  # fmt: skip


LOGPROBS = Field(
    sampling("logprobs"),
    None,
    [ok(0, 0), ok(20, 20), ok(-1, -1, on="configured")],
    [*wrong("logprobs", "x", 1.5), *param("logprobs", 21, -1, -2)],
)
"""`logprobs` as a number: of completions and of sampling parameters."""

__all__ = ["LOGPROBS", "MISSING", "shared"]
