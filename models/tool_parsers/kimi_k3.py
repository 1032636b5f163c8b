"""kimi_k3: XTML, where every element opens and closes with the same three tokens.

    <|open|>tools<|sep|><|open|>call tool="get_temp" index="1"<|sep|>
    <|open|>argument key="city" type="string"<|sep|>Oslo<|close|>argument<|sep|>
    <|close|>call<|sep|><|close|>tools<|sep|>

(without the line breaks). Visible text sits in an element `response`, whose tags are no content;
an element `think` is left out whole.
"""

from typing import ClassVar

from ortloom.models.marker_scan import Markers
from ortloom.models.tool_parsers.schema_types import ANY
from ortloom.models.tool_parsers.tagged_calls import AttributeTags, attributes

_THINK = "<|open|>think<|sep|>"
_STRING = frozenset({"string"})


class KimiK3Parser(AttributeTags):
    """Elements `tools`, `call`, `argument`."""

    keeps_special_tokens = True
    grammar_calls = False
    keeps_text_after = True
    name_attribute: ClassVar[str] = "tool"
    key_attribute: ClassVar[str] = "key"
    opens: ClassVar[tuple[str, ...]] = ("<|open|>tools<|sep|>",)
    dropped: ClassVar[tuple[str, ...]] = (
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>think<|sep|>",
        "<|close|>message<|sep|>",
        "<|end_of_msg|>",
        _THINK,
    )
    calls: ClassVar[tuple[str, ...]] = ("<|open|>call ",)
    head_ends: ClassVar[tuple[str, ...]] = ("<|sep|>",)
    keys: ClassVar[tuple[str, ...]] = ("<|open|>argument ",)
    key_ends: ClassVar[tuple[str, ...]] = ("<|sep|>",)
    value_ends: ClassVar[tuple[str, ...]] = ("<|close|>argument<|sep|>",)
    call_ends: ClassVar[tuple[str, ...]] = ("<|close|>call<|sep|>",)
    closes: ClassVar[tuple[str, ...]] = ("<|close|>tools<|sep|>",)
    _all = Markers(*opens, *dropped)
    _think_end = Markers("<|close|>think<|sep|>")

    def _outside(self) -> bool:
        text, marker = self._until(self._all)
        self._content(text)
        if marker is None:
            return False
        if marker == _THINK:
            self._state = self._unseen
        elif marker in self.opens:
            self._try(marker)
            self._enter(marker)
        return True

    def _unseen(self) -> bool:
        """The rest of a thinking element."""
        _, marker = self._until(self._think_end)
        if marker is not None:
            self._state = self._outside
        return marker is not None

    def _read_key(self, text: str) -> tuple[str, frozenset[str] | None] | None:
        read = super()._read_key(text)
        if read is None:
            return None
        stated = attributes(text).get("type", "").lower()
        types = _STRING if stated == "string" else ANY - _STRING if stated else None
        return read[0], types
