"""kimi_k2: a section of calls, each with the model's own id in front of a JSON object.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.get_temp:0
    <|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>

(on one line). The id is `functions.NAME:COUNTER` and is returned as the call's id. A counter alone
means the only function, or the only one that has all the arguments.
"""

from typing import ClassVar

from ortloom.models.tool_parsers.json_text import object_or_none
from ortloom.models.tool_parsers.named_calls import NamedCalls
from ortloom.models.tool_parsers.schema_types import property_schema


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

    def _start(self, name: str, call_id: str | None = None) -> None:
        """A call begins; a counter alone has no name yet, unless one function is offered."""
        if not name.isdecimal() or name in self.tools:
            super()._start(name, call_id)
        elif len(self.tools) == 1:
            super()._start(next(iter(self.tools)), call_id)
        else:
            self._nameless = (call_id, [])

    _nameless: tuple[str | None, list[str]] | None = None

    def _arguments(self, fragment: str) -> None:
        if self._nameless is None:
            super()._arguments(fragment)
        else:
            self._nameless[1].append(fragment)

    def _end(self) -> None:
        if self._nameless is None:
            super()._end()
            return
        (call_id, parts), self._nameless = self._nameless, None
        arguments = "".join(parts) or "{}"
        keys = (object_or_none(arguments) or {}).keys()
        fitting = [
            name
            for name, tool in self.tools.items()
            if keys and all(property_schema(tool.parameters, key) is not None for key in keys)
        ]
        if len(fitting) != 1:
            self._broken()
            return
        super()._start(fitting[0], call_id)
        super()._arguments(arguments)
        super()._end()

    def _broken(self) -> None:
        self._nameless = None
        super()._broken()

    def _unfinished(self) -> bool:
        return self._nameless is not None or super()._unfinished()
