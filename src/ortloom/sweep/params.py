"""Sets of parameters, and command lines with them."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from ortloom.errors import ConfigError

Value = str | int | float | bool | None | list[object] | dict[str, object]


class ParamSet(msgspec.Struct, frozen=True):
    """One set; `name` is None where the file gives none."""

    values: dict[str, Value]
    name: str | None = None

    @property
    def label(self) -> str:
        """What it is called in folders: its name, or its values."""
        if self.name is not None:
            return _plain(self.name)
        return _plain("-".join(f"{key}={_shown(value)}" for key, value in self.values.items()))


def _shown(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _plain(text: str) -> str:
    """Without what folders' names cannot hold."""
    return "".join(c if c.isalnum() or c in "-_=.,+" else "_" for c in text)[:100]


def read_params(flag: str, text: str | None) -> list[ParamSet]:
    """The sets of a JSON file, or of JSON itself; one empty set when there is nothing.

    Args:
        flag: for messages.
        text: a path or JSON: a list of objects, or an object of names and objects.

    Raises:
        ConfigError: it cannot be read, or has another form.
    """
    if text is None:
        return [ParamSet({})]
    try:
        source = text if text.lstrip().startswith(("[", "{")) else Path(text).read_text("utf-8")
        tree = json.loads(source)
    except (OSError, ValueError) as error:
        raise ConfigError(f"argument {flag}: cannot read '{text}': {error}") from None
    if isinstance(tree, dict) and all(isinstance(value, dict) for value in tree.values()):
        found = [ParamSet(value, name) for name, value in tree.items()]
    elif isinstance(tree, list) and all(isinstance(value, dict) for value in tree):
        found = [ParamSet(value) for value in tree]
    else:
        raise ConfigError(
            f"argument {flag}: expected a list of JSON objects, or an object of names and objects"
        )
    labels = [each.label for each in found]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"argument {flag}: the set '{label}' is there twice")
    return found or [ParamSet({})]


def read_links(text: str | None) -> list[tuple[str, str]]:
    """The pairs of `--link-vars a=b,c=d`: parameters of the server and the benchmark that must be
    equal.

    Raises:
        ConfigError: a part is no pair.
    """
    pairs = []
    for part in (text or "").split(","):
        if not part.strip():
            continue
        left, equals, right = part.partition("=")
        if not equals or not left.strip() or not right.strip():
            raise ConfigError(f"argument --link-vars: expected a=b, got '{part}'")
        pairs.append((normal(left.strip()), normal(right.strip())))
    return pairs


def linked(serve: ParamSet, bench: ParamSet, links: Iterable[tuple[str, str]]) -> bool:
    """Whether two sets may be combined."""
    left = {normal(key): value for key, value in serve.values.items()}
    right = {normal(key): value for key, value in bench.values.items()}
    return all(left.get(a) == right.get(b) for a, b in links)


def normal(name: str) -> str:
    """A parameter's name as a flag has it, without the dashes before it."""
    head, dot, tail = name.removeprefix("--").partition(".")
    return head.replace("_", "-") + dot + tail


def split_command(flag: str, text: str) -> list[str]:
    """A command as a shell would split it.

    Raises:
        ConfigError: it is empty, or a quotation mark is open.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"argument {flag}: {error}: {text}") from None
    if not words:
        raise ConfigError(f"argument {flag}: the command is empty")
    return words


def with_params(command: Sequence[str], values: Mapping[str, Value]) -> list[str]:
    """The command with these flags; those that it has already are replaced."""
    words = list(command)
    for key, value in values.items():
        words = [*_without(words, normal(key)), *_tokens(normal(key), value)]
    return words


def _without(words: list[str], name: str) -> list[str]:
    kept: list[str] = []
    skipping = False
    for word in words:
        if word.startswith("--"):
            typed = normal(word.partition("=")[0])
            skipping = typed in (name, f"no-{name}")
            if skipping:
                skipping = "=" not in word
                continue
        elif skipping:
            continue
        kept.append(word)
    return kept


def _tokens(name: str, value: Value) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list):
        return [f"--{name}", *(_shown_item(item) for item in value)]
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value)]
    return [f"--{name}", str(value)]


def _shown_item(item: object) -> str:
    return item if isinstance(item, str) else json.dumps(item)


def flag_value(command: Sequence[str], name: str) -> str | None:
    """What a command gives a flag; None = nothing."""
    for index, word in enumerate(command):
        typed, equals, inline = word.partition("=")
        if word.startswith("--") and normal(typed) == name:
            if equals:
                return inline
            return command[index + 1] if index + 1 < len(command) else None
    return None
