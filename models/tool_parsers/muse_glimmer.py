"""muse_glimmer: messages to a recipient; a call is ATEM in a message to a tool.

    <|start|>assistant to=self<|message|>Let me look.<|eom|>
    <|start|>assistant to=get_temp<|message|><atem:function_calls>
    <atem:invoke name="get_temp">
    <atem:parameter name="city">Oslo</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eom|>
    <|start|>assistant to=user<|message|>Done.<|eot|>

A sample begins inside the first message's header, since the prompt ends with `<|start|>assistant`.
Messages to `user`, or to nobody, are content; those to `self` are reasoning and left out; markup in
either is text. Values keep their blanks; one that the schema does not know is JSON where it is
JSON.
"""

import re
from typing import ClassVar

from ortloom.models.marker_scan import Markers
from ortloom.models.tool_parsers.machine import State
from ortloom.models.tool_parsers.schema_types import ANY
from ortloom.models.tool_parsers.tagged_calls import AttributeTags

_HEADER = re.compile(r"\s*(?:assistant)?\s*(?:to=([\w.\-]*))?\s*")
_PARTIAL_HEADER = re.compile(
    r"\s*(?:a(?:s(?:s(?:i(?:s(?:t(?:a(?:n(?:t)?)?)?)?)?)?)?)?)?\s*"
    r"(?:t|to|to=[\w.\-]*\s*)?(?:<(?:\|(?:m(?:e(?:s(?:s(?:a(?:g(?:e\|?)?)?)?)?)?)?)?)?)?"
)
_LONGEST_HEADER = 256


class MuseGlimmerParser(AttributeTags):
    """Calls of the messages to tools."""

    keeps_special_tokens = True
    grammar_calls = False
    keeps_text_after = True
    opens: ClassVar[tuple[str, ...]] = ("<atem:function_calls>",)
    calls: ClassVar[tuple[str, ...]] = ("<atem:invoke ",)
    head_ends: ClassVar[tuple[str, ...]] = (">",)
    keys: ClassVar[tuple[str, ...]] = ("<atem:parameter ",)
    key_ends: ClassVar[tuple[str, ...]] = (">",)
    value_ends: ClassVar[tuple[str, ...]] = ("</atem:parameter>",)
    call_ends: ClassVar[tuple[str, ...]] = ("</atem:invoke>",)
    closes: ClassVar[tuple[str, ...]] = ("</atem:function_calls>",)
    unknown: ClassVar[frozenset[str]] = ANY
    _message = Markers("<|message|>")
    _frames = Markers("<|start|>", "<|eom|>", "<|eot|>", "<|message|>")
    _tool_frames = Markers("<|start|>", "<|eom|>", "<|eot|>", *opens)
    _recipient: str | None = None

    def _begin(self) -> State:
        return self._first_header

    def _first_header(self) -> bool:
        """The rest of the header that the prompt began; anything else is plain content."""
        end, marker = self._message.search(self._text, self._at, self._ended)
        head = self._text[self._at : end]
        if marker is not None and _HEADER.fullmatch(head):
            self._take_header(head)
            self._at = end + len(marker)
            return True
        rest = self._text[self._at :]
        partial = _PARTIAL_HEADER.fullmatch(rest) and len(rest) <= _LONGEST_HEADER
        if marker is None and partial and not self._ended:
            return False
        self._state = self._outside
        return True

    def _header(self) -> bool:
        """A header up to its end; nothing of it is content."""
        text, marker = self._until(self._message)
        self._parts.append(text)
        if marker is None:
            return False
        self._take_header("".join(self._parts))
        return True

    def _take_header(self, text: str) -> None:
        match = _HEADER.fullmatch(text[-_LONGEST_HEADER:])
        self._recipient = match[1] if match is not None else None
        self._state = self._outside

    def _refuse(self) -> None:
        """A message to a tool that holds no call is shown."""
        super()._refuse()
        self._recipient = None

    def _outside(self) -> bool:
        """The body of a message."""
        to_tool = self._recipient not in (None, "user", "self")
        text, marker = self._until(self._tool_frames if to_tool else self._frames)
        if self._recipient in (None, "user"):
            self._content(text)
        if marker is None:
            return False
        if marker in self.opens:
            self._try(marker)
            self._enter(marker)
        elif marker == "<|start|>":
            self._parts.clear()
            self._state = self._header
        elif marker != "<|message|>":
            self._recipient = None
        return True
