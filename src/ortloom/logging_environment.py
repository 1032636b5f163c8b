"""The VLLM_* variables about logging and what is counted, for `environment.read_environment`."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from ortloom.errors import ConfigError

LOGGING_NAMES = frozenset(
    {
        "VLLM_COMPUTE_NANS_IN_LOGITS",
        "VLLM_CONFIGURE_LOGGING",
        "VLLM_DEBUG_LOG_API_SERVER_RESPONSE",
        "VLLM_DISABLE_LOG_LOGO",
        "VLLM_LOGGING_COLOR",
        "VLLM_LOGGING_CONFIG_PATH",
        "VLLM_LOGGING_PREFIX",
    }
)


class LoggingEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """Their values. `color` None = where standard error is a terminal."""

    configure: bool = True
    logo: bool = True
    color: bool | None = None
    config_path: str | None = None
    prefix: str = ""
    reply_bodies: bool = False
    count_corrupted: bool = False


def read_logging_environment(env: Mapping[str, str]) -> LoggingEnvironment:
    """Read and check them.

    Raises:
        ConfigError: a value does not fit its variable.
    """
    word = env.get("VLLM_LOGGING_COLOR", "auto").lower() or "auto"
    colors: dict[str, bool | None] = {"auto": None, "0": False, "1": True}
    if word not in colors:
        raise ConfigError(f"VLLM_LOGGING_COLOR: must be auto, 0 or 1, got '{word}'")
    color = colors[word]
    if env.get("NO_COLOR") and color is None:
        color = False
    return LoggingEnvironment(
        configure=_switch(env, "VLLM_CONFIGURE_LOGGING", "1"),
        logo=not _switch(env, "VLLM_DISABLE_LOG_LOGO", "0"),
        color=color,
        config_path=env.get("VLLM_LOGGING_CONFIG_PATH") or None,
        prefix=env.get("VLLM_LOGGING_PREFIX", ""),
        reply_bodies=_switch(env, "VLLM_DEBUG_LOG_API_SERVER_RESPONSE", "0"),
        count_corrupted=_switch(env, "VLLM_COMPUTE_NANS_IN_LOGITS", "0"),
    )


def _switch(env: Mapping[str, str], name: str, default: Literal["0", "1"]) -> bool:
    text = (env.get(name) or default).lower()
    if text not in ("0", "1", "true", "false"):
        raise ConfigError(f"{name}: must be 0 or 1, got '{text}'")
    return text in ("1", "true")
