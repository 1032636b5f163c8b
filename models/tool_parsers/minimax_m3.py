"""minimax_m3: elements with a guard before every tag; objects and arrays are nested elements.

    ]<]minimax[>[<tool_call>]<]minimax[>[<invoke name="get_temp">
    ]<]minimax[>[<city>Oslo]<]minimax[>[</city>
    ]<]minimax[>[<days>2]<]minimax[>[</days>
    ]<]minimax[>[</invoke>]<]minimax[>[</tool_call>

An element's name is the argument's or member's key; a list's items are elements of any name (the
template writes `item`), and a key that is there twice makes a list. Values are typed by the schema.
The arguments of a call are sent once it is whole, since a key may come again. Thinking
(`<mm:think>`) stays content; calls in it are none.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ortloom.models.marker_scan import Markers
from ortloom.models.tool_parsers.blocks import Blocks
from ortloom.models.tool_parsers.json_text import json_text
from ortloom.models.tool_parsers.schema_types import property_schema, typed_json, types_of
from ortloom.models.tool_parsers.tagged_calls import attributes
from ortloom.models.tool_parsers.tool_parser import ToolSpec

_GUARD = "]<]minimax[>["
_DEEPEST = 64
_LONGEST_TAG = 512
_TAG = re.compile(r"/?[^\s<>/]+")
_INVOKE = re.compile(r"invoke\s")


@dataclass(slots=True)
class _Element:
    """An open element: its name, its text and its members as JSON."""

    name: str
    schema: Mapping[str, Any] | None
    texts: list[str] = field(default_factory=list)
    members: list[tuple[str, str]] = field(default_factory=list)


class MinimaxM3Parser(Blocks):
    """`<tool_call>` with `<invoke>` elements, all guarded."""

    grammar_calls = False
    opens: ClassVar[tuple[str, ...]] = (f"{_GUARD}<tool_call>",)
    closes: ClassVar[tuple[str, ...]] = (f"{_GUARD}</tool_call>",)
    thinking: ClassVar[tuple[str, str] | None] = ("<mm:think>", "</mm:think>")
    _tags = Markers(f"{_GUARD}<")
    _tag_end = Markers(">")

    def __init__(
        self, tools: Sequence[ToolSpec], template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(tools, template_kwargs)
        self._parts: list[str] = []
        self._length = 0
        self._root: Mapping[str, Any] = {}
        self._elements: list[_Element] = []  # of the open call, itself first

    def _enter(self, marker: str) -> None:
        self._elements.clear()
        self._state = self._free

    def _free(self) -> bool:
        """Text up to the next tag."""
        text, marker = self._until(self._tags)
        if self._elements:
            self._elements[-1].texts.append(text)
        elif text.strip() and self._tried is not None:
            self._at -= len(marker or "")
            self._refuse()
            return True
        if marker is None:
            return False
        self._parts.clear()
        self._length = 0
        self._state = self._tag
        return True

    def _tag(self) -> bool:
        text, marker = self._until(self._tag_end)
        self._parts.append(text)
        self._length += len(text)
        if marker is None and self._length <= _LONGEST_TAG:
            return False
        tag = "".join(self._parts).strip()
        self._state = self._free
        if marker is None or self._length > _LONGEST_TAG or not self._take_tag(tag):
            self._refuse()
        return True

    def _take_tag(self, tag: str) -> bool:
        """Open or close what the tag names; False where it cannot stand here."""
        if not self._elements:
            if tag == "/tool_call":
                self._state = self._outside
                return self._tried is None
            name = attributes(tag).get("name", "").strip()
            if not _INVOKE.match(tag) or not name or name.split() != [name]:
                return False
            self._start(name)
            tool = self.tools.get(name)
            self._root = tool.parameters if tool is not None else {}
            self._elements = [_Element("invoke", self._root)]
            return True
        if not _TAG.fullmatch(tag) or len(self._elements) > _DEEPEST:
            return False
        if not tag.startswith("/"):
            self._elements.append(_Element(tag, self._member_schema(tag)))
            return True
        if tag[1:] != self._elements[-1].name:
            return False
        self._close_element()
        return True

    def _close_element(self) -> None:
        element = self._elements.pop()
        if self._elements:
            self._elements[-1].members.append((element.name, self._json(element)))
            return
        self._arguments(_object(element.members))
        self._end()

    def _member_schema(self, name: str) -> Mapping[str, Any] | None:
        """What the schema says of a member of the innermost element."""
        schema = self._elements[-1].schema
        if schema is None:
            return None
        found = property_schema(schema, name)
        if found is not None:
            return found
        items = schema.get("items", schema.get("additionalProperties"))
        return items if isinstance(items, Mapping) else None

    def _json(self, element: _Element) -> str:
        types = types_of(element.schema, self._root)
        if element.members and "array" in types and "object" not in types:
            return f"[{', '.join(value for _, value in element.members)}]"
        if element.members:
            listed = element.schema is None and all(n == "item" for n, _ in element.members)
            if listed:
                return f"[{', '.join(value for _, value in element.members)}]"
            return _object(element.members)
        text = "".join(element.texts)
        if not text.strip() and "string" not in types:
            if "array" in types:
                return "[]"
            if "object" in types:
                return "{}"
        return typed_json(text, types)


def _object(members: list[tuple[str, str]]) -> str:
    """JSON text of an object; the values of a key that is there twice become a list."""
    values: dict[str, list[str]] = {}
    for name, value in members:
        values.setdefault(name, []).append(value)
    parts = (
        f"{json_text(name)}: {found[0] if len(found) == 1 else '[' + ', '.join(found) + ']'}"
        for name, found in values.items()
    )
    return "{" + ", ".join(parts) + "}"
