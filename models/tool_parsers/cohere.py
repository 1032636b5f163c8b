"""cohere_command3 and cohere_command4: a list of actions, beside blocks of text and thinking.

    <|START_ACTION|>[
        {"tool_call_id": "0", "tool_name": "get_temp", "parameters": {"city": "Oslo"}}
    ]<|END_ACTION|>

The markers of text blocks are no content, thinking blocks are left out whole, and of citations
(`<co>Oslo</co: 0:[1]>`) the cited text alone stays. Text after the actions is content. The ids are
the model's own.
"""

from typing import ClassVar

from ortloom.models.marker_scan import Markers
from ortloom.models.tool_parsers.json_calls import JsonCalls

_THINKING = "<|START_THINKING|>"
_CITED = ("</co:", "</co")


class CohereParser(JsonCalls):
    """`<|START_ACTION|>[…]<|END_ACTION|>`."""

    keeps_special_tokens = True
    keeps_text_after = True
    drops_cut_call = False
    opens: ClassVar[tuple[str, ...]] = ("<|START_ACTION|>",)
    closes: ClassVar[tuple[str, ...]] = ("<|END_ACTION|>",)
    dropped: ClassVar[tuple[str, ...]] = (
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<|START_TEXT|>",
        "<|END_TEXT|>",
        "<|END_THINKING|>",
        "<|CHATBOT_TOKEN|>",
        "<|START_OF_TURN_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>",
        "<co>",
        *_CITED,
        _THINKING,
    )
    object_form: ClassVar[bool] = False
    list_form: ClassVar[bool] = True
    name_keys: ClassVar[tuple[str, ...]] = ("tool_name", "name")
    argument_keys: ClassVar[tuple[str, ...]] = ("parameters", "arguments")
    id_keys: ClassVar[tuple[str, ...]] = ("tool_call_id",)
    _all = Markers(*opens, *dropped)
    _trimming = False  # blanks after a thinking block are no content
    _tag_end = Markers(">")
    _thinking_end = Markers("<|END_THINKING|>")

    def _outside(self) -> bool:
        text, marker = self._until(self._all)
        if self._trimming:
            text = text.lstrip()
            self._trimming = not text and marker not in self.opens
        self._content(text)
        if marker is None:
            return False
        if marker in self.opens:
            self._try(marker)
            self._enter(marker)
        elif marker in _CITED:
            self._state = self._citation
        elif marker == _THINKING:
            self._state = self._unseen
        return True

    def _citation(self) -> bool:
        """The rest of a citation's closing tag."""
        _, marker = self._until(self._tag_end)
        if marker is not None:
            self._state = self._outside
        return marker is not None

    def _unseen(self) -> bool:
        """The rest of a thinking block."""
        _, marker = self._until(self._thinking_end)
        if marker is not None:
            self._state = self._outside
            self._trimming = True
        return marker is not None
