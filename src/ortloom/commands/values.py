"""Turning the text of one argument into its value."""

import json
import re

from ortloom.errors import ConfigError
from ortloom.flags import Flag

_DECIMAL = {"k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY = {"K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_SIZE = re.compile(r"([+-]?\d+(?:\.\d+)?)([kmgtKMGT])")


def parse_size(text: str) -> int:
    """A human-readable integer.

    k m g t multiply by powers of 1000 and take decimals (25.6k = 25600); K M G T multiply by
    powers of 1024 and take whole numbers only.

    Raises:
        ValueError: not a number; the text says what was expected.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return int(text)
    number, unit = match.groups()
    if unit in _DECIMAL:
        value = float(number) * _DECIMAL[unit]
        if value != int(value) and abs(value - round(value)) > 1e-6:
            raise ValueError(f"'{text}' is not a whole number")
        return round(value)
    if "." in number:
        raise ValueError(
            f"'{text}': {unit} counts in 1024s and takes whole numbers; "
            f"use '{number}{unit.lower()}' for decimals"
        )
    return int(number) * _BINARY[unit]


def parse_loose(text: str) -> object:
    """The value of a dotted key: JSON if it is JSON, else a human-readable integer, else text."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return parse_size(text)
    except ValueError:
        return None if text == "None" else text


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from None


def _json_list(text: str) -> object:
    value = _json(text)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("expected a JSON list of strings")
    return value


def _choice(flag: Flag, text: str) -> str:
    if text in flag.choices:
        return text
    raise ValueError(f"invalid choice: '{text}' (choose from {', '.join(flag.offered)})")


def parse_value(flag: Flag, text: str) -> object:
    """The value of one argument of a flag; lists are parsed item by item.

    Raises:
        ConfigError: the text does not fit the flag; the message starts with `argument --name:`.
    """
    nullable = flag.default is None and flag.kind not in ("list", "ints", "switch", "flag")
    if nullable and text == "None":
        return None
    try:
        match flag.kind:
            case "int" | "ints":
                if flag.choices:
                    _choice(flag, text)
                return int(text)
            case "float":
                return float(text)
            case "size":
                return parse_size(text)
            case "context":
                return -1 if text.lower() == "auto" else parse_size(text)
            case "choice":
                return _choice(flag, text)
            case "json":
                return _json(text)
            case "jsonlist":
                return _json_list(text)
            case _:
                return text
    except ValueError as error:
        detail = str(error)
        if detail.startswith(("invalid literal", "could not convert")):
            detail = f"invalid {'number' if flag.kind == 'float' else 'integer'}: '{text}'"
        raise ConfigError(f"argument {flag.name}: {detail}") from None


def merge(old: object, new: object) -> object:
    """Dotted parts of one option: mappings merge, lists append, anything else is replaced."""
    if isinstance(old, dict) and isinstance(new, dict):
        out = dict(old)
        for key, value in new.items():
            out[key] = merge(out[key], value) if key in out else value
        return out
    if isinstance(old, list) and isinstance(new, list):
        return [*old, *new]
    return new
