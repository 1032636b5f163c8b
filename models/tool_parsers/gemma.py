"""gemma4 and functiongemma: a call in braces, strings between delimiters, keys bare.

    <|tool_call>call:get_temp{city:<|"|>Oslo<|"|>,days:2}<tool_call|>
    <start_function_call>call:get_temp{city:<escape>Oslo<escape>,days:2}<end_function_call>

Objects and arrays nest in the same style. Strings in plain double quotes are taken too. gemma4 also
takes the call without its wrapper when it begins a line or follows the thinking.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ortloom.models.marker_scan import Markers
from ortloom.models.tool_parsers.blocks import Blocks
from ortloom.models.tool_parsers.json_text import json_text, string_body
from ortloom.models.tool_parsers.json_value import JsonValue
from ortloom.models.tool_parsers.schema_types import ANY, typed_json
from ortloom.models.tool_parsers.tool_parser import ToolSpec

_DEEPEST = 256
_LONGEST_KEY = 1024
_NAME = re.compile(r"[\w.:/-]*")


class GemmaParser(Blocks):
    """gemma4."""

    keeps_special_tokens = True
    grammar_calls = False
    delimiter: ClassVar[str] = '<|"|>'
    opens: ClassVar[tuple[str, ...]] = ("<|tool_call>", "\ncall:", "<channel|>call:")
    closes: ClassVar[tuple[str, ...]] = ("<tool_call|>", "<turn|>")
    bare: ClassVar[str] = "c"

    _call_mark = Markers("call:", ":call:")
    _name_marks = Markers("{")
    _delimiter: ClassVar[Markers]
    _key_marks: ClassVar[Markers]
    _bare_marks = Markers(",", "}", "]", "{", "[")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._mark_delimiter()

    @classmethod
    def _mark_delimiter(cls) -> None:
        cls._delimiter = Markers(cls.delimiter)
        cls._key_marks = Markers(cls.delimiter, ":", "{", "}", "[", "]", ",")

    def __init__(
        self, tools: Sequence[ToolSpec], template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(tools, template_kwargs)
        self._parts: list[str] = []
        self._length = 0
        self._nesting: list[str] = []  # the closing characters that are due
        self._filled = False  # the innermost object or array has a member
        self._quoted = JsonValue()

    def _enter(self, marker: str) -> None:
        self._parts.clear()
        self._length = 0
        self._bare_block = not marker or marker.endswith("call:")
        self._state = self._call_name if marker.endswith("call:") else self._call_word

    def _call_word(self) -> bool:
        if not self._skip_blanks():
            return False
        known, marker = self._at_marker(self._call_mark)
        if not known:
            return False
        if marker is None:
            self._refuse()
            return True
        self._state = self._call_name
        return True

    def _take(self, marks: Markers) -> str | None:
        """Collect text up to a marker, None while there is none."""
        text, marker = self._until(marks)
        self._parts.append(text)
        self._length += len(text)
        return marker

    def _call_name(self) -> bool:
        marker = self._take(self._name_marks)
        name = "".join(self._parts)
        if self._length > _LONGEST_KEY or not _NAME.fullmatch(name) or (marker and not name):
            self._refuse_at(marker)
            return True
        if marker is None:
            return False
        self._start(name)
        self._nesting.clear()
        self._open_bracket("}", "")
        return True

    def _open_bracket(self, closing: str, before: str) -> None:
        self._nesting.append(closing)
        self._filled = False
        self._arguments(before + ("{" if closing == "}" else "["))
        self._begin_member()

    def _begin_member(self) -> None:
        self._parts.clear()
        self._length = 0
        self._state = self._key if self._nesting[-1] == "}" else self._value

    def _close(self) -> bool:
        """After a call: nothing has to close a bare one."""
        if self._bare_block:
            self._state = self._outside
            return True
        return super()._close()

    def _close_bracket(self) -> None:
        self._arguments(self._nesting.pop())
        self._filled = True
        if self._nesting:
            self._state = self._after_value
        else:
            self._end()
            self._state = self._close

    def _comma(self) -> str:
        """What stands before a member."""
        before = ", " if self._filled else ""
        self._filled = True
        return before

    def _key(self) -> bool:
        """A key, bare or between delimiters, up to its colon; or the end of the object."""
        marker = self._take(self._key_marks)
        if self._length > _LONGEST_KEY:
            self._at -= len(marker or "") + self._length - _LONGEST_KEY
            self._refuse()
            return True
        if marker is None:
            return False
        key = "".join(self._parts).strip().strip('"')
        if marker == self.delimiter:
            return True
        if marker == ":" and key:
            self._arguments(f"{self._comma()}{json_text(key)}: ")
            self._state = self._value
        elif marker == "}" and not key:
            self._close_bracket()
        else:
            self._refuse()
        return True

    def _value(self) -> bool:
        """The first character of a value."""
        char = self._skip_blanks()
        if not char:
            return False
        known, marker = self._delimiter.match(self._text, self._at, self._ended)
        if not known:
            return False
        in_list = self._nesting[-1] == "]"
        if char == "]" and in_list:
            self._at += 1
            self._close_bracket()
            return True
        before = self._comma() if in_list else ""
        if marker is not None:
            self._at += len(marker)
            self._arguments(before + '"')
            self._state = self._string
        elif char in "{[" and len(self._nesting) < _DEEPEST:
            self._at += 1
            self._open_bracket("}" if char == "{" else "]", before)
        elif char == '"':
            self._quoted = JsonValue()
            self._arguments(before)
            self._state = self._quoted_string
        else:
            self._arguments(before)
            self._parts.clear()
            self._state = self._bare_value
        return True

    def _string(self) -> bool:
        text, marker = self._until(self._delimiter)
        self._arguments(string_body(text))
        if marker is None:
            return False
        self._arguments('"')
        self._state = self._after_value
        return True

    def _quoted_string(self) -> bool:
        begin = self._at
        self._at = self._quoted.feed(self._text, begin)
        self._arguments(self._text[begin : self._at])
        if self._quoted.failed:
            self._refuse()
        elif self._quoted.done:
            self._state = self._after_value
        return self._quoted.failed or self._quoted.done

    def _bare_value(self) -> bool:
        marker = self._take(self._bare_marks)
        if marker is None:
            return False
        text = "".join(self._parts).strip()
        self._at -= len(marker)
        if not text or marker in "{[":
            self._refuse()
            return True
        self._arguments(typed_json(text, ANY))
        self._state = self._after_value
        return True

    def _after_value(self) -> bool:
        char = self._skip_blanks()
        if not char:
            return False
        if char == ",":
            self._at += 1
            self._begin_member()
        elif char == self._nesting[-1]:
            self._at += 1
            self._close_bracket()
        else:
            self._refuse()
        return True


GemmaParser._mark_delimiter()


class FunctionGemmaParser(GemmaParser):
    """functiongemma."""

    grammar_calls = True
    delimiter: ClassVar[str] = "<escape>"
    opens: ClassVar[tuple[str, ...]] = ("<start_function_call>",)
    closes: ClassVar[tuple[str, ...]] = ("<end_function_call>",)
    bare: ClassVar[str] = ""
