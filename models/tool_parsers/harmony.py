"""openai: harmony messages in channels; a call is a message to `functions.NAME`.

    <|channel|>analysis<|message|>Let me look.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.get_temp <|constrain|>json<|message|>
    {"city": "Oslo"}<|call|>
    <|start|>assistant<|channel|>final<|message|>Done.<|return|>

(without the line breaks). The recipient may also stand before the channel. The final channel and
commentary to nobody are content, the analysis channel is reasoning and left out, and so are
messages to tools that are no functions. Text outside messages is content.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ortloom.models.harmony_header import (
    BEGUN,
    CHANNEL,
    ENDS,
    LONGEST_HEADER,
    MESSAGE,
    START,
    read_header,
)
from ortloom.models.marker_scan import Markers
from ortloom.models.tool_parsers.json_value import JsonValue
from ortloom.models.tool_parsers.machine import State, ToolMachine
from ortloom.models.tool_parsers.tool_parser import ToolSpec


class HarmonyParser(ToolMachine):
    """The messages of one sample."""

    keeps_special_tokens = True
    grammar_calls = False
    keeps_text_after = True
    _frames = Markers(CHANNEL, START, MESSAGE, *ENDS)
    _header_frames = Markers(MESSAGE, *ENDS)

    def __init__(
        self, tools: Sequence[ToolSpec], template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(tools, template_kwargs)
        self._shown = True
        self._header: list[str] = []
        self._length = 0
        self._value = JsonValue()
        self._name = ""

    def _begin(self) -> State:
        return self._first

    def _first(self) -> bool:
        """The output may begin with the recipient of a header that the prompt began."""
        end, marker = self._frames.search(self._text, self._at, self._ended)
        head = self._text[self._at : end]
        begun = BEGUN.fullmatch(head) is not None
        if marker is None and begun and not self._ended:
            return False
        self._state = self._body
        if marker == CHANNEL and begun and head.strip():
            self._at = end + len(marker)
            self._open_header(head + marker)
        return True

    def _body(self) -> bool:
        text, marker = self._until(self._frames)
        if self._shown:
            self._content(text)
        if marker is None:
            return False
        if marker in (CHANNEL, START):
            self._open_header(marker)
        elif marker in ENDS:
            self._shown = True
        return True

    def _open_header(self, begun: str) -> None:
        self._header = [begun]
        self._length = 0
        self._state = self._in_header

    def _in_header(self) -> bool:
        """Role, channel, recipient; nothing of it is content."""
        text, marker = self._until(self._header_frames)
        self._length += len(text)
        if self._length <= LONGEST_HEADER:
            self._header.append(text)
        if marker is None:
            return False
        self._shown = marker != MESSAGE
        self._state = self._body
        if marker == MESSAGE:
            self._take_header("".join(self._header))
        return True

    def _take_header(self, header: str) -> None:
        read = read_header(header)
        self._shown = read.shown
        if read.function is not None:
            self._name = read.function
            self._state = self._before_arguments

    def _before_arguments(self) -> bool:
        char = self._skip_blanks()
        if not char and not self._ended:
            return False
        self._start(self._name)
        self._value = JsonValue()
        self._state = self._in_arguments if char == "{" else self._after_arguments
        return True

    def _in_arguments(self) -> bool:
        begin = self._at
        self._at = self._value.feed(self._text, begin)
        self._arguments(self._text[begin : self._at])
        if self._value.failed:
            self._state = self._after_arguments
        elif self._value.done:
            self._end()
            self._state = self._after_arguments
        return self._value.failed or self._value.done

    def _after_arguments(self) -> bool:
        """Up to the end of the message; only blanks may follow the arguments."""
        text, marker = self._until(self._frames)
        if text.strip() or self._value.failed:
            self._broken()
        if marker is None:
            return False
        if self._open:
            self._end()  # a message without arguments
        self._state = self._body
        if marker in (CHANNEL, START):
            self._open_header(marker)
        else:
            self._shown = True
        return True
