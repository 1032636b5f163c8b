"""Formats that name each message's channel: openai_gptoss, muse_glimmer, inkling.

    <|channel|>analysis<|message|>Two and two.<|end|><|start|>assistant<|channel|>final<|message|>4
     to=self<|message|>Two and two.<|eom|><|start|>assistant to=user<|message|>4<|eot|>
    <|content_thinking|>Two and two.<|end_message|><|message_model|><|content_text|>4<|end_message|>

Headers and frames of messages to the reader are taken off. Messages that hold calls stay in the
content as they are, for the tool-call parser of the format.
"""

import re
from typing import ClassVar

from ortloom.models.harmony_header import BEGUN, CHANNEL, ENDS, MESSAGE, START, read_header
from ortloom.models.marker_scan import Markers
from ortloom.models.reasoning_parsers.marked import MarkedReasoning, Mode
from ortloom.models.tool_parsers.json_value import JsonValue

_LONGEST_HEADER = 1024


class ChannelReasoning(MarkedReasoning):
    """Base: a message's body, its header, and the JSON of a call.

    `_mode` says where text of the current message goes: REASONING, CONTENT (to the reader), PASSED
    (a call, kept as it is) or HEAD (a header, or nothing known yet).
    """

    keeps_special_tokens = True
    frames: ClassVar[Markers]
    _header = ""
    _value: JsonValue | None = None
    _value_begun = False

    def _first(self) -> Mode:
        self._in_header = True
        return Mode.HEAD

    def _put(self, text: str) -> None:
        if self._mode is Mode.REASONING:
            self._reasoning.append(text)
        else:
            self._content.append(text)

    def _call_object(self) -> bool:
        """Through the JSON object of a call, in whose strings no frame counts."""
        body = self._text.lstrip(" \t\r\n")
        if self._value is None or (not body and not self._value_begun):
            return False
        if not self._value_begun and body[0] != "{":
            self._value = None
            return True
        self._value_begun = True
        end = self._value.feed(self._text)
        self._put(self._text[:end])
        self._text = self._text[end:]
        if not self._value.done and not self._value.failed:
            return False
        self._value = None
        return True

    def _begin_call(self, raw: str) -> None:
        self._mode = Mode.PASSED
        self._put(raw)
        self._value, self._value_begun = JsonValue(), False


class HarmonyReasoning(ChannelReasoning):
    """openai_gptoss: the analysis channel is reasoning; messages to functions hold calls."""

    start: ClassVar[str | None] = "<|channel|>analysis<|message|>"
    end: ClassVar[str | None] = "<|end|>"
    frames: ClassVar[Markers] = Markers(CHANNEL, START, MESSAGE, *ENDS)
    _header_frames = Markers(MESSAGE, *ENDS)

    def _first(self) -> Mode:
        super()._first()
        prompt = (self.prompt or "").rstrip()
        if prompt.endswith("<|channel|>final<|message|>"):
            self._in_header = False
            return Mode.CONTENT
        if prompt.endswith("<|channel|>analysis<|message|>"):
            self._in_header = False
            return Mode.REASONING
        return Mode.HEAD

    def _step(self) -> bool:
        if self._value is not None and not self._ended:
            return self._call_object()
        if self._in_header and not self._header:
            return self._start_of_sample()
        if self._in_header:
            return self._read_header()
        text, marker = self._until(self.frames)
        self._put(text)
        if marker is None:
            return False
        if self._mode is Mode.PASSED and marker in ENDS:
            self._put(marker)
        if marker in (CHANNEL, START):
            self._header, self._in_header = marker, True
        if marker != MESSAGE:
            self._mode = Mode.HEAD
        return True

    def _start_of_sample(self) -> bool:
        """A recipient may stand before the first frame; other text is content."""
        end, marker = self.frames.search(self._text, 0, self._ended)
        head = self._text[:end]
        begun = BEGUN.fullmatch(head) is not None
        if marker is None and begun and not self._ended:
            return False
        self._in_header = False
        if marker == CHANNEL and begun and head.strip():
            self._text = self._text[end + len(marker) :]
            self._header, self._in_header = head + marker, True
        return True

    def _read_header(self) -> bool:
        text, marker = self._until(self._header_frames)
        if len(self._header) <= _LONGEST_HEADER:
            self._header += text
        if marker is None:
            return False
        header, self._header, self._in_header = self._header, "", False
        if marker != MESSAGE:
            return True
        read = read_header(header)
        if read.function is not None:
            self._begin_call(header + MESSAGE)
        else:
            self._mode = Mode.CONTENT if read.shown else Mode.REASONING
        return True


class MuseReasoning(ChannelReasoning):
    """muse_glimmer: messages to self are reasoning; messages to others than user hold calls."""

    start: ClassVar[str | None] = "to=self<|message|>"
    end: ClassVar[str | None] = "<|eom|>"
    frames: ClassVar[Markers] = Markers("<|start|>", "<|eom|>", "<|eot|>", MESSAGE)
    _messages = Markers(MESSAGE)
    _to = re.compile(r"\s*(?:assistant)?\s*(?:to=([\w.\-]*))?\s*")
    _partial = re.compile(
        r"\s*(?:a|as|ass|assi|assis|assist|assista|assistan|assistant)?\s*"
        r"(?:t|to|to=[\w.\-]*\s*)?(?:<|<\||<\|m|<\|me|<\|mes|<\|mess|<\|messa|<\|messag|<\|message\|?)?"
    )

    def _step(self) -> bool:
        if self._in_header:
            return self._read_header()
        text, marker = self._until(self.frames)
        self._put(text)
        if marker is None:
            return False
        if marker == "<|start|>":
            self._header, self._in_header = marker, True
        elif marker != MESSAGE:
            if self._mode is Mode.PASSED:
                self._put(marker)
            self._mode = Mode.HEAD
        return True

    def _read_header(self) -> bool:
        """The rest of a header; at the head of a sample other text is content."""
        end, marker = self._messages.search(self._text, 0, self._ended)
        if not self._header:
            head = self._text[:end]
            partial = self._partial.fullmatch(self._text) and len(self._text) <= _LONGEST_HEADER
            if marker is None and partial and not self._ended:
                return False
            if marker is None or not self._to.fullmatch(head):
                self._in_header = False
                return True
        if len(self._header) <= _LONGEST_HEADER:
            self._header += self._text[:end]
        self._text = self._text[end + len(marker or "") :]
        if marker is None:
            return False
        self._take_header()
        return True

    def _take_header(self) -> None:
        header, self._header, self._in_header = self._header, "", False
        read = self._to.fullmatch(header.removeprefix("<|start|>"))
        recipient = read[1] if read is not None else None
        if recipient == "self":
            self._mode = Mode.REASONING
        elif recipient in (None, "user"):
            self._mode = Mode.CONTENT
        else:
            self._mode = Mode.PASSED
            start = "" if header.startswith("<|start|>") else "<|start|>assistant"
            self._put(start + header + MESSAGE)


class InklingReasoning(ChannelReasoning):
    """inkling: thinking blocks are reasoning; blocks of tool JSON hold calls."""

    start: ClassVar[str | None] = "<|content_thinking|>"
    end: ClassVar[str | None] = "<|end_message|>"
    _call = "<|content_invoke_tool_json|>"
    _block_ends = ("<|end_message|>", "<|content_model_end_sampling|>")
    frames: ClassVar[Markers] = Markers(
        "<|message_model|>",
        "<|content_text|>",
        "<|content_invoke_tool_text|>",
        "<|content_tool_error|>",
        "<|content_thinking|>",
        _call,
        *_block_ends,
    )
    _label = False  # in a message's label, which is not shown

    def _first(self) -> Mode:
        prompt = (self.prompt or "").rstrip()
        self._in_header = False
        if prompt.endswith("<|content_thinking|>"):
            return Mode.REASONING
        return Mode.CONTENT if prompt.endswith("<|content_text|>") else Mode.HEAD

    def _step(self) -> bool:
        if self._value is not None and not self._ended:
            return self._call_object()
        text, marker = self._until(self.frames)
        if not self._label:
            self._put(text)
        if marker is None:
            return False
        self._label = marker == "<|message_model|>"
        if marker == self._call:
            self._begin_call(marker)
        elif marker in self._block_ends:
            if self._mode is Mode.PASSED:
                self._put(marker)
            self._mode = Mode.HEAD
        elif marker == "<|content_thinking|>":
            self._mode = Mode.REASONING
        elif marker != "<|message_model|>":
            self._mode = Mode.CONTENT
        return True
