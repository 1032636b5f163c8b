"""Text with blocks of calls in it: what the formats have in common outside their blocks."""

from abc import abstractmethod
from typing import Any, ClassVar

from ortloom.models.marker_scan import Markers
from ortloom.models.tool_parsers.machine import State, ToolMachine

_MOST_REFUSED = 4096
"""Blocks without a call in one sample; after so many the rest is text, which bounds the work."""


class Blocks(ToolMachine):
    """Follows text up to what opens a block, and past the rest of a block that is broken.

    Attributes:
        opens: strings that open a block.
        closes: strings that close one; none = what follows a call is outside at once.
        dropped: strings that are taken out of the content.
        thinking: (start, end) of a part in which nothing is a call; it stays content as it is.
        bare: characters that open a block without a marker when they are the first of the output.
    """

    opens: ClassVar[tuple[str, ...]]
    closes: ClassVar[tuple[str, ...]] = ()
    dropped: ClassVar[tuple[str, ...]] = ()
    thinking: ClassVar[tuple[str, str] | None] = None
    bare: ClassVar[str] = ""

    _outer: ClassVar[Markers]
    _limits: ClassVar[Markers]
    _thought_end: ClassVar[Markers]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not hasattr(cls, "opens"):
            return
        thinking = cls.thinking or ()
        cls._outer = Markers(*cls.opens, *cls.dropped, *thinking[:1])
        cls._limits = Markers(*cls.opens, *cls.closes)
        if thinking:
            cls._thought_end = Markers(thinking[1])

    def _begin(self) -> State:
        return self._head if self.bare else self._outside

    @abstractmethod
    def _enter(self, marker: str) -> None:
        """A string of `opens` was taken, or "" stands for a bare block. Sets the next state."""

    def _head(self) -> bool:
        self._try()
        self._state = self._head_blanks
        return True

    def _head_blanks(self) -> bool:
        char = self._skip_blanks()
        if not char and not self._ended:
            return False
        known, marker = self._outer.match(self._text, self._at, self._ended)
        if not known:
            return False
        if marker is None and char and char in self.bare:
            self._bare_block = True
            self._enter("")
            return True
        self._content(self._give_back())
        self._state = self._outside
        return True

    def _outside(self) -> bool:
        text, marker = self._until(self._outer)
        self._content(text)
        if marker is None:
            return False
        if marker in self.opens:
            self._bare_block = False
            self._try(marker)
            self._enter(marker)
        elif marker not in self.dropped:
            self._content(marker)
            self._state = self._thought
        return True

    def _thought(self) -> bool:
        text, marker = self._until(self._thought_end)
        self._content(text + (marker or ""))
        if marker is not None:
            self._state = self._outside
        return marker is not None

    def _refuse(self) -> None:
        """Here stands something that no call has."""
        if self._tried is None:
            self._broken()
            self._state = self._skip
            return
        text = self._give_back()
        announced = text.lstrip().startswith(self.opens) and not self._bare_block
        self.malformed = self.malformed or announced
        self._content(text)
        self._leave()

    def _leave(self) -> None:
        """After a block that held no call: outside, or nowhere if there were too many such."""
        self._num_refused += 1
        self._state = self._outside if self._num_refused < _MOST_REFUSED else self._plain

    def _plain(self) -> bool:
        """Text in which no calls are looked for any more."""
        self._content(self._text[self._at :])
        self._at = len(self._text)
        return False

    _num_refused = 0

    def _refuse_at(self, marker: str | None = None) -> None:
        """Refuse what stands before a marker that was taken, which counts again.

        How much of it was read depends on the cuts, so of a block without a call only what opened
        it is content at once, and the rest is read again as text. For short parts of a block.
        """
        self._at -= len(marker or "")
        if self._tried is None:
            self._refuse()
            return
        rest, begin = bool(self._tried), self._tried_from
        text = self._give_back()
        opening = next((m for m in self._outer.strings if text.startswith(m)), "")
        self.malformed = self.malformed or (opening in self.opens and not self._bare_block)
        self._content(opening)
        if rest:  # some of it came in earlier pieces
            self._text = text[len(opening) :] + self._text[self._at :]
            self._at = 0
        else:
            self._at = begin + len(opening)
        self._leave()

    def _skip(self) -> bool:
        """Past the rest of a broken block."""
        _, marker = self._until(self._limits)
        if marker is None:
            return False
        if marker in self.closes:
            self._state = self._outside
        else:
            if marker in self.opens:
                self._try(marker)
            self._enter(marker)
        return True

    def _close(self) -> bool:
        """After the last call of a block: what closes it, or the next opening string."""
        if not self.closes:
            self._state = self._outside
            return True
        if not self._skip_blanks():
            return False
        known, marker = self._at_marker(self._limits)
        if not known:
            return False
        if marker is None:
            self._refuse()
        elif marker in self.opens:
            self._try(marker)
            self._enter(marker)
        else:
            self._state = self._outside
        return True
