"""hy_v3 and hy_v4: calls in a wrapper, with keys and values in tags of their own.

    <tool_calls><tool_call>get_temp<tool_sep><arg_key>city</arg_key><arg_value>Oslo</arg_value>
    </tool_call></tool_calls>

Every tag's name may carry a suffix of the model's own after a colon (`<tool_calls:a1b2>`). v4
leaves out `<tool_sep>`; of it no more than that is known.
"""

from typing import ClassVar

from ortloom.models.suffixed_tags import SuffixedTags
from ortloom.models.tool_parsers.machine import State
from ortloom.models.tool_parsers.tagged_calls import TaggedCalls
from ortloom.models.tool_parsers.tool_parser import ToolEvent


class HyParser(TaggedCalls):
    """`<tool_calls><tool_call>name…</tool_call></tool_calls>`, suffixes taken off first."""

    keeps_special_tokens = True
    opens: ClassVar[tuple[str, ...]] = ("<tool_calls>", "<tool_call>")
    calls: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    head_ends: ClassVar[tuple[str, ...]] = ("<tool_sep>",)
    keys: ClassVar[tuple[str, ...]] = ("<arg_key>",)
    key_ends: ClassVar[tuple[str, ...]] = ("</arg_key>",)
    value_opens: ClassVar[tuple[str, ...]] = ("<arg_value>",)
    value_ends: ClassVar[tuple[str, ...]] = ("</arg_value>",)
    call_ends: ClassVar[tuple[str, ...]] = ("</tool_call>",)
    closes: ClassVar[tuple[str, ...]] = ("</tool_calls>",)

    def _begin(self) -> State:
        self._tags = SuffixedTags(("tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value"))
        return super()._begin()

    def push(self, text: str) -> list[ToolEvent]:
        """Follow a piece of text."""
        return super().push(self._tags.push(text))

    def finish(self) -> list[ToolEvent]:
        """What was held back."""
        return super().push(self._tags.finish()) + super().finish()


class HyV4Parser(HyParser):
    """hy_v4: its calls keep their own syntax under a forced choice."""

    grammar_calls = False
