"""minimax_m2, dots, step3: an invoke tag with parameter tags, names in attributes.

    <minimax:tool_call><invoke name="get_temp"><parameter name="city">Oslo</parameter></invoke>
    </minimax:tool_call>
    <dots_function_call><invoke name="get_temp">…</invoke></dots_function_call>
    <｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>
    <steptml:invoke name="get_temp"><steptml:parameter name="city">Oslo</steptml:parameter>
    </steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>

One newline at each end of a value is cut away.
"""

from typing import ClassVar

from ortloom.models.tool_parsers.tagged_calls import AttributeTags


class MinimaxM2Parser(AttributeTags):
    """`<minimax:tool_call>`."""

    keeps_special_tokens = True
    opens: ClassVar[tuple[str, ...]] = ("<minimax:tool_call>",)
    calls: ClassVar[tuple[str, ...]] = ("<invoke ",)
    head_ends: ClassVar[tuple[str, ...]] = (">",)
    keys: ClassVar[tuple[str, ...]] = ("<parameter ",)
    key_ends: ClassVar[tuple[str, ...]] = (">",)
    value_ends: ClassVar[tuple[str, ...]] = ("\n</parameter>", "</parameter>")
    trims_newline: ClassVar[bool] = True
    call_ends: ClassVar[tuple[str, ...]] = ("</invoke>",)
    closes: ClassVar[tuple[str, ...]] = ("</minimax:tool_call>",)


class DotsParser(MinimaxM2Parser):
    """`<dots_function_call>`."""

    grammar_calls = False
    opens: ClassVar[tuple[str, ...]] = ("<dots_function_call>",)
    closes: ClassVar[tuple[str, ...]] = ("</dots_function_call>",)


class Step3Parser(AttributeTags):
    """`<｜tool_calls_begin｜>` with steptml tags."""

    keeps_special_tokens = True
    opens: ClassVar[tuple[str, ...]] = ("<｜tool_calls_begin｜>",)
    noise: ClassVar[tuple[str, ...]] = (
        "<｜tool_call_begin｜>function<｜tool_sep｜>",
        "<｜tool_call_begin｜>",
        "<｜tool_sep｜>",
        "<｜tool_call_end｜>",
    )
    calls: ClassVar[tuple[str, ...]] = ("<steptml:invoke ",)
    head_ends: ClassVar[tuple[str, ...]] = (">",)
    keys: ClassVar[tuple[str, ...]] = ("<steptml:parameter ",)
    key_ends: ClassVar[tuple[str, ...]] = (">",)
    value_ends: ClassVar[tuple[str, ...]] = ("\n</steptml:parameter>", "</steptml:parameter>")
    trims_newline: ClassVar[bool] = True
    call_ends: ClassVar[tuple[str, ...]] = ("</steptml:invoke>",)
    closes: ClassVar[tuple[str, ...]] = ("<｜tool_calls_end｜>",)
