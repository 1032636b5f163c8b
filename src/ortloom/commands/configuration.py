"""From parsed arguments and the environment to the configuration tree.

`model.bundle` is the model as typed; `commands.serve` replaces it when a checkpoint is exported.
"""

from pathlib import Path
from typing import TypeVar

import msgspec

from ortloom.commands.arguments import Arguments
from ortloom.commands.kv_options import check_scales, kv_events
from ortloom.commands.log_options import log_config
from ortloom.commands.media_limits import media_limits
from ortloom.commands.metrics_options import metrics_config
from ortloom.commands.model_options import SourcePlan, source_plan
from ortloom.commands.parser_settings import parser_settings
from ortloom.commands.provider_options import MAX_THREADS, provider_config
from ortloom.commands.reader import Reader as _Reader
from ortloom.commands.route_options import profiler_config, route_config
from ortloom.commands.scheduler_options import scheduler_config
from ortloom.commands.structured_outputs import structured_outputs
from ortloom.commands.tls_options import tls_config
from ortloom.commands.trace_options import trace_config
from ortloom.config import (
    CacheConfig,
    Config,
    FrontConfig,
    ModelConfig,
)
from ortloom.environment import Environment
from ortloom.errors import ConfigError
from ortloom.runtime.kv_cache_dtype import parse_kv_cache_dtype

T = TypeVar("T")

MAX_BLOCK_SIZE = 256
_DTYPES = {
    "float": "fp32",
    "float32": "fp32",
    "half": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
}
"""vLLM's names of `--dtype` → the exporter's."""


class ServePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What `ortloom serve` was asked for. `quant` and `dtype` None = not asked; `bundle_cache`
    None = the per-user cache. `notices` are lines to print before start."""

    config: Config
    quant: str | None
    dtype: str | None
    bundle_cache: Path | None
    source: SourcePlan
    notices: tuple[str, ...]


def build_plan(args: Arguments, env: Environment) -> ServePlan:
    """Build the tree.

    Raises:
        ConfigError: a value is out of range, a file cannot be read, or no model is named.
    """
    read = _Reader(args)
    notices: list[str] = []
    model = _model_name(args)
    config = Config(
        model=_model(read, model),
        cache=_cache(read, env, notices),
        scheduler=scheduler_config(read, env, notices),
        structured_outputs=structured_outputs(args, env, notices),
        provider=provider_config(read, env, notices),
        front=_front(read, env, notices),
        log=log_config(args, env, read.whole("--max-log-len", 0)),
        metrics=metrics_config(args, env),
        profiler=profiler_config(args),
        traces=trace_config(args),
    )
    cache = read.maybe("--bundle-cache", str)
    return ServePlan(
        config=config,
        quant=_quant(read),
        dtype=_dtype(read),
        bundle_cache=None if cache is None else Path(cache),
        source=source_plan(read, env, notices),
        notices=tuple(notices),
    )


def _model_name(args: Arguments) -> str:
    if len(args.positionals) > 1:
        raise ConfigError(f"unrecognized arguments: {' '.join(args.positionals[1:])}")
    if args.positionals:
        return args.positionals[0]
    model = args.get("--model")
    if isinstance(model, str) and model:
        return model
    if args.get("--served-model-name") or args.get("--api-key"):
        raise ConfigError(
            "no model is named; an option that takes several values takes all that follow it, so "
            "write the model first: ortloom serve MODEL --served-model-name NAME"
        )
    raise ConfigError("no model is named: ortloom serve MODEL")


def _model(read: _Reader, model: str) -> ModelConfig:
    context = read.maybe("--max-model-len", int)
    if context is not None and context != -1 and context < 1:
        raise ConfigError(f"argument --max-model-len: must be positive, auto or -1, got {context}")
    source = read.get("--generation-config", str, "auto")
    if source not in ("auto", "vllm") and not Path(source).is_dir():
        raise ConfigError(
            f"argument --generation-config: '{source}' is neither auto, vllm nor a folder"
        )
    return ModelConfig(
        bundle=model,
        served_model_names=read.strings("--served-model-name") or (model,),
        max_model_len=context,
        skip_tokenizer_init=read.get("--skip-tokenizer-init", bool, False)
        or read.get("--tokens-only", bool, False),
        enable_trace_replay=read.get("--enable-trace-replay", bool, False),
        tokenizer_config=_tokenizer_config(read),
        disable_sliding_window=read.get("--disable-sliding-window", bool, False),
        generation_config=source,
        override_generation_config=_mapping(read, "--override-generation-config"),
        max_logprobs=_default(read.whole("--max-logprobs", -1), 20),
        logprobs_mode=read.word("--logprobs-mode", "raw_logprobs"),
        enable_sleep_mode=read.get("--enable-sleep-mode", bool, False),
        return_sampling_mask=read.get("--return-sampling-mask", bool, False),
        logits_processors=read.strings("--logits-processors"),
        logits_processor_pattern=read.maybe("--logits-processor-pattern", str),
        seed=read.get("--seed", int, 0),
        verify=read.get("--verify", bool, False),
    )


def _tokenizer_config(read: _Reader) -> str | None:
    path = read.maybe("--tokenizer-config", str)
    if path is not None and not Path(path).is_file():
        raise ConfigError(f"argument --tokenizer-config: '{path}' is no file")
    return path


def _cache(read: _Reader, env: Environment, notices: list[str]) -> CacheConfig:
    block_size = _default(read.whole("--block-size", 1, MAX_BLOCK_SIZE), 16)
    if block_size % 16:
        raise ConfigError(f"argument --block-size: must be a multiple of 16, got {block_size}")
    blocks = read.whole("--num-gpu-blocks-override", 1) or read.whole("--num-blocks", 0) or None
    size = read.whole("--kv-cache-memory-bytes", 1) or read.whole("--kv-cache-memory", 0) or None
    if size is None:
        size = env.kv_cache_bytes
    fraction = read.maybe("--gpu-memory-utilization", float)
    if fraction is not None and not 0.0 < fraction <= 1.0:
        raise ConfigError(
            f"argument --gpu-memory-utilization: must be above 0 and at most 1, got {fraction:g}"
        )
    if fraction is not None and (blocks is not None or size is not None):
        winner = "the block count" if blocks is not None else "the KV cache size in bytes"
        notices.append(
            f"--gpu-memory-utilization sizes nothing here: {winner} is given and wins over it"
        )
        fraction = None
    elif fraction is not None:
        notices.append(
            f"--gpu-memory-utilization {fraction:g}: the KV pool takes this share of the memory "
            "that is available to this process at start"
        )
    if blocks is not None and size is not None:
        notices.append("the KV cache size in bytes sizes nothing here: the block count wins")
        size = None
    kind = parse_kv_cache_dtype(read.word("--kv-cache-dtype", "auto"))
    if kind.notice is not None:
        notices.append(kind.notice)
    check_scales(read, kind.dtype, notices)
    caching = read.maybe("--enable-prefix-caching", bool)
    if caching is None:
        caching = read.get("--enable-radix-attention", bool, True)
    return CacheConfig(
        block_size=block_size,
        num_blocks=blocks,
        kv_cache_memory_bytes=size,
        memory_fraction=fraction,
        kv_cache_dtype=kind.dtype,
        enable_prefix_caching=caching,
        prefix_caching_hash_algo=read.word("--prefix-caching-hash-algo", "sha256"),
        kv_events=kv_events(read),
    )


def _front(read: _Reader, env: Environment, notices: list[str]) -> FrontConfig:
    base = FrontConfig()
    template_kwargs = _mapping(read, "--default-chat-template-kwargs")
    thinking = read.maybe("--enable-thinking", bool)
    if thinking is not None:
        template_kwargs = {"enable_thinking": thinking, **template_kwargs}
    skip = read.get("--disable-access-log-for-endpoints", str, "")
    return FrontConfig(
        host=read.get("--host", str, base.host),
        port=_default(read.whole("--port", 0, 65535), base.port),
        uds=read.maybe("--uds", str),
        tls=tls_config(read.args, notices),
        num_fronts=read.whole("--api-server-count", 1) or 1,
        one_process=read.get("--disable-frontend-multiprocessing", bool, False),
        api_keys=tuple(key for key in read.strings("--api-key") if key) or env.api_keys,
        middleware=read.strings("--middleware"),
        root_path=read.get("--root-path", str, ""),
        allowed_origins=_listed(read, "--allowed-origins", base.allowed_origins),
        allowed_methods=_listed(read, "--allowed-methods", base.allowed_methods),
        allowed_headers=_listed(read, "--allowed-headers", base.allowed_headers),
        allow_credentials=read.get("--allow-credentials", bool, False),
        chat_template=chat_template(read.maybe("--chat-template", str)),
        chat_template_content_format=read.word("--chat-template-content-format", "auto"),
        trust_request_chat_template=read.get("--trust-request-chat-template", bool, False),
        default_chat_template_kwargs=template_kwargs,
        response_role=read.get("--response-role", str, base.response_role),
        **parser_settings(read.args, env),
        return_tokens_as_token_ids=read.get("--return-tokens-as-token-ids", bool, False),
        enable_prompt_tokens_details=read.get("--enable-prompt-tokens-details", bool, False),
        enable_force_include_usage=read.get("--enable-force-include-usage", bool, False),
        enable_request_id_headers=read.get("--enable-request-id-headers", bool, False),
        enable_server_load_tracking=read.get("--enable-server-load-tracking", bool, False),
        sse_keep_alive_interval=float(read.whole("--sse-keep-alive-interval", 0) or 0),
        max_header_count=read.whole("--h11-max-header-count", 1) or base.max_header_count,
        max_head_size=_head_size(read, base.max_head_size),
        shutdown_timeout=float(read.whole("--shutdown-timeout", 0) or 0),
        ready_timeout=env.ready_timeout or 0.0,
        outlive_engine=env.outlive_engine,
        any_model_name=env.any_model_name,
        keep_alive_timeout=_default(env.keep_alive_timeout, base.keep_alive_timeout),
        renderer_workers=read.whole("--renderer-num-workers", 1, MAX_THREADS) or 1,
        limit_mm_per_prompt=media_limits(read),
        max_n=_default(env.max_n, base.max_n),
        max_prompts=_default(env.max_prompts, base.max_prompts),
        max_stop_strings=_default(env.max_stop_strings, base.max_stop_strings),
        max_bad_words=_default(env.max_bad_words, base.max_bad_words),
        max_new_tokens=env.max_new_tokens,
        enable_responses_store=_responses_store(read, env),
        access_log=not read.get("--disable-uvicorn-access-log", bool, False),
        access_log_skip=tuple(part.strip() for part in skip.split(",") if part.strip()),
        fingerprint_mode=read.word("--fingerprint-mode", "full"),
        fingerprint_value=read.maybe("--fingerprint-value", str),
        routes=route_config(read.args, env),
    )


def _responses_store(read: _Reader, env: Environment) -> bool:
    """Stored responses live in the memory of one front; another could not find them."""
    if env.responses_store and (read.whole("--api-server-count", 1) or 1) > 1:
        raise ConfigError(
            "VLLM_ENABLE_RESPONSES_API_STORE keeps responses in the memory of one API server, so "
            "it cannot be combined with --api-server-count above 1"
        )
    return env.responses_store


def _head_size(read: _Reader, default: int) -> int:
    """VLLM's own 4 MiB a connection is too much to hold unasked; who names a size gets it."""
    name = "--h11-max-incomplete-event-size"
    return (read.whole(name, 1) or default) if read.has(name) else default


def chat_template(value: str | None) -> str | None:
    """The text of --chat-template: a file's contents, or the value itself if it is a template.

    Raises:
        ConfigError: the value has no template characters and no such file can be read.
    """
    if value is None:
        return None
    try:
        return Path(value).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"argument --chat-template: '{value}' is not UTF-8") from None
    except (OSError, ValueError) as error:
        if any(character in value for character in "{}\n"):
            return value
        reason = (error.strerror if isinstance(error, OSError) else None) or "not a path"
        raise ConfigError(
            f"argument --chat-template: '{value}' looks like a path but cannot be opened: {reason}"
        ) from None


def _quant(read: _Reader) -> str | None:
    quant = read.maybe("--quant", str)
    alias = read.maybe("--quantization", str)
    if alias is not None and alias not in ("int4", "int8", "keep"):
        raise ConfigError(
            f"argument --quantization: known, but not in this build yet: '{alias}' "
            "(checkpoints are exported as int4, int8, keep or unquantised)"
        )
    return quant or alias


def _dtype(read: _Reader) -> str | None:
    dtype = read.maybe("--dtype", str)
    return None if dtype in (None, "auto") else _DTYPES[dtype]


def _mapping(read: _Reader, name: str) -> dict[str, object]:
    value = read.args.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"argument {name}: must be a JSON object")
    return dict(value)


def _listed(read: _Reader, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    return read.strings(name) if read.has(name) else default


def _default(value: T | None, default: T) -> T:
    return default if value is None else value
