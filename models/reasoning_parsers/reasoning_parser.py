"""What a reasoning parser is: text that a model writes in, reasoning and content out.

A parser follows one sample. Text comes in pieces cut anywhere; what it makes of them must not
depend on the cuts.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class ReasoningSplit:
    """Two pieces of text, either may be empty; reasoning comes first."""

    reasoning: str = ""
    content: str = ""


class ReasoningParser(ABC):
    """Parts the reasoning of one sample from its content.

    Attributes:
        start, end: the markers around reasoning, None where the format has none. A thinking budget
            ends reasoning by writing `end`.
        keeps_special_tokens: the markers are special tokens, so text must be decoded with them.

    Args:
        template_kwargs: `chat_template_kwargs` of the request.
        prompt: the rendered prompt, where it is text; a template may have opened the reasoning.
    """

    start: ClassVar[str | None] = None
    end: ClassVar[str | None] = None
    keeps_special_tokens: ClassVar[bool] = False

    def __init__(
        self, template_kwargs: Mapping[str, Any] | None = None, prompt: str | None = None
    ) -> None:
        self.template_kwargs = dict(template_kwargs or {})
        self.prompt = prompt

    @property
    @abstractmethod
    def reasoning(self) -> bool:
        """Whether the text that comes next is reasoning, as far as is known."""

    @abstractmethod
    def push(self, text: str) -> ReasoningSplit:
        """Follow a piece of text; what may still become a marker is held back.

        Never raises for what a model writes.
        """

    @abstractmethod
    def finish(self) -> ReasoningSplit:
        """What was held back, once the sample has ended."""

    @abstractmethod
    def parse(self, text: str) -> tuple[str | None, str | None]:
        """(reasoning, content) of a whole output, by a fresh parser; None = there is none."""
