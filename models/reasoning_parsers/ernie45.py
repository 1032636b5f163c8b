"""ernie45: reasoning without a start tag, then an answer that may be in a response tag.

Two and two.
</think>

<response>
4
</response>
"""

from typing import ClassVar

from ortloom.models.reasoning_parsers.think_tags import ThinkReasoning


class ErnieReasoning(ThinkReasoning):
    """The response tags, with the newline inside each, and newlines before them are no content."""

    trims_content: ClassVar[bool] = True
    dropped: ClassVar[tuple[str, ...]] = (
        "<response>\n",
        "<response>",
        "\n</response>",
        "</response>",
    )
    passed: ClassVar[tuple[str, ...]] = ("<tool_call>",)
