"""hermes, granite4, qwen3, longcat: one JSON object in a pair of tags, a pair for each call.

    Sure. <tool_call>{"name": "get_temp", "arguments": {"city": "Oslo"}}</tool_call>

Text before the first block is content, text after it is dropped. The last block may lack its
closing tag if its object is whole. One bad block makes the whole output content.
"""

from typing import ClassVar

from ortloom.models.tool_parsers.json_calls import JsonCalls


class HermesParser(JsonCalls):
    """`<tool_call>{…}</tool_call>`."""

    keeps_special_tokens = True
    drops_cut_call = False
    opens: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    closes: ClassVar[tuple[str, ...]] = ("</tool_call>",)


class LongcatParser(HermesParser):
    """`<longcat_tool_call>{…}</longcat_tool_call>`."""

    opens: ClassVar[tuple[str, ...]] = ("<longcat_tool_call>",)
    closes: ClassVar[tuple[str, ...]] = ("</longcat_tool_call>",)
