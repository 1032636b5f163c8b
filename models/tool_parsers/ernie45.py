"""ernie45: objects in `<tool_call>` tags after the thinking; an answer may be in a response tag.

    I see.
    </think>

    <tool_call>
    {"name": "get_temp", "arguments": {"city": "Oslo"}}
    </tool_call>

The response tags and the newline inside each are no content, and neither is the `</think>` that a
sample without a reasoning parser still has.
"""

from typing import ClassVar

from ortloom.models.tool_parsers.json_calls import JsonCalls


class Ernie45Parser(JsonCalls):
    """`<tool_call>{…}</tool_call>`."""

    keeps_special_tokens = True
    drops_cut_call = False
    opens: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    closes: ClassVar[tuple[str, ...]] = ("</tool_call>",)
    dropped: ClassVar[tuple[str, ...]] = (
        "<response>\n",
        "<response>",
        "\n</response>",
        "</response>",
        "</think>",
    )
