"""What offline generation returns."""

from dataclasses import dataclass, field

from ortloom.runtime.messages import FinishReason


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token at one position. `rank` 1 is the most likely; `decoded_token` None without a
    tokenizer."""

    logprob: float
    rank: int
    decoded_token: str | None = None


PositionLogprobs = dict[int, Logprob]
"""Token id -> Logprob; the position's own token comes first."""


@dataclass(slots=True)
class CompletionOutput:
    """One sample.

    `token_ids` include the stop token; `text` does not, and ends before a stop string (unless
    include_stop_str_in_output). `logprobs` is parallel to `token_ids`, None if not asked for;
    then `cumulative_logprob` is None too. `stop_reason` is a stop token id, a stop string, or
    None for EOS and length.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    cumulative_logprob: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestMetrics:
    """Times of `time.monotonic()` in seconds, 0.0 = never; over n samples the earliest firsts and
    the latest last. `num_cached_tokens` are prompt tokens that were not computed, for the first
    sample."""

    arrival_time: float = 0.0
    first_scheduled_time: float = 0.0
    first_token_time: float = 0.0
    last_token_time: float = 0.0
    num_cached_tokens: int = 0
    num_preemptions: int = 0


@dataclass(slots=True)
class RequestOutput:
    """One prompt with its samples.

    `prompt` is None if token ids were given. `prompt_logprobs` has an entry a prompt token, the
    first of them None; None if not asked for.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    num_cached_tokens: int = 0
