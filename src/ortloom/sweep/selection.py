"""Choosing, rounding and grouping rows for figures."""

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ortloom.errors import ConfigError
from ortloom.sweep.experiment import Row

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_FILTER = re.compile(r"\s*([\w.]+)\s*(==|!=|<=|>=|<|>)\s*(.+?)\s*")
_BIN = re.compile(r"\s*([\w.]+)\s*%\s*([\d.]+)\s*")


class Point(msgspec.Struct, frozen=True):
    """One point of a curve: the mean over its runs, and the least and most of y."""

    x: float
    y: float
    low: float
    high: float


def names(text: str | None) -> tuple[str, ...]:
    """The parts of a list with commas."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def filtered(rows: Sequence[Row], text: str | None) -> list[Row]:
    """The rows that meet all conditions of `a<1,b==x`.

    Raises:
        ConfigError: a condition cannot be read.
    """
    kept = list(rows)
    for part in names(text):
        match = _FILTER.fullmatch(part)
        if match is None:
            raise ConfigError(f"argument --filter-by: '{part}' is no condition such as a<=1")
        name, sign, wanted = match.groups()
        kept = [row for row in kept if _meets(row.get(name), _OPERATORS[sign], wanted)]
    return kept


def _meets(value: object, compare: Callable[[Any, Any], Any], wanted: str) -> bool:
    if value is None:
        return False
    number = as_number(value)
    try:
        if number is not None:
            return bool(compare(number, float(wanted)))
    except ValueError:
        pass
    return bool(compare(str(value), wanted))


def as_number(value: object) -> float | None:
    """A value as a number; `inf` is one, a text is none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(str(value))
    except ValueError:
        return None


def binned(rows: Sequence[Row], text: str | None) -> list[Row]:
    """The rows with the values of `a%10` rounded down to steps of 10.

    Raises:
        ConfigError: a part cannot be read.
    """
    out = [dict(row) for row in rows]
    for part in names(text):
        match = _BIN.fullmatch(part)
        if match is None or float(match[2]) == 0:
            raise ConfigError(f"argument --bin-by: '{part}' is no step such as a%10")
        for row in out:
            number = as_number(row.get(match[1]))
            if number is not None:
                row[match[1]] = number // float(match[2]) * float(match[2])
    return out


def grouped(rows: Sequence[Row], by: Sequence[str]) -> dict[str, list[Row]]:
    """Rows by what they have in common, in the order of their values."""
    keys = {tuple(str(row.get(name)) for name in by) for row in rows}
    ordered = sorted(
        keys, key=lambda key: [(as_number(k) is None, as_number(k) or 0, k) for k in key]
    )
    return {
        ", ".join(f"{name}={value}" for name, value in zip(by, key, strict=True)): [
            row for row in rows if tuple(str(row.get(name)) for name in by) == key
        ]
        for key in ordered
    }


def points(rows: Sequence[Row], x: str, y: str) -> list[Point]:
    """A curve: runs of the same parameters become one point.

    Rows without one of the values are left out.
    """
    runs: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        left, right = as_number(row.get(x)), as_number(row.get(y))
        if left is not None and right is not None:
            runs.setdefault(_parameters(row), []).append((left, right))
    made = []
    for values in runs.values():
        ys = [value for _, value in values]
        mean_x = sum(value for value, _ in values) / len(values)
        made.append(Point(mean_x, sum(ys) / len(ys), min(ys), max(ys)))
    return sorted(made, key=lambda point: point.x)


def _parameters(row: Row) -> str:
    """What tells combinations apart."""
    return str(row.get("combination", id(row)))


def frontier(found: Sequence[Point]) -> list[Point]:
    """The points that no other one beats in both values, by x."""
    best: list[Point] = []
    for point in sorted(found, key=lambda point: (-point.x, -point.y)):
        if not best or point.y > best[-1].y:
            best.append(point)
    return best[::-1]
