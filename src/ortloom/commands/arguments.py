"""Parsing the arguments of `ortloom serve` by the flag table.

The rules are those of the field: dashes and underscores are equal before the first dot, long names
may be cut to an unambiguous beginning, structured options take one JSON document or dotted keys
(`--opt.key value`, `--opt.key+ a,b` appends), a repeated option warns and its last value wins.
"""

import re
from collections.abc import Sequence

import msgspec

from ortloom.commands.values import merge, parse_loose, parse_value
from ortloom.errors import ConfigError
from ortloom.flags import Flag, FlagTable

_NUMBER = re.compile(r"-\d+(\.\d*)?([eE][+-]?\d+)?[kmgtKMGT]?|-\.\d+")


class Passed(msgspec.Struct, frozen=True):
    """One option as it was given. `typed` is the spelling the user wrote."""

    flag: Flag
    value: object
    typed: str


class Arguments(msgspec.Struct):
    """The outcome of parsing. `passed` holds each option once, under its table name."""

    passed: dict[str, Passed]
    positionals: list[str]
    warnings: list[str]

    def get(self, name: str) -> object:
        """The given value, or None when the flag was not given."""
        entry = self.passed.get(name)
        return None if entry is None else entry.value


def _normal(name: str) -> str:
    head, dot, tail = name.partition(".")
    if not head.startswith("--"):
        return name
    return head.replace("_", "-") + dot + tail


def _looks_like_option(token: str) -> bool:
    if not token.startswith("-") or token == "-" or " " in token.partition("=")[0]:
        return False
    return _NUMBER.fullmatch(token) is None


class ArgumentParser:
    """Parses token lists against a flag table."""

    def __init__(self, table: FlagTable) -> None:
        self._names: dict[str, tuple[Flag, bool]] = {}
        for flag in table.flags:
            for name in (flag.name, *flag.aliases):
                self._names[name] = (flag, True)
            if flag.negative is not None:
                self._names[flag.negative] = (flag, False)
        self._long = sorted(name for name in self._names if name.startswith("--"))

    def parse(self, tokens: Sequence[str]) -> Arguments:
        """Parse the tokens that follow `serve`.

        Raises:
            ConfigError: unknown or ambiguous option, missing or bad value.
        """
        return _Run(self, list(tokens)).arguments()

    def find(self, name: str) -> tuple[Flag, bool] | None:
        """The flag of a name or unambiguous beginning, and whether it is the positive form.

        Raises:
            ConfigError: the beginning fits several flags.
        """
        if name in self._names:
            return self._names[name]
        if not name.startswith("--") or len(name) < 3:
            return None
        fits = [long for long in self._long if long.startswith(name)]
        if len({(self._names[long][0].name, self._names[long][1]) for long in fits}) > 1:
            raise ConfigError(f"ambiguous option: {name} could match {', '.join(fits)}")
        return self._names[fits[0]] if fits else None

    def suggestion(self, name: str) -> str:
        """A did-you-mean for an unknown name, or an empty string."""
        import difflib

        near = difflib.get_close_matches(name, self._long, n=1, cutoff=0.6)
        return f" (did you mean {near[0]}?)" if near else ""


class _Run:
    def __init__(self, parser: ArgumentParser, tokens: list[str]) -> None:
        self._parser = parser
        self._tokens = tokens
        self._at = 0
        self._passed: dict[str, Passed] = {}
        self._dotted: dict[str, Passed] = {}
        self._dotted_seen: set[str] = set()
        self._repeated: list[str] = []
        self._positionals: list[str] = []
        self._unknown: list[str] = []

    def arguments(self) -> Arguments:
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            self._at += 1
            if token == "--":
                self._positionals.extend(self._tokens[self._at :])
                break
            if _looks_like_option(token):
                self._option(token)
            else:
                self._positionals.append(token)
        if self._unknown:
            raise ConfigError(f"unrecognized arguments: {' '.join(self._unknown)}")
        for name, entry in self._dotted.items():
            self._passed[name] = entry
        warnings = []
        if self._repeated:
            names = ", ".join(dict.fromkeys(self._repeated))
            warnings.append(f"options given more than once, the last value counts: {names}")
        return Arguments(self._passed, self._positionals, warnings)

    def _option(self, token: str) -> None:
        typed, equals, inline = token.partition("=")
        value: str | None = inline if equals else None
        name = _normal(typed)
        head, dot, path = name.partition(".")
        if not name.startswith("--"):
            head, value, path = self._short(typed, value)
            dot = "." if path else ""
        found = self._parser.find(head)
        if found is None:
            hint = self._parser.suggestion(head) if head.startswith("--") else ""
            self._unknown.append(typed + hint)
            while value is None and self._at < len(self._tokens):
                if _looks_like_option(self._tokens[self._at]):
                    break
                self._at += 1  # its values are unknown too
            return
        flag, positive = found
        if dot:
            self._dotted_key(flag, typed, path, value)
            return
        self._store(flag, self._value(flag, positive, typed, value), typed)

    def _short(self, typed: str, value: str | None) -> tuple[str, str | None, str]:
        """A short option: `-tp 2`, `-tp=2`, `-O2`, `-cc.mode=3`."""
        head, _, path = typed.partition(".")
        if self._parser.find(head) is not None:
            return head, value, path
        if typed[:2] == "-O" and value is None and typed[2:].isdigit():
            return "-O", typed[2:], ""
        return typed, value, ""

    def _next(self, flag: Flag) -> str:
        if self._at < len(self._tokens) and not _looks_like_option(self._tokens[self._at]):
            self._at += 1
            return self._tokens[self._at - 1]
        raise ConfigError(f"argument {flag.name}: expected one argument")

    def _value(self, flag: Flag, positive: bool, typed: str, inline: str | None) -> object:
        if flag.kind in ("switch", "flag"):
            if inline is not None:
                raise ConfigError(f"argument {typed}: takes no value, got '{inline}'")
            return positive
        if flag.kind in ("list", "ints"):
            items = [] if inline is None else [inline]
            while inline is None and self._at < len(self._tokens):
                if _looks_like_option(self._tokens[self._at]):
                    break
                items.append(self._next(flag))
            if not items:
                raise ConfigError(f"argument {flag.name}: expected at least one argument")
            return [parse_value(flag, item) for item in items]
        if flag.kind == "append":
            return [self._next(flag) if inline is None else inline]
        if flag.kind == "optional" and inline is None:
            at_end = self._at >= len(self._tokens) or _looks_like_option(self._tokens[self._at])
            return True if at_end else self._next(flag)
        return parse_value(flag, self._next(flag) if inline is None else inline)

    def _store(self, flag: Flag, value: object, typed: str) -> None:
        if flag.kind == "append" and isinstance(value, list):
            before = self._passed.get(flag.name)
            earlier = before.value if before is not None and isinstance(before.value, list) else []
            value = [*earlier, *value]
        elif flag.name in self._passed:
            self._repeated.append(flag.name)
            if flag.name == "--enable-jump-forward":
                raise ConfigError(f"argument {flag.name}: may be given only once")
        self._passed[flag.name] = Passed(flag, value, typed)

    def _dotted_key(self, flag: Flag, typed: str, path: str, inline: str | None) -> None:
        if flag.kind != "json":
            raise ConfigError(f"argument {typed}: {flag.name} takes no dotted keys")
        append = path.endswith("+")
        keys = path.removesuffix("+").split(".")
        if not all(keys):
            raise ConfigError(f"argument {typed}: empty key")
        text = self._next(flag) if inline is None else inline
        value: object = text.split(",") if append else parse_loose(text)
        full = f"{flag.name}.{path}"
        if not append and full in self._dotted_seen:
            self._repeated.append(full)
        self._dotted_seen.add(full)
        tree = value
        for key in reversed(keys):
            tree = {key: tree}
        old = self._dotted.get(flag.name)
        merged = tree if old is None else merge(old.value, tree)
        self._dotted[flag.name] = Passed(flag, merged, typed)
