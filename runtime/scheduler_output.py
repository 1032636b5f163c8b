"""The plan of one step and its result: plain data between Scheduler, ModelRunner and EngineCore."""

from dataclasses import dataclass, field

from ortloom.runtime.messages import SamplingMask, TokenDetail, TokenLogprobs
from ortloom.runtime.request import Request


@dataclass(slots=True)
class ScheduledRequest:
    """Tokens `start .. start + num_tokens` of one request are computed this step.

    `start` tokens are already in the cache. `samples` is True when the chunk ends at the last
    known token, so a new token is drawn from its logits. `block_ids` covers start + num_tokens.
    """

    request: Request
    start: int
    num_tokens: int
    samples: bool
    block_ids: list[int]


@dataclass(slots=True)
class SchedulerOutput:
    """One step, in batch order. No phases: decode and prefill chunks mix freely."""

    scheduled: list[ScheduledRequest]
    preempted: list[Request] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """T, the packed tokens of the step."""
        return sum(s.num_tokens for s in self.scheduled)


@dataclass(slots=True)
class RowResult:
    """Result of one scheduled request.

    `token_id` is None when the chunk did not sample. `prompt_logprobs` holds the entries of the
    prompt positions start+1 .. start+num_tokens (those inside the prompt), if asked for.
    `detail` and `mask` are there if the request asks for them.
    `forced` are the tokens that follow `token_id` because the grammar leaves no choice for them.
    `error` means this request failed (for example its grammar) while the rest of the step stands;
    `error_param` names the field of the request that is to blame, None = none of them.
    """

    token_id: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    forced: list[int] = field(default_factory=list)
    error: str | None = None
    error_param: str | None = None
    detail: TokenDetail | None = None
    mask: SamplingMask = None


@dataclass(slots=True)
class ModelRunnerOutput:
    """Parallel to SchedulerOutput.scheduled."""

    rows: list[RowResult]
    forward_seconds: float = 0.0  # in the model's graph
