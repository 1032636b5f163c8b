"""One argument of a Python call followed piece by piece: where it ends."""

import re

_PLAIN = re.compile(r"[^'\"()\[\]{},]+")
_BODIES = {quote: re.compile(rf"[^{quote}\\]+") for quote in "'\""}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_LONGEST_QUOTE = 3


class PythonArgument:
    """Follows text up to the comma or closing parenthesis that ends the argument.

    Attributes:
        end: the character that ended it, None while it goes on.
        failed: brackets do not match, or nest too deeply.
    """

    _DEEPEST = 64

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._quote = ""  # the character that opened a string, "" outside strings
        self._quotes = 0  # how many of it stand in a row: at the opening, or inside a long string
        self._long = False  # three quotes opened the string
        self._opening = False  # quotes of the opening may still follow
        self._escaped = False
        self.end: str | None = None
        self.failed = False

    def feed(self, text: str, at: int) -> int:
        """Follow `text` from `at` on; the position of the character that ended it, or the end."""
        size = len(text)
        while at < size and self.end is None and not self.failed:
            if self._quote:
                at = self._string(text, at)
                continue
            match = _PLAIN.match(text, at)
            if match is not None:
                at = match.end()
            elif self._punctuate(text[at]):
                at += 1
        return at

    def _punctuate(self, char: str) -> bool:
        """Outside strings; whether the character belongs to the argument."""
        if char in "'\"":
            self._quote, self._quotes, self._opening, self._long = char, 1, True, False
        elif char in _CLOSING:
            self._stack.append(_CLOSING[char])
            self.failed = len(self._stack) > self._DEEPEST
        elif char in ")]}" and self._stack:
            self.failed = self._stack.pop() != char
        elif not self._stack:
            self.failed = char in "]}"
            self.end = None if self.failed else char
            return False
        return not self.failed

    def _string(self, text: str, at: int) -> int:
        char = text[at]
        if self._escaped:
            self._escaped = False
            return at + 1
        if self._opening:
            if char == self._quote and self._quotes < _LONGEST_QUOTE:
                self._quotes += 1
                return at + 1
            self._opening = False
            self._long = self._quotes == _LONGEST_QUOTE
            if self._quotes == 2:  # an empty string
                self._quote = ""
                return at
            self._quotes = 0
        if char == self._quote:
            self._quotes += 1
            if not self._long or self._quotes == _LONGEST_QUOTE:
                self._quote = ""
            return at + 1
        self._quotes = 0
        if char == "\\":
            self._escaped = True
            return at + 1
        match = _BODIES[self._quote].match(text, at)
        return at + 1 if match is None else match.end()
