"""The wire contract between clients (fronts, LLM) and the engine: msgpack on ZeroMQ.

Client to engine: EngineRequest, EngineAbort, EngineControl. Engine to client: EngineReady once,
EngineOutputs a step (only the requests of that client), EngineReply to a control call.
Times are seconds of `time.monotonic()`, which all processes of one machine share.
"""

from typing import Literal

import msgspec

from ortloom.runtime.sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error", "repetition"]


class EngineRequest(msgspec.Struct, tag="request", omit_defaults=True):
    """One sequence to generate (n samples are n requests). `request_id` is unique in the engine."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    arrival_time: float = 0.0
    priority: int = 0
    cache_salt: str | None = None


class EngineAbort(msgspec.Struct, tag="abort", omit_defaults=True):
    """Stop these requests and give their blocks back; unknown ids are ignored.

    `finish_reason` stop = the caller found a stop string: the engine counts the request as
    finished, not as given up.
    """

    request_ids: list[str]
    finish_reason: Literal["abort", "stop"] = "abort"


class EngineControl(msgspec.Struct, tag="control", omit_defaults=True):
    """A control call; answered by EngineReply with the same call_id."""

    call_id: int
    method: Literal[
        "reset_prefix_cache",
        "stats",
        "server_info",
        "hello",
        "pause",
        "resume",
        "sleep",
        "wake_up",
        "release_kv_cache",
        "state",
        "abort",
        "start_profile",
        "stop_profile",
    ]
    reset_running_requests: bool = False
    mode: Literal["abort", "wait", "keep"] = "abort"  # what becomes of requests
    clear_cache: bool = False
    level: int = 0
    tags: list[str] = []
    request_ids: list[str] = []  # of abort: ids as clients know them; empty = all


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Logprobs of one position: parallel lists; the first entry is the position's own token, then
    the top ones in descending order (the own token may repeat there). `ranks` are 1-based."""

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]


class TokenDetail(msgspec.Struct, array_like=True):
    """A drawn token in both distributions, as log-probabilities whatever the logprobs mode.

    `raw_logprob` and `rank` (1-based, ties count) are the model's own; `processed_logprob` is that
    of the distribution the token was drawn from."""

    raw_logprob: float
    processed_logprob: float
    rank: int


SamplingMask = list[int] | None
"""The tokens a draw could have taken, likeliest first; None = the whole vocabulary."""


class RequestTimes(msgspec.Struct, array_like=True):
    """Monotonic times of one request, and sums of step times; 0.0 = not yet."""

    queued: float = 0.0
    first_scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    model_forward: float = 0.0  # seconds in the model's graph so far, only where they are traced
    model_execute: float = 0.0  # seconds in whole steps so far, likewise


class StepArrival(msgspec.Struct, array_like=True, frozen=True):
    """One step's tokens of a request, as they reached the client."""

    time: float  # monotonic seconds
    num_tokens: int


class EngineOutput(msgspec.Struct, omit_defaults=True):
    """What one step produced for one request.

    `logprobs`, `details` and `masks` are parallel to `new_token_ids` when asked for.
    `prompt_logprobs` comes whole, once, with the first output: entry 0 is None. With finish_reason
    error, `error` is safe to show. `stop_reason` is the stop token id (None for EOS and length).
    """

    request_id: str
    new_token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    times: RequestTimes | None = None  # with the first token and at the end
    error: str | None = None
    error_kind: Literal["invalid", "capacity", "internal"] | None = None
    error_param: str | None = None
    details: list[TokenDetail] | None = None
    masks: list[SamplingMask] | None = None
    arrivals: list[StepArrival] = []  # the client's: the steps that brought the tokens
    part: bool = False  # holds further prompt_logprobs only; the output itself follows


class HistogramCounts(msgspec.Struct, array_like=True):
    """A histogram: counts by bucket (not summed over buckets), the last one above all bounds."""

    counts: list[int]
    sum: float = 0.0


class EstimatedCosts(msgspec.Struct, array_like=True):
    """Operations and bytes of all steps by arithmetic; see `step_costs`."""

    flops: float = 0.0
    read_bytes: float = 0.0
    write_bytes: float = 0.0


class EngineStats(msgspec.Struct, omit_defaults=True):
    """Gauges as of now and counters since start. Counters are cumulative, so a lost or repeated
    message does no harm; all clients get the same numbers.

    `iteration_tokens` are cumulative bucket counts (not summed over buckets) for the bounds in
    ITERATION_TOKENS_BUCKETS plus +Inf.
    """

    num_requests_running: int = 0
    num_requests_waiting: int = 0
    num_waiting_deferred: int = 0
    kv_cache_usage: float = 0.0  # 0..1
    num_steps: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0  # prompt tokens whose prefill is done, cached ones included
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_partial_prefills: int = 0  # steps' chunks that did not finish their prompt
    jump_forward_tokens: int = 0  # tokens that needed no decode step of their own
    iteration_tokens: list[int] = []
    iteration_tokens_sum: int = 0
    admission_rejections: int = 0
    corrupted_requests: int = 0  # ended because logits were not finite
    finished: dict[str, int] = {}  # finish reason -> requests
    sleep_level: int = 0
    kv_residency: list[HistogramCounts] = []  # lifetime, idle time, gaps; empty = not measured
    costs: EstimatedCosts | None = None  # None = not estimated


KV_RESIDENCY_BUCKETS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0),
    *(120.0, 300.0, 600.0, 1200.0, 1800.0),
)
"""Seconds."""

ITERATION_TOKENS_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class EngineOutputs(msgspec.Struct, tag="outputs", omit_defaults=True):
    """All outputs of one step for one client, with the engine's numbers after it."""

    outputs: list[EngineOutput]
    stats: EngineStats | None = None
    time: float = 0.0


class ProviderReport(msgspec.Struct, omit_defaults=True):
    """Which provider runs and why each other one does not."""

    name: str
    graph_variant: str
    detail: str = ""  # e.g. the ISA tier, library path, thread count
    losing: dict[str, str] = {}  # provider -> reason


class EngineReady(msgspec.Struct, tag="ready", omit_defaults=True):
    """Sent to every client that says hello, once the engine has run one decode step."""

    max_model_len: int
    vocab_size: int
    block_size: int
    num_blocks: int  # usable ones, the null block not counted
    kv_cache_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    provider: ProviderReport
    cache_config: dict[str, str] = {}  # labels of vllm:cache_config_info
    notices: list[str] = []
    engine_pid: int = 0


class EngineReply(msgspec.Struct, tag="reply", omit_defaults=True):
    """Answer to EngineControl."""

    call_id: int
    success: bool = True
    info: dict[str, str] = {}
    stats: EngineStats | None = None
    error: str | None = None


ClientMessage = EngineRequest | EngineAbort | EngineControl
EngineMessage = EngineReady | EngineOutputs | EngineReply
