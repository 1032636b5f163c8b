"""deepseek_v32, deepseek_v4, deepseek_v41: DSML, where each value says whether it is a string.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="get_temp">
    <｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>
    <｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

v4 calls the wrapper `tool_calls`. v4.1 calls it `calls` and writes a blank before each tag's name
(`<｜DSML｜ invoke`): known from one implementation's marker list, not from the model's pages.
"""

from typing import ClassVar

from ortloom.models.tool_parsers.schema_types import ANY
from ortloom.models.tool_parsers.tagged_calls import AttributeTags, attributes

_KINDS = {"true": frozenset({"string"}), "false": ANY - {"string"}}


class DeepseekV32Parser(AttributeTags):
    """Wrapper `function_calls`."""

    keeps_special_tokens = True
    opens: ClassVar[tuple[str, ...]] = ("<｜DSML｜function_calls>",)
    calls: ClassVar[tuple[str, ...]] = ("<｜DSML｜invoke ",)
    head_ends: ClassVar[tuple[str, ...]] = (">",)
    keys: ClassVar[tuple[str, ...]] = ("<｜DSML｜parameter ",)
    key_ends: ClassVar[tuple[str, ...]] = (">",)
    value_ends: ClassVar[tuple[str, ...]] = ("</｜DSML｜parameter>",)
    call_ends: ClassVar[tuple[str, ...]] = ("</｜DSML｜invoke>",)
    closes: ClassVar[tuple[str, ...]] = ("</｜DSML｜function_calls>",)

    def _read_key(self, text: str) -> tuple[str, frozenset[str] | None] | None:
        read = super()._read_key(text)
        return read and (read[0], _KINDS.get(attributes(text).get("string", "").lower()))


class DeepseekV4Parser(DeepseekV32Parser):
    """Wrapper `tool_calls`."""

    opens: ClassVar[tuple[str, ...]] = ("<｜DSML｜tool_calls>",)
    closes: ClassVar[tuple[str, ...]] = ("</｜DSML｜tool_calls>",)


class DeepseekV41Parser(DeepseekV32Parser):
    """Wrapper `calls`, blanks before the names."""

    opens: ClassVar[tuple[str, ...]] = ("<｜DSML｜ calls>",)
    calls: ClassVar[tuple[str, ...]] = ("<｜DSML｜ invoke ",)
    keys: ClassVar[tuple[str, ...]] = ("<｜DSML｜ parameter ",)
    value_ends: ClassVar[tuple[str, ...]] = ("</｜DSML｜ parameter>",)
    call_ends: ClassVar[tuple[str, ...]] = ("</｜DSML｜ invoke>",)
    closes: ClassVar[tuple[str, ...]] = ("</｜DSML｜ calls>",)
