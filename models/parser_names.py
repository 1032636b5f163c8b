"""Names of parsers: a table of what is built in, and what a plugin file adds to it.

Built-in parsers are imported when their name is first asked for.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Generic, TypeVar

from ortloom.errors import ConfigError

RESERVED = ("auto", "none")
"""Names that choose (by the chat template) or refuse a parser; no parser may have them."""

_Parser = TypeVar("_Parser")


class UnknownParser(ConfigError):
    """No parser has this name; the text lists those that exist."""


class ParserNames(Generic[_Parser]):
    """The parsers of one kind.

    Args:
        kind: for messages: "tool-call parser", "reasoning parser".
        base: every parser is a subclass of this.
        package: dotted name of the package that holds the built-in ones.
        built_in: name → (module in the package, class in the module).
    """

    def __init__(
        self,
        kind: str,
        base: type[_Parser],
        package: str,
        built_in: Mapping[str, tuple[str, str]],
    ) -> None:
        self._kind = kind
        self._base = base
        self._package = package
        self._built_in = dict(built_in)
        self._added: dict[str, type[_Parser]] = {}

    def names(self) -> tuple[str, ...]:
        """All names, in alphabetical order, without `auto` and `none`."""
        return tuple(sorted({*self._built_in, *self._added}))

    def get(self, name: str) -> type[_Parser]:
        """The class of a name.

        Raises:
            UnknownParser: there is no such name.
        """
        if name in self._added:
            return self._added[name]
        if name not in self._built_in:
            raise UnknownParser(
                f"there is no {self._kind} {name!r}; there are: {', '.join(self.names())} "
                f"(auto chooses by the chat template, none is no parser)"
            )
        module, attribute = self._built_in[name]
        found: type[_Parser] = getattr(import_module(f"{self._package}.{module}"), attribute)
        return found

    def register(self, names: str | Sequence[str], parser: type[_Parser]) -> None:
        """Add a parser under one name or several; a name that exists means this one from now on.

        Raises:
            ConfigError: a name that cannot be, or something that is no parser class.
        """
        wanted: Iterable[str] = (names,) if isinstance(names, str) else tuple(names)
        if not isinstance(parser, type) or not issubclass(parser, self._base):
            raise ConfigError(
                f"{parser!r} is no {self._kind}: register a subclass of "
                f"{self._base.__module__}.{self._base.__name__}"
            )
        for name in wanted:
            if not isinstance(name, str) or not name.strip() or name in RESERVED:
                raise ConfigError(f"{name!r} cannot be the name of a {self._kind}")
        for name in wanted:
            self._added[name] = parser
