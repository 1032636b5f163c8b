"""What a tool-call parser is: text that a model writes in, content and calls out.

A parser follows one sample. Text comes in pieces cut anywhere; what it makes of them must not
depend on the cuts.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function that the request offers: its name and the JSON schema of its parameters."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; its name is whole. `call_id` is the model's own id, None where it gives none.

    Calls are numbered from 0 in the order they begin.
    """

    index: int
    name: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """A piece of the arguments of call `index`; all pieces of a call joined are one JSON text."""

    index: int
    fragment: str


ToolEvent = ContentDelta | CallStart | ArgumentsDelta


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call; `arguments` is JSON text."""

    name: str
    arguments: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ParsedTools:
    """A whole output: `content` is None where nothing but calls was written."""

    content: str | None
    calls: tuple[ToolCall, ...] = ()


class ToolParser(ABC):
    """Parses the calls of one sample.

    Attributes:
        keeps_special_tokens: the format's markers are special tokens, so text must be decoded with
            them.
        grammar_calls: `tool_choice` required or a named function is answered by a grammar over
            plain JSON; False where the format has a syntax of its own that the model must keep.

    Args:
        tools: what the request offers.
        template_kwargs: `chat_template_kwargs` of the request.
    """

    keeps_special_tokens: ClassVar[bool] = False
    grammar_calls: ClassVar[bool] = True

    def __init__(
        self, tools: Sequence[ToolSpec], template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.template_kwargs = dict(template_kwargs or {})

    @abstractmethod
    def push(self, text: str) -> list[ToolEvent]:
        """Follow a piece of text; what may still become a marker is held back.

        Never raises for what a model writes.
        """

    @abstractmethod
    def finish(self) -> list[ToolEvent]:
        """What was held back, once the sample has ended. Arguments that are still due are sent."""

    @abstractmethod
    def parse(self, text: str) -> ParsedTools:
        """A whole output at once, by a fresh parser. Output that is not well formed is content.

        Never raises for what a model writes.
        """
