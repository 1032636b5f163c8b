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
    """

    bundle: str
    served_model_names: tuple[str, ...] = ()
    tokenizer: str | None = None
    max_model_len: int | None = None
    generation_config: str = "auto"  # auto | vllm | a folder
    override_generation_config: dict[str, object] = {}
    max_logprobs: int = 20
    logprobs_mode: Literal[
        "raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"
    ] = "raw_logprobs"
    skip_tokenizer_init: bool = False
    seed: int = 0
    verify: bool = False


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


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one step and of admission. Lengths in tokens."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None  # None = 2048, raised to max_model_len unless chunked
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: Literal["fcfs", "priority"] = "fcfs"
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None


class ProviderConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Execution provider. `provider` auto picks by hardware; any other value never falls back.
    `require` makes start-up fail unless auto picked that one. threads 0 = physical cores within
    the affinity mask and cgroup quota. `cpu_affinity` () = the mask the process was given."""

    provider: Literal["auto", "tensorrt", "tensorrt_ep", "cuda", "cpu", "plain"] = "auto"
    require: str | None = None
    threads: int = 0
    cpu_affinity: tuple[int, ...] = ()


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
    return_tokens_as_token_ids: bool = False
    enable_prompt_tokens_details: bool = False
    enable_force_include_usage: bool = False
    enable_request_id_headers: bool = False
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
    max_n: int = 16384
    max_prompts: int = 1024
    max_stop_strings: int = 4
    max_bad_words: int = 128
    max_new_tokens: int | None = None  # serving-side output ceiling
    access_log: bool = True
    access_log_skip: tuple[str, ...] = ()


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
    provider: ProviderConfig = ProviderConfig()
    front: FrontConfig = FrontConfig()
    log: LogConfig = LogConfig()
    metrics: MetricsConfig = MetricsConfig()
    traces: TraceConfig | None = None
