"""The engine that parsers of one pass share: states over a buffer that stays short.

A state is a method that takes text off the front of the buffer and says whether it got anywhere.
It decides only on what later text cannot change, so the events joined are the same for every
cutting of the text; and `parse` is the same machine run once.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar, Self

from ortloom.models.marker_scan import Markers
from ortloom.models.tool_parsers.json_text import whole_characters
from ortloom.models.tool_parsers.tool_parser import (
    ArgumentsDelta,
    CallStart,
    ContentDelta,
    ParsedTools,
    ToolCall,
    ToolEvent,
    ToolParser,
    ToolSpec,
)

State = Callable[[], bool]

_BLANKS = " \t\n\r"


class ToolMachine(ToolParser):
    """Base of the parsers. A subclass names its first state and writes the states.

    Attributes:
        keeps_text_after: text after a call is content; False = it is dropped.
        drops_cut_call: of a whole output that ends inside a call, or holds one that is malformed,
            the other calls are kept; False = all is content, as it is where no call is left.
        returns_cut_text: text that ends before it has become a call is content; False = it is
            markup, which is not shown.
        malformed: something that claimed to be a call was none; set by the states.
    """

    keeps_text_after: ClassVar[bool] = False
    drops_cut_call: ClassVar[bool] = True
    returns_cut_text: ClassVar[bool] = False

    def __init__(
        self, tools: Sequence[ToolSpec], template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(tools, template_kwargs)
        self.malformed = False
        self._text = ""
        self._at = 0
        self._ended = False
        self._events: list[ToolEvent] = []
        self._only_blanks = True  # no text since the beginning or a call
        self._blanks: list[str] = []
        self._calls = 0
        self._bad: set[int] = set()  # calls that turned out to be none
        self._open = False  # a call has begun and not ended
        self._sent = False  # arguments of the open call have been sent
        self._tried: list[str] | None = None  # earlier text of what may turn out to be no call
        self._tried_from = 0
        self._bare_block = False  # no marker announced what is tried
        self._cut_call = False  # the text ended inside a call
        self._state: State = self._begin()

    @abstractmethod
    def _begin(self) -> State:
        """The first state."""

    def _unfinished(self) -> bool:
        """Whether the text, at its end, is still inside a call."""
        return self._open or self._tried is not None

    # -- the interface ---------------------------------------------------------------------------

    def push(self, text: str) -> list[ToolEvent]:
        """Follow a piece of text."""
        if self._tried is not None:
            self._tried.append(self._text[self._tried_from : self._at])
            self._tried_from = 0
        self._text = self._text[self._at :] + text
        self._at = 0
        return self._run()

    def finish(self) -> list[ToolEvent]:
        """Release what is held; a call that is open gets `{}` if it has no arguments yet."""
        self._ended = True
        events = self._run()
        self._cut_call = self._unfinished()
        if self._tried is not None and (self.returns_cut_text or self._bare_block):
            self._content(self._give_back())
        if self._open and not self._sent:
            self._arguments("{}")
        if self._only_blanks and not self._calls and self._blanks:
            self._events.append(ContentDelta("".join(self._blanks)))
        return _joined(events + self._events)

    def parse(self, text: str) -> ParsedTools:
        """A whole output at once."""
        machine = self._fresh()
        events = machine.push(text) + machine.finish()
        whole = machine._calls
        bad = machine._bad
        if machine.malformed and (not self.drops_cut_call or whole - machine._open == len(bad)):
            return ParsedTools(text)
        if machine._cut_call:
            if not self.drops_cut_call:
                return ParsedTools(text)
            whole -= machine._open
        content = "".join(event.text for event in events if isinstance(event, ContentDelta))
        calls = tuple(c for i, c in enumerate(_calls(events)[:whole]) if i not in bad)
        return ParsedTools(content or (None if calls else ""), calls)

    def _fresh(self) -> Self:
        return type(self)(list(self.tools.values()), self.template_kwargs)

    def _run(self) -> list[ToolEvent]:
        while self._state():
            pass
        events, self._events = self._events, []
        return _joined(events)

    # -- reading ---------------------------------------------------------------------------------

    def _until(self, markers: Markers) -> tuple[str, str | None]:
        """Take text up to a marker, and the marker if it is there."""
        end, marker = markers.search(self._text, self._at, self._ended)
        free = self._text[self._at : end]
        self._at = end + len(marker or "")
        return free, marker

    def _at_marker(self, markers: Markers) -> tuple[bool, str | None]:
        """Take a marker that stands right here: (known yet, the marker or None)."""
        known, marker = markers.match(self._text, self._at, self._ended)
        self._at += len(marker or "")
        return known, marker

    def _peek(self) -> str:
        """The next character, or nothing if there is none yet."""
        return self._text[self._at : self._at + 1]

    def _skip_blanks(self) -> str:
        """Take blanks; the character after them, or nothing if there is none yet."""
        text, at = self._text, self._at
        while at < len(text) and text[at] in _BLANKS:
            at += 1
        self._at = at
        return text[at : at + 1]

    # -- writing ---------------------------------------------------------------------------------

    def _content(self, text: str) -> None:
        """Text outside calls: kept before the first one, and after it where the format keeps it.

        Blanks at the beginning and right after a call wait: they are sent only with text that
        follows them, or as all that there is.
        """
        if not text:
            return
        if self._calls and not self.keeps_text_after:
            return
        if self._only_blanks:
            self._blanks.append(text)
            if not text.strip():
                return
            text = "".join(self._blanks)
            self._only_blanks = False
        self._events.append(ContentDelta(text))

    def _start(self, name: str, call_id: str | None = None) -> None:
        """A call begins."""
        self._commit()
        self._open, self._sent, self._only_blanks = True, False, True
        self._blanks.clear()
        known_id = None if call_id is None else whole_characters(call_id)
        self._events.append(CallStart(self._calls, whole_characters(name), known_id))
        self._calls += 1

    def _arguments(self, fragment: str) -> None:
        """More of the open call's arguments."""
        if fragment:
            self._sent = True
            self._events.append(ArgumentsDelta(self._calls - 1, fragment))

    def _end(self) -> None:
        """The open call is whole."""
        if not self._sent:
            self._arguments("{}")
        self._open = False

    def _broken(self) -> None:
        """The open call is no call after all; what was sent of it stays."""
        self.malformed = True
        if self._open:
            self._bad.add(self._calls - 1)
        if self._open and not self._sent:
            self._arguments("{}")
        self._open = False

    # -- text that may be no call ----------------------------------------------------------------

    def _try(self, marker: str = "") -> None:
        """From `marker`, taken just now, on text may become a call; until then it is not lost."""
        self._tried = []
        self._tried_from = self._at - len(marker)

    def _commit(self) -> None:
        """It is one."""
        self._tried = None

    def _give_back(self) -> str:
        """It is none: the text since `_try`, to be made content."""
        text = "".join(self._tried or ()) + self._text[self._tried_from : self._at]
        self._tried = None
        return text


def _joined(events: list[ToolEvent]) -> list[ToolEvent]:
    """Neighbouring deltas of one kind become one."""
    if len(events) < 2:
        return events
    joined: list[ToolEvent] = []
    for key, group in groupby(events, _kind):
        members = list(group)
        first = members[0]
        if isinstance(first, ContentDelta):
            pieces = (event.text for event in members if isinstance(event, ContentDelta))
            joined.append(ContentDelta("".join(pieces)))
        elif isinstance(first, ArgumentsDelta):
            parts = (event.fragment for event in members if isinstance(event, ArgumentsDelta))
            joined.append(ArgumentsDelta(key, "".join(parts)))
        else:
            joined.extend(members)
    return joined


def _kind(event: ToolEvent) -> int:
    """Equal for neighbours that may be joined: the call of arguments, -1 for text, -2 a start."""
    if isinstance(event, ArgumentsDelta):
        return event.index
    return -1 if isinstance(event, ContentDelta) else -2


def _calls(events: list[ToolEvent]) -> tuple[ToolCall, ...]:
    """The calls that the events tell of."""
    starts = [event for event in events if isinstance(event, CallStart)]
    pieces: list[list[str]] = [[] for _ in starts]
    for event in events:
        if isinstance(event, ArgumentsDelta):
            pieces[event.index].append(event.fragment)
    return tuple(
        ToolCall(start.name, "".join(parts), start.call_id)
        for start, parts in zip(starts, pieces, strict=True)
    )
