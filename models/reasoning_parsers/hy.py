"""hy_v3 and hy_v4: `<think>` tags that may carry a suffix of the model's own (`<think:a1b2>`).

Reasoning is off unless the request asks for it by `reasoning_effort`; "no_think" and "none" are
off too. Of v4 no difference is known.
"""

from ortloom.models.reasoning_parsers.marked import Mode
from ortloom.models.reasoning_parsers.reasoning_parser import ReasoningSplit
from ortloom.models.reasoning_parsers.think_tags import ThinkReasoning
from ortloom.models.suffixed_tags import SuffixedTags

_OFF = ("", "no_think", "none")


class HyReasoning(ThinkReasoning):
    """Suffixes taken off first."""

    def _first(self) -> Mode:
        self._tags = SuffixedTags(("think",))
        if self.prompt:  # only its end matters
            self.prompt = SuffixedTags(("think",)).push(self.prompt[-256:] + "\n")
        return super()._first()

    def _default(self) -> Mode:
        effort = self.template_kwargs.get("reasoning_effort")
        return Mode.HEAD if effort is not None and str(effort) not in _OFF else Mode.PASSED

    def push(self, text: str) -> ReasoningSplit:
        """Follow a piece of text."""
        return super().push(self._tags.push(text))

    def finish(self) -> ReasoningSplit:
        """What was held back."""
        held, last = super().push(self._tags.finish()), super().finish()
        return ReasoningSplit(held.reasoning + last.reasoning, held.content + last.content)
