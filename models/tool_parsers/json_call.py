"""A call written as one JSON object, followed piece by piece.

`{"name": "f", "arguments": {...}}` with keys in any order; keys that are not known are skipped.
"""

from collections.abc import Sequence

from ortloom.models.tool_parsers.json_text import loads, object_or_none
from ortloom.models.tool_parsers.json_value import JsonValue

_SPACE = " \t\n\r"
_OPEN, _FIRST_KEY, _KEY, _IN_KEY, _COLON, _BEFORE_VALUE, _IN_VALUE, _AFTER = range(8)


class JsonCall:
    """One object; feed it from its `{` on.

    Args:
        name_keys, argument_keys, id_keys: keys that hold the name, the arguments and the call's id.
        key_is_name: the object is `{"f": {...}}` instead: its only key names the function.

    Attributes:
        name, call_id: None until known; an id that comes after the arguments is not taken, since
            a call's beginning cannot wait for it.
        done: the object is whole and names a function.
        failed: it is no JSON, or no call.
    """

    def __init__(
        self,
        name_keys: Sequence[str] = ("name",),
        argument_keys: Sequence[str] = ("arguments",),
        id_keys: Sequence[str] = (),
        key_is_name: bool = False,
    ) -> None:
        self._name_keys = name_keys
        self._argument_keys = argument_keys
        self._id_keys = id_keys
        self._key_is_name = key_is_name
        self._state = _OPEN
        self._value = JsonValue()
        self._kind = ""
        self._kept: list[str] = []
        self._streams = False
        self._seen_arguments = False
        self._due: list[str] = []
        self.name: str | None = None
        self.call_id: str | None = None
        self.done = False
        self.failed = False

    @property
    def has_arguments(self) -> bool:
        """Whether the arguments have begun."""
        return self._seen_arguments

    def take(self) -> str:
        """Argument text that is new since the last call of this."""
        text = "".join(self._due)
        self._due.clear()
        return text

    def feed(self, text: str, at: int = 0) -> int:
        """Follow `text` from `at` on; the position after the last character that belongs here."""
        while at < len(text) and not self.done and not self.failed:
            if self._state in (_IN_KEY, _IN_VALUE):
                at = self._follow(text, at)
            elif text[at] in _SPACE:
                at += 1
            else:
                at = self._punctuate(text, at)
        return at

    def _punctuate(self, text: str, at: int) -> int:
        char, state = text[at], self._state
        if state == _OPEN and char == "{":
            self._state = _FIRST_KEY
        elif state in (_FIRST_KEY, _KEY) and char == '"':
            self._begin(_IN_KEY)
            return at
        elif state == _COLON and char == ":":
            self._state = _BEFORE_VALUE
        elif state == _BEFORE_VALUE:
            return self._begin_value(char, at)
        elif state == _AFTER and char == "," and not self._key_is_name:
            self._state = _KEY
        elif state == _AFTER and char == "}":
            self._close()
        else:
            self.failed = True
        return at if self.failed else at + 1

    def _begin(self, state: int) -> None:
        self._state = state
        self._value = JsonValue()
        self._kept.clear()

    def _begin_value(self, char: str, at: int) -> int:
        if self._kind == "arguments":
            self.failed = self._seen_arguments
            self._seen_arguments = True
            self._streams = char == "{"
        elif self._kind in ("name", "id"):
            self.failed = char not in ('"' if self._kind == "name" else '"-0123456789n')
        self._begin(_IN_VALUE)
        return at

    def _follow(self, text: str, at: int) -> int:
        """Through a key or a value."""
        end = self._value.feed(text, at)
        if self._state == _IN_VALUE and self._kind == "arguments" and self._streams:
            self._due.append(text[at:end])
        elif self._state == _IN_KEY or self._kind:
            self._kept.append(text[at:end])
        if self._value.failed:
            self.failed = True
        elif self._value.done:
            self._take_value()
        return end

    def _take_value(self) -> None:
        if self._state == _IN_KEY:
            self._state = _COLON
            self._take_key(str(loads("".join(self._kept))))
            return
        self._state = _AFTER
        if self._kind == "name":
            self.name = str(loads("".join(self._kept)))
            self.failed = not self.name
        elif self._kind == "id" and not self._seen_arguments:
            text = "".join(self._kept)
            self.call_id = str(loads(text)) if text.startswith('"') else text.rstrip()
            self.call_id = None if self.call_id == "null" else self.call_id
        elif self._kind == "arguments" and not self._streams:
            self._due.append(_plain_arguments("".join(self._kept)))

    def _take_key(self, key: str) -> None:
        self._kind = ""
        if self._key_is_name:
            self.name, self._kind = key, "arguments"
            self.failed = not key
        elif key in self._name_keys and self.name is None:
            self._kind = "name"
        elif key in self._argument_keys:
            self._kind = "arguments"
        elif key in self._id_keys:
            self._kind = "id"

    def _close(self) -> None:
        self.failed = self.name is None
        self.done = not self.failed


def _plain_arguments(text: str) -> str:
    """Arguments that are no object: null is none, and a string may hold an object's JSON."""
    if text == "null":
        return "{}"
    if text.startswith('"'):
        inner = str(loads(text))
        if object_or_none(inner) is not None:
            return inner.strip()
        if not inner.strip():
            return "{}"
    return text
