"""Parsers of a user's Python file: `--tool-parser-plugin` and `--reasoning-parser-plugin`.

Such a file is executed with all rights of the server. It registers classes under names:

    from ortloom.models.parser_plugins import register_tool_parser

    @register_tool_parser("my_format")
    class MyFormat(ToolParser): ...

A registered name wins over a built-in one.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ortloom.errors import ConfigError
from ortloom.models.reasoning_parsers.reasoning_parser import ReasoningParser
from ortloom.models.tool_parsers.tool_parser import ToolParser

T = TypeVar("T", bound=type[ToolParser])
R = TypeVar("R", bound=type[ReasoningParser])

tool_plugins: dict[str, type[ToolParser]] = {}
"""Registered tool parsers by name."""

reasoning_plugins: dict[str, type[ReasoningParser]] = {}
"""Registered reasoning parsers by name."""


def register_tool_parser(*names: str) -> Callable[[T], T]:
    """A class decorator: the class parses the tool calls of `--tool-call-parser NAME`."""

    def register(parser: T) -> T:
        tool_plugins.update(dict.fromkeys(names, parser))
        return parser

    return register


def register_reasoning_parser(*names: str) -> Callable[[R], R]:
    """A class decorator: the class parses the reasoning of `--reasoning-parser NAME`."""

    def register(parser: R) -> R:
        reasoning_plugins.update(dict.fromkeys(names, parser))
        return parser

    return register


def load_plugin(path: str, flag: str) -> None:
    """Execute a plugin.

    Args:
        path: the Python file.
        flag: what named it, for errors.

    Raises:
        ConfigError: there is no such file, or it fails.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"argument {flag}: '{path}' is no file")
    spec = importlib.util.spec_from_file_location(f"ortloom_plugin_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"argument {flag}: '{path}' is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(
            f"argument {flag}: '{path}' cannot be loaded: {type(error).__name__}: {error}"
        ) from error
