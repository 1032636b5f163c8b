"""Structural tags: the request's JSON as a tree, in the newer form and in the older one.

Newer: `{"type": "structural_tag", "format": {…}}`, a tree of the formats below. Older:
`{"structures": [{"begin", "schema", "end"}], "triggers": […]}`: free text in which each trigger
opens one of the structures. The older one is the newer one's `triggered_tags`.
"""

from typing import Any

import msgspec

from ortloom.errors import InvalidRequest
from ortloom.runtime.schema_cost import too_costly

_PARAM = "structured_outputs"


class ConstString(msgspec.Struct, tag_field="type", tag="const_string"):
    """A fixed text."""

    value: str


class JsonSchema(msgspec.Struct, tag_field="type", tag="json_schema"):
    """A JSON value of a schema."""

    json_schema: dict[str, Any] | bool
    style: str = "json"


class AnyText(msgspec.Struct, tag_field="type", tag="any_text"):
    """Text that holds none of `excludes`."""

    excludes: list[str] = []


class Regex(msgspec.Struct, tag_field="type", tag="regex"):
    """A text that a pattern matches."""

    pattern: str


class Grammar(msgspec.Struct, tag_field="type", tag="grammar"):
    """A text of an EBNF or Lark grammar."""

    grammar: str


class Token(msgspec.Struct, tag_field="type", tag="token"):
    """One token, by id or by its text."""

    token: int | str


class Sequence(msgspec.Struct, tag_field="type", tag="sequence"):
    """One after the other."""

    elements: list["Format"]


class Or(msgspec.Struct, tag_field="type", tag="or"):
    """One of them."""

    elements: list["Format"]


class Tag(msgspec.Struct, tag_field="type", tag="tag"):
    """Something between a beginning and an end, or one of several ends."""

    begin: str | Token
    content: "Format"
    end: str | list[str] | Token


class TriggeredTags(msgspec.Struct, tag_field="type", tag="triggered_tags"):
    """Free text in which a trigger opens one of the tags that begin with it.

    `at_least_one`: it starts with a tag. `stop_after_first`: it ends with the first tag.
    """

    triggers: list[str]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: list[str] = []


class TagsWithSeparator(msgspec.Struct, tag_field="type", tag="tags_with_separator"):
    """Tags and nothing else, with a text between them."""

    tags: list[Tag]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


class Optional(msgspec.Struct, tag_field="type", tag="optional"):
    """Once or not at all."""

    content: "Format"


class Plus(msgspec.Struct, tag_field="type", tag="plus"):
    """Once or more."""

    content: "Format"


class Star(msgspec.Struct, tag_field="type", tag="star"):
    """Any number of times."""

    content: "Format"


class Repeat(msgspec.Struct, tag_field="type", tag="repeat"):
    """From `min` to `max` times; a `max` of -1 is no limit."""

    min: int
    max: int
    content: "Format"


Format = (
    ConstString
    | JsonSchema
    | AnyText
    | Regex
    | Grammar
    | Token
    | Sequence
    | Or
    | Tag
    | TriggeredTags
    | TagsWithSeparator
    | Optional
    | Plus
    | Star
    | Repeat
)


class _Newer(msgspec.Struct):
    format: Format


class _Structure(msgspec.Struct):
    begin: str
    end: str
    schema: dict[str, Any] | bool | None = None


class _Older(msgspec.Struct):
    structures: list[_Structure]
    triggers: list[str]


def parse_structural_tag(text: str) -> Format:
    """The tree of a structural tag.

    Raises:
        InvalidRequest: not JSON, of neither form, or of a format that is not known.
    """
    try:
        data = msgspec.json.decode(text)
        if isinstance(data, dict) and "format" in data:
            return _checked(msgspec.convert(data, _Newer).format)
        older = msgspec.convert(data, _Older)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidRequest(f"Invalid structural tag: {reason}", _PARAM) from None
    tags = [
        Tag(s.begin, JsonSchema(True if s.schema is None else s.schema), s.end)
        for s in older.structures
    ]
    return _checked(TriggeredTags(older.triggers, tags))


def _checked(made: Format) -> Format:
    """The tree, each node of it possible.

    Raises:
        InvalidRequest: why one is not.
    """
    for reason in _faults(made):
        raise InvalidRequest(f"Invalid structural tag: {reason}", _PARAM)
    return made


def _faults(node: Format) -> list[str]:
    faults: list[str] = []
    match node:
        case Sequence(elements) | Or(elements):
            if not elements:
                faults.append("elements must not be empty.")
            for element in elements:
                faults += _faults(element)
        case Optional(content) | Plus(content) | Star(content):
            faults += _faults(content)
        case Repeat(low, high, content):
            if low < 0 or (high != -1 and high < low):
                faults.append(f"repeat from {low} to {high} is no range.")
            faults += _faults(content)
        case Tag():
            faults += _tag_faults(node)
        case TriggeredTags(triggers, tags):
            faults += _trigger_faults(triggers, tags)
        case TagsWithSeparator(tags):
            if not tags:
                faults.append("tags must not be empty.")
            for tag in tags:
                faults += _tag_faults(tag)
        case JsonSchema(schema, style):
            if style != "json":
                faults.append(f"the style '{style}' is not supported; it is json.")
            reason = too_costly(schema)
            if reason is not None:
                faults.append(f"a schema would take too long to compile: {reason}.")
        case _:
            pass
    return faults


def _tag_faults(tag: Tag) -> list[str]:
    faults = _faults(tag.content)
    if isinstance(tag.end, list) and not tag.end:
        faults.append("a tag's end must not be an empty list.")
    return faults


def _trigger_faults(triggers: list[str], tags: list[Tag]) -> list[str]:
    faults: list[str] = []
    if not tags or not triggers or not all(triggers):
        faults.append("triggers and tags must not be empty.")
    for tag in tags:
        faults += _tag_faults(tag)
        begin = tag.begin
        if not isinstance(begin, str) or not any(begin.startswith(t) for t in triggers):
            shown = begin if isinstance(begin, str) else begin.token
            faults.append(f"no trigger opens the tag that begins with '{str(shown)[:60]}'.")
    return faults
