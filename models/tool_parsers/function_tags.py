"""qwen3_coder, qwen3_xml, mimo, step3p5, seed_oss: a function tag with parameter tags.

    <tool_call>
    <function=get_temp>
    <parameter=city>
    Oslo
    </parameter>
    </function>
    </tool_call>

One newline at each end of a value is cut away. `<function=` is taken without its wrapper, and a
wrapper that is not closed before the next one is tolerated. seed_oss names its wrapper
`<seed:tool_call>` and thinks in `<seed:think>`, where nothing is a call.
"""

from typing import ClassVar

from ortloom.models.tool_parsers.tagged_calls import TaggedCalls


class FunctionTagsParser(TaggedCalls):
    """`<tool_call><function=…><parameter=…>…</parameter></function></tool_call>`."""

    keeps_special_tokens = True
    opens: ClassVar[tuple[str, ...]] = ("<tool_call>", "<function=")
    calls: ClassVar[tuple[str, ...]] = ("<function=",)
    head_ends: ClassVar[tuple[str, ...]] = (">",)
    keys: ClassVar[tuple[str, ...]] = ("<parameter=",)
    key_ends: ClassVar[tuple[str, ...]] = (">",)
    value_ends: ClassVar[tuple[str, ...]] = ("\n</parameter>", "</parameter>")
    implied_ends: ClassVar[tuple[str, ...]] = ("\n<parameter=", "\n</function>\n</tool_call>")
    trims_newline: ClassVar[bool] = True
    call_ends: ClassVar[tuple[str, ...]] = ("</function>",)
    closes: ClassVar[tuple[str, ...]] = ("</tool_call>",)


class SeedOssParser(FunctionTagsParser):
    """The same in `<seed:tool_call>`."""

    opens: ClassVar[tuple[str, ...]] = ("<seed:tool_call>", "<function=")
    implied_ends: ClassVar[tuple[str, ...]] = ("\n<parameter=", "\n</function>\n</seed:tool_call>")
    closes: ClassVar[tuple[str, ...]] = ("</seed:tool_call>",)
    thinking: ClassVar[tuple[str, str] | None] = ("<seed:think>", "</seed:think>")
