"""What compiling a JSON schema costs, told from its shape where a glance is enough.

Two things make a small schema take the grammar engine minutes, neither of which its own limits
cover: the remainders of a long `multipleOf` are states of one automaton, and each property of an
object may be followed by any later one. Everything else is left to the limits of the engine and of
the process that tries constraints out.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

MOST_REMAINDERS = 100_000
"""Of one `multipleOf`: its digits without zeros at the end, as a number."""

MOST_PAIRS = 2_500**2
"""Of properties of the same object, over all objects."""

_DATA = frozenset({"const", "default", "enum", "examples", "required"})
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


def property_pairs(schema: Any) -> int:
    """Pairs of properties of the same object.

    Args:
        schema: as JSON gives it, of any kind and nested no deeper than is safe to follow.
    """
    objects = (node.get("properties") for node in _schemas(schema))
    return sum(len(known) ** 2 for known in objects if isinstance(known, Mapping))


def too_costly(schema: Any) -> str | None:
    """Why a schema is not worth trying, or None; `schema` as above."""
    for node in _schemas(schema):
        divisor = node.get("multipleOf")
        if isinstance(divisor, int | float) and _remainders(divisor) > MOST_REMAINDERS:
            return f"multipleOf {divisor} has too many digits"
    if property_pairs(schema) > MOST_PAIRS:
        return f"its objects have too many properties: about {int(MOST_PAIRS**0.5)} fit into one"
    return None


def _remainders(divisor: float) -> int:
    try:
        digits = Decimal(repr(divisor)).normalize().as_tuple().digits
    except InvalidOperation:
        return 0
    return int("".join(map(str, digits[:9])) or "0")


def _schemas(node: Any) -> Iterator[Mapping[str, Any]]:
    """A schema and those inside it."""
    if isinstance(node, list):
        for inner in node:
            yield from _schemas(inner)
    elif isinstance(node, Mapping):
        yield node
        for key, value in node.items():
            if key in _NAMED and isinstance(value, Mapping):
                for inner in value.values():
                    yield from _schemas(inner)
            elif key not in _DATA:
                yield from _schemas(value)
