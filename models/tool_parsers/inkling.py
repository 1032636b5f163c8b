"""inkling: typed blocks, one of which holds a call.

    <|message_model|><|content_invoke_tool_json|>{"name": "get_temp", "args": {…}}<|end_message|>

Text blocks (`<|content_text|>`) are content wherever they stand; thinking blocks are none. What
stands between `<|message_model|>` and the kind of the block is a label and not shown.
"""

from typing import ClassVar

from ortloom.models.marker_scan import Markers
from ortloom.models.tool_parsers.json_calls import JsonCalls
from ortloom.models.tool_parsers.machine import State

_MESSAGE = "<|message_model|>"
_CALL = "<|content_invoke_tool_json|>"
_TEXTS = ("<|content_text|>", "<|content_invoke_tool_text|>", "<|content_tool_error|>")
_THINKING = "<|content_thinking|>"
_ENDS = ("<|end_message|>", "<|content_model_end_sampling|>")
_ALL = Markers(_MESSAGE, _CALL, *_TEXTS, _THINKING, *_ENDS)


class InklingParser(JsonCalls):
    """The blocks of one sample."""

    keeps_special_tokens = True
    grammar_calls = False
    keeps_text_after = True
    opens: ClassVar[tuple[str, ...]] = (_CALL,)
    closes: ClassVar[tuple[str, ...]] = _ENDS
    argument_keys: ClassVar[tuple[str, ...]] = ("args", "arguments", "parameters")
    _shown = True

    def _begin(self) -> State:
        return self._outside

    def _outside(self) -> bool:
        text, marker = self._until(_ALL)
        if self._shown:
            self._content(text)
        if marker is None:
            return False
        self._shown = marker not in (_MESSAGE, _THINKING)
        if marker == _CALL:
            self._try(marker)
            self._enter(marker)
        return True
