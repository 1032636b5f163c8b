"""The lexers below the tool-call parsers, against Python's own readers."""

import ast
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ortloom.models.marker_scan import Markers
from ortloom.models.tool_parsers.json_call import JsonCall
from ortloom.models.tool_parsers.json_value import JsonValue
from ortloom.models.tool_parsers.literal import literal_json
from ortloom.models.tool_parsers.python_argument import PythonArgument
from ortloom.models.tool_parsers.schema_types import property_schema, typed_json, types_of

JSON_PIECES = [
    "{", "}", "[", "]", ",", ":", '"', '"a"', '"a":', "1", "-", "0", ".5", "e3", "E-", "+", "true",
    "fals", "e", "null", " ", "\n", "\t", "\\", "\\n", "\\u00e", "9", "é", "NaN", "'", "\x01",
]  # fmt: skip


def is_json(text):
    def refuse(constant):
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(JSON_PIECES), min_size=1, max_size=10).map("".join))
@example('{"a": [1, -0.5e+3, {"b": null}], "c": "\\ud83d\\ude00 \\" {}"}')
@example("01")
@example("[1,]")
@example('{"a":1,}')
def test_a_json_value_is_what_python_takes_for_one(text):
    value = JsonValue()
    end = value.feed(text)
    value.end()
    trailing = text[end:].strip(" \t\r\n")
    assert (value.done and not trailing) == is_json(text)
    pieces = JsonValue()
    for char in text:
        if not pieces.done and not pieces.failed:
            pieces.feed(char)
    pieces.end()
    assert (pieces.done, pieces.failed) == (value.done, value.failed)


def test_a_value_ends_where_it_ends():
    for text, end in [('{"a": "}"} x', 10), ("[1] ]", 3), ("12 ", 2), ("1.5}", 3), ('"a""', 3)]:
        value = JsonValue()
        assert value.feed(text) == end
        assert value.done


@pytest.mark.parametrize(
    ("text", "name", "arguments", "call_id"),
    [
        ('{"name": "f", "arguments": {"a": 1}}', "f", '{"a": 1}', None),
        ('{"arguments": [1], "id": 7, "name": "f"}', "f", "[1]", None),
        ('{"id": 7, "arguments": {}, "name": "f"}', "f", "{}", "7"),
        ('{"id": null, "name": "f", "arguments": {}}', "f", "{}", None),
        ('{"id": ' + "9" * 5000 + ', "name": "f"}', "f", "", "9" * 5000),
        ('{"name": "f", "arguments": "text"}', "f", '"text"', None),
        ('{"name": "f", "arguments": ""}', "f", "{}", None),
        ('{"name": "f\\u00e9"}', "fé", "", None),
    ],
)
def test_a_call_object(text, name, arguments, call_id):
    for size in (1, 3, len(text)):
        call = JsonCall(id_keys=("id",))
        for at in range(0, len(text), size):
            call.feed(text[at : at + size])
        assert (call.done, call.name, call.take(), call.call_id) == (True, name, arguments, call_id)


@pytest.mark.parametrize(
    "text",
    [
        "[",
        '{"name": 5}',
        '{"name": ""}',
        "{}",
        '{"arguments": {}, "arguments": {}, "name": "f"}',
        "{,",
    ],
)
def test_what_is_no_call_object(text):
    call = JsonCall()
    call.feed(text)
    assert call.failed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'a'", "a"),
        ('"a\\"b"', 'a"b'),
        ("'''a\nb'''", "a\nb"),
        ("'a' 'b'", "ab"),
        ("-1.5", -1.5),
        ("+2", 2),
        ("True", True),
        ("true", True),
        ("None", None),
        ("null", None),
        ("(1, 2)", [1, 2]),
        ("{'a': [1, {'b': ()}]}", {"a": [1, {"b": []}]}),
        ("'a\nb\x00'", "a\nb\0"),
        ('["a\n", \'b\n"\']', ["a\n", 'b\n"']),
        ("07", 7),
        ("-007", -7),
        ("00", 0),
        (r"'\d+'", r"\d+"),
        ("1e3", 1000.0),
    ],
)
def test_a_literal(text, value):
    assert json.dumps(json.loads(literal_json(text))) == json.dumps(value)


@pytest.mark.parametrize(
    "text",
    [
        "", "a", "open('x')", "1+1", "[x for x in y]", "{**a}", "b'x'", "1j", "f'{x}'", "...",
        "{1: 2}", "lambda: 0", "'a", "- 'a'", "-True", "x.y", "__import__('os')", "nan",
        "(" * 70 + ")" * 70, "-" * 60_000, "1+" * 30_000 + "1", "[1," * 30_000,
        "['\n" + "\\'" * 30_000,
    ],
)  # fmt: skip
def test_what_is_no_literal(text):
    assert literal_json(text) is None


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.one_of(st.text(), st.integers(), st.booleans(), st.none()),
        lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
        max_leaves=8,
    )
)
def test_an_argument_ends_at_its_comma_and_reads_as_python_wrote_it(value):
    text = f" {value!r} , next"
    argument = PythonArgument()
    end = argument.feed(text, 0)
    assert (argument.end, text[end:]) == (",", ", next")
    assert json.loads(literal_json(text[:end])) == json.loads(
        json.dumps(ast.literal_eval(text[1:end]))
    )


STRING, INT, NUM = frozenset({"string"}), frozenset({"integer"}), frozenset({"number"})


@pytest.mark.parametrize(
    ("text", "types", "want"),
    [
        ("2", STRING, '"2"'),
        ("null", STRING, '"null"'),
        (" a\n", STRING, '" a\\n"'),
        ("2", INT, "2"),
        (" -007 ", INT, "-7"),
        ("+5", INT, "5"),
        ("2.0", INT, "2"),
        ("2.5", INT, '"2.5"'),
        ("1_000", INT, '"1_000"'),
        ("9" * 5000, INT, "9" * 5000),
        ("2", NUM, "2"),
        ("2.50", NUM, "2.50"),
        (".5", NUM, "0.5"),
        ("1e999", NUM, "1e999"),
        ("inf", NUM, '"inf"'),
        ("nan", NUM, '"nan"'),
        ("TRUE", frozenset({"boolean"}), "true"),
        ("yes", frozenset({"boolean"}), '"yes"'),
        ("None", frozenset({"string", "null"}), "null"),
        ("[1, 2]", frozenset({"array"}), "[1, 2]"),
        ("['a', True]", frozenset({"array"}), '["a", true]'),
        ("{'a': 1}", frozenset({"object"}), '{"a": 1}'),
        ("[1,", frozenset({"array"}), '"[1,"'),
        ("[1]", frozenset({"string", "array"}), "[1]"),
        ("5", frozenset({"string", "integer"}), "5"),
        ("é\ud800", STRING, '"\\u00e9\\ud800"'),
    ],
)
def test_a_value_by_its_types(text, types, want):
    assert typed_json(text, types) == want


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        (None, {"string"}),
        ({}, {"string"}),
        ({"description": "x"}, {"string"}),
        ({"type": "integer"}, {"integer"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"type": "int"}, {"integer"}),
        ({"type": "string", "nullable": True}, {"string", "null"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"oneOf": [{"type": "array"}, {"enum": [1, "a"]}]}, {"array", "integer", "string"}),
        ({"$ref": "#/$defs/p"}, {"object"}),
        ({"$ref": "#/nowhere"}, {"string"}),
        ({"$ref": "#/$defs/loop"}, {"string"}),
        ({"const": True}, {"boolean"}),
        ({"properties": {}}, {"object"}),
        ({"items": {}}, {"array"}),
        ({"type": 5, "anyOf": 3, "enum": None}, {"string"}),
    ],
)
def test_types_of_a_schema(schema, types):
    root = {"$defs": {"p": {"type": "object"}, "loop": {"$ref": "#/$defs/loop"}}}
    assert types_of(schema, root) == types


def test_a_schema_that_is_none():
    assert property_schema({}, "a") is None
    assert property_schema({"properties": []}, "a") is None
    assert property_schema({"properties": {"a": True}}, "a") is None


@settings(max_examples=150, deadline=None)
@given(
    text=st.text("<ab>", max_size=14),
    strings=st.lists(st.text("<ab>", min_size=1, max_size=4), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 14), max_size=4),
)
def test_markers_are_found_wherever_the_text_is_cut(text, strings, cuts):
    """The one that starts first, of those the longest, again after it."""
    marks = Markers(*strings)

    def scan(pieces):
        parts, rest = [], ""
        for number, piece in enumerate([*pieces, ""]):
            rest += piece
            ended = number == len(pieces)
            while True:
                end, marker = marks.search(rest, 0, ended)
                parts.append(rest[:end])
                rest = rest[end:]
                if marker is None:
                    break
                parts.append((marker,))
                rest = rest[len(marker) :]
        assert not rest
        joined = []
        for part in parts:
            if isinstance(part, str) and joined and isinstance(joined[-1], str):
                joined[-1] += part
            elif part:
                joined.append(part)
        return joined

    want, at, free = [], 0, ""
    while at < len(text):
        found = max((s for s in strings if text.startswith(s, at)), key=len, default=None)
        if found is None:
            free += text[at]
            at += 1
            continue
        want += [free, (found,)] if free else [(found,)]
        free = ""
        at += len(found)
    want += [free] if free else []
    places = sorted({min(cut, len(text)) for cut in cuts})
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert scan([text]) == want
    assert scan(pieces) == want
    assert scan(list(text)) == want
