"""Every sampling field: what the engine gets for values inside its range and on its edges, and what
the client gets for those just outside."""

import json

import msgspec
import pytest

from ortloom.runtime.sampling_params import (
    LogitsProcessorSpec,
    RepetitionDetection,
    StructuredOutput,
)
from ortloom.server.openai.wire_common import GenerationRequest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TAG = {"type": "any_text"}
OLD_TAG = {"structures": [{"begin": "<f>", "schema": {}, "end": ""}], "triggers": ["<"]}

ARRIVES = [
    # field, value, attribute of the engine's parameters, value there
    ("max_tokens", 1, "max_tokens", 1),
    ("temperature", 0, "temperature", 0.0),
    ("temperature", 0.001, "temperature", 0.01),
    ("temperature", 2, "temperature", 2.0),
    ("top_p", 1, "top_p", 1.0),
    ("top_p", 0.0001, "top_p", 0.0001),
    ("top_k", -1, "top_k", -1),
    ("top_k", 2**40, "top_k", 2**31 - 1),
    ("min_p", 1, "min_p", 1.0),
    ("repetition_penalty", 0.01, "repetition_penalty", 0.01),
    ("frequency_penalty", -2, "frequency_penalty", -2.0),
    ("presence_penalty", 2, "presence_penalty", 2.0),
    ("n", 8, "n", 1),
    ("seed", -(2**63), "seed", -(2**63)),
    ("seed", 2**63 - 1, "seed", 2**63 - 1),
    ("seed", -1, "seed", None),
    ("stop", "x", "stop", ["x"]),
    ("stop", ["a", "b", "c", "d"], "stop", ["a", "b", "c", "d"]),
    ("stop_token_ids", [0, 399], "stop_token_ids", [0]),
    ("include_stop_str_in_output", True, "include_stop_str_in_output", True),
    ("ignore_eos", True, "ignore_eos", True),
    ("min_tokens", 4, "min_tokens", 4),
    ("skip_special_tokens", False, "skip_special_tokens", False),
    ("spaces_between_special_tokens", False, "spaces_between_special_tokens", False),
    ("prompt_logprobs", 20, "prompt_logprobs", 20),
    ("prompt_logprobs", 0, "prompt_logprobs", 0),
    ("logit_bias", {"0": 500, "5": -500}, "logit_bias", {0: 100.0, 5: -100.0}),
    ("allowed_token_ids", [3], "allowed_token_ids", [3]),
    ("response_format", {"type": "text"}, "structured_output", None),
    ("response_format", {"type": "json_object"}, "structured_output",
     StructuredOutput("json_object")),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
     "structured_output", StructuredOutput("json", json.dumps(SCHEMA))),
    ("response_format", {"type": "structural_tag", "format": TAG}, "structured_output",
     StructuredOutput("structural_tag", json.dumps({"format": TAG}))),
    ("response_format", {"type": "structural_tag", **OLD_TAG}, "structured_output",
     StructuredOutput("structural_tag", json.dumps(OLD_TAG))),
    ("structured_outputs", {"json": SCHEMA, "disable_additional_properties": True},
     "structured_output",
     StructuredOutput("json", json.dumps(SCHEMA), disable_additional_properties=True)),
    ("structured_outputs", {"json": json.dumps(SCHEMA), "whitespace_pattern": "[ ]?"},
     "structured_output",
     StructuredOutput("json", json.dumps(SCHEMA), whitespace_pattern="[ ]?")),
    ("structured_outputs", {"json_object": True, "disable_any_whitespace": True},
     "structured_output", StructuredOutput("json_object", disable_any_whitespace=True)),
    ("structured_outputs", {"regex": "a+"}, "structured_output", StructuredOutput("regex", "a+")),
    ("structured_outputs", {"choice": ["a", "é"]}, "structured_output",
     StructuredOutput("choice", '["a", "é"]')),
    ("structured_outputs", {"grammar": "start: /a/"}, "structured_output",
     StructuredOutput("grammar", "start: /a/")),
    ("structured_outputs", {"structural_tag": json.dumps(OLD_TAG)}, "structured_output",
     StructuredOutput("structural_tag", json.dumps(OLD_TAG))),
    ("repetition_detection", {"max_pattern_size": 4, "min_count": 2}, "repetition_detection",
     RepetitionDetection(4, 0, 2)),
    ("repetition_detection", {}, "repetition_detection", RepetitionDetection()),
    ("vllm_xargs", {"a": 1, "b": ["x"]}, "extra_args", {"a": 1, "b": ["x"]}),
]  # fmt: skip

REFUSED = [
    # fields, error type, param
    ({"repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2}},
     "BadRequestError", "repetition_detection"),
    ({"repetition_detection": {"max_pattern_size": 2, "min_count": 1}},
     "BadRequestError", "repetition_detection"),
    ({"repetition_detection": {"max_pattern_size": "x"}},
     "Bad Request", "body.repetition_detection.max_pattern_size"),
    ({"logits_processors": ["a.b"]}, "BadRequestError", "logits_processors"),
    ({"logits_processors": [5]}, "Bad Request", "body.logits_processors.0"),
    ({"structured_outputs": {"structural_tag": {"a": float("1e5")}, "regex": "a"}},
     "BadRequestError", "structured_outputs"),
    ({"structured_outputs": {"whitespace_pattern": "a"}}, "BadRequestError", "structured_outputs"),
    ({"structured_outputs": {"regex": 5}}, "Bad Request", "body.structured_outputs.regex"),
    ({"structured_outputs": {"choice": [5]}}, "Bad Request", "body.structured_outputs.choice.0"),
    ({"length_penalty": 99, "use_beam_search": True}, "BadRequestError", "length_penalty"),
    ({"use_beam_search": True, "n": 0}, "BadRequestError", None),
    ({"logprob_token_ids": list(range(129)), "logprobs": 1}, "BadRequestError",
     "logprob_token_ids"),
    ({"logprob_token_ids": [10**6], "logprobs": 1}, "BadRequestError", "logprob_token_ids"),
    ({"bad_words": ["x"] * 129}, "BadRequestError", "bad_words"),
]  # fmt: skip

ELSEWHERE = {
    # decided by other parts than sampling; each has tests of its own
    "model", "echo", "truncate_prompt_tokens", "truncation_side", "add_special_tokens", "stream",
    "stream_options", "stream_interval", "priority", "request_id", "session_id", "cache_salt",
    "return_token_ids", "return_tokens_as_token_ids", "kv_transfer_params", "ec_transfer_params",
    "thinking_token_budget", "logprobs_detail",
}  # fmt: skip


def body(path, fields):
    shape = {"prompt": "The sea"}
    if path == CHAT:
        shape = {"messages": [{"role": "user", "content": "The sea"}]}
    return {"max_tokens": 4, **shape, **fields}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(("field", "value", "attribute", "expected"), ARRIVES)
def test_arrives(app, engine, path, field, value, attribute, expected):
    if field == "stop_token_ids":
        value = [t for t in value if t < engine.vocab_size]
    reply = app.post(path, body(path, {field: value}))
    assert reply.status_code == 200, reply.text
    assert getattr(engine.requests[0].sampling, attribute) == expected
    assert len(engine.requests) == (value if field == "n" else 1)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(("fields", "kind", "param"), REFUSED)
def test_refused(app, engine, path, fields, kind, param):
    if path == CHAT and "logprobs" in fields:
        fields = {**fields, "logprobs": True}
    reply = app.post(path, body(path, fields))
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert (error["type"], error["param"], error["code"]) == (kind, param, 400)
    assert error["message"]
    assert not engine.requests


def test_no_field_is_left_out():
    fields = {field.name for field in msgspec.structs.fields(GenerationRequest)}
    tabled = {field for field, *_ in ARRIVES} | {name for row in REFUSED for name in row[0]}
    assert fields - tabled - ELSEWHERE == set()


def test_a_factory_by_name_reaches_the_engine(serve, engine):
    with serve(model={"logits_processor_pattern": "a.*"}) as app:
        spec = {"qualname": "a.c", "args": [1], "kwargs": {"x": 2}}
        reply = app.post(COMPLETIONS, body(COMPLETIONS, {"logits_processors": ["a.b", spec]}))
        assert reply.status_code == 200, reply.text
    assert engine.requests[0].sampling.logits_processors == [
        LogitsProcessorSpec("a.b"),
        LogitsProcessorSpec("a.c", [1], {"x": 2}),
    ]
