"""Grammars for forced calls in a format's own syntax: `tool_choice` required, or a named function.

Made as structural tags, since the markers of these formats may be special tokens. Values that can
only be strings stand as they are, so what a schema asks of them must be said without JSON; all
others are JSON, in which strings lack the first character of the marker that ends the value. Where
a schema cannot be said in this way there is no grammar, and calls are forced as plain JSON instead.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ortloom.errors import InvalidRequest
from ortloom.models.tool_parsers.schema_types import typed_json, types_of
from ortloom.models.tool_parsers.tool_parser import ToolSpec
from ortloom.runtime.sampling_params import StructuredOutput
from ortloom.server.openai.forced_schema import arguments_schema
from ortloom.server.own_syntax import OwnSyntax

Node = dict[str, Any]

BACKENDS = frozenset({"auto", "guidance", "xgrammar"})
"""Grammar engines that know structural tags."""

_NAME = re.compile(r"[\w.\-]{1,128}")
_KEY = re.compile(r"[\w.\-]{1,128}")
_CLEAR_PATTERN = re.compile(
    r"\^(?:[A-Za-z0-9 _:/@,;%#+*?(){}|\-]|\\[dw.\-/+]|\[[A-Za-z0-9 _\-]+\])*\$"
)
"""Patterns of whole texts that cannot match a marker: these have a bracket or a bar first."""

_NOTES = frozenset({"title", "description", "default", "examples", "deprecated"})
_DATA = frozenset({"const", "enum", "default", "examples", "required"})
"""Members whose value is no schema."""

_BARE = frozenset({"null", "boolean", "integer", "number"})
_SAYABLE = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema"}
)
"""Members of a tool's parameters that the grammar of an argument list has a place for."""


class _Unsayable(Exception):
    """A schema that the syntax has no words for."""


def own_calls(
    syntax: OwnSyntax,
    tools: Sequence[ToolSpec],
    *,
    named: str | None,
    parallel: bool,
    thinks: bool = False,
) -> StructuredOutput | None:
    """The grammar of one or more calls, None where a tool cannot be said in this syntax.

    Args:
        syntax: of the format.
        tools: what may be called, at least one.
        named: the one function that must be called, once; None = any of them.
        parallel: more than one call may be made.
        thinks: a thought may come first.

    Raises:
        InvalidRequest: a schema is nested too deeply.
    """
    offered = [tool for tool in tools if named is None or tool.name == named]
    try:
        tags = [_call(syntax, tool) for tool in offered]
    except _Unsayable:
        return None
    calls = {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": syntax.between,
        "at_least_one": True,
        "stop_after_first": named is not None or not parallel,
    }
    elements = [*_before(syntax, thinks), _const(syntax.opens), calls, _const(syntax.closes)]
    made = {"type": "structural_tag", "format": _sequence(elements)}
    try:
        value = json.dumps(made, ensure_ascii=False)
    except RecursionError:
        raise InvalidRequest("The tools' parameters are nested too deeply.", "tools") from None
    return StructuredOutput(kind="structural_tag", value=value, disable_any_whitespace=True)


def _before(syntax: OwnSyntax, thinks: bool) -> list[Node]:
    """What may stand before the calls."""
    resumed = [_maybe(_const(syntax.resume))] if syntax.resume else []
    if not thinks or syntax.thought is None:
        return resumed
    start, end = syntax.thought
    thought = {"type": "tag", "begin": start, "content": {"type": "any_text"}, "end": end}
    return [*resumed, _maybe(_sequence([thought, *resumed]))]


def _call(syntax: OwnSyntax, tool: ToolSpec) -> Node:
    if not _NAME.fullmatch(tool.name):
        raise _Unsayable
    head, number, rest = syntax.head.replace("NAME", tool.name).partition("NUMBER")
    content: list[Node] = []
    if number:
        content += [{"type": "regex", "pattern": "[1-9][0-9]?"}, _const(rest)]
    if syntax.label:
        content.append(_maybe(_const(syntax.label)))
    if syntax.member is None:
        content.append(_json(arguments_schema(tool, "#")))
    else:
        content += _members(syntax, tool)
    return {"type": "tag", "begin": head, "content": _sequence(content), "end": syntax.tail}


def _members(syntax: OwnSyntax, tool: ToolSpec) -> list[Node]:
    """The arguments in the order of the schema, or required ones first where commas part them."""
    if not tool.parameters:
        return []
    schema = arguments_schema(tool, "#")
    properties = schema.get("properties")
    required = schema.get("required", [])
    known = schema.keys() <= _SAYABLE | _NOTES and schema["type"] == "object"
    if not known or not isinstance(properties, Mapping) or not isinstance(required, list):
        raise _Unsayable
    if not set(required) <= properties.keys():
        raise _Unsayable
    made = {key: _member(syntax, tool, schema, key, properties[key]) for key in properties}
    if not syntax.comma:
        return [node if key in required else _maybe(node) for key, node in made.items()]
    needed = [node for key, node in made.items() if key in required]
    rest = [node for key, node in made.items() if key not in required]
    comma = _const(syntax.comma)
    if needed:
        joined = [needed[0]]
        for node in needed[1:]:
            joined += [comma, node]
        return joined + [_maybe(_sequence([comma, node])) for node in rest]
    ways = [
        _sequence([node, *(_maybe(_sequence([comma, later])) for later in rest[index + 1 :])])
        for index, node in enumerate(rest)
    ]
    return [_maybe({"type": "or", "elements": ways})] if ways else []


def _member(
    syntax: OwnSyntax, tool: ToolSpec, root: Mapping[str, Any], key: str, schema: Any
) -> Node:
    """An argument with its value."""
    if not _KEY.fullmatch(key) or not isinstance(schema, Mapping):
        raise _Unsayable
    types = types_of(schema, root)
    kind = "string" if "string" in types else min(types)
    begin = (syntax.member or "").replace("KEY", key).replace("TYPE", kind)
    quotes, end = syntax.quotes, syntax.value_end
    if "string" in types:
        content = _string(schema, types, (quotes + end)[0])
        begin, end = begin + quotes, quotes + end
    else:
        alone = _standing_alone(schema, root)
        content = _json(_without(alone, end[0]) if end else alone)
    tag = {"type": "tag", "begin": begin, "content": content, "end": end}
    return _sequence([tag, _const(syntax.after_value.replace("KEY", key))])


def _standing_alone(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """A schema taken out of its document, with the definitions it may refer to."""
    alone = dict(schema)
    for name in ("$defs", "definitions"):
        if name in root:
            alone[name] = root[name]
    if not all(_led_along(target) for target in _references(alone)):
        raise _Unsayable
    return alone


def _without(schema: Any, character: str) -> Any:
    """A copy whose strings of no stated form lack a character; a marker must not be in them."""
    if isinstance(schema, list):
        return [_without(inner, character) for inner in schema]
    if not isinstance(schema, Mapping):
        return schema
    copy = {
        key: value if key in _DATA else _without(value, character) for key, value in schema.items()
    }
    if schema.get("type") == "string" and not schema.keys() & {"pattern", "format", *_DATA}:
        copy["pattern"] = f"^[^{re.escape(character)}]*$"
    return copy


def _led_along(target: object) -> bool:
    return isinstance(target, str) and target.startswith(("#/$defs/", "#/definitions/"))


def _references(schema: object) -> list[object]:
    if isinstance(schema, Mapping):
        found = [target for inner in schema.values() for target in _references(inner)]
        return [*found, schema["$ref"]] if "$ref" in schema else found
    if isinstance(schema, list):
        return [target for inner in schema for target in _references(inner)]
    return []


def _string(schema: Mapping[str, Any], types: frozenset[str], first: str) -> Node:
    """A text that stands without quotes; `first` begins what ends it."""
    said = schema.keys() - _NOTES - {"nullable"}
    for name in ("anyOf", "oneOf"):
        if said == {name} and isinstance(schema[name], list):
            return _any_of(schema[name], types, first)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        if said - {"type", "enum", "const"} or not isinstance(values, list) or not values:
            raise _Unsayable
        return _one_of([_spelled(value, types, first) for value in values])
    if said <= {"type"} and types - {"string"} <= _BARE:
        return {"type": "any_text"}
    if types != {"string"}:
        raise _Unsayable
    if said <= {"type", "pattern"}:
        pattern = schema["pattern"]
        if not isinstance(pattern, str) or not _CLEAR_PATTERN.fullmatch(pattern):
            raise _Unsayable
        ascii_only = pattern[1:-1].replace("\\d", "[0-9]").replace("\\w", "[A-Za-z0-9_]")
        return {"type": "regex", "pattern": ascii_only}
    if said <= {"type", "minLength", "maxLength"}:
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        return {"type": "regex", "pattern": f"[^{re.escape(first)}]{{{least},{most}}}"}
    raise _Unsayable


def _any_of(branches: list[Any], types: frozenset[str], first: str) -> Node:
    """One of several schemas, none of which takes what another one refuses."""
    made: list[Node] = []
    free = False
    for branch in branches:
        if not isinstance(branch, Mapping) or "$ref" in branch:
            raise _Unsayable
        kinds = types_of(branch, {})
        if "string" in kinds:
            node = _string(branch, kinds, first)
            free = free or node == {"type": "any_text"}
            if node["type"] == "regex" and len(types) > 1:
                raise _Unsayable
            made.append(node)
        elif kinds <= _BARE and branch.keys() - _NOTES <= {"type"}:
            made.append(_json(dict(branch)))
        else:
            raise _Unsayable
    return {"type": "any_text"} if free else _one_of(made)


def _spelled(value: object, types: frozenset[str], first: str) -> Node:
    """A value of an enumeration as the format has it, which must be read as that value again."""
    text = value if isinstance(value, str) else json.dumps(value)
    read = text if types == {"string"} else json.loads(typed_json(text, types))
    if first in text or read != value or type(read) is not type(value):
        raise _Unsayable
    return _const(text)


def _one_of(nodes: list[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else {"type": "or", "elements": nodes}


def _sequence(nodes: list[Node]) -> Node:
    kept = [node for node in nodes if node != _const("")]
    return {"type": "sequence", "elements": kept or [_const("")]}


def _maybe(node: Node) -> Node:
    return {"type": "optional", "content": node}


def _const(text: str) -> Node:
    return {"type": "const_string", "value": text}


def _json(schema: Mapping[str, Any]) -> Node:
    return {"type": "json_schema", "json_schema": schema}
