"""Python literals to JSON text: what a model writes for a value in Python's spelling."""

import ast
import re
import warnings
from typing import Any

from ortloom.models.tool_parsers.json_text import json_text, loads

_LONGEST = 1 << 16
"""Characters of one literal other than a string or JSON; a longer one is not read, since Python's
parser takes about ten microseconds a number."""

_ONE_STRING = re.compile(
    r"""'[^'\\\n]*(?:\\.[^'\\\n]*)*'|"[^"\\\n]*(?:\\.[^"\\\n]*)*\"""", re.DOTALL
)

_STRINGS = re.compile(
    r"""'[^'\\]*(?:\\.[^'\\]*)*(?:'|\Z)|"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z)""", re.DOTALL
)
"""String literals; one that never ends reaches to the end, so that no text is searched twice."""

_CONTROL = re.compile("[\n\r\0]")
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\0": r"\x00"}
_PADDED = re.compile(r"[+-]?0[0-9]+")

_DEEPEST = 64
"""Brackets within brackets; Python's own parser gives up at about a hundred."""

_NAMES = {"true": True, "false": False, "null": None, "none": None}


def literal_json(text: str) -> str | None:
    """JSON text of a literal (strings, numbers, lists, tuples, dicts, True, False, None).

    JSON's own spellings are taken too. None where it is no literal: names, calls and operators
    other than a sign are none, and neither are values that JSON has no text for.
    """
    text = text.strip()
    if not text:
        return None
    if _PADDED.fullmatch(text):
        sign = "-" if text[0] == "-" and text.strip("-0") else ""
        text = sign + (text.strip("+-").lstrip("0") or "0")
    try:
        loads(text)
    except ValueError:
        pass
    else:
        return text
    if not _ONE_STRING.fullmatch(text) and (len(text) > _LONGEST or not _is_shallow(text)):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            return json_text(_value(ast.parse(_escaped(text), mode="eval").body))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, OverflowError):
        return None


def _escaped(text: str) -> str:
    """Line breaks and NUL in strings, which Python does not take as they are, as escapes."""
    if not _CONTROL.search(text):
        return text
    return _STRINGS.sub(lambda m: _CONTROL.sub(lambda c: _ESCAPES[c[0]], m[0]), text)


def _is_shallow(text: str) -> bool:
    depth = 0
    for char in text:
        if char in "([{":
            depth += 1
            if depth > _DEEPEST:
                return False
        elif char in ")]}":
            depth -= 1
    return True


def _value(node: ast.expr) -> Any:
    """The value of a literal's node.

    Raises:
        ValueError: it is no literal.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | None):
        if isinstance(node.value, float) and node.value - node.value != 0:
            raise ValueError("no finite number")
        return node.value
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [None if key is None else _value(key) for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("a key that is no string")
        return dict(zip(keys, (_value(value) for value in node.values), strict=True))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("a sign before what is no number")
        return -value if isinstance(node.op, ast.USub) else value
    raise ValueError("no literal")
