"""Grammars for calls that a request forces: `tool_choice` required, or a named function.

A tool's schema stands below the grammar's own root, so its local references are led there. Objects
that list their properties are closed: a model that must call a function would otherwise invent
members of its own, without end.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ortloom.errors import InvalidRequest
from ortloom.models.tool_parsers.tool_parser import ToolSpec
from ortloom.runtime.sampling_params import StructuredOutput

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

_DATA = frozenset({"const", "enum", "default", "examples"})
"""Members whose value is data and no schema."""

_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Members that hold schemas by name."""

_JOINING = frozenset({"allOf", "if", "then", "else", "dependentSchemas", "not"})
"""Members that put several schemas upon one object: closing one would shut out the others."""

_OPENNESS = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties"})
"""Members that say themselves what other properties may be there."""

_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_BRANCHES = frozenset({"anyOf", "oneOf", "$ref"})


def required_calls(tools: Sequence[ToolSpec], parallel: bool) -> StructuredOutput:
    """A JSON list of one or more calls, `{"name": …, "parameters": …}` each.

    Args:
        tools: what may be called, at least one.
        parallel: more than one call may be made.

    Raises:
        InvalidRequest: a schema is nested too deeply.
    """
    root: dict[str, Any] = {"type": "array", "minItems": 1}
    if not parallel:
        root["maxItems"] = 1
    root["items"] = {"anyOf": [_call(tool, f"#/$defs/{i}") for i, tool in enumerate(tools)]}
    root["$defs"] = {str(i): arguments_schema(tool, f"#/$defs/{i}") for i, tool in enumerate(tools)}
    return _constraint(root)


def named_call(tool: ToolSpec) -> StructuredOutput:
    """The arguments of one function.

    Raises:
        InvalidRequest: the schema is nested too deeply.
    """
    return _constraint(arguments_schema(tool, "#"))


def arguments_schema(tool: ToolSpec, root: str) -> dict[str, Any]:
    """The schema of a tool's arguments as it stands at `root` (`#` = the document itself).

    Raises:
        InvalidRequest: it is nested too deeply.
    """
    schema = dict(tool.parameters)
    if not schema:
        return _NO_PARAMETERS
    schema.setdefault("type", "object")
    try:
        closes = not _mentions(schema, _JOINING)
        led: dict[str, Any] = _led(schema, root, closes)
    except RecursionError:
        raise InvalidRequest(
            f"The parameters of the tool '{tool.name}' are nested too deeply.", "tools"
        ) from None
    return led


def _place(number: int, name: str) -> str:
    """Where a tool's schema stands; names go in where they can, for the sake of messages."""
    return f"{number}-{name}" if _PLAIN.fullmatch(name) else str(number)


def _call(tool: ToolSpec, where: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "parameters": {"$ref": where}},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _constraint(schema: dict[str, Any]) -> StructuredOutput:
    try:
        text = json.dumps(schema, ensure_ascii=False)
    except RecursionError:
        raise InvalidRequest("The tools' parameters are nested too deeply.", "tools") from None
    return StructuredOutput(kind="json", value=text, disable_any_whitespace=True)


def _mentions(schema: object, names: frozenset[str]) -> bool:
    """Whether a schema, or one inside it, has a member of these names."""
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key in names:
                return True
            if key in _NAMED_SCHEMAS and isinstance(value, Mapping):
                if any(_mentions(inner, names) for inner in value.values()):
                    return True
            elif key not in _DATA and _mentions(value, names):
                return True
    elif isinstance(schema, list):
        return any(_mentions(inner, names) for inner in schema)
    return False


def _led(schema: Any, root: str, closes: bool) -> Any:
    """A copy whose local references begin at `root`, objects with known properties closed."""
    if isinstance(schema, list):
        return [_led(inner, root, closes) for inner in schema]
    if not isinstance(schema, Mapping):
        return schema
    copy: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _DATA:
            copy[key] = value
        elif key in _NAMED_SCHEMAS and isinstance(value, Mapping):
            copy[key] = {name: _led(inner, root, closes) for name, inner in value.items()}
        elif key == "$ref" and isinstance(value, str) and value.startswith("#"):
            copy[key] = root + value[1:]
        else:
            copy[key] = _led(value, root, closes)
    lists = isinstance(schema.get("properties"), Mapping)
    if closes and lists and not (_OPENNESS | _BRANCHES) & schema.keys():
        copy["additionalProperties"] = False
    return copy
