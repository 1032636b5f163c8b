"""Families whose tags are their own.

seed_oss `<seed:think>…</seed:think>` · mistral `[THINK]…[/THINK]` or `<think>…</think>` · gemma4
`<|channel>thought…<channel|>` · plamo3 `<|plamo:begin_think:plamo|>…` · kimi_k3
`<|open|>think<|sep|>…<|close|>think<|sep|>` · minimax_m3 `<mm:think>…</mm:think>` · k2_horizon
`<ifm|think>…</ifm|think>` and two shorter ways of thinking. k2_horizon and plamo3 are known from
names and one implementation only.
"""

from typing import ClassVar

from ortloom.models.reasoning_parsers.marked import MarkedReasoning, Mode, wanted


class SeedReasoning(MarkedReasoning):
    """seed_oss: begins inside."""

    keeps_special_tokens = True
    start: ClassVar[str | None] = "<seed:think>"
    end: ClassVar[str | None] = "</seed:think>"


class MistralReasoning(MarkedReasoning):
    """mistral: begins outside; a call ends the reasoning."""

    keeps_special_tokens = True
    start: ClassVar[str | None] = "[THINK]"
    end: ClassVar[str | None] = "[/THINK]"
    starts: ClassVar[tuple[str, ...]] = ("[THINK]", "<think>")
    ends: ClassVar[tuple[str, ...]] = ("[/THINK]", "</think>")
    calls: ClassVar[tuple[str, ...]] = ("[TOOL_CALLS]",)

    def _default(self) -> Mode:
        return Mode.OUTSIDE


class GemmaReasoning(MarkedReasoning):
    """gemma4: begins outside; a call ends the reasoning."""

    keeps_special_tokens = True
    start: ClassVar[str | None] = "<|channel>thought\n"
    end: ClassVar[str | None] = "<channel|>"
    starts: ClassVar[tuple[str, ...]] = ("<|channel>thought\n", "<|channel>thought")
    calls: ClassVar[tuple[str, ...]] = ("<|tool_call>",)

    def _default(self) -> Mode:
        return Mode.OUTSIDE


class Plamo3Reasoning(MarkedReasoning):
    """plamo3: begins inside unless switched off; a section of requests ends the reasoning."""

    keeps_special_tokens = True
    start: ClassVar[str | None] = "<|plamo:begin_think:plamo|>"
    end: ClassVar[str | None] = "<|plamo:end_think:plamo|>"
    calls: ClassVar[tuple[str, ...]] = ("<|plamo:begin_tool_requests:plamo|>",)
    dropped: ClassVar[tuple[str, ...]] = ("<|plamo:tag|>",)

    def _default(self) -> Mode:
        off = wanted(self.template_kwargs, "enable_thinking") is False
        return Mode.CONTENT if off else Mode.HEAD


class KimiK3Reasoning(MarkedReasoning):
    """kimi_k3: begins inside unless switched off; the tags of the response are no content."""

    keeps_special_tokens = True
    start: ClassVar[str | None] = "<|open|>think<|sep|>"
    end: ClassVar[str | None] = "<|close|>think<|sep|>"
    calls: ClassVar[tuple[str, ...]] = ("<|open|>tools<|sep|>", "<|open|>response<|sep|>")
    dropped: ClassVar[tuple[str, ...]] = (
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
        "<|end_of_msg|>",
    )

    def _first(self) -> Mode:
        if (self.prompt or "").rstrip().endswith("<|open|>response<|sep|>"):
            return Mode.CONTENT
        return super()._first()

    def _default(self) -> Mode:
        off = wanted(self.template_kwargs, "thinking", "enable_thinking") is False
        return Mode.CONTENT if off else Mode.HEAD


class MinimaxM3Reasoning(MarkedReasoning):
    """minimax_m3: only a start tag at the head opens it, or `thinking_mode` "enabled".

    An end tag at the head says that there is no reasoning, and is no content.
    """

    start: ClassVar[str | None] = "<mm:think>"
    end: ClassVar[str | None] = "</mm:think>"
    starts: ClassVar[tuple[str, ...]] = ("<mm:think>", "</mm:think>")

    def _first(self) -> Mode:
        prompt = (self.prompt or "").rstrip()
        self._inside = prompt.endswith("<mm:think>") or (
            self.template_kwargs.get("thinking_mode") == "enabled"
        )
        return Mode.CONTENT if prompt.endswith("</mm:think>") else Mode.HEAD

    @property
    def reasoning(self) -> bool:
        """Whether the text that comes next is reasoning; without a start tag it is not."""
        return self._mode is Mode.REASONING or (self._mode is Mode.HEAD and self._inside)

    def _begin_reasoning(self, marker: str | None) -> bool:
        if marker == "<mm:think>" or (marker is None and self._inside):
            return super()._begin_reasoning(marker)
        if marker is None:
            self._content.extend(self._blanks)
        self._mode = Mode.CONTENT
        return True


_EFFORTS = {
    "high": ("<ifm|think>", "</ifm|think>"),
    "medium": ("<ifm|think_fast>", "</ifm|think_fast>"),
    "low": ("<ifm|think_faster>", "</ifm|think_faster>"),
}


class K2HorizonReasoning(MarkedReasoning):
    """k2_horizon: tags by `reasoning_effort`, high unless it says otherwise; begins inside."""

    keeps_special_tokens = True
    start: ClassVar[str | None] = "<ifm|think>"
    end: ClassVar[str | None] = "</ifm|think>"
    starts: ClassVar[tuple[str, ...]] = tuple(start for start, _ in _EFFORTS.values())
    ends: ClassVar[tuple[str, ...]] = tuple(end for _, end in _EFFORTS.values())
    calls: ClassVar[tuple[str, ...]] = ("<ifm|tool_calls>",)

    def _first(self) -> Mode:
        effort = self.template_kwargs.get("reasoning_effort")
        if effort in _EFFORTS:  # the markers of this sample, for a thinking budget
            self.__dict__["start"], self.__dict__["end"] = _EFFORTS[effort]
        return super()._first()
