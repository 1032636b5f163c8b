"""mistral: `[TOOL_CALLS]` before a name and its arguments, or before a JSON list.

    [TOOL_CALLS]get_temp{"city": "Oslo"}[TOOL_CALLS]get_time{}
    [TOOL_CALLS]get_temp[CALL_ID]a1B2c3D4e[ARGS]{"city": "Oslo"}
    [TOOL_CALLS][{"name": "get_temp", "arguments": {"city": "Oslo"}}]

Ids are nine letters or digits, since the models' templates take no others: the model's own where
it writes one, else drawn at random. Thinking (`[THINK]…[/THINK]`) stays content; calls in it are
none.
"""

import re
import secrets
import string
from typing import ClassVar

from ortloom.models.marker_scan import Markers
from ortloom.models.tool_parsers.json_calls import JsonCalls
from ortloom.models.tool_parsers.json_value import JsonValue

_ID_SIZE = 9
_ID_CHARACTERS = string.ascii_letters + string.digits
_LONGEST_NAME = 512
_NAME = re.compile(r"[\w.:/-]+")


class MistralParser(JsonCalls):
    """All three forms."""

    keeps_special_tokens = True
    grammar_calls = False
    opens: ClassVar[tuple[str, ...]] = ("[TOOL_CALLS]",)
    list_form: ClassVar[bool] = True
    id_keys: ClassVar[tuple[str, ...]] = ("id",)
    thinking: ClassVar[tuple[str, str] | None] = ("[THINK]", "[/THINK]")
    _name_ends = Markers("{", "[ARGS]", "[CALL_ID]", "[TOOL_CALLS]", "\n\n")
    _id_ends = Markers("{", "[ARGS]", "[TOOL_CALLS]", "\n\n")

    def _block(self) -> bool:
        char = self._skip_blanks()
        if char in ("", "[", "{"):
            return super()._block()
        self._name: list[str] = []
        self._own_id: list[str] | None = None
        self._value = JsonValue()
        self._state = self._header
        return True

    def _header(self) -> bool:
        """A name, maybe an id, up to the arguments."""
        own = self._own_id
        text, marker = self._until(self._name_ends if own is None else self._id_ends)
        (self._name if own is None else own).append(text)
        name = "".join(self._name).strip()
        if marker is None:
            if len(name) > _LONGEST_NAME or (name and not _NAME.fullmatch(name)):
                self._refuse()
                return True
            return False
        if marker in ("[TOOL_CALLS]", "\n\n") or not _NAME.fullmatch(name):
            self._at -= len(marker)
            self._refuse()
        elif marker == "[CALL_ID]":
            self._own_id = []
        else:
            self._at -= marker == "{"
            self._state = self._before_arguments
        return True

    def _before_arguments(self) -> bool:
        char = self._skip_blanks()
        if not char:
            return False
        if char != "{":
            self._refuse()
            return True
        own = "".join(self._own_id or ()).strip()
        self._start("".join(self._name).strip(), own or None)
        self._state = self._named_arguments
        return True

    def _named_arguments(self) -> bool:
        begin = self._at
        self._at = self._value.feed(self._text, begin)
        self._arguments(self._text[begin : self._at])
        if self._value.failed:
            self._refuse()
        elif self._value.done:
            self._end()
            self._state = self._outside
        return self._value.failed or self._value.done

    def _start(self, name: str, call_id: str | None = None) -> None:
        """A call begins; it has an id in any case."""
        fits = call_id is not None and len(call_id) == _ID_SIZE and call_id.isalnum()
        drawn = "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_SIZE))
        super()._start(name, call_id if fits else drawn)
