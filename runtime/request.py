"""Scheduler-side state of one request."""

from dataclasses import dataclass, field
from enum import Enum

from ortloom.runtime.block_hash import BlockHash
from ortloom.runtime.messages import FinishReason, RequestTimes, TokenLogprobs
from ortloom.runtime.sampling_params import SamplingParams


class RequestStatus(Enum):
    """Life of a request. PREEMPTED requests wait again and recompute from their tokens."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOPPED = "finished_stopped"
    FINISHED_LENGTH = "finished_length"
    FINISHED_ABORTED = "finished_aborted"
    FINISHED_ERROR = "finished_error"

    @property
    def finished(self) -> bool:
        """True once the request can produce nothing more."""
        return self.name.startswith("FINISHED")


@dataclass(slots=True, eq=False)
class Request:
    """One sequence.

    `token_ids` = prompt followed by output. `num_computed_tokens` tokens have their KV in
    `block_ids` (logical order, append-only while running). `block_hashes` cover full blocks.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    max_total_tokens: int  # prompt + output never exceed this (context and max_tokens resolved)
    priority: int = 0
    arrival_time: float = 0.0
    cache_salt: str | None = None
    client_id: bytes = b""
    serial: int = 0  # admission number, breaks ties of arrival
    seed: int = 0  # resolved: the request's own, or drawn at admission
    status: RequestStatus = RequestStatus.WAITING
    token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0  # prefix-cache hits of the first scheduling
    num_preemptions: int = 0
    prefilled: bool = False  # the whole prompt was computed once
    block_ids: list[int] = field(default_factory=list)
    num_committed_blocks: int = 0  # leading blocks of the table that are published to the cache
    block_hashes: list[BlockHash] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    times: RequestTimes = field(default_factory=RequestTimes)

    def __post_init__(self) -> None:
        if not self.token_ids:
            self.token_ids = list(self.prompt_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and output so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens so far."""
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def finished(self) -> bool:
        """True once the request can produce nothing more."""
        return self.finish_reason is not None

    @property
    def output_token_ids(self) -> list[int]:
        """A copy of the generated tokens."""
        return self.token_ids[len(self.prompt_token_ids) :]
