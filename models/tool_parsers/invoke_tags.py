"""minimax_m2, dots, step3: an invoke tag with parameter tags, names in attributes.

    <minimax:tool_call><invoke name="get_temp"><parameter name="city">Oslo</parameter></invoke>
    </minimax:tool_call>
    <dots_function_call><invoke name="get_temp">…</invoke></dots_function_call>
    <｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>get_temp
    <steptml:invoke name="get_temp"><steptml:parameter name="city">Oslo</steptml:parameter>
    </steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>

Blanks and newlines around a value belong to it; what stands between step3's separator and the
invoke tag says nothing. dots also takes a JSON object for the invoke tag, drops a closing tag that
stands alone, and takes calls of offered functions only.
"""

from typing import ClassVar

from ortloom.models.tool_parsers.tagged_calls import AttributeTags
from ortloom.models.tool_parsers.tagged_or_json import TaggedOrJson


class MinimaxM2Parser(AttributeTags):
    """`<minimax:tool_call>`."""

    keeps_special_tokens = True
    opens: ClassVar[tuple[str, ...]] = ("<minimax:tool_call>",)
    calls: ClassVar[tuple[str, ...]] = ("<invoke ",)
    head_ends: ClassVar[tuple[str, ...]] = (">",)
    keys: ClassVar[tuple[str, ...]] = ("<parameter ",)
    key_ends: ClassVar[tuple[str, ...]] = (">",)
    value_ends: ClassVar[tuple[str, ...]] = ("</parameter>",)
    call_ends: ClassVar[tuple[str, ...]] = ("</invoke>",)
    closes: ClassVar[tuple[str, ...]] = ("</minimax:tool_call>",)


class DotsParser(TaggedOrJson, MinimaxM2Parser):
    """`<dots_function_call>`."""

    grammar_calls = False
    known_only: ClassVar[bool] = True
    opens: ClassVar[tuple[str, ...]] = ("<dots_function_call>",)
    closes: ClassVar[tuple[str, ...]] = ("</dots_function_call>",)
    dropped: ClassVar[tuple[str, ...]] = closes

    def _between(self) -> bool:
        if self._skip_blanks() != "{":
            return super()._between()
        self._begin_json()
        return True

    def _after_json(self) -> bool:
        self._state = self._between
        return True


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
    labels: ClassVar[tuple[str, ...]] = (
        "<｜tool_call_begin｜>function<｜tool_sep｜>",
        "<｜tool_sep｜>",
    )
    calls: ClassVar[tuple[str, ...]] = ("<steptml:invoke ",)
    head_ends: ClassVar[tuple[str, ...]] = (">",)
    keys: ClassVar[tuple[str, ...]] = ("<steptml:parameter ",)
    key_ends: ClassVar[tuple[str, ...]] = (">",)
    value_ends: ClassVar[tuple[str, ...]] = ("</steptml:parameter>",)
    call_ends: ClassVar[tuple[str, ...]] = ("</steptml:invoke>",)
    closes: ClassVar[tuple[str, ...]] = ("<｜tool_calls_end｜>",)
