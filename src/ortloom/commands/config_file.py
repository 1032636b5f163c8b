"""`--config FILE`: a YAML file of options, turned into tokens that come before the typed ones."""

import json
from collections.abc import Sequence
from pathlib import Path

from ortloom.errors import ConfigError
from ortloom.flags import Flag, FlagTable


def split_config(tokens: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take `--config FILE` out of the tokens.

    Returns:
        The file, or None, and the other tokens.

    Raises:
        ConfigError: the option is given twice or has no value.
    """
    rest: list[str] = []
    found: list[str] = []
    items = iter(tokens)
    for token in items:
        name, equals, inline = token.partition("=")
        if name != "--config":
            rest.append(token)
        elif equals:
            found.append(inline)
        else:
            value = next(items, "")
            if not value or value.startswith("-"):
                raise ConfigError("argument --config: expected one argument")
            found.append(value)
    if len(found) > 1:
        raise ConfigError("argument --config: may be given only once")
    return (found[0] if found else None), rest


def config_tokens(path: str, table: FlagTable) -> list[str]:
    """The options of a file as command-line tokens; `model: x` becomes `--model x`.

    Raises:
        ConfigError: not a .yaml or .yml file, unreadable, not YAML, or not a mapping.
    """
    if not path.endswith((".yaml", ".yml")):
        raise ConfigError(f"argument --config: '{path}' must end in .yaml or .yml")
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"argument --config: cannot read '{path}': {reason}") from None
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())
        raise ConfigError(f"argument --config: '{path}' is not YAML: {line}") from None
    if tree is None:
        return []
    if not isinstance(tree, dict):
        raise ConfigError(f"argument --config: '{path}' must hold a mapping of options")
    flags: dict[str, Flag] = {}
    for flag in table.flags:
        for name in (flag.name, *flag.aliases):
            flags[name] = flag
    tokens: list[str] = []
    for key, value in tree.items():
        name = "--" + str(key).replace("_", "-").removeprefix("--")
        tokens += _option_tokens(name, value, flags.get(name))
    return tokens


def _option_tokens(name: str, value: object, flag: Flag | None) -> list[str]:
    if value is True:
        return [name]
    if value is False:
        negative = None if flag is None else flag.negative
        return [negative] if negative else []
    if isinstance(value, list):
        if flag is not None and flag.kind in ("json", "jsonlist"):
            return [f"{name}={json.dumps(value)}"]
        if flag is not None and flag.kind == "append":
            return [token for item in value for token in (name, _scalar(item))]
        return [name, *map(_scalar, value)] if value else []
    if isinstance(value, dict):
        return [f"{name}={json.dumps(value)}"]
    if flag is not None and flag.kind == "list":
        return [name, _scalar(value)]
    return [f"{name}={_scalar(value)}"]


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "None" if value is None else str(value)
