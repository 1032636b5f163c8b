"""The parsers of one front, chosen once at its start."""

from dataclasses import dataclass

from ortloom.models.reasoning_parsers.reasoning_parser import ReasoningParser
from ortloom.models.tool_parsers.tool_parser import ToolParser


@dataclass(frozen=True, slots=True)
class OutputParsers:
    """What takes the text of samples apart; without arguments nothing does.

    Attributes:
        tool: the format of tool calls; None = `--tool-call-parser` is not set.
        auto: a model may call tools as it likes (`--enable-auto-tool-choice`).
        reasoning: the format of reasoning; None = `--reasoning-parser` is not set.
    """

    tool: type[ToolParser] | None = None
    auto: bool = False
    reasoning: type[ReasoningParser] | None = None

    @property
    def any(self) -> bool:
        """A parser is set: streams then send no chunk for a step that shows nothing."""
        return self.tool is not None or self.reasoning is not None
