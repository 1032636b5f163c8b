"""Text of an argument to JSON, by what the tool's schema says of it."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ortloom.models.tool_parsers.json_text import json_text
from ortloom.models.tool_parsers.literal import literal_json

_INTEGER = re.compile(r"([+-]?)0*([0-9]+)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"([+-]?)0*([0-9]+)\.0*")

_ALIASES = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "dict": "object",
    "map": "object",
    "list": "array",
    "tuple": "array",
    "none": "null",
}
_DEEPEST = 16
"""Schemas within schemas that are followed for their types."""

ANY = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})


def property_schema(parameters: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The schema of one argument, None where the tool does not know it."""
    properties = parameters.get("properties")
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    return schema if isinstance(schema, Mapping) else None


def types_of(schema: Mapping[str, Any] | None, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types a schema allows; an unknown argument, and one of no stated type, is a string.

    Args:
        schema: of the argument.
        root: the tool's whole schema, where `$ref` is looked up.
    """
    if schema is None:
        return frozenset({"string"})
    return frozenset(_types(schema, root, _DEEPEST)) or frozenset({"string"})


def typed_json(text: str, types: frozenset[str]) -> str:
    """JSON text of what a model wrote for a value of one of these types.

    A text that is none of them is a string.
    """
    bare = text.strip()
    if "null" in types and bare.lower() in ("null", "none"):
        return "null"
    if "boolean" in types and bare.lower() in ("true", "false"):
        return bare.lower()
    for kind, read in (("integer", _integer), ("number", _number)):
        number = read(bare) if kind in types else None
        if number is not None:
            return number
    if types & {"object", "array"} and bare[:1] in ("{", "[", "("):
        literal = literal_json(bare)
        if literal is not None:
            return literal
    if "string" not in types and bare[:1] == '"':
        literal = literal_json(bare)
        if literal is not None:
            return literal
    return json_text(text)


def _integer(text: str) -> str | None:
    match = _INTEGER.fullmatch(text) or _WHOLE.fullmatch(text)
    if match is None:
        return None
    return ("-" if match[1] == "-" and match[2] != "0" else "") + match[2]


def _number(text: str) -> str | None:
    if _NUMBER.fullmatch(text):
        return text
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if not _FLOAT.fullmatch(text):
        return None
    value = float(text)
    return repr(value) if math.isfinite(value) else None


def _types(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Iterator[str]:
    if depth == 0:
        return
    stated = schema.get("type")
    names = stated if isinstance(stated, list | tuple) else [stated]
    known = [_ALIASES.get(n.lower(), n.lower()) for n in names if isinstance(n, str)]
    if known:
        yield from ANY if "any" in known else known
    else:
        yield from _implied(schema, root, depth)
    if schema.get("nullable") is True:
        yield "null"


def _implied(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Iterator[str]:
    """The types of a schema that states none itself."""
    for choice in ("anyOf", "oneOf", "allOf"):
        choices = schema.get(choice)
        for part in choices if isinstance(choices, list | tuple) else ():
            if isinstance(part, Mapping):
                yield from _types(part, root, depth - 1)
    target = _resolve(schema.get("$ref"), root)
    if target is not None:
        yield from _types(target, root, depth - 1)
    values = schema.get("enum")
    for value in values if isinstance(values, list | tuple) else ():
        yield _type_of(value)
    if "const" in schema:
        yield _type_of(schema["const"])
    if "properties" in schema:
        yield "object"
    if "items" in schema:
        yield "array"


def _resolve(reference: Any, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What `#/…` points to."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    node: Any = root
    for step in reference[2:].split("/"):
        if not isinstance(node, Mapping):
            return None
        node = node.get(step.replace("~1", "/").replace("~0", "~"))
    return node if isinstance(node, Mapping) else None


def _type_of(value: Any) -> str:
    """The JSON type of a value."""
    if value is None:
        return "null"
    for kind, name in ((bool, "boolean"), (str, "string"), (int, "integer"), (float, "number")):
        if isinstance(value, kind):
            return name
    return "object" if isinstance(value, Mapping) else "array"
