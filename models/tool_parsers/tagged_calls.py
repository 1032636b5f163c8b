"""Calls as tags with a tag for each argument: the base of the families that look like XML.

A value is text up to its closing tag: no escapes, no nesting. Its type comes from the tool's
schema; a value that can only be a string is sent as it arrives, any other once it is whole.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ortloom.models.marker_scan import Markers
from ortloom.models.tool_parsers.blocks import Blocks
from ortloom.models.tool_parsers.json_text import json_text, string_body
from ortloom.models.tool_parsers.schema_types import property_schema, typed_json, types_of
from ortloom.models.tool_parsers.tool_parser import ToolSpec

_NAME = re.compile(r"[^\s<>\"'{}]+")
_ATTRIBUTE = re.compile(r"""([\w:-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
_STRING = frozenset({"string"})
_LONGEST_HEAD = 512
"""Characters of a name or a key with its attributes; more is text that only mentions the tag."""


class TaggedCalls(Blocks):
    """Follows `WRAPPER CALL name HEAD_END KEY key KEY_END value VALUE_END … CALL_END WRAPPER_END`.

    Attributes:
        opens: what opens a wrapper, and what opens a call where it has none.
        calls: what opens a call.
        head_ends: what ends the name.
        keys: what opens an argument; one that ends the name counts too.
        key_ends: what ends the key and begins the value.
        value_opens: what begins the value where `key_ends` does not; blanks may stand before it.
        value_ends: what ends the value, with what is cut away before it.
        implied_ends: what ends a value whose end is missing; it counts again as what it is.
        noise: what may stand between the calls of a wrapper and says nothing.
        labels: those of `noise` after which text up to the next marker says nothing either.
        known_only: a call of a function that is not offered is no call.
        trims_newline: one newline at the beginning of a value is cut away.
        call_ends: what ends a call.
        closes: what closes a wrapper.
        unknown: the types of an argument the schema does not have.
    """

    calls: ClassVar[tuple[str, ...]]
    head_ends: ClassVar[tuple[str, ...]]
    keys: ClassVar[tuple[str, ...]]
    key_ends: ClassVar[tuple[str, ...]]
    value_opens: ClassVar[tuple[str, ...]] = ()
    value_ends: ClassVar[tuple[str, ...]]
    implied_ends: ClassVar[tuple[str, ...]] = ()
    noise: ClassVar[tuple[str, ...]] = ()
    labels: ClassVar[tuple[str, ...]] = ()
    known_only: ClassVar[bool] = False
    trims_newline: ClassVar[bool] = False
    call_ends: ClassVar[tuple[str, ...]]
    unknown: ClassVar[frozenset[str]] = _STRING

    _between_marks: ClassVar[Markers]
    _head_marks: ClassVar[Markers]
    _body_marks: ClassVar[Markers]
    _key_marks: ClassVar[Markers]
    _value_open_marks: ClassVar[Markers | None]
    _value_marks: ClassVar[Markers]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not hasattr(cls, "calls"):
            return
        limits = {*cls.opens, *cls.calls, *cls.closes}
        cls._limits = Markers(*limits)
        cls._between_marks = Markers(*limits, *cls.noise)
        cls._head_marks = Markers(*cls.head_ends, *cls.keys, *cls.call_ends, *limits)
        cls._body_marks = Markers(*cls.keys, *cls.call_ends, *limits)
        cls._key_marks = Markers(*cls.key_ends, *cls.value_ends, *cls.call_ends, *limits)
        cls._value_open_marks = Markers(*cls.value_opens) if cls.value_opens else None
        cls._value_marks = Markers(*cls.value_ends, *cls.implied_ends)

    def __init__(
        self, tools: Sequence[ToolSpec], template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(tools, template_kwargs)
        self._parts: list[str] = []
        self._length = 0
        self._labelled = False
        self._wrapped = False
        self._name = ""
        self._num_arguments = 0
        self._types = _STRING
        self._value_begun = False

    # -- what families differ in -----------------------------------------------------------------

    def _read_name(self, head: str) -> str | None:
        """The function's name in the text between `calls` and `head_ends`, None if it is none."""
        name = head.strip().strip("\"'")
        return name if _NAME.fullmatch(name) else None

    def _read_key(self, text: str) -> tuple[str, frozenset[str] | None] | None:
        """(key, types) in the text between `keys` and `key_ends`; types None = by the schema."""
        key = text.strip().strip("\"'")
        return (key, None) if key else None

    # -- states ----------------------------------------------------------------------------------

    def _enter(self, marker: str) -> None:
        self._parts.clear()
        self._length = 0
        self._labelled = False
        if marker in self.calls:
            self._state = self._head_text
        elif marker in self.opens:
            self._wrapped = True
            self._state = self._between
        else:
            self._wrapped = False
            self._state = self._outside

    def _between(self) -> bool:
        """In a wrapper, before a call."""
        text, marker = self._until(self._between_marks)
        if text.strip() and self._tried is not None and not self._labelled:
            self._refuse_at(marker)
            return True
        if marker is None:
            return False
        self._labelled = marker in self.labels
        if marker in self.closes and self._tried is not None:
            self._refuse()  # a wrapper without calls
        elif marker not in self.noise:
            self._enter(marker)
        return True

    def _head_text(self) -> bool:
        if not self._length and not self._skip_blanks() and not self._ended:
            return False
        text, marker = self._until(self._head_marks)
        self._parts.append(text)
        self._length += len(text)
        if self._length > _LONGEST_HEAD:
            self._at -= len(marker or "") + self._length - _LONGEST_HEAD
            self._refuse_at()
            return True
        if marker is None:
            return False
        name = self._read_name("".join(self._parts))
        unknown = self.known_only and bool(self.tools) and name not in self.tools
        if name is None or unknown or marker in self.opens or marker in self.calls:
            self._refuse_at(marker)
            return True
        self._name, self._num_arguments = name, 0
        self._start(name)
        self._in_body(marker)
        return True

    def _body(self) -> bool:
        """Between arguments."""
        _, marker = self._until(self._body_marks)
        if marker is None:
            return False
        self._in_body(marker)
        return True

    def _in_body(self, marker: str) -> None:
        """Go on after a marker of the body, or after what ends the name."""
        if marker in self.keys:
            self._parts.clear()
            self._length = 0
            self._state = self._key_text
        elif marker in self.call_ends:
            self._arguments("}" if self._num_arguments else "")
            self._end()
            self._state = self._between if self._wrapped else self._outside
        elif marker in self.head_ends:
            self._state = self._body
        else:  # the call's end is missing
            self._arguments("}" if self._num_arguments else "")
            self._end()
            if marker in self.opens:
                self._try(marker)
            self._enter(marker)

    def _key_text(self) -> bool:
        text, marker = self._until(self._key_marks)
        self._parts.append(text)
        self._length += len(text)
        if self._length > _LONGEST_HEAD:
            self._at -= len(marker or "") + self._length - _LONGEST_HEAD
            self._refuse_at()
            return True
        if marker is None:
            return False
        read = self._read_key("".join(self._parts))
        if read is None or marker not in self.key_ends:
            self._refuse_at(marker)
            return True
        self._begin_argument(*read)
        self._state = self._value_open if self.value_opens else self._value_text
        return True

    def _begin_argument(self, key: str, types: frozenset[str] | None) -> None:
        if types is None:
            tool = self.tools.get(self._name)
            parameters = tool.parameters if tool is not None else {}
            schema = property_schema(parameters, key)
            types = self.unknown if schema is None else types_of(schema, parameters)
        self._types = types
        self._key = key
        self._value_begun = not self.trims_newline
        self._sent_key = False
        self._parts.clear()

    def _value_open(self) -> bool:
        """Up to what begins the value."""
        if not self._skip_blanks() or self._value_open_marks is None:
            return False
        known, marker = self._at_marker(self._value_open_marks)
        if not known:
            return False
        if marker is None:
            self._refuse()
        else:
            self._state = self._value_text
        return True

    def _value_text(self) -> bool:
        if not self._value_begun:
            char = self._peek()
            if not char:
                return False
            self._at += char == "\n"
            self._value_begun = True
        text, marker = self._until(self._value_marks)
        if self._types == _STRING:
            self._send_key('"')
            self._arguments(string_body(text) if text else "")
        else:
            self._parts.append(text)
        if marker is None:
            return False
        self._end_argument()
        if marker in self.implied_ends:
            self._at -= len(marker)
        self._state = self._body
        return True

    def _send_key(self, opening: str) -> None:
        if self._sent_key:
            return
        self._sent_key = True
        before = ", " if self._num_arguments else "{"
        self._num_arguments += 1
        self._arguments(f"{before}{json_text(self._key)}: {opening}")

    def _end_argument(self) -> None:
        if self._types == _STRING:
            self._arguments('"')
            return
        self._send_key("")
        self._arguments(typed_json("".join(self._parts), self._types))


class AttributeTags(TaggedCalls):
    """Names in attributes: `<invoke name="f">`, `<parameter name="x">`."""

    name_attribute: ClassVar[str] = "name"
    key_attribute: ClassVar[str] = "name"

    def _read_name(self, head: str) -> str | None:
        name = attributes(head).get(self.name_attribute, "").strip()
        return name if _NAME.fullmatch(name) else None

    def _read_key(self, text: str) -> tuple[str, frozenset[str] | None] | None:
        key = attributes(text).get(self.key_attribute, "").strip()
        return (key, None) if key else None


def attributes(text: str) -> dict[str, str]:
    """`a="1" b='2' c=3` as a mapping; of an attribute that is there twice the first counts."""
    found: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(text):
        found.setdefault(match[1], next(group for group in match.groups()[1:] if group is not None))
    return found
