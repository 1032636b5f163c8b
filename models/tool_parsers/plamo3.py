"""plamo3: a section of requests, each with a tagged name and tagged JSON arguments.

    <|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>
    <|plamo:begin_tool_name:plamo|>get_temp<|plamo:end_tool_name:plamo|>
    <|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{"city": "Oslo"}
    <|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>
    <|plamo:end_tool_requests:plamo|>

(without the line breaks). Known from one implementation's marker list, not from the model's own
pages. The end-of-turn tag `<|plamo:tag|>` and what comes after it are no content.
"""

from typing import ClassVar

from ortloom.models.marker_scan import Markers
from ortloom.models.tool_parsers.named_calls import NamedCalls

_NAME_BEGINS = "<|plamo:begin_tool_name:plamo|>"
_NAME_ENDS = "<|plamo:end_tool_name:plamo|>"
_ARGUMENTS_END = "<|plamo:end_tool_arguments:plamo|>"


class Plamo3Parser(NamedCalls):
    """`begin_tool_request … end_tool_request`."""

    keeps_special_tokens = True
    opens: ClassVar[tuple[str, ...]] = ("<|plamo:begin_tool_requests:plamo|>",)
    dropped: ClassVar[tuple[str, ...]] = ("<|plamo:tag|>",)
    calls: ClassVar[tuple[str, ...]] = ("<|plamo:begin_tool_request:plamo|>",)
    header_ends: ClassVar[tuple[str, ...]] = (
        "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>",
        "<|plamo:begin_tool_arguments:plamo|>",
    )
    call_ends: ClassVar[tuple[str, ...]] = ("<|plamo:end_tool_request:plamo|>",)
    closes: ClassVar[tuple[str, ...]] = ("<|plamo:end_tool_requests:plamo|>",)
    after_object: ClassVar[tuple[str, ...]] = (_ARGUMENTS_END,)

    _all = Markers(*opens, *dropped)

    def _outside(self) -> bool:
        text, marker = self._until(self._all)
        self._content(text)
        if marker is None:
            return False
        if marker in self.dropped:
            self._state = self._over
        else:
            self._try(marker)
            self._enter(marker)
        return True

    def _over(self) -> bool:
        """After the turn's end."""
        self._at = len(self._text)
        return False

    def _read_header(self, header: str) -> tuple[str, str | None] | None:
        before, begun, rest = header.partition(_NAME_BEGINS)
        name, ended, after = rest.partition(_NAME_ENDS)
        if not begun or not ended or before.strip() or after.strip():
            return None
        return super()._read_header(name)
