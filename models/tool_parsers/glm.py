"""glm45, glm47, ling3, poolside_v1: a name, then keys and values in tags of their own.

    <tool_call>get_temp
    <arg_key>city</arg_key>
    <arg_value>Oslo</arg_value>
    </tool_call>

The newlines may be missing; a call without arguments is `<tool_call>get_time</tool_call>`.
"""

from typing import ClassVar

from ortloom.models.tool_parsers.tagged_calls import TaggedCalls


class GlmParser(TaggedCalls):
    """`<tool_call>name<arg_key>…</arg_key><arg_value>…</arg_value></tool_call>`."""

    keeps_special_tokens = True
    grammar_calls = False
    opens: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    calls: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    head_ends: ClassVar[tuple[str, ...]] = ("\n",)
    keys: ClassVar[tuple[str, ...]] = ("<arg_key>",)
    key_ends: ClassVar[tuple[str, ...]] = ("</arg_key>",)
    value_opens: ClassVar[tuple[str, ...]] = ("<arg_value>",)
    value_ends: ClassVar[tuple[str, ...]] = ("</arg_value>",)
    call_ends: ClassVar[tuple[str, ...]] = ("</tool_call>",)
