"""The flags of tool and reasoning parsers, as settings of `FrontConfig`."""

from pathlib import Path
from typing import Any

from ortloom.commands.arguments import Arguments
from ortloom.environment import Environment
from ortloom.errors import ConfigError
from ortloom.models.reasoning_parsers.registry import reasoning_parser_names
from ortloom.models.tool_parsers.registry import tool_parser_names

_START = ("reasoning_start_str", "think_start_str")
_END = ("reasoning_end_str", "think_end_str")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def parser_settings(args: Arguments, env: Environment) -> dict[str, Any]:
    """The settings of the given flags.

    Raises:
        ConfigError: an unknown parser, a plugin that is no file, or a value that does not fit.
    """
    level = args.get("--tool-strict-level")
    if env.strict_tool_calls:
        level = "parameter"
    start, end = _markers(args)
    return {
        "enable_auto_tool_choice": bool(args.get("--enable-auto-tool-choice")),
        "exclude_tools_when_tool_choice_none": bool(
            args.get("--exclude-tools-when-tool-choice-none")
        ),
        "tool_strict_level": level if isinstance(level, str) else "auto",
        "tool_call_parser": _parser(args, "--tool-call-parser", "--tool-parser-plugin"),
        "tool_parser_plugin": _text(args, "--tool-parser-plugin"),
        "reasoning_parser": _parser(args, "--reasoning-parser", "--reasoning-parser-plugin"),
        "reasoning_parser_plugin": _text(args, "--reasoning-parser-plugin"),
        "reasoning_start": start,
        "reasoning_end": end,
        "reasoning_effort_budgets": _budgets(args),
    }


def _text(args: Arguments, flag: str) -> str | None:
    value = args.get(flag)
    return value if isinstance(value, str) and value else None


def _parser(args: Arguments, flag: str, plugin_flag: str) -> str | None:
    """A parser's name; `none` is no parser. Names of a plugin are known where it is run."""
    name, plugin = _text(args, flag), _text(args, plugin_flag)
    if plugin is not None and not Path(plugin).expanduser().is_file():
        raise ConfigError(f"argument {plugin_flag}: there is no file '{plugin}'")
    if name is None or name == "none":
        return None
    names = tool_parser_names() if flag == "--tool-call-parser" else reasoning_parser_names()
    if name != "auto" and plugin is None and name not in names:
        raise ConfigError(
            f"argument {flag}: there is no parser '{name}'; choose from auto, none, "
            f"{', '.join(names)}"
        )
    return name


def _markers(args: Arguments) -> tuple[str | None, str | None]:
    """Start and end of `--reasoning-config`, in its newer or older spelling."""
    flag = "--reasoning-config"
    value = args.get(flag)
    if value is None:
        return None, None
    if not isinstance(value, dict):
        raise ConfigError(f"argument {flag}: must be a JSON object")
    for key, text in value.items():
        if key not in (*_START, *_END):
            raise ConfigError(
                f"argument {flag}: unknown member '{key}'; it has {_START[0]} and {_END[0]}"
            )
        if not isinstance(text, str) or not text:
            raise ConfigError(f"argument {flag}: {key} must be a text that is not empty")
    start = next((value[key] for key in _START if key in value), None)
    end = next((value[key] for key in _END if key in value), None)
    if end is None:
        raise ConfigError(f"argument {flag}: {_END[0]} is missing")
    return start, end


def _budgets(args: Arguments) -> dict[str, int]:
    flag = "--reasoning-effort-budgets"
    value = args.get(flag)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"argument {flag}: must be a JSON object")
    for key, budget in value.items():
        if key not in _EFFORTS:
            raise ConfigError(
                f"argument {flag}: unknown effort '{key}' (choose from {', '.join(_EFFORTS)})"
            )
        if not isinstance(budget, int) or isinstance(budget, bool) or budget < 0:
            raise ConfigError(f"argument {flag}: the budget of '{key}' must be an integer >= 0")
    return dict(value)
