"""hy_v3 and hy_v4: calls in a wrapper, with keys and values in tags of their own.

    <tool_calls><tool_call>get_temp<tool_sep><arg_key>city</arg_key><arg_value>Oslo</arg_value>
    </tool_call></tool_calls>

Every tag's name may carry a suffix of the model's own after a colon (`<tool_calls:a1b2>`). v4
leaves out `<tool_sep>`; of it no more than that is known.
"""

import re
from typing import ClassVar

from ortloom.models.tool_parsers.tagged_calls import TaggedCalls
from ortloom.models.tool_parsers.tool_parser import ToolEvent

_TAGS = ("tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value")
_NAMES = "|".join(_TAGS)
_SUFFIXED = re.compile(rf"(</?(?:{_NAMES})):[^\s<>]{{1,64}}>")
_SUFFIX = re.compile(rf"</?(?:{_NAMES}):[^\s<>]{{0,64}}")
_BEGUN = (f"<{slash}{tag}" for slash in ("", "/") for tag in _TAGS)
_PREFIXES = {tag[:size] for tag in _BEGUN for size in range(1, len(tag) + 1)}


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
    _held = ""

    def push(self, text: str) -> list[ToolEvent]:
        """Follow a piece of text."""
        text = self._held + text
        cut = text.rfind("<")
        tail = text[cut:] if cut >= 0 else ""
        self._held = tail if tail in _PREFIXES or _SUFFIX.fullmatch(tail) else ""
        text = text[: len(text) - len(self._held)]
        return super().push(_SUFFIXED.sub(r"\1>", text))

    def finish(self) -> list[ToolEvent]:
        """What was held back."""
        held, self._held = self._held, ""
        return super().push(held) + super().finish()


class HyV4Parser(HyParser):
    """hy_v4: its calls keep their own syntax under a forced choice."""

    grammar_calls = False
