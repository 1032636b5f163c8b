"""Logging of one process as `LogConfig` says: our own form, JSON lines, a user's `dictConfig`, or
hands off.

A configuration written for `vllm serve` works as it is: its loggers `vllm` and `uvicorn…` mean
ours, and its formatter classes have stand-ins where those packages are not installed.
"""

import importlib.util
import logging
import sys
from typing import Any

from ortloom import logs
from ortloom.config import LogConfig
from ortloom.errors import ConfigError
from ortloom.log_formatters import ColorFormatter, ForeignFormatter, JsonFormatter

LOGGERS = {
    "vllm": "ortloom",
    "uvicorn": "ortloom.server",
    "uvicorn.error": "ortloom.supervisor",
    "uvicorn.access": "ortloom.access",
}
"""Their loggers → ours."""

_FOREIGN = ("vllm.", "uvicorn.")


def set_up_logging(config: LogConfig, role: str) -> None:
    """Make this process log as configured.

    Args:
        config: the settings.
        role: what this process is, such as `supervisor` or `front-0`.

    Raises:
        ConfigError: the `dictConfig` cannot be applied.
    """
    if not config.configure:
        return
    logs.set_up(config.level, role)
    (handler,) = logging.getLogger().handlers
    if config.formatter == "json":
        handler.setFormatter(JsonFormatter(role))
    elif handler.formatter is not None:
        _decorate(handler, handler.formatter, config)
    if config.python_config is not None:
        ForeignFormatter.role = role
        apply(config.python_config)
        if config.level_wins:
            logging.getLogger("ortloom").setLevel(config.level)


def _decorate(handler: logging.Handler, plain: logging.Formatter, config: LogConfig) -> None:
    """Add the prefix and, on a terminal, colours."""
    color = sys.stderr.isatty() if config.color is None else config.color
    form = plain._fmt or ""
    kind = ColorFormatter if color else logging.Formatter
    formatter = kind(config.prefix.replace("%", "%%") + form, plain.datefmt)
    formatter.converter = plain.converter
    handler.setFormatter(formatter)


def apply(config: dict[str, Any]) -> None:
    """Apply a `logging.config` dictionary with its names translated.

    Raises:
        ConfigError: it does not fit.
    """
    import logging.config  # with sockets and queues: hardly any start needs it

    try:
        logging.config.dictConfig(translated(config))
    except (ValueError, TypeError, AttributeError, ImportError, KeyError) as error:
        reason = error.__cause__ or error
        raise ConfigError(f"the logging configuration cannot be used: {error} ({reason})") from None


def translated(config: dict[str, Any]) -> dict[str, Any]:
    """The dictionary with our loggers and formatters in place of theirs; ours win where a
    configuration names both. Loggers it does not name stay enabled."""
    out = {"disable_existing_loggers": False, **config}
    loggers = config.get("loggers")
    if isinstance(loggers, dict):
        theirs = {_logger(name): value for name, value in loggers.items() if _logger(name) != name}
        out["loggers"] = {**theirs, **{n: v for n, v in loggers.items() if _logger(n) == n}}
    formatters = config.get("formatters")
    if isinstance(formatters, dict):
        out["formatters"] = {name: _formatter(value) for name, value in formatters.items()}
    return out


def _logger(name: str) -> str:
    if name.startswith("vllm."):
        return "ortloom" + name.removeprefix("vllm")
    return LOGGERS.get(name, name)


def _formatter(value: object) -> object:
    """A formatter's entry, with a class that can be had."""
    if not isinstance(value, dict):
        return value
    out = dict(value)
    for key in ("class", "()"):
        name = value.get(key)
        if isinstance(name, str) and name.startswith(_FOREIGN) and not _there(name):
            out[key] = f"{ForeignFormatter.__module__}.{ForeignFormatter.__qualname__}"
    return out


def _there(name: str) -> bool:
    return importlib.util.find_spec(name.partition(".")[0]) is not None
