"""Typed, checked access to the parsed flags of a benchmark."""

import json
from pathlib import Path
from typing import TypeVar

from ortloom.commands.arguments import Arguments
from ortloom.commands.bench.tables import Command, bench_table, groups
from ortloom.commands.dialect import apply_dialect
from ortloom.commands.help_text import help_text
from ortloom.commands.serve import help_request, parse, show_help
from ortloom.errors import BenchmarkFailed, ConfigError
from ortloom.flags import FlagTable
from ortloom.logs import say

T = TypeVar("T")


class Options:
    """The given values over the table's defaults."""

    def __init__(self, args: Arguments, table: FlagTable) -> None:
        self.args = args
        self._defaults = {flag.name: flag.default for flag in table.flags}

    def given(self, name: str) -> bool:
        """Whether the flag was given."""
        return name in self.args.passed

    def _value(self, name: str) -> object:
        return self.args.get(name) if self.given(name) else self._defaults[name]

    def _typed(self, name: str, type_: type[T]) -> T | None:
        value = self._value(name)
        return value if isinstance(value, type_) else None

    def on(self, name: str) -> bool:
        """Whether a switch is on."""
        return self._value(name) is True

    def text(self, name: str) -> str | None:
        """A text, or None."""
        return self._typed(name, str)

    def word(self, name: str) -> str:
        """A text of a flag that has a default."""
        return str(self._value(name))

    def whole(self, name: str, least: int, most: int | None = None) -> int | None:
        """A whole number, or None.

        Raises:
            ConfigError: out of range.
        """
        value = self._typed(name, int)
        if value is not None and (value < least or (most is not None and value > most)):
            span = f"at least {least}" if most is None else f"from {least} to {most}"
            raise ConfigError(f"argument {name}: must be {span}, got {value}")
        return value

    def count(self, name: str, least: int = 1) -> int:
        """A whole number of a flag that has a default.

        Raises:
            ConfigError: out of range.
        """
        value = self.whole(name, least)
        if value is None:
            raise ConfigError(f"argument {name}: needs a number")
        return value

    def number(self, name: str) -> float | None:
        """A number, or None.

        Raises:
            ConfigError: not a number (NaN).
        """
        value = self._value(name)
        if value is None:
            return None
        number = float(str(value))
        if number != number:
            raise ConfigError(f"argument {name}: must be a number, got nan")
        return number

    def positive(self, name: str) -> float | None:
        """A number above 0, or None.

        Raises:
            ConfigError: out of range.
        """
        value = self.number(name)
        if value is not None and value <= 0:
            raise ConfigError(f"argument {name}: must be above 0, got {value:g}")
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        """All values of a list."""
        value = self._value(name)
        return tuple(map(str, value)) if isinstance(value, list) else ()

    def pairs(self, name: str) -> dict[str, str]:
        """The KEY=VALUE items of a list.

        Raises:
            ConfigError: an item without a key or an equals sign.
        """
        pairs: dict[str, str] = {}
        for item in self.strings(name):
            key, equals, value = item.partition("=")
            if not equals or not key.strip():
                raise ConfigError(f"argument {name}: expected KEY=VALUE, got '{item}'")
            pairs[key.strip()] = value.strip()
        return pairs

    def mapping(self, name: str) -> dict[str, object]:
        """A JSON object; empty when absent.

        Raises:
            ConfigError: JSON, but no object.
        """
        value = self._value(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise ConfigError(f"argument {name}: must be a JSON object")
        return dict(value)


def read_options(command: Command, tokens: list[str], about: str, usage: str) -> Options | None:
    """Parse the tokens behind a benchmark's name.

    Args:
        command: which benchmark.
        tokens: the rest of the command line.
        about: what it does, for its help.
        usage: its usage line.

    Returns:
        The options, or None when help was asked for and shown.

    Raises:
        ConfigError: an unknown flag, or one whose work is not in this build.
    """
    table = bench_table(command)
    word = help_request(tokens)
    if word is not None:
        show_help(help_text(word or None, table, groups(command), usage, about), word == "page")
        return None
    args = parse(tokens, table)
    for line in (*args.warnings, *apply_dialect(args, table)):
        say(f"warning: {line}")
    return Options(args, table)


def output_path(options: Options) -> Path | None:
    """The file of --output-json; looked at before anything is measured.

    Raises:
        ConfigError: its folder does not exist, or it is a folder itself.
    """
    text = options.text("--output-json")
    if text is None:
        return None
    path = Path(text).expanduser()
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"argument --output-json: '{path}' cannot be written: no such folder")
    return path


def make_folder(folder: Path) -> None:
    """Make a folder for results.

    Raises:
        BenchmarkFailed: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchmarkFailed(f"'{folder}' cannot be made: {error.strerror}") from None


def write_json(path: Path, tree: dict[str, object], append: bool = False) -> None:
    """Write a result, as a file of its own or as one more line.

    Raises:
        BenchmarkFailed: the file cannot be written.
    """
    try:
        if append:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(tree) + "\n")
        else:
            path.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise BenchmarkFailed(f"'{path}' cannot be written: {error.strerror}") from None
