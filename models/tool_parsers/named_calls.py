"""Calls as a header with the name in it and a JSON object: the base of the families that do so."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ortloom.models.marker_scan import Markers
from ortloom.models.tool_parsers.blocks import Blocks
from ortloom.models.tool_parsers.json_value import JsonValue
from ortloom.models.tool_parsers.tool_parser import ToolSpec

_NAME = re.compile(r"[^\s{}<>\"]+")
_LONGEST_HEADER = 512
"""Characters; more is text that only mentions the marker."""


class NamedCalls(Blocks):
    """Follows `SECTION CALL header HEADER_END {…} CALL_END … SECTION_END`.

    Attributes:
        opens: what opens a section, and what opens a call where the section's opening is missing.
        calls: what opens a call inside a section.
        header_ends: what stands between header and arguments.
        call_ends: what ends a call.
        closes: what closes a section.
        after_object: text, besides blanks, that may stand between the arguments and `call_ends`.
    """

    calls: ClassVar[tuple[str, ...]]
    header_ends: ClassVar[tuple[str, ...]]
    call_ends: ClassVar[tuple[str, ...]]
    after_object: ClassVar[tuple[str, ...]] = ()

    _between_marks: ClassVar[Markers]
    _header_marks: ClassVar[Markers]
    _tail_marks: ClassVar[Markers]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not hasattr(cls, "calls"):
            return
        limits = {*cls.opens, *cls.calls, *cls.closes}
        cls._between_marks = Markers(*limits)
        cls._header_marks = Markers(*cls.header_ends, *cls.call_ends, *limits)
        cls._tail_marks = Markers(*cls.call_ends, *limits)
        cls._limits = Markers(*limits)

    def __init__(
        self, tools: Sequence[ToolSpec], template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(tools, template_kwargs)
        self._header: list[str] = []
        self._length = 0
        self._tail: list[str] = []
        self._value = JsonValue()

    def _read_header(self, header: str) -> tuple[str, str | None] | None:
        """(name, id) that a header names, None where it is no header."""
        name = header.strip()
        return (name, None) if _NAME.fullmatch(name) else None

    def _enter(self, marker: str) -> None:
        if marker in self.calls:
            self._header.clear()
            self._length = 0
            self._state = self._in_header
        elif marker in self.opens:
            self._state = self._between
        else:
            self._state = self._outside

    def _between(self) -> bool:
        """In a section, before a call; what is no marker there says nothing."""
        text, marker = self._until(self._between_marks)
        if text.strip() and self._tried is not None:
            self._refuse_at(marker)
            return True
        if marker is None:
            return False
        if marker in self.closes and self._tried is not None:
            self._refuse()  # a section without calls
        else:
            self._enter(marker)
        return True

    def _refuse_at(self, marker: str | None) -> None:
        """Refuse what stands before a marker that was taken; the marker counts again."""
        self._at -= len(marker or "")
        self._refuse()

    def _in_header(self) -> bool:
        text, marker = self._until(self._header_marks)
        self._header.append(text)
        self._length += len(text)
        if self._length > _LONGEST_HEADER:
            self._refuse_at(marker)
            return True
        if marker is None:
            return False
        read = self._read_header("".join(self._header))
        if read is None or (marker not in self.header_ends and marker not in self.call_ends):
            self._refuse_at(marker)
            return True
        self._named = read
        if marker in self.call_ends:  # nothing but a name
            self._start(*read)
            self._end()
            self._state = self._between
        else:
            self._state = self._before_object
        return True

    def _before_object(self) -> bool:
        char = self._skip_blanks()
        if not char:
            return False
        if char == "{":
            self._start(*self._named)
            self._value = JsonValue()
            self._state = self._object
            return True
        known, marker = self._at_marker(self._tail_marks)
        if not known:
            return False
        if marker in self.call_ends:
            self._start(*self._named)
            self._end()
            self._state = self._between
        else:
            self._refuse_at(marker)
        return True

    def _object(self) -> bool:
        begin = self._at
        self._at = self._value.feed(self._text, begin)
        self._arguments(self._text[begin : self._at])
        if self._value.failed:
            self._refuse()
        elif self._value.done:
            self._end()
            self._tail.clear()
            self._state = self._after_object
        return self._value.failed or self._value.done

    def _after_object(self) -> bool:
        text, marker = self._until(self._tail_marks)
        self._tail.append(text)
        if marker is None:
            return False
        tail = "".join(self._tail).strip()
        if tail and tail not in self.after_object:
            self._refuse_at(marker)
            return True
        if marker in self.call_ends:
            self._state = self._between
        else:
            self._enter(marker)
        return True
