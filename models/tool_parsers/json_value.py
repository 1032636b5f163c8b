"""One JSON value followed piece by piece: where it ends, and whether it is JSON at all.

Strict as RFC 8259: no bare control characters in strings, no NaN, no trailing commas. Each
character is looked at once.
"""

import re

_SPACE = re.compile(r"[ \t\n\r]*")
_BODY = re.compile(r'[^"\\\x00-\x1f]*')
_DIGITS = re.compile(r"[0-9]*")
_HEX = frozenset("0123456789abcdefABCDEF")
_LITERALS = {"t": "true", "f": "false", "n": "null"}

_VALUE, _FIRST_ITEM, _FIRST_KEY, _KEY, _COLON, _AFTER = range(6)
_STRING, _ESCAPE, _UNICODE, _LITERAL, _NUMBER = range(6, 11)

_ZERO, _INTEGER, _FRACTION, _EXPONENT = "zero", "integer", "fraction", "exponent"
_WHOLE_NUMBERS = frozenset((_ZERO, _INTEGER, _FRACTION, _EXPONENT))
_NUMBER_STEPS: dict[str, dict[str, str]] = {
    "minus": {"0": _ZERO, "1": _INTEGER},
    _ZERO: {".": "dot", "e": "e"},
    _INTEGER: {"0": _INTEGER, "1": _INTEGER, ".": "dot", "e": "e"},
    "dot": {"0": _FRACTION, "1": _FRACTION},
    _FRACTION: {"0": _FRACTION, "1": _FRACTION, "e": "e"},
    "e": {"+": "sign", "0": _EXPONENT, "1": _EXPONENT},
    "sign": {"0": _EXPONENT, "1": _EXPONENT},
    _EXPONENT: {"0": _EXPONENT, "1": _EXPONENT},
}
_NUMBER_KINDS = {"0": "0", ".": ".", "e": "e", "E": "e", "+": "+", "-": "+"}
_NUMBER_KINDS.update(dict.fromkeys("123456789", "1"))


class JsonValue:
    """Follows one value from its first character (leading blanks are taken as part of it).

    Attributes:
        done: the value is whole. A bare number is whole only once another character follows it or
            `end` is called.
        failed: it is no JSON.
    """

    __slots__ = (
        "_escape_left",
        "_is_key",
        "_literal",
        "_number",
        "_stack",
        "_state",
        "done",
        "failed",
    )

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._state = _VALUE
        self._is_key = False
        self._literal = ""
        self._number = ""
        self._escape_left = 0
        self.done = False
        self.failed = False

    def feed(self, text: str, at: int = 0) -> int:
        """Follow `text` from `at` on; the position after the last character that belongs here."""
        size = len(text)
        while at < size and not self.done and not self.failed:
            at = self._step(text, at)
        return at

    def end(self) -> None:
        """No more text comes: a bare number is whole now, anything else unfinished fails."""
        if self.done:
            return
        whole = self._state == _NUMBER and not self._stack and self._number in _WHOLE_NUMBERS
        self.done = whole
        self.failed = not whole

    def _step(self, text: str, at: int) -> int:
        state = self._state
        if state == _STRING:
            return self._string(text, at)
        if state == _NUMBER:
            return self._digits(text, at)
        if state in (_ESCAPE, _UNICODE):
            return self._escaped(text, at)
        if state == _LITERAL:
            return self._word(text, at)
        match = _SPACE.match(text, at)
        if match is not None and match.end() > at:
            return match.end()
        if state == _VALUE or (state == _FIRST_ITEM and text[at] != "]"):
            self._begin(text[at])
        else:
            self._punctuate(text[at])
        return at if self.failed else at + 1

    def _begin(self, char: str) -> None:
        """The first character of a value."""
        if char == '"':
            self._state, self._is_key = _STRING, False
        elif char == "{":
            self._stack.append("}")
            self._state = _FIRST_KEY
        elif char == "[":
            self._stack.append("]")
            self._state = _FIRST_ITEM
        elif char in _LITERALS:
            self._state, self._literal = _LITERAL, _LITERALS[char][1:]
        elif char == "-":
            self._state, self._number = _NUMBER, "minus"
        elif char in "0123456789":
            self._state, self._number = _NUMBER, _ZERO if char == "0" else _INTEGER
        else:
            self.failed = True

    def _punctuate(self, char: str) -> None:
        """What stands between values."""
        state = self._state
        if state in (_FIRST_KEY, _KEY) and char == '"':
            self._state, self._is_key = _STRING, True
        elif state == _COLON and char == ":":
            self._state = _VALUE
        elif state == _AFTER and char == ",":
            self._state = _KEY if self._stack[-1] == "}" else _VALUE
        elif state in (_AFTER, _FIRST_KEY, _FIRST_ITEM) and char == self._stack[-1]:
            self._stack.pop()
            self._close()
        else:
            self.failed = True

    def _close(self) -> None:
        """A value has ended."""
        if self._stack:
            self._state = _AFTER
        else:
            self.done = True

    def _string(self, text: str, at: int) -> int:
        match = _BODY.match(text, at)
        at = match.end() if match is not None else at
        if at == len(text):
            return at
        if text[at] == "\\":
            self._state = _ESCAPE
        elif text[at] != '"':
            self.failed = True
            return at
        elif self._is_key:
            self._state = _COLON
        else:
            self._close()
        return at + 1

    def _escaped(self, text: str, at: int) -> int:
        char = text[at]
        if self._state == _UNICODE:
            self.failed = char not in _HEX
            self._escape_left -= 1
            if not self._escape_left:
                self._state = _STRING
        elif char == "u":
            self._state, self._escape_left = _UNICODE, 4
        elif char in '"\\/bfnrt':
            self._state = _STRING
        else:
            self.failed = True
        return at if self.failed else at + 1

    def _word(self, text: str, at: int) -> int:
        if text[at] != self._literal[0]:
            self.failed = True
            return at
        self._literal = self._literal[1:]
        if not self._literal:
            self._close()
        return at + 1

    def _digits(self, text: str, at: int) -> int:
        if self._number in (_INTEGER, _FRACTION, _EXPONENT):
            match = _DIGITS.match(text, at)
            at = match.end() if match is not None else at
            if at == len(text):
                return at
        step = _NUMBER_STEPS[self._number].get(_NUMBER_KINDS.get(text[at], ""))
        if step is not None:
            self._number = step
            return at + 1
        if self._number in _WHOLE_NUMBERS:
            self._close()
        else:
            self.failed = True
        return at
