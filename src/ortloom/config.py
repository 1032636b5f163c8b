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
    logits_processors: tuple[str, ...] = ()  # users' classes, module:Class
    logits_processor_pattern: str | None = None  # of those that requests may name
    skip_tokenizer_init: bool = False
    return_sampling_mask: bool = False
    enable_sleep_mode: bool = False
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


class StructuredOutputsConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """Output bound to a form. `backend` is the grammar engine, auto = guidance, which is always
    there; the two switches hold for every request, whatever it says itself. `jump_forward`: tokens
    that a grammar leaves no choice for are computed as one step. `load_early`: the grammar engine
    reads the tokenizer while the model loads, instead of at the first constrained request, which
    stops the engine for about half a second then."""

    backend: Literal["auto", "guidance", "xgrammar", "outlines", "lm-format-enforcer"] = "auto"
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    jump_forward: bool = False
    load_early: bool = False


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


class ProfilerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Profiles of the engine's Python calls; `folder` None = there is no profiler."""

    folder: str | None = None


class RouteConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which routes there are beyond the usual ones. `tokens_only` leaves tokens in, tokens out;
    `render_only` leaves what needs no engine, and none is started; `scale_out` False = its routes
    answer 403."""

    scale_out: bool = False
    tokens_only: bool = False
    render_only: bool = False
    tokenizer_info: bool = False
    dev_mode: bool = False
    profiler: bool = False
    docs: bool = True
    offline_docs: bool = False


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS of the listening socket; all files are PEM. `cert_reqs`: client certificates are not
    asked for (0), checked where sent (1), needed (2). `ciphers` in OpenSSL's notation, for
    TLS 1.2; None = OpenSSL's choice. `refresh` reads changed files again."""

    certfile: str
    keyfile: str
    ca_certs: str | None = None
    cert_reqs: Literal[0, 1, 2] = 0
    ciphers: str | None = None
    refresh: bool = False


class FrontConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP side of one front."""

    host: str = "0.0.0.0"
    port: int = 8000
    uds: str | None = None
    tls: TlsConfig | None = None
    num_fronts: int = 1
    one_process: bool = False  # with the engine; then num_fronts is 1
    api_keys: tuple[str, ...] = ()
    root_path: str = ""
    middleware: tuple[str, ...] = ()  # import paths, the last one outermost
    allowed_origins: tuple[str, ...] = ("*",)
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    chat_template: str | None = None  # template text
    chat_template_content_format: Literal["auto", "string", "openai"] = "auto"
    trust_request_chat_template: bool = False
    default_chat_template_kwargs: dict[str, object] = {}
    response_role: str = "assistant"
    enable_auto_tool_choice: bool = False
    tool_call_parser: str | None = None  # auto = told from the template
    tool_parser_plugin: str | None = None  # a Python file
    tool_strict_level: Literal["auto", "function", "parameter"] = "auto"
    exclude_tools_when_tool_choice_none: bool = False
    reasoning_parser: str | None = None
    reasoning_parser_plugin: str | None = None  # a Python file
    reasoning_start: str | None = None  # markers of thinking budgets; None = the parser's
    reasoning_end: str | None = None
    reasoning_effort_budgets: dict[str, int] = {}
    return_tokens_as_token_ids: bool = False
    enable_prompt_tokens_details: bool = False
    enable_force_include_usage: bool = False
    enable_request_id_headers: bool = False
    fingerprint_mode: Literal["full", "hash", "custom", "none"] = "full"
    fingerprint_value: str | None = None
    enable_server_load_tracking: bool = False
    sse_keep_alive_interval: float = 15.0
    request_max_size: int = 16 * 1024 * 1024
    max_header_count: int = 256
    max_head_size: int = 32 * 1024  # bytes of request line and fields
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
    max_n: int = 16384
    max_prompts: int = 1024
    max_stop_strings: int = 4
    max_bad_words: int = 128
    max_new_tokens: int | None = None  # serving-side output ceiling
    enable_responses_store: bool = False
    access_log: bool = True
    access_log_skip: tuple[str, ...] = ()
    routes: RouteConfig = RouteConfig()


class LogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Logging and statistics. `configure` False leaves Python's logging alone. `python_config` is
    a `logging.config` dictionary that comes on top; `level_wins` puts `level` over its levels.
    `color` None = where standard error is a terminal. `max_log_len` cuts logged prompts and
    outputs, in characters and in token ids."""

    level: str = "INFO"
    level_wins: bool = False
    configure: bool = True
    formatter: Literal["text", "json"] = "text"
    prefix: str = ""
    color: bool | None = None
    python_config: dict[str, object] | None = None
    log_stats: bool = True
    stats_interval: float = 10.0
    log_requests: bool = False
    log_outputs: bool = False
    log_deltas: bool = True
    max_log_len: int | None = None
    error_stack: bool = False
    reply_bodies: bool = False
    iteration_details: bool = False
    debug_invariants: bool = False


class TraceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenTelemetry traces: the collector, and whether spans tell the time in the model's graph
    (`model`) and in whole steps (`worker`)."""

    endpoint: str
    model: bool = False
    worker: bool = False


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is measured beyond the usual. `hidden_since` brings back series under names that
    vLLM (`X.Y`) hid then or later; `per_request` puts timings into replies; `costs` estimates
    operations and bytes of each step; `corrupted` counts requests whose logits are no numbers."""

    serve: bool = True
    hidden_since: str | None = None
    per_request: bool = False
    kv_residency: bool = False
    kv_residency_sample: float = 0.01
    costs: bool = False
    corrupted: bool = False


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole tree."""

    model: ModelConfig
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    structured_outputs: StructuredOutputsConfig = StructuredOutputsConfig()
    provider: ProviderConfig = ProviderConfig()
    front: FrontConfig = FrontConfig()
    log: LogConfig = LogConfig()
    profiler: ProfilerConfig = ProfilerConfig()
    metrics: MetricsConfig = MetricsConfig()
    traces: TraceConfig | None = None
