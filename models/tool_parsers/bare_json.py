"""phi4_mini_json, llama3_json, llama4_json, xlam: JSON that needs no marker, or a slight one.

    functools[{"name": "get_temp", "arguments": {"city": "Oslo"}}]
    {"name": "get_temp", "parameters": {"city": "Oslo"}}; {"name": "get_time", "parameters": {}}
    [{"name": "get_temp", "arguments": {"city": "Oslo"}}]

xlam's list must be the first of the output where no marker announces it; llama's objects may stand
in text, which is content only while there are no calls. JSON that names no function, or has no
arguments, is an answer and stays content, whole or cut.
"""

from typing import ClassVar

from ortloom.models.tool_parsers.json_calls import JsonCalls
from ortloom.models.tool_parsers.tool_parser import ParsedTools


class Phi4MiniParser(JsonCalls):
    """`functools[…]`."""

    drops_cut_call = False
    returns_cut_text = True
    needs_arguments: ClassVar[bool] = True
    opens: ClassVar[tuple[str, ...]] = ("functools",)
    object_form: ClassVar[bool] = False
    list_form: ClassVar[bool] = True


class LlamaJsonParser(JsonCalls):
    """Objects with `; ` between them, after an optional `<|python_tag|>`."""

    keeps_special_tokens = True
    drops_cut_call = False
    returns_cut_text = True
    needs_arguments: ClassVar[bool] = True
    opens: ClassVar[tuple[str, ...]] = ("<|python_tag|>", "{")
    separators: ClassVar[str] = ";"

    def _enter(self, marker: str) -> None:
        self._bare_block = marker == "{"
        self._at -= self._bare_block
        super()._enter(marker)

    def parse(self, text: str) -> ParsedTools:
        """A whole output at once; text around calls is no content."""
        parsed = super().parse(text)
        return ParsedTools(None, parsed.calls) if parsed.calls else parsed


class XlamParser(JsonCalls):
    """A list: bare, in a fence, after `[TOOL_CALLS]`, in `<tool_call>`, or after `</think>`."""

    drops_cut_call = False
    returns_cut_text = True
    needs_arguments: ClassVar[bool] = True
    opens: ClassVar[tuple[str, ...]] = (
        "```json",
        "```",
        "[TOOL_CALLS]",
        "<tool_call>",
        "</think>",
    )
    bare: ClassVar[str] = "["
    object_form: ClassVar[bool] = False
    list_form: ClassVar[bool] = True

    def _enter(self, marker: str) -> None:
        if marker == "</think>":  # what came before it is content, and so is the tag
            self._content(self._give_back())
            self._state = self._head
            return
        super()._enter(marker)

    def _refuse(self) -> None:
        """A fence with something else in it, or after thinking an answer, is plain content."""
        super()._refuse()
        self.malformed = self._calls > 0

    def _close(self) -> bool:
        """What follows the list is dropped: there is one list in an output."""
        self._at = len(self._text)
        return False
