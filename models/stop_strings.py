"""Stop strings over a growing text.

The stop string that completes first ends the text; of those that complete at the same character
the first in the list counts. Knows text only; tokens and streams are the caller's.
"""

from collections.abc import Sequence


class StopChecker:
    """Searches new text and hands out what can no longer become part of a stop string.

    Args:
        stops: the strings, none of them empty.
        include_in_output: the text ends with the stop string instead of before it; nothing is
            held back then.
        min_tokens: text of the first `min_tokens` tokens is not searched; a stop string may still
            begin in it and complete later.

    Attributes:
        matched: the stop string that ended the text, or None.
    """

    def __init__(
        self, stops: Sequence[str], include_in_output: bool = False, min_tokens: int = 0
    ) -> None:
        self._stops = tuple(stops)
        self._include = include_in_output
        self._min_tokens = min_tokens
        longest = max((len(s) for s in self._stops), default=1)
        self._overlap = longest - 1
        self._hold = 0 if include_in_output else self._overlap
        self._tail = ""  # searched text that may still matter: held back, or the overlap
        self._held = 0  # characters of the tail's end not handed out yet
        self.matched: str | None = None
        self.idle = not self._stops
        """There is nothing to search for: text may pass by."""

    def push(self, text: str, num_tokens: int) -> str:
        """Add text and return what may be shown now.

        Args:
            text: new text.
            num_tokens: tokens generated so far, those of `text` included.
        """
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        start = len(self._tail)
        whole = self._tail + text
        shown = start - self._held
        if text and num_tokens > self._min_tokens:
            found = self._first(whole, start)
            if found is not None:
                begin, stop = found
                self.matched = stop
                end = begin + len(stop) if self._include else begin
                return whole[shown:end]
        give = max(shown, len(whole) - self._hold)
        piece = whole[shown:give]
        self._held = len(whole) - give
        keep = max(self._overlap, self._held)
        self._tail = whole[max(0, len(whole) - keep) :]
        return piece

    def _first(self, whole: str, start: int) -> tuple[int, str] | None:
        """The match that completes earliest among those that complete after `start`."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            begin = whole.find(stop, max(0, start - len(stop) + 1))
            if begin >= 0 and (best is None or begin + len(stop) < best[0]):
                best = (begin + len(stop), begin, stop)
        return None if best is None else (best[1], best[2])

    def finish(self) -> str:
        """The held-back rest, once no more text comes."""
        if self.matched is not None or not self._held:
            return ""
        rest = self._tail[len(self._tail) - self._held :]
        self._held = 0
        return rest
