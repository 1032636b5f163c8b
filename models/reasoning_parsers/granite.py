"""granite: reasoning and answer announced in words.

    Here is my thought process: … Here is my response: …

"Here's" counts as "Here is". What stands before is content.
"""

from typing import ClassVar

from ortloom.models.reasoning_parsers.marked import MarkedReasoning, Mode


class GraniteReasoning(MarkedReasoning):
    """Between the two sentences."""

    start: ClassVar[str | None] = "Here is my thought process:"
    end: ClassVar[str | None] = "Here is my response:"
    starts: ClassVar[tuple[str, ...]] = (
        "Here is my thought process:",
        "Here's my thought process:",
    )
    ends: ClassVar[tuple[str, ...]] = ("Here is my response:", "Here's my response:")

    def _default(self) -> Mode:
        return Mode.OUTSIDE
