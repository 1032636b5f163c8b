"""The engine that parsers of marked reasoning share.

A sample is in one of five modes: at its head (a start marker may stand there), outside (text is
content until a start marker), in reasoning, in content, or passed through as it is. Decisions are
made only on what later text cannot change, so the pieces joined are the same for every cutting.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar, Self

from ortloom.models.marker_scan import Markers
from ortloom.models.reasoning_parsers.reasoning_parser import ReasoningParser, ReasoningSplit

_BLANKS = " \t\n\r"


class Mode(Enum):
    """Where a sample stands."""

    HEAD = "head"
    OUTSIDE = "outside"
    REASONING = "reasoning"
    CONTENT = "content"
    PASSED = "passed"


class MarkedReasoning(ReasoningParser):
    """Base of the parsers; a subclass names its markers and says where a sample begins.

    Attributes:
        starts: spellings of the start marker, `start` when empty.
        ends: spellings of the end marker, with what is cut away around it; `end` when empty.
        calls: markers of calls that end the reasoning and stay in the content.
        dropped: strings that are taken out of the content, up to the first call in it.
        passed: markers of calls where they do not end the reasoning.
        trims_content: newlines between the reasoning and the content are no content.
    """

    starts: ClassVar[tuple[str, ...]] = ()
    ends: ClassVar[tuple[str, ...]] = ()
    calls: ClassVar[tuple[str, ...]] = ()
    dropped: ClassVar[tuple[str, ...]] = ()
    passed: ClassVar[tuple[str, ...]] = ()
    trims_content: ClassVar[bool] = False

    _starts: Markers | None = None
    _ends: Markers | None = None
    _dropped: Markers | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        starts = cls.starts or ((cls.start,) if cls.start else ())
        ends = cls.ends or ((cls.end,) if cls.end else ())
        cls._starts = Markers(*starts) if starts else None
        cls._ends = Markers(*ends, *cls.calls) if ends else None
        kept = (*cls.calls, *cls.passed)
        cls._dropped = Markers(*cls.dropped, *kept) if cls.dropped else None

    def __init__(
        self, template_kwargs: Mapping[str, Any] | None = None, prompt: str | None = None
    ) -> None:
        super().__init__(template_kwargs, prompt)
        self._text = ""
        self._blanks: list[str] = []  # those at the head
        self._ended = False
        self._trimming = False
        self._mode = self._first()
        self._reasoning: list[str] = []
        self._content: list[str] = []

    def _first(self) -> Mode:
        """The mode a sample begins in: what the prompt's end says, else the format's own."""
        end = (self.prompt or "").rstrip()
        if self.start and end.endswith(self.start):
            return Mode.HEAD
        if self.end and end.endswith(self.end):
            return Mode.CONTENT
        return self._default()

    def _default(self) -> Mode:
        """The mode where the prompt says nothing."""
        return Mode.HEAD

    @property
    def reasoning(self) -> bool:
        """Whether the text that comes next is reasoning, as far as is known."""
        return self._mode in (Mode.HEAD, Mode.REASONING)

    def push(self, text: str) -> ReasoningSplit:
        """Follow a piece of text."""
        self._text += text
        return self._run()

    def finish(self) -> ReasoningSplit:
        """What was held back."""
        self._ended = True
        return self._run()

    def parse(self, text: str) -> tuple[str | None, str | None]:
        """(reasoning, content) of a whole output."""
        fresh = self._fresh()
        first, last = fresh.push(text), fresh.finish()
        return (first.reasoning + last.reasoning) or None, (first.content + last.content) or None

    def _fresh(self) -> Self:
        return type(self)(self.template_kwargs, self.prompt)

    def _run(self) -> ReasoningSplit:
        while self._step():
            pass
        split = ReasoningSplit("".join(self._reasoning), "".join(self._content))
        self._reasoning.clear()
        self._content.clear()
        return split

    def _step(self) -> bool:
        """Take text off the front; whether another step may find more to do."""
        if self._mode is Mode.HEAD:
            return self._head()
        if self._mode is Mode.OUTSIDE:
            text, marker = self._until(self._starts)
            self._content.append(text)
            return self._enter(marker)
        if self._mode is Mode.REASONING:
            text, marker = self._until(self._ends)
            self._reasoning.append(text)
            return self._leave(marker)
        text, marker = self._until(self._dropped if self._mode is Mode.CONTENT else None)
        if self._trimming:
            text = text.lstrip("\n")
            self._trimming = not text
        self._content.append(text)
        if marker is not None and marker not in self.dropped:
            self._content.append(marker)
            self._trimming = False
            self._mode = Mode.PASSED  # in a call's arguments every string is text
        return marker is not None

    def _head(self) -> bool:
        """Blanks and a start marker at the head are no reasoning text; blanks alone are."""
        body = self._text.lstrip(_BLANKS)
        self._blanks.append(self._text[: len(self._text) - len(body)])
        self._text = body
        if not body:
            return self._begin_reasoning(None) if self._ended else False
        known, marker = (True, None)
        if self._starts is not None:
            known, marker = self._starts.match(body, 0, self._ended)
        if known and marker is not None:
            self._text = body[len(marker) :]
        return known and self._begin_reasoning(marker)

    def _begin_reasoning(self, marker: str | None) -> bool:
        """What stands at the head is known: a start marker or none."""
        if marker is None:
            self._reasoning.extend(self._blanks)
        self._mode = Mode.REASONING
        return True

    def _enter(self, marker: str | None) -> bool:
        """A start marker, if there is one, outside."""
        if marker is not None:
            self._mode = Mode.REASONING
        return marker is not None

    def _leave(self, marker: str | None) -> bool:
        """An end marker, if there is one, in reasoning."""
        if marker is None:
            return False
        if marker in self.calls:
            rest, self._text = self._text, marker + self._text
            call = self._is_call(rest)
            if call is None:
                return False
            if not call:
                self._reasoning.append(marker)
                self._text = rest
                return True
        self._mode = Mode.CONTENT
        self._trimming = self.trims_content
        return True

    def _is_call(self, rest: str) -> bool | None:
        """Whether what follows a call's marker makes it one; None while that is open."""
        return True

    def _until(self, markers: Markers | None) -> tuple[str, str | None]:
        if markers is None:
            text, self._text = self._text, ""
            return text, None
        end, marker = markers.search(self._text, 0, self._ended)
        text = self._text[:end]
        self._text = self._text[end + len(marker or "") :]
        return text, marker


def wanted(template_kwargs: Mapping[str, Any], *names: str) -> bool | None:
    """What the request says under the first of these names that it sets; None where none is.

    Words count as they read: "false", "off", "no", "none", "disabled" and "0" are false.
    """
    for name in names:
        value = template_kwargs.get(name)
        if isinstance(value, str):
            return value.strip().lower() not in ("", "false", "off", "no", "none", "disabled", "0")
        if value is not None:
            return bool(value)
    return None
