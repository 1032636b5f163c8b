"""nemotron_v3 and granite_thinking: as qwen3, and reasoning that never ends may become the content.

With `enable_thinking` false all is content from the start. With `force_nonempty_content` a sample
without content gives its reasoning as content: at once instead of it; in a stream, where the
reasoning has been sent by then, once more at the end. granite_thinking, known from one
implementation, also leaves out the newlines between the end tag and the content.
"""

from typing import ClassVar

from ortloom.models.reasoning_parsers.reasoning_parser import ReasoningSplit
from ortloom.models.reasoning_parsers.think_tags import Qwen3Reasoning


class NemotronReasoning(Qwen3Reasoning):
    """nemotron_v3: a newline or two before the end tag belong to it."""

    ends: ClassVar[tuple[str, ...]] = ("\n\n</think>", "\n</think>", "</think>")
    _any_content = False

    @property
    def _forced(self) -> bool:
        return self.template_kwargs.get("force_nonempty_content") is True

    def push(self, text: str) -> ReasoningSplit:
        """Follow a piece of text."""
        return self._watch(super().push(text))

    def finish(self) -> ReasoningSplit:
        """What was held back, and the reasoning as content where that is due."""
        split = self._watch(super().finish())
        if not self._forced or self._any_content:
            return split
        return ReasoningSplit(split.reasoning, split.content + "".join(self._kept))

    def parse(self, text: str) -> tuple[str | None, str | None]:
        """(reasoning, content) of a whole output; never both from the same text."""
        fresh = self._fresh()
        splits = [fresh.push(text), fresh.finish()]
        reasoning = "".join(split.reasoning for split in splits)
        if fresh._forced and not fresh._any_content:
            return None, reasoning or None
        return reasoning or None, "".join(split.content for split in splits) or None

    def _watch(self, split: ReasoningSplit) -> ReasoningSplit:
        """Keep what may be due at the end."""
        self._any_content = self._any_content or bool(split.content.strip())
        if self._forced and not self._any_content:
            self._kept.append(split.reasoning)
        return split

    @property
    def _kept(self) -> list[str]:
        """Reasoning so far, while there is no content."""
        kept: list[str] = self.__dict__.setdefault("_kept_reasoning", [])
        return kept


class GraniteThinkingReasoning(NemotronReasoning):
    """granite_thinking."""

    trims_content: ClassVar[bool] = True
