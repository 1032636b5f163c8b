"""The configuration tree: built once from the command line and environment, never written back.

Siblings do not know each other. Values the engine derives (block count, effective context) are
returned in `EngineReady`, not stored here. Environment variables come in through `environment.py`.
"""

from typing import Literal

import msgspec


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which bundle and how its context and defaults are read.

    `max_model_len` None = the model's own limit, fitted down to the KV pool with a log line;
    -1 = the same on purpose; else exact (start-up fails if one sequence does not fit).
    `tokenizer` and `tokenizer_config` None = the bundle's. `disable_sliding_window` caps the
    context at the window of models whose every layer has one.
    """

    bundle: str
    served_model_names: tuple[str, ...] = ()
    tokenizer: str | None = None
    tokenizer_config: str | None = None
    disable_sliding_window: bool = False
    max_model_len: int | None = None
    generation_config: str = "auto"  # auto | vllm | a folder
    override_generation_config: dict[str, object] = {}
    max_logprobs: int = 20
    logprobs_mode: Literal[
        "raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"
    ] = "raw_logprobs"
    skip_tokenizer_init: bool = False
    enable_trace_replay: bool = False
    seed: int = 0
    verify: bool = False


class KVEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where events of the KV cache are published; sizes in batches, one a step."""

    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """KV cache sizing, in the order of precedence: num_blocks, kv_cache_memory_bytes, memory
    fraction. All None / default = min(40 % of the memory the cgroup leaves,
    max_num_seqs × max_model_len). `kv_cache_dtype` as in `runtime.kv_cache_dtype`."""

    block_size: int = 16
    kv_cache_dtype: str = "auto"
    num_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    memory_fraction: float | None = None
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: str = "sha256"  # as in `runtime.block_digest`
    kv_events: KVEventsConfig | None = None


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one step and of admission. Lengths in tokens.

    `max_num_partial_prefills` above 1: so many prompts are computed in parts side by side, each
    part at most the long-prefill threshold. `watermark` is the share of KV blocks that admission
    leaves free, 0..1. `prefill_schedule_interval` in steps; `stream_interval` in tokens.
    `async_scheduling` None = where there is a processor beside the ones that compute.
    `step_timeout` in seconds, 0 = no watchdog, None = 300 s in which nothing is computed.
    """

    max_num_seqs: int = 256
    max_num_active_seqs: int | None = None
    max_num_scheduled_tokens: int | None = None
    max_num_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
    long_prefill_token_threshold_adaptive: bool = False
    reserve_full_prompt: bool = True
    watermark: float = 0.0
    prefill_schedule_interval: int = 1
    stream_interval: int = 1
    scheduler_cls: str | None = None
    async_scheduling: bool | None = None
    step_timeout: float | None = None
    step_log: bool = False
    max_num_batched_tokens: int | None = None  # None = 2048, raised to max_model_len unless chunked
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: Literal["fcfs", "priority", "lpm"] = "fcfs"
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None


class ProviderConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Execution provider. `provider` auto picks by hardware; any other value never falls back.
    `require` makes start-up fail unless auto picked that one. threads 0 = physical cores within
    the affinity mask and cgroup quota, less `reserved_cpus`. `cpu_affinity` () = the mask the
    process was given. `numa_node` = where memory is taken from, None = anywhere."""

    provider: Literal["auto", "tensorrt", "tensorrt_ep", "cuda", "cpu", "plain"] = "auto"
    require: str | None = None
    threads: int = 0
    reserved_cpus: int = 0
    cpu_affinity: tuple[int, ...] = ()
    numa_node: int | None = None


class FrontConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP side of one front."""

    host: str = "0.0.0.0"
    port: int = 8000
    uds: str | None = None
    num_fronts: int = 1
    api_keys: tuple[str, ...] = ()
    root_path: str = ""
    allowed_origins: tuple[str, ...] = ("*",)
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    chat_template: str | None = None  # template text
    chat_template_content_format: Literal["auto", "string", "openai"] = "auto"
    trust_request_chat_template: bool = False
    default_chat_template_kwargs: dict[str, object] = {}
    response_role: str = "assistant"
    return_tokens_as_token_ids: bool = False
    enable_prompt_tokens_details: bool = False
    enable_force_include_usage: bool = False
    enable_request_id_headers: bool = False
    enable_server_load_tracking: bool = False
    sse_keep_alive_interval: float = 15.0
    request_max_size: int = 16 * 1024 * 1024
    max_header_count: int = 256
    body_timeout: float = 60.0
    head_timeout: float = 10.0
    keep_alive_timeout: float = 75.0
    send_timeout: float = 30.0
    request_deadline: float = 3600.0
    shutdown_timeout: float = 0.0
    ready_timeout: float = 0.0  # seconds the engine may take to start, 0 = any
    outlive_engine: bool = False  # serve on, with errors, after the engine's end
    any_model_name: bool = False
    renderer_workers: int = 1  # threads that tokenise long texts
    limit_mm_per_prompt: dict[str, int] = {}  # kind of media -> most items of a prompt
    max_n: int = 16384
    max_prompts: int = 1024
    max_stop_strings: int = 4
    max_bad_words: int = 128
    max_new_tokens: int | None = None  # serving-side output ceiling
    access_log: bool = True
    access_log_skip: tuple[str, ...] = ()


class LogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Logging and statistics."""

    level: str = "INFO"
    log_stats: bool = True
    stats_interval: float = 10.0
    log_requests: bool = False
    max_log_len: int | None = None
    debug_invariants: bool = False


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole tree."""

    model: ModelConfig
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    provider: ProviderConfig = ProviderConfig()
    front: FrontConfig = FrontConfig()
    log: LogConfig = LogConfig()
