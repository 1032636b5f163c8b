"""The flags about logging."""

import json
from pathlib import Path
from typing import Any, Literal

import msgspec

from ortloom.commands.arguments import Arguments
from ortloom.config import LogConfig
from ortloom.environment import Environment
from ortloom.errors import ConfigError

_LEVELS = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "NOTSET")


class LoggingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The members of --logging-config; None = not given."""

    log_level: str | None = None
    formatter: Literal["text", "json"] | None = None
    configure_logging: bool | None = None
    pylogging_config_file: str | None = None


def log_config(args: Arguments, env: Environment, max_log_len: int | None) -> LogConfig:
    """The settings; flags win over --logging-config, and that wins over the environment.

    Args:
        args: the parsed arguments.
        env: the environment's values.
        max_log_len: the checked value of --max-log-len.

    Raises:
        ConfigError: a value does not fit, or the logging file cannot be used.
    """
    base = LogConfig()
    given = _logging_config(args)
    asked = args.get("--log-level")
    level, level_wins = _level(args, env, given), asked is not None
    configure = env.logging.configure
    if given.configure_logging is not None:
        configure = given.configure_logging
    flag, path = _file(args, env, given)
    if path is not None and not configure:
        raise ConfigError(f"{flag} names a logging configuration, and logging is not to be set up")
    error_stack = args.get("--log-error-stack")
    return LogConfig(
        level=level or base.level,
        level_wins=level_wins,
        log_stats=not args.get("--disable-log-stats"),
        stats_interval=base.stats_interval if env.stats_interval is None else env.stats_interval,
        log_requests=bool(args.get("--enable-log-requests")),
        log_outputs=bool(args.get("--enable-log-outputs")),
        log_deltas=args.get("--enable-log-deltas") is not False,
        max_log_len=max_log_len,
        error_stack=env.dev_mode if error_stack is None else bool(error_stack),
        reply_bodies=env.logging.reply_bodies,
        iteration_details=bool(args.get("--enable-logging-iteration-details")),
        configure=configure,
        formatter=given.formatter or base.formatter,
        prefix=env.logging.prefix,
        color=env.logging.color,
        python_config=None if path is None else read_logging_file(flag, path),
        debug_invariants=level == "DEBUG",
    )


def _logging_config(args: Arguments) -> LoggingConfig:
    value = args.get("--logging-config")
    if value is None:
        return LoggingConfig()
    try:
        return msgspec.convert(value, LoggingConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"argument --logging-config: {error}") from None


def _level(args: Arguments, env: Environment, given: LoggingConfig) -> str | None:
    level = args.get("--log-level")
    if level is None and args.get("--verbose"):
        level = "DEBUG"
    if level is None and given.log_level is not None:
        level = given.log_level.upper()
        if level not in _LEVELS:
            raise ConfigError(
                f"argument --logging-config: invalid log_level '{given.log_level}' "
                f"(choose from {', '.join(_LEVELS)})"
            )
    if level is None:
        level = env.log_level
    if level is None and "--uvicorn-log-level" in args.passed:
        level = str(args.get("--uvicorn-log-level")).upper().replace("TRACE", "DEBUG")
    return None if level is None else str(level)


def _file(args: Arguments, env: Environment, given: LoggingConfig) -> tuple[str, str | None]:
    """Which setting names a logging file, and the file."""
    path = args.get("--log-config-file")
    if path is not None:
        return "--log-config-file", str(path)
    if given.pylogging_config_file is not None:
        return "--logging-config.pylogging_config_file", given.pylogging_config_file
    return "VLLM_LOGGING_CONFIG_PATH", env.logging.config_path


def read_logging_file(flag: str, path: str) -> dict[str, Any]:
    """The `logging.config` dictionary of a JSON file; tried out by the process that serves.

    Raises:
        ConfigError: it cannot be read, or is no JSON object with `version` 1.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{flag}: cannot read '{path}': {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{flag}: '{path}' is not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("version") != 1:
        raise ConfigError(f"{flag}: '{path}' must be a JSON object with \"version\": 1")
    return data
