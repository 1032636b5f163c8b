"""deepseek_v3 and deepseek_v31: a section of calls, each a name and a JSON object.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_temp
    ```json
    {"city": "Oslo"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

v3.1 leaves out the word and the fence:
`<｜tool▁call▁begin｜>get_temp<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>`.
"""

from typing import ClassVar

from ortloom.models.tool_parsers.named_calls import NamedCalls


class DeepseekV31Parser(NamedCalls):
    """`name<｜tool▁sep｜>{…}`."""

    keeps_special_tokens = True
    opens: ClassVar[tuple[str, ...]] = ("<｜tool▁calls▁begin｜>",)
    calls: ClassVar[tuple[str, ...]] = ("<｜tool▁call▁begin｜>",)
    header_ends: ClassVar[tuple[str, ...]] = ("<｜tool▁sep｜>",)
    call_ends: ClassVar[tuple[str, ...]] = ("<｜tool▁call▁end｜>",)
    closes: ClassVar[tuple[str, ...]] = ("<｜tool▁calls▁end｜>",)


class DeepseekV3Parser(DeepseekV31Parser):
    """`function<｜tool▁sep｜>name` and the object in a fence."""

    header_ends: ClassVar[tuple[str, ...]] = ("```json", "```")
    after_object: ClassVar[tuple[str, ...]] = ("```",)

    def _read_header(self, header: str) -> tuple[str, str | None] | None:
        _, separator, name = header.partition("<｜tool▁sep｜>")
        return super()._read_header(name) if separator else None
