"""internlm: one call as a plugin action.

ok<|action_start|><|plugin|>
{"name": "get_temp", "parameters": {"city": "Oslo"}}<|action_end|>
"""

from typing import ClassVar

from ortloom.models.tool_parsers.json_calls import JsonCalls


class InternlmParser(JsonCalls):
    """`<|action_start|><|plugin|>{…}<|action_end|>`."""

    keeps_special_tokens = True
    drops_cut_call = False
    opens: ClassVar[tuple[str, ...]] = (
        "<|action_start|><|plugin|>",
        "<|action_start|> <|plugin|>",
        "<|action_start|>\n<|plugin|>",
    )
    closes: ClassVar[tuple[str, ...]] = ("<|action_end|>",)
