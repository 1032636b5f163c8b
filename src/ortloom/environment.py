"""Environment variables of the server, read here and nowhere else on the Python side.

Each variable is in one of the sets below. A VLLM_* name in none of them is unknown: a warning, or
an error with --fail-on-environ-validation.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ortloom.errors import ConfigError
from ortloom.logging_environment import (
    LOGGING_NAMES,
    LoggingEnvironment,
    read_logging_environment,
)

_LEVELS = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "NOTSET")

HONOURED = frozenset(
    {
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
        "VLLM_API_KEY",
        "VLLM_CACHE_ROOT",
        "VLLM_CPU_KVCACHE_SPACE",
        "VLLM_ENABLE_RESPONSES_API_STORE",
        "VLLM_ENFORCE_STRICT_TOOL_CALLING",
        "VLLM_ENABLE_SCALE_OUT_ENDPOINTS",
        "VLLM_CPU_OMP_THREADS_BIND",
        "VLLM_CPU_NUM_OF_RESERVED_CPU",
        "VLLM_ENGINE_READY_TIMEOUT_S",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE",
        "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH",
        "VLLM_LOGGING_LEVEL",
        "VLLM_LOG_STATS_INTERVAL",
        "VLLM_MAX_COMPLETION_PROMPTS",
        "VLLM_MAX_NUM_BAD_WORDS",
        "VLLM_MAX_N_SEQUENCES",
        "VLLM_MAX_STOP_STRINGS",
        "VLLM_SERVER_DEV_MODE",
        "VLLM_SKIP_MODEL_NAME_VALIDATION",
        "VLLM_USE_MODELSCOPE",
    }
)
"""Variables that do their work."""

TRUE_ANYWAY = frozenset(
    {
        "VLLM_BATCH_INVARIANT",
        "VLLM_DO_NOT_TRACK",
        "VLLM_NO_USAGE_STATS",
        "VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS",
    }
)
"""What these ask for always holds: nothing is reported anywhere, results do not depend on the
batch, and no parser takes longer than its text is long."""

CLIENT_SIDE = frozenset(
    {
        "VLLM_GPU_MEMORY_UTILIZATION",
        "VLLM_KV_CACHE_MEMORY_BYTES",
        "VLLM_MODEL",
        "VLLM_PORT",
        "VLLM_REVISION",
        "VLLM_SPECULATIVE_CONFIG",
        "VLLM_URL",
    }
)
"""Read by clients and compose files, never by the server."""

NOT_YET = frozenset(
    {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
        "VLLM_AUDIO_FETCH_TIMEOUT",
        "VLLM_CONFIG_ROOT",
        "VLLM_ENABLE_COHERE_API",
        "VLLM_IMAGE_FETCH_TIMEOUT",
        "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB",
        "VLLM_MAX_IMAGE_PIXELS",
        "VLLM_VIDEO_FETCH_TIMEOUT",
    }
)
"""Known elsewhere; setting one changes nothing in this build, and a warning says so."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The values the variables gave; None where a variable is not set."""

    api_keys: tuple[str, ...] = ()
    kv_cache_bytes: int | None = None
    log_level: str | None = None
    stats_interval: float | None = None
    max_n: int | None = None
    max_prompts: int | None = None
    max_stop_strings: int | None = None
    max_bad_words: int | None = None
    max_new_tokens: int | None = None
    keep_alive_timeout: float | None = None
    responses_store: bool = False
    strict_tool_calls: bool = False
    scale_out: bool = False
    dev_mode: bool = False
    logging: LoggingEnvironment = LoggingEnvironment()
    cpu_bind: str | None = None  # processors of the engine, as 0-3,8
    reserved_cpus: int | None = None
    step_timeout: float | None = None
    step_log: bool = False
    jump_forward: bool | None = None
    allow_long_context: bool = False
    ready_timeout: float | None = None
    outlive_engine: bool = False
    any_model_name: bool = False
    unknown: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Read and check all variables.

    Raises:
        ConfigError: a value does not fit its variable.
    """
    env = os.environ if environ is None else environ
    known = HONOURED | LOGGING_NAMES | TRUE_ANYWAY | CLIENT_SIDE | NOT_YET
    ours = sorted(name for name in env if name.startswith("VLLM_"))
    key = env.get("VLLM_API_KEY", "")
    level = env.get("VLLM_LOGGING_LEVEL")
    if level is not None and level.upper() not in _LEVELS:
        raise ConfigError(
            f"VLLM_LOGGING_LEVEL: invalid level '{level}' (choose from {', '.join(_LEVELS)})"
        )
    if _switch(env, "VLLM_USE_MODELSCOPE"):
        raise ConfigError(
            "VLLM_USE_MODELSCOPE: models are fetched from a Hugging Face hub only; HF_ENDPOINT "
            "names another one of its kind"
        )
    space = _number(env, "VLLM_CPU_KVCACHE_SPACE", 0.0)
    return Environment(
        api_keys=(key,) if key else (),
        kv_cache_bytes=None if not space else int(space * 1024**3),
        log_level=None if level is None else level.upper(),
        stats_interval=_number(env, "VLLM_LOG_STATS_INTERVAL", 0.001),
        max_n=_whole(env, "VLLM_MAX_N_SEQUENCES", 1),
        max_prompts=_whole(env, "VLLM_MAX_COMPLETION_PROMPTS", 1),
        max_stop_strings=_whole(env, "VLLM_MAX_STOP_STRINGS", 0),
        max_bad_words=_whole(env, "VLLM_MAX_NUM_BAD_WORDS", 0),
        max_new_tokens=_whole(env, "VT_SERVER_MAX_NEW_TOKENS", 0) or None,
        keep_alive_timeout=_number(env, "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", 0.0),
        responses_store=bool(
            _either(env, "ORTLOOM_ENABLE_RESPONSES_API_STORE", "VLLM_ENABLE_RESPONSES_API_STORE")
        ),
        strict_tool_calls=env.get("VLLM_ENFORCE_STRICT_TOOL_CALLING", "0") not in ("", "0"),
        dev_mode=_switch(env, "VLLM_SERVER_DEV_MODE"),
        scale_out=_switch(env, "VLLM_ENABLE_SCALE_OUT_ENDPOINTS"),
        logging=read_logging_environment(env),
        cpu_bind=_cpu_bind(env),
        reserved_cpus=_whole(env, "VLLM_CPU_NUM_OF_RESERVED_CPU", 0),
        step_timeout=_number(env, "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", 0.0),
        step_log=_switch(env, "VT_ENGINE_STEP_LOG"),
        jump_forward=_either_way(env, "VT_ENABLE_JUMP_FORWARD"),
        allow_long_context=_switch(env, "VLLM_ALLOW_LONG_MAX_MODEL_LEN"),
        ready_timeout=_number(env, "VLLM_ENGINE_READY_TIMEOUT_S", 0.0),
        outlive_engine=_switch(env, "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH"),
        any_model_name=_switch(env, "VLLM_SKIP_MODEL_NAME_VALIDATION"),
        unknown=tuple(name for name in ours if name not in known),
        without_effect=tuple(name for name in ours if name in NOT_YET),
    )


def cache_root(environ: Mapping[str, str] | None = None) -> Path:
    """The per-user cache: $VLLM_CACHE_ROOT/ortloom, $XDG_CACHE_HOME/ortloom, ~/.cache/ortloom."""
    env = os.environ if environ is None else environ
    own = env.get("VLLM_CACHE_ROOT", "")
    if own:
        return Path(own).expanduser() / "ortloom"
    base = env.get("XDG_CACHE_HOME", "")
    if base.startswith("/"):  # the base directory specification ignores relative values
        return Path(base) / "ortloom"
    return Path(env.get("HOME") or "~").expanduser() / ".cache" / "ortloom"


def _cpu_bind(env: Mapping[str, str]) -> str | None:
    text = env.get("VLLM_CPU_OMP_THREADS_BIND", "").strip()
    return None if text.lower() in ("", "auto", "all", "nobind") else text


def _switch(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "").strip().lower()
    if text not in ("", "0", "1", "false", "true"):
        raise ConfigError(f"{name}: must be 0 or 1, got '{text}'")
    return text in ("1", "true")


def _either_way(env: Mapping[str, str], name: str) -> bool | None:
    """A switch that may also be off where a flag says on; None = not set."""
    return _switch(env, name) if env.get(name, "").strip() else None


def _number(env: Mapping[str, str], name: str, least: float) -> float | None:
    text = env.get(name)
    if text is None or text == "":
        return None
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{name}: '{text}' is not a number") from None
    if not least <= value < float("inf"):
        raise ConfigError(f"{name}: must be at least {least:g}, got {text}")
    return value


def _either(env: Mapping[str, str], own: str, other: str) -> int | None:
    """A whole number under our own name, else under the other one."""
    value = _whole(env, own, 0)
    return _whole(env, other, 0) if value is None else value


def _whole(env: Mapping[str, str], name: str, least: int) -> int | None:
    text = env.get(name)
    if text is None or text == "":
        return None
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"{name}: '{text}' is not an integer") from None
    if value < least:
        raise ConfigError(f"{name}: must be at least {least}, got {text}")
    return value
