"""minicpm5: a function tag with param tags, names in attributes, CDATA where a value needs it.

<function name="get_temp"><param name="city">Oslo</param><param name="days">2</param></function>
<function name="run"><param name="code"><![CDATA[if a < b: print("</param>")]]></param></function>

The blank before an attribute may be missing, or be the vocabulary's own spelling of one. Calls are
of offered functions only.
"""

from typing import ClassVar

from ortloom.models.marker_scan import Markers
from ortloom.models.tool_parsers.json_text import string_body
from ortloom.models.tool_parsers.tagged_calls import AttributeTags

_CDATA = "<![CDATA["
_BLANK = "\u0120"  # how byte-level vocabularies write a blank


class Minicpm5Parser(AttributeTags):
    """`<function name="…">`."""

    keeps_special_tokens = True
    known_only: ClassVar[bool] = True
    opens: ClassVar[tuple[str, ...]] = ("<function",)
    calls: ClassVar[tuple[str, ...]] = ("<function",)
    head_ends: ClassVar[tuple[str, ...]] = (">",)
    keys: ClassVar[tuple[str, ...]] = ("<param",)
    key_ends: ClassVar[tuple[str, ...]] = (">",)
    value_ends: ClassVar[tuple[str, ...]] = ("</param>",)
    implied_ends: ClassVar[tuple[str, ...]] = (_CDATA,)
    call_ends: ClassVar[tuple[str, ...]] = ("</function>",)
    _cdata_marks = Markers("]]>")

    def _read_name(self, head: str) -> str | None:
        return super()._read_name(head.replace(_BLANK, " "))

    def _read_key(self, text: str) -> tuple[str, frozenset[str] | None] | None:
        return super()._read_key(text.replace(_BLANK, " "))

    def _end_argument(self) -> None:
        """Not yet, if what ended the text is the beginning of a CDATA section."""
        if not self._text.endswith(_CDATA, 0, self._at):
            super()._end_argument()

    def _body(self) -> bool:
        if self._text.startswith(_CDATA, self._at):
            self._at += len(_CDATA)
            self._state = self._cdata
            return True
        return super()._body()

    def _cdata(self) -> bool:
        """Inside a CDATA section: everything is text up to its end."""
        text, marker = self._until(self._cdata_marks)
        if self._types == frozenset({"string"}):
            self._arguments(string_body(text))
        else:
            self._parts.append(text)
        if marker is None:
            return False
        self._value_begun = True
        self._state = self._value_text
        return True
