"""`<think>reasoning</think>answer`, in the ways the families differ.

deepseek_r1, step3, step3p5, olmo3, minimax_m2, minimax_m2_append_think, deepseek_v3, holo2,
poolside_v1, deepseek_v4, deepseek_v41, glm45, glm47, ling3, kimi_k2, qwen3, mimo, think_auto.
The start tag may be missing, as templates write it; without an end tag all is reasoning.
"""

from typing import ClassVar

from ortloom.models.marker_scan import Markers
from ortloom.models.reasoning_parsers.marked import MarkedReasoning, Mode, wanted
from ortloom.models.reasoning_parsers.reasoning_parser import ReasoningSplit

_FUNCTION = "<function"
_MOST_BLANKS = 64
"""Blanks between a call's tag and the call; more are no call."""


class ThinkReasoning(MarkedReasoning):
    """deepseek_r1, olmo3, step3, minimax_m2: a sample begins inside the reasoning."""

    start: ClassVar[str | None] = "<think>"
    end: ClassVar[str | None] = "</think>"
    keeps_special_tokens = True


class SwitchedReasoning(ThinkReasoning):
    """holo2, glm45, glm47: on unless the request switches thinking off."""

    def _default(self) -> Mode:
        return Mode.PASSED if _any_false(self) else Mode.HEAD


class AskedReasoning(ThinkReasoning):
    """deepseek_v3, poolside_v1: off unless asked for."""

    def _default(self) -> Mode:
        asked = (wanted(self.template_kwargs, name) for name in ("thinking", "enable_thinking"))
        return Mode.HEAD if any(asked) else Mode.PASSED


class DeepseekV4Reasoning(AskedReasoning):
    """deepseek_v4, deepseek_v41: the same, and a section of DSML calls ends the reasoning."""

    calls: ClassVar[tuple[str, ...]] = ("<｜DSML｜tool_calls>", "<｜DSML｜ calls>")


class Ling3Reasoning(SwitchedReasoning):
    """ling3: as glm; a call ends the reasoning."""

    calls: ClassVar[tuple[str, ...]] = ("<tool_call>",)


class KimiK2Reasoning(SwitchedReasoning):
    """kimi_k2: the section of calls ends the reasoning too."""

    calls: ClassVar[tuple[str, ...]] = ("<|tool_calls_section_begin|>",)


class Qwen3Reasoning(SwitchedReasoning):
    """qwen3, mimo: a call ends the reasoning, and further end tags are swallowed."""

    calls: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    dropped: ClassVar[tuple[str, ...]] = ("</think>",)

    def _default(self) -> Mode:
        return Mode.CONTENT if _any_false(self) else Mode.HEAD

    def _is_call(self, rest: str) -> bool | None:
        """Reasoning may speak of the tag: a call goes on with an object or a function tag."""
        body = rest.lstrip(" \t\r\n")
        if not body:
            return None if len(rest) <= _MOST_BLANKS and not self._ended else False
        if body[0] == "{" or body.startswith(_FUNCTION):
            return True
        return None if _FUNCTION.startswith(body) and not self._ended else False


class Step3p5Reasoning(ThinkReasoning):
    """step3p5: one newline on either side of the end tag belongs to it."""

    ends: ClassVar[tuple[str, ...]] = ("\n</think>\n", "\n</think>", "</think>\n", "</think>")


class AppendThinkReasoning(MarkedReasoning):
    """minimax_m2_append_think: nothing is parted; the `<think>` of the prompt is put in front."""

    keeps_special_tokens = True

    def _default(self) -> Mode:
        self._due = "<think>"
        return Mode.PASSED

    def push(self, text: str) -> ReasoningSplit:
        """Follow a piece of text."""
        if not text:
            return ReasoningSplit()
        due, self._due = self._due, ""
        return super().push(due + text)


_PAIRS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "<mm:think>": "</mm:think>",
    "[THINK]": "[/THINK]",
}


class AutoThinkReasoning(MarkedReasoning):
    """think_auto: a pair of tags at the head is followed, whatever its spelling.

    Without a start tag, in the sample or at the prompt's end, all is content.
    """

    start: ClassVar[str | None] = "<think>"
    end: ClassVar[str | None] = "</think>"
    starts: ClassVar[tuple[str, ...]] = tuple(_PAIRS)
    keeps_special_tokens = True

    def _first(self) -> Mode:
        self._pair: str | None = None
        prompt = (self.prompt or "").rstrip()
        for start, end in _PAIRS.items():
            if prompt.endswith(start):
                self._pair = start
            elif prompt.endswith(end):
                return Mode.PASSED
        return Mode.HEAD

    @property
    def reasoning(self) -> bool:
        """Whether the text that comes next is reasoning; only a start tag says so."""
        return self._mode is Mode.REASONING or self._pair is not None

    def _begin_reasoning(self, marker: str | None) -> bool:
        pair = marker or self._pair
        self._pair = None
        if pair is None:
            self._content.extend(self._blanks)
            self._mode = Mode.PASSED
            return True
        self._ends = Markers(_PAIRS[pair])
        return super()._begin_reasoning(marker)


def _any_false(parser: ThinkReasoning) -> bool:
    """The request switches thinking off, under either of its names."""
    return any(
        wanted(parser.template_kwargs, name) is False for name in ("thinking", "enable_thinking")
    )
