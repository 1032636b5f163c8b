"""gigachat3: a message to the role "function call", or (3.1) a marker of its own.

    function call<|role_sep|>
    {"name": "get_temp", "arguments": {"city": "Oslo"}}

    <|function_call|>{"name": "get_temp", "arguments": {"city": "Oslo"}}

`<|message_sep|>` may stand before either and is no content.
"""

from typing import ClassVar

from ortloom.models.tool_parsers.json_calls import JsonCalls


class GigachatParser(JsonCalls):
    """One object a message."""

    keeps_special_tokens = True
    drops_cut_call = False
    opens: ClassVar[tuple[str, ...]] = (
        "function call<|role_sep|>",
        "<|message_sep|>function call<|role_sep|>",
        "<|message_sep|>\nfunction call<|role_sep|>",
        "<|message_sep|>\n\nfunction call<|role_sep|>",
        "<|function_call|>",
        "<|message_sep|><|function_call|>",
        "<|message_sep|>\n<|function_call|>",
        "<|message_sep|>\n\n<|function_call|>",
    )
    dropped: ClassVar[tuple[str, ...]] = ("<|message_sep|>",)
