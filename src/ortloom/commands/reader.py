"""Typed access to parsed arguments, for the modules that build the configuration."""

from typing import Any, TypeVar

from ortloom.commands.arguments import Arguments
from ortloom.errors import ConfigError

T = TypeVar("T")


class Reader:
    """The arguments of one command line."""

    def __init__(self, args: Arguments) -> None:
        self.args = args

    def has(self, name: str) -> bool:
        """Whether the option was given."""
        return name in self.args.passed

    def get(self, name: str, type_: type[T], default: T) -> T:
        """Its value, or the default where it was not given or is null."""
        value = self.args.get(name)
        return value if isinstance(value, type_) else default

    def word(self, name: str, default: str) -> Any:
        """A choice; the flag table has its values checked against the field's literals."""
        return self.get(name, str, default)

    def maybe(self, name: str, type_: type[T]) -> T | None:
        """Its value, or None."""
        value = self.args.get(name)
        return value if isinstance(value, type_) else None

    def strings(self, name: str) -> tuple[str, ...]:
        """The values of a list, or none."""
        value = self.args.get(name)
        return tuple(map(str, value)) if isinstance(value, list) else ()

    def whole(self, name: str, least: int, most: int | None = None) -> int | None:
        """A whole number within bounds, or None.

        Raises:
            ConfigError: it is outside.
        """
        value = self.maybe(name, int)
        if value is not None and (value < least or (most is not None and value > most)):
            span = f"at least {least}" if most is None else f"from {least} to {most}"
            raise ConfigError(f"argument {name}: must be {span}, got {value}")
        return value

    def share(self, name: str, default: float, below: float) -> float:
        """A number from 0 up to, and not including, `below`.

        Raises:
            ConfigError: it is outside.
        """
        value = self.get(name, float, default)
        if not 0.0 <= value < below:
            raise ConfigError(
                f"argument {name}: must be at least 0 and below {below:g}, got {value:g}"
            )
        return value
