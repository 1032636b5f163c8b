"""Parts that bodies of several routes have in common, tried on completions or chat."""

from field_tables.chat import CHAT, HI, constrained
from field_tables.generation import OLD_TAG, SCHEMA, TAG, every_usage, last_usage
from field_tables.rows import (
    BAD,
    OMIT,
    REFUSED,
    Field,
    Kind,
    everything,
    ignored,
    no,
    ok,
    sampling,
    wrong,
)
from ortloom.runtime.sampling_params import (
    LogitsProcessorSpec,
    RepetitionDetection,
    StructuredOutput,
)
from ortloom.server.openai.wire_common import (
    JsonSchemaFormat,
    ResponseFormat,
    StreamOptions,
    StructuredOutputs,
)

PATH = "/v1/completions"


def at(*path, path_of=None, **base):
    """A part of a completion: `fields` on top of `base`, at a place."""

    def whole(fields):
        value = {**base, **fields}
        for name in reversed(path):
            value = [value] if name == 0 else {name: value}
        return {"prompt": "The sea", "max_tokens": 4, **value}

    return whole


def constraint(sight):
    return sight.request.sampling.structured_output


def option(name, default):
    return lambda sight: getattr(constraint(sight), name)


STREAM_OPTIONS = {
    "include_usage": Field(
        last_usage,
        False,
        [ok(True, True), ok(False, False)],
        wrong("stream_options.include_usage", "maybe", 5),
    ),
    "continuous_usage_stats": Field(
        every_usage,
        False,
        [ok(True, True, include_usage=True), ok(False, False, include_usage=True), ok(True, False)],
        wrong("stream_options.continuous_usage_stats", "maybe", 5),
    ),
}

FORMAT = {
    "type": Field(
        constrained,
        None,
        [ok("text", None), ok("json_object", "json_object"), ok("json_schema", "json"),
         ok("structural_tag", "structural_tag", format=TAG)],
        [*wrong("response_format.type", 5), no("xml", REFUSED, "response_format")],
        missing=no(OMIT, BAD, "body.response_format.type", "required"),
        null=no(None, BAD, "body.response_format.type"),
    ),
    "json_schema": Field(
        constrained,
        None,
        [ok({"name": "n", "schema": SCHEMA}, "json")],
        [*wrong("response_format.json_schema", "x", 5), no({}, REFUSED, "response_format")],
        missing=no(OMIT, REFUSED, "response_format"),
        null=no(None, REFUSED, "response_format"),
    ),
    "format": Field(
        lambda s: constraint(s).value,
        '{"structures": [{"begin": "<f>", "schema": {}, "end": ""}], "triggers": ["<"]}',
        [ok(TAG, '{"format": {"type": "any_text"}}')],
        [],
        beside={"type": "structural_tag", **OLD_TAG},
    ),
    "structures": Field(
        lambda s: constraint(s).value,
        '{"structures": null, "triggers": ["<"]}',
        [ok([], '{"structures": [], "triggers": ["<"]}')],
        [],
        beside={"type": "structural_tag", "triggers": ["<"]},
    ),
    "triggers": Field(
        lambda s: constraint(s).value,
        '{"structures": [], "triggers": null}',
        [ok(["<"], '{"structures": [], "triggers": ["<"]}')],
        [],
        beside={"type": "structural_tag", "structures": []},
    ),
}  # fmt: skip

SCHEMA_FORMAT = {
    "name": ignored("n", refused=wrong("response_format.json_schema.name", 5)),
    "description": ignored("d", refused=wrong("response_format.json_schema.description", 5)),
    "strict": ignored(True, False, refused=wrong("response_format.json_schema.strict", "x")),
    "schema": Field(
        lambda s: constraint(s).value,
        None,
        [ok({"type": "object"}, '{"type": "object"}'), ok('{"a": 1}', '{"a": 1}'),
         ok(True, "true")],
        [
            no(5, REFUSED, "response_format"),
            no("{", REFUSED, "response_format"),
        ],
        missing=no(OMIT, REFUSED, "response_format"),
        null=no(None, REFUSED, "response_format"),
    ),
}  # fmt: skip


def one(name, taken, refused):
    """A constraint; without it the regex of the base holds."""
    return Field(
        constraint,
        StructuredOutput("regex", "a"),
        [ok(value, seen, regex=OMIT) for value, seen in taken],
        [*refused, no(taken[0][0], REFUSED, "structured_outputs", "exactly one")],
    )


OUTPUTS = {
    "json": one(
        "json",
        [({"a": 1}, StructuredOutput("json", '{"a": 1}')),
         ('{"a": 1}', StructuredOutput("json", '{"a": 1}')),
         (True, StructuredOutput("json", "true"))],
        [no("{", REFUSED, "structured_outputs"),
         no(5, REFUSED, "structured_outputs")],
    ),
    "regex": Field(
        constraint,
        None,
        [ok("a+", StructuredOutput("regex", "a+"))],
        [*wrong("structured_outputs.regex", 5), no("a", REFUSED, "structured_outputs",
                                                   "exactly one", choice=["b"])],
        missing=no(OMIT, REFUSED, "structured_outputs", "exactly one"),
        null=no(None, REFUSED, "structured_outputs", "exactly one"),
    ),
    "choice": one(
        "choice",
        [(["a", "b"], StructuredOutput("choice", '["a", "b"]'))],
        [*wrong("structured_outputs.choice", "x"),
         no([5], BAD, "body.structured_outputs.choice.0"),
         no([], REFUSED, "structured_outputs", regex=OMIT)],
    ),
    "grammar": one(
        "grammar",
        [("start: /a/", StructuredOutput("grammar", "start: /a/"))],
        [*wrong("structured_outputs.grammar", 5),
         no(" ", REFUSED, "structured_outputs", regex=OMIT)],
    ),
    "json_object": one(
        "json_object",
        [(True, StructuredOutput("json_object"))],
        [*wrong("structured_outputs.json_object", "x", 5),
         no(False, REFUSED, "structured_outputs", "exactly one", regex=OMIT)],
    ),
    "structural_tag": one(
        "structural_tag",
        [({"format": TAG}, StructuredOutput("structural_tag", '{"format": {"type": "any_text"}}')),
         ('{"format": {"type": "any_text"}}',
          StructuredOutput("structural_tag", '{"format": {"type": "any_text"}}'))],
        [],
    ),
    "disable_any_whitespace": Field(
        option("disable_any_whitespace", False), False, [ok(True, True), ok(False, False)],
        wrong("structured_outputs.disable_any_whitespace", "x"),
    ),
    "disable_additional_properties": Field(
        option("disable_additional_properties", False), False, [ok(True, True), ok(False, False)],
        wrong("structured_outputs.disable_additional_properties", "x"),
    ),
    "whitespace_pattern": Field(
        option("whitespace_pattern", None), None, [ok("[ ]?", "[ ]?")],
        wrong("structured_outputs.whitespace_pattern", 5),
    ),
}  # fmt: skip


def size(name, default, taken, *bad):
    return Field(
        lambda s: getattr(s.request.sampling.repetition_detection, name),
        default,
        [ok(value, value) for value in taken],
        [
            *wrong(f"repetition_detection.{name}", "x", 1.5),
            *(no(value, REFUSED, "repetition_detection") for value in bad),
        ],
    )


REPETITION = {
    "max_pattern_size": size("max_pattern_size", 0, [4, 4096], 4097, -1).but(
        null=no(None, BAD, "body.repetition_detection.max_pattern_size")
    ),
    "min_pattern_size": size("min_pattern_size", 0, [0, 2], 9, -1).but(
        beside={"max_pattern_size": 8},
        null=no(None, BAD, "body.repetition_detection.min_pattern_size"),
    ),
    "min_count": size("min_count", 0, [2, 5], 1, -1).but(
        beside={"max_pattern_size": 8},
        default=None,
        missing=no(OMIT, REFUSED, "repetition_detection"),
        null=no(None, BAD, "body.repetition_detection.min_count"),
    ),
}


def spec(name):
    return lambda s: getattr(s.request.sampling.logits_processors[0], name)


FACTORY = {
    "qualname": Field(
        spec("qualname"),
        None,
        [ok("allowed.b", "allowed.b")],
        wrong("logits_processors.0.qualname", 5),
        missing=no(OMIT, BAD, "body.logits_processors.0.qualname", "required"),
        null=no(None, BAD, "body.logits_processors.0.qualname"),
    ),
    "args": Field(spec("args"), None, [ok([1], [1])], wrong("logits_processors.0.args", "x")),
    "kwargs": Field(
        spec("kwargs"), None, [ok({"a": 1}, {"a": 1})], wrong("logits_processors.0.kwargs", "x")
    ),
}

KINDS = [
    Kind("stream options", PATH, (StreamOptions,), STREAM_OPTIONS,
         lambda fields: {"prompt": "The sea", "max_tokens": 4, "stream": True,
                         "stream_options": fields}),
    Kind("response format", PATH, (ResponseFormat,), FORMAT,
         at("response_format", type="json_schema", json_schema={"schema": SCHEMA})),
    Kind("json schema format", CHAT, (JsonSchemaFormat,), SCHEMA_FORMAT,
         lambda fields: {"messages": HI, "max_tokens": 4, "response_format": {
             "type": "json_schema", "json_schema": {"schema": SCHEMA, **fields}}}),
    Kind("structured outputs", PATH, (StructuredOutputs,), OUTPUTS,
         at("structured_outputs", regex="a")),
    Kind("repetition detection", PATH, (RepetitionDetection,), REPETITION,
         at("repetition_detection", min_count=2)),
    Kind("logits processor", PATH, (LogitsProcessorSpec,), FACTORY,
         at("logits_processors", 0, qualname="allowed.a"), on="open"),
]  # fmt: skip

__all__ = ["KINDS", "everything", "sampling"]
