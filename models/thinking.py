"""Where the reasoning of an output begins and ends, followed token by token.

Markers that are tokens of their own are told by their id; others by the bytes of the tokens, since
a marker's last character may share a token with what follows.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

Phase = Literal["before", "inside", "after"]


class Thinking(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is known of a request's reasoning before its output begins.

    Attributes:
        start, end: the markers as text; `start` empty = there is none.
        start_token, end_token: their ids where they are tokens of their own.
        other_ends: texts that end reasoning as `end` does (a tool call's marker).
        open: the output begins inside reasoning; False = reasoning begins only with `start`, as
            the first thing of the output; None = as the prompt says (`opened_by`).
        budget: reasoning tokens after which `closing` is written; None = any number.
        closing: ids that end reasoning; not empty with a budget.
    """

    end: str
    start: str = ""
    start_token: int | None = None
    end_token: int | None = None
    other_ends: tuple[str, ...] = ()
    open: bool | None = None
    budget: int | None = None
    closing: tuple[int, ...] = ()

    @property
    def by_text(self) -> bool:
        """Whether bytes of tokens are needed to find the markers."""
        named = self.start == "" or self.start_token is not None
        return self.end_token is None or not named or bool(self.other_ends)


def opened_by(
    thinking: Thinking, prompt: Sequence[int], token_bytes: Callable[[int], bytes]
) -> bool:
    """Whether a prompt leaves reasoning open: a start marker, and no end marker after it."""
    if thinking.open is not None:
        return thinking.open
    if not thinking.start:
        return False
    if not thinking.by_text:
        marks = (thinking.start_token, thinking.end_token)
        newest = next((token for token in reversed(prompt) if token in marks), None)
        return newest == thinking.start_token and newest is not None
    text = b"".join(map(token_bytes, prompt))
    return text.rfind(thinking.start.encode()) > text.rfind(thinking.end.encode())


class ThinkingTracker:
    """Follows the output of one sample.

    Attributes:
        phase: where the next token stands.
        count: reasoning tokens so far; markers are none.
        ended: an end marker was found.

    Args:
        thinking: the markers.
        token_bytes: the bytes a token adds to the text.
        prompt: the prompt's ids, if `thinking.open` is None.
    """

    __slots__ = (
        "_ends",
        "_fresh",
        "_longest",
        "_start",
        "_starts",
        "_tail",
        "_thinking",
        "_token_bytes",
        "count",
        "ended",
        "phase",
    )

    def __init__(
        self,
        thinking: Thinking,
        token_bytes: Callable[[int], bytes],
        prompt: Sequence[int] = (),
    ) -> None:
        self._thinking = thinking
        self._token_bytes = token_bytes
        self._start = thinking.start.encode()
        self._ends = [end.encode() for end in (thinking.end, *thinking.other_ends) if end]
        self._longest = max(map(len, self._ends), default=0)
        self._fresh = bool(thinking.start)  # all text so far may be the start marker's
        self._tail = b""  # the newest bytes; as long as they may begin or end a marker
        self._starts: list[int] = []  # where the newest tokens start in `_tail`
        self.phase: Phase = "before"
        if opened_by(thinking, prompt, token_bytes):
            self.phase = "inside"
        elif not thinking.start:
            self.phase = "after"
        self.count = 0
        self.ended = False

    @property
    def in_marker(self) -> bool:
        """The newest bytes may be the first ones of an end marker."""
        if self.phase != "inside" or not self._thinking.by_text:
            return False
        return any(
            self._tail.endswith(end[:size]) for end in self._ends for size in range(1, len(end))
        )

    def push(self, token: int) -> None:
        """Follow a token."""
        if self.phase == "after":
            return
        if self.phase == "inside":
            if token == self._thinking.end_token:
                self._end()
                return
            self.count += 1
        if self._fresh and token == self._thinking.start_token:
            self._begin(b"")
            return
        if self._fresh or self._thinking.by_text:
            self._starts.append(len(self._tail))
            self._tail += self._token_bytes(token)
        if self._fresh:
            self._look_for_start()
        elif self.phase == "before":
            self.phase = "after"
        if self.phase == "inside" and not self._fresh and self._thinking.by_text:
            self._look_for_end()

    def _look_for_start(self) -> None:
        """The start marker counts only as the first thing of the output."""
        text = self._tail.lstrip()
        if not text:
            return
        by_text = self._thinking.start_token is None
        if by_text and text.startswith(self._start):
            self._begin(text[len(self._start) :])
        elif not by_text or not self._start.startswith(text):
            self._fresh = False
            if self.phase == "before":
                self.phase = "after"

    def _begin(self, rest: bytes) -> None:
        """The start marker is complete; `rest` follows it in the same token."""
        self._fresh = False
        self.phase = "inside"
        self.count = 1 if rest else 0
        self._tail = rest
        self._starts = [0] if rest else []

    def _end(self) -> None:
        self.phase, self.ended = "after", True

    def _look_for_end(self) -> None:
        found = [at for end in self._ends if (at := self._tail.find(end)) >= 0]
        if found:
            self.count -= sum(at >= min(found) for at in self._starts)
            self._end()
            return
        drop = len(self._tail) - self._longest + 1
        if drop > 0:
            self._tail = self._tail[drop:]
            self._starts = [at - drop for at in self._starts if at >= drop]
