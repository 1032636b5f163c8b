"""The text of one sample taken apart: reasoning, content and tool calls, as events.

For routes that show these as things of their own (chat completions, responses, messages). A route
makes one `OutputPlan` a request (`output_plan.output_plan`), and then either

- streams: one `plan.follow()` a sample; `push(piece.text)` for each piece and, when the piece ends
  the sample, `finish()` as well. Both give events in the order in which the client should see them:

      ReasoningDelta(text)               text of the reasoning
      ContentDelta(text)                 text for the reader
      CallStart(index, name, call_id)    a call begins; `call_id` is always set here
      ArgumentsDelta(index, fragment)    a piece of its arguments; all pieces are one JSON text

- or answers at once: `plan.whole(text)` gives a `WholeOutput`.

`plan.finish_reason(reason, called)` tells what the client is told. Parsers raise for nothing that a
model writes, so neither way can fail. Events never hold empty text.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ortloom.models.reasoning_parsers.reasoning_parser import ReasoningParser
from ortloom.models.tool_parsers.tool_parser import (
    ArgumentsDelta,
    CallStart,
    ContentDelta,
    ToolCall,
    ToolEvent,
    ToolParser,
    ToolSpec,
)
from ortloom.runtime.messages import FinishReason
from ortloom.runtime.sampling_params import StructuredOutput
from ortloom.server.openai.forced_calls import ForcedCalls, NamedCall

ToolMode = Literal["off", "auto", "required", "named"]
"""How the text holds calls: not at all, as the model likes, or because it must."""


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text of the reasoning."""

    text: str


OutputEvent = ReasoningDelta | ToolEvent


@dataclass(frozen=True, slots=True)
class WholeOutput:
    """A whole sample; None = there is none of it. Ids of calls are set."""

    reasoning: str | None
    content: str | None
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """How the samples of one request are taken apart.

    Attributes:
        mode: how the text holds calls.
        tools: what the request offers.
        strict: names of tools whose calls must fit their schema.
        named: the function that must be called, with mode `named`.
        tool_parser: the format of calls; None = the grammar's plain JSON.
        forced: the grammar of calls that must be made; None = nothing forces any.
        reasoning_parser: None = nothing is reasoning.
        template_kwargs: the variables the template was given.
        prompt: the rendered prompt.
        parallel: all calls are shown; else the first one only.
        include_reasoning: reasoning is shown; else it is dropped.
        note: told of each use of the format's parser, as (streaming, a call was in it).
    """

    mode: ToolMode = "off"
    tools: tuple[ToolSpec, ...] = ()
    strict: frozenset[str] = frozenset()
    named: str | None = None
    tool_parser: type[ToolParser] | None = None
    forced: StructuredOutput | None = None
    reasoning_parser: type[ReasoningParser] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    parallel: bool = True
    include_reasoning: bool = True
    note: Callable[[bool, bool], None] | None = None

    @property
    def plain(self) -> bool:
        """The text is content and nothing else."""
        return self.mode == "off" and self.reasoning_parser is None

    def follow(self) -> "OutputParts":
        """A fresh follower of one sample."""
        return OutputParts(self)

    def new_reasoning(self) -> ReasoningParser | None:
        """A fresh parser of the reasoning."""
        if self.reasoning_parser is None:
            return None
        return self.reasoning_parser(self.template_kwargs, self.prompt)

    def new_tools(self) -> ToolParser | None:
        """A fresh parser of the calls."""
        if self.mode == "off":
            return None
        if self.tool_parser is not None:
            return self.tool_parser(self.tools, self.template_kwargs)
        if self.named is not None:
            return NamedCall(self.named, self.tools)
        return ForcedCalls(self.tools)

    def whole(self, text: str) -> WholeOutput:
        """Take a whole sample apart."""
        reasoning: str | None = None
        content: str | None = text
        reasoner = self.new_reasoning()
        if reasoner is not None:
            reasoning, content = reasoner.parse(text)
        calls: tuple[ToolCall, ...] = ()
        parser = self.new_tools()
        if parser is not None and content is not None:
            parsed = parser.parse(content)
            content, calls = parsed.content, parsed.calls
            self.used(streaming=False, found=bool(calls))
        if not self.parallel:
            calls = calls[:1]
        if calls and self.mode in ("required", "named"):
            content = content or ""
        return WholeOutput(
            reasoning=reasoning if self.include_reasoning else None,
            content=content,
            calls=tuple(replace(call, call_id=call.call_id or new_call_id()) for call in calls),
        )

    def used(self, *, streaming: bool, found: bool) -> None:
        """Say that the parser of calls was asked; a grammar's plain JSON does not count."""
        if self.note is not None and self.tool_parser is not None:
            self.note(streaming, found)

    def finish_reason(self, reason: FinishReason | None, called: bool) -> str | None:
        """What the client is told.

        Args:
            reason: why the engine stopped; None = it has not.
            called: a call was shown.
        """
        if reason in ("stop", "length") and called and self.mode != "named":
            return "tool_calls"
        return reason


class OutputParts:
    """Follows one sample. Made by `OutputPlan.follow`."""

    def __init__(self, plan: OutputPlan) -> None:
        self._plan = plan
        self._reasoning = plan.new_reasoning()
        self._tools = plan.new_tools()
        self.called = False
        """A call has begun."""

    @property
    def reasoning(self) -> bool:
        """Whether the text that comes next is reasoning, as far as is known."""
        return self._reasoning is not None and self._reasoning.reasoning

    def push(self, text: str) -> list[OutputEvent]:
        """Follow a piece of text; what may still become a marker is held back."""
        if self._reasoning is None:
            return self._content(text)
        split = self._reasoning.push(text)
        return [*self._thought(split.reasoning), *self._content(split.content)]

    def finish(self) -> list[OutputEvent]:
        """What was held back, once the sample has ended."""
        events: list[OutputEvent] = []
        if self._reasoning is not None:
            split = self._reasoning.finish()
            events = [*self._thought(split.reasoning), *self._content(split.content)]
            if self._reasoning.reasoning:
                return events  # it never came to calls, not even to one without arguments
        if self._tools is not None:
            events += self._parsed(self._tools.finish())
        return events

    def _thought(self, text: str) -> list[OutputEvent]:
        return [ReasoningDelta(text)] if text and self._plan.include_reasoning else []

    def _content(self, text: str) -> list[OutputEvent]:
        if not text:
            return []
        if self._tools is None:
            return [ContentDelta(text)]
        return self._parsed(self._tools.push(text))

    def _parsed(self, events: list[ToolEvent]) -> list[OutputEvent]:
        found = any(not isinstance(event, ContentDelta) for event in events)
        self._plan.used(streaming=True, found=found)
        return self._shown(events)

    def _shown(self, events: Iterable[ToolEvent]) -> list[OutputEvent]:
        """Events without empty ones and calls that the request does not want; ids are set."""
        shown: list[OutputEvent] = []
        for event in events:
            match event:
                case ContentDelta(text):
                    if text:
                        shown.append(event)
                case CallStart(index, name, call_id):
                    if self._plan.parallel or index == 0:
                        self.called = True
                        shown.append(CallStart(index, name, call_id or new_call_id()))
                case ArgumentsDelta(index, fragment):
                    if fragment and (self._plan.parallel or index == 0):
                        shown.append(event)
        return shown


def new_call_id() -> str:
    """An id for a call whose format has none of its own."""
    return f"chatcmpl-tool-{uuid.uuid4().hex[:16]}"
