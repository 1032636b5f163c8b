"""kimi_k2: a section of calls, each with the model's own id in front of a JSON object.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.get_temp:0
    <|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>

(on one line). The id is `functions.NAME:COUNTER` and is returned as the call's id.
"""

from typing import ClassVar

from ortloom.models.tool_parsers.named_calls import NamedCalls


class KimiK2Parser(NamedCalls):
    """`<|tool_call_begin|>id<|tool_call_argument_begin|>{…}<|tool_call_end|>`."""

    keeps_special_tokens = True
    opens: ClassVar[tuple[str, ...]] = (
        "<|tool_calls_section_begin|>",
        "<|tool_call_section_begin|>",
        "<|tool_call_begin|>",
    )
    calls: ClassVar[tuple[str, ...]] = ("<|tool_call_begin|>",)
    header_ends: ClassVar[tuple[str, ...]] = ("<|tool_call_argument_begin|>",)
    call_ends: ClassVar[tuple[str, ...]] = ("<|tool_call_end|>",)
    closes: ClassVar[tuple[str, ...]] = (
        "<|tool_calls_section_end|>",
        "<|tool_call_section_end|>",
    )

    def _read_header(self, header: str) -> tuple[str, str | None] | None:
        call_id = header.strip()
        stem, colon, count = call_id.rpartition(":")
        if not colon or not count.isdecimal():
            stem = call_id
        name = stem.removeprefix("functions.")
        read = super()._read_header(name)
        return None if read is None else (read[0], call_id)
