"""Schemas of forced calls, compiled by the real grammar engine over single-byte tokens."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ortloom.errors import InvalidRequest
from ortloom.models.tool_parsers.tool_parser import ToolSpec
from ortloom.runtime.structured_output import GrammarCompiler
from ortloom.server.openai.forced_schema import arguments_schema, named_call, required_calls

NODE = {
    "type": "object",
    "properties": {
        "v": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
    },
    "required": ["v"],
}
LIST = ToolSpec(
    "list",
    {"type": "object", "properties": {"head": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": NODE}},
)
CITY = ToolSpec(
    "get_w",
    {"type": "object", "properties": {"city": {"enum": ["Oslo", "日本"]}}, "required": ["city"]},
)
NOOP = ToolSpec("noop")
EMPTY = ToolSpec("empty", {"type": "object", "properties": {}})


@pytest.fixture(scope="module")
def accepts(tmp_path_factory):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    path = Path(tmp_path_factory.mktemp("forced")) / "tokenizer.json"
    backend.save(str(path))
    compiler = GrammarCompiler(path, 257, [256])

    def check(constraint, value):
        """Whether a constraint takes a whole text."""
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        state = compiler.start(constraint, ())
        state.advance(backend.encode(text, add_special_tokens=False).ids)
        return state.error is None and bool(state.bitmask()[256 // 32] & 1)

    return check


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def calls(*pairs):
    return compact([{"name": name, "parameters": parameters} for name, parameters in pairs])


def test_required_takes_one_or_more_calls_that_fit(accepts):
    constraint = required_calls([CITY, NOOP, LIST], parallel=True)
    assert accepts(constraint, calls(("get_w", {"city": "日本"})))
    assert accepts(constraint, calls(("get_w", {"city": "Oslo"}), ("noop", {})))
    nested = {"head": {"v": 1, "next": {"v": 2, "next": None}}}
    assert accepts(constraint, calls(("list", nested)))
    assert not accepts(constraint, "[]")
    assert not accepts(constraint, calls(("other", {})))
    assert not accepts(constraint, calls(("get_w", {"city": "Rome"})))
    assert not accepts(constraint, calls(("get_w", {})))
    assert not accepts(constraint, calls(("noop", {"city": "Oslo"})))
    assert not accepts(constraint, calls(("list", {"head": {"v": "x"}})))


def test_one_call_at_most_without_parallel_calls(accepts):
    constraint = required_calls([CITY, NOOP], parallel=False)
    assert accepts(constraint, calls(("noop", {})))
    assert not accepts(constraint, calls(("noop", {}), ("noop", {})))


def test_a_named_function_takes_its_arguments(accepts):
    assert accepts(named_call(CITY), compact({"city": "Oslo"}))
    assert not accepts(named_call(CITY), compact({"city": "Oslo", "more": 1}))
    nested = {"head": {"v": 1, "next": {"v": 2}}}
    assert accepts(named_call(LIST), compact(nested))


@pytest.mark.parametrize("tool", [NOOP, EMPTY])
def test_a_tool_without_parameters_takes_an_empty_object(accepts, tool):
    assert accepts(named_call(tool), "{}")
    assert not accepts(named_call(tool), '{"a":1}')


def test_an_open_object_stays_open(accepts):
    free = ToolSpec("free", {"type": "object", "properties": {"meta": {"type": "object"}}})
    assert accepts(named_call(free), compact({"meta": {"any": [1, "x"]}}))
    said = ToolSpec("said", {"type": "object", "properties": {}, "additionalProperties": True})
    assert accepts(named_call(said), compact({"any": 1}))


def test_joined_schemas_are_not_closed(accepts):
    base = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    more = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
    joined = ToolSpec(
        "joined", {"allOf": [{"$ref": "#/$defs/Base"}, more], "$defs": {"Base": base}}
    )
    assert accepts(named_call(joined), compact({"a": 1, "b": 2}))
    assert accepts(required_calls([joined], True), calls(("joined", {"a": 1, "b": 2})))


def test_data_that_looks_like_a_schema_is_left_alone():
    data = {"$ref": "#/x", "properties": {}}
    schema = {"type": "object", "properties": {"d": {"const": data}, "$ref": {"type": "string"}}}
    made = arguments_schema(ToolSpec("d", schema), "#/$defs/0")
    assert made["properties"] == schema["properties"]


@pytest.mark.parametrize(
    "property_",
    [{"type": "string", "pattern": "(("}, {"type": "strange"}, {"$ref": "#/$defs/None"}],
)
def test_a_bad_schema_is_refused_by_name(accepts, property_):
    tool = ToolSpec("bad", {"type": "object", "properties": {"a": property_}, "required": ["a"]})
    with pytest.raises(InvalidRequest):
        accepts(required_calls([NOOP, tool], True), "[]")


def test_a_schema_nested_too_deeply_is_refused():
    schema = {"type": "object"}
    for _ in range(3000):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(InvalidRequest, match="deep"):
        named_call(ToolSpec("deep", schema))
