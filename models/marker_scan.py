"""Search for markers in text that arrives in pieces, without looking twice at any of it."""

import re


class Markers:
    """A set of strings; the one that starts first counts, and of those the longest.

    What is found never depends on where the text was cut: text that may still become a marker,
    or a longer one than was found, is left for the next call.

    Args:
        markers: the strings, none of them empty.
    """

    __slots__ = ("_found", "_heads", "_longest", "_prefixes", "strings")

    def __init__(self, *markers: str) -> None:
        self.strings = tuple(sorted(set(markers), key=lambda m: (-len(m), m)))
        self._found = re.compile("|".join(re.escape(marker) for marker in self.strings))
        self._prefixes = {m[:size] for m in self.strings for size in range(1, len(m))}
        self._longest = len(self.strings[0])
        heads = {m[0] for m in self.strings}
        self._heads = re.compile("[" + "".join(re.escape(head) for head in sorted(heads)) + "]")

    def search(self, text: str, at: int, ended: bool) -> tuple[int, str | None]:
        """Where free text stops, counted from the start of `text`, and the marker there.

        Args:
            text: what is known.
            at: where to begin.
            ended: no more text will come, so nothing has to wait.

        Returns:
            (position, marker); the marker is None where there is none yet, and the text from the
            position on must then be searched again once there is more of it.
        """
        match = self._found.search(text, at)
        waits = None if ended else self._waiting(text, at)
        if match is None:
            return (len(text) if waits is None else waits), None
        if waits is not None and waits <= match.start():
            return waits, None
        return match.start(), match.group()

    def match(self, text: str, at: int, ended: bool) -> tuple[bool, str | None]:
        """The marker that stands at `at`: (known by now, the marker or None)."""
        match = self._found.match(text, at)
        rest = text[at : at + self._longest]
        if not ended and at + len(rest) == len(text) and (not rest or rest in self._prefixes):
            return False, None
        return True, None if match is None else match.group()

    def _waiting(self, text: str, at: int) -> int | None:
        """Where the first suffix begins that is a true prefix of a marker."""
        size = len(text)
        begin = max(at, size - self._longest + 1)
        for head in self._heads.finditer(text, begin):
            if text[head.start() :] in self._prefixes:
                return head.start()
        return None
