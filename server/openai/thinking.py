"""What a request says of its reasoning: where it ends, and how long it may be."""

from collections.abc import Sequence

from ortloom.errors import InvalidRequest, UnsupportedParameter
from ortloom.models.thinking import Thinking, ThinkingTracker
from ortloom.models.tokenizer import Tokenizer
from ortloom.server.context import FrontContext
from ortloom.server.openai.output_parts import OutputPlan
from ortloom.server.openai.wire_common import GenerationRequest

_FIELD = "thinking_token_budget"


def thinking_budget(body: GenerationRequest, effort: str | None, front: FrontContext) -> int | None:
    """Reasoning tokens a request may use; None = any number.

    Args:
        body: `thinking_token_budget` of it; -1 = any number.
        effort: `reasoning_effort`, whose budget the server may know.
        front: the server's settings.

    Raises:
        UnsupportedParameter: a budget, and nothing tells where reasoning ends.
        InvalidRequest: it is below -1.
    """
    asked = body.thinking_token_budget
    if asked is not None and front.parsers.markers is None:
        raise UnsupportedParameter(
            f"{_FIELD} needs --reasoning-parser or --reasoning-config.", _FIELD
        )
    if asked is not None and asked < -1:
        raise InvalidRequest(f"{_FIELD} must be -1 or at least 0, got {asked}.", _FIELD)
    if asked is None and effort is not None and front.parsers.markers is not None:
        return front.config.front.reasoning_effort_budgets.get(effort)
    return None if asked == -1 else asked


def thinking_of(
    front: FrontContext, plan: OutputPlan | None, budget: int | None, *, constrained: bool
) -> Thinking | None:
    """Where the reasoning of a request's samples begins and ends; None = there is none.

    Args:
        front: for the markers.
        plan: of a request whose output is parsed; None = the prompt alone tells.
        budget: reasoning tokens.
        constrained: the output has a constraint, which begins after the reasoning.
    """
    markers = front.parsers.markers
    if markers is None or (front.parsers.reasoning is None and budget is None):
        return None
    opened: bool | None = None
    start = markers.start
    probe = None if plan is None else plan.new_reasoning()
    if probe is not None:
        opened = probe.reasoning
        if not opened and start:
            probe.push(start)
            if not probe.reasoning:
                return None  # the request or its prompt has switched reasoning off
    return Thinking(
        start=start,
        end=markers.end,
        start_token=markers.start_token,
        end_token=markers.end_token,
        # a call's marker is no end for a constraint, which may have that very text in it
        other_ends=() if constrained else markers.other_ends,
        open=opened,
        budget=budget,
        closing=markers.closing if budget is not None else (),
    )


class ReasoningCounter:
    """Counts the reasoning tokens of a request's samples.

    Args:
        plan: how their text is taken apart.
        thinking: where reasoning ends; None = the text alone tells.
        tokenizer: of the front.
        n: number of samples.
    """

    def __init__(
        self, plan: OutputPlan, thinking: Thinking | None, tokenizer: Tokenizer | None, n: int
    ) -> None:
        self._trackers: list[ThinkingTracker] = []
        self._parsers = [plan.new_reasoning() for _ in range(n)]
        self._counts = [0] * n
        self._leading = [0] * n
        if thinking is not None and tokenizer is not None:
            self._trackers = [ThinkingTracker(thinking, tokenizer.token_bytes) for _ in range(n)]

    @property
    def total(self) -> int:
        """Of all samples so far, without markers."""
        return sum(self._counts)

    def leading(self, index: int) -> int:
        """Tokens of a sample up to the end of its reasoning, markers included."""
        return self._leading[index]

    def add(self, index: int, token_ids: Sequence[int], text: str) -> None:
        """Follow what came of a sample."""
        if self._trackers:
            tracker = self._trackers[index]
            for token in token_ids:
                inside = tracker.phase == "inside"
                tracker.push(token)
                self._leading[index] += inside or tracker.phase == "inside"
            self._counts[index] = tracker.count
            return
        parser = self._parsers[index]
        if parser is not None:
            before = parser.reasoning
            parser.push(text)
            if before or parser.reasoning:
                self._counts[index] += len(token_ids)
                self._leading[index] += len(token_ids)
