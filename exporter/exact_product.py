"""Matrix products, exponentials and means whose bits are the same on every machine.

What decides a bundle's bytes must not depend on how many lanes a processor has. The operands of a
product are rounded to whole numbers so small that every order of adding them up is exact; the rest
is made of single additions, multiplications, divisions and square roots.
"""

from collections.abc import Callable

import numpy as np

from ortloom.exporter.weights import Array, row_chunks

WEIGHT_BITS = 16
INPUT_BITS = 20
"""Bits of the whole numbers: a sum of up to 2**17 products is below 2**53."""

_TAYLOR = tuple(1.0 / float(np.prod(np.arange(1.0, n + 1))) for n in range(12, -1, -1))
"""1/12! .. 1/0!"""

_EXPONENT_LIMIT = 500.0
_LOG_2 = 0.6931471805599453


def _whole(values: Array, axis: int) -> tuple[Array, Array]:
    """Values as whole numbers, and the power of two that each line along `axis` was divided by."""
    bits = WEIGHT_BITS if axis == 1 else INPUT_BITS
    exponents = np.frexp(np.abs(values).max(axis=axis, keepdims=True))[1] - bits
    found: Array = np.rint(np.ldexp(values, -exponents))
    return found, exponents


def product(rows: Callable[[int, int], Array], shape: tuple[int, int], inputs: Array) -> Array:
    """W @ inputs, float64 [N, T].

    Args:
        rows: reads rows start .. stop of W, fp32 [n, K].
        shape: [N, K].
        inputs: float64 [K, T].

    Raises:
        ValueError: a weight is not finite.
    """
    right, down = _whole(inputs, 0)
    found = np.empty((shape[0], inputs.shape[1]))
    for start, stop in row_chunks(shape):
        weights = rows(start, stop).astype(np.float64)
        if not np.isfinite(weights).all():
            raise ValueError("a weight is not a finite number")
        left, across = _whole(weights, 1)
        found[start:stop] = np.ldexp(left @ right, across + down)
    return found


def exponential(values: Array) -> Array:
    """The exponential function, float64, right to about 1e-15; beyond ±500 that of ±500."""
    values = np.clip(values, -_EXPONENT_LIMIT, _EXPONENT_LIMIT)
    powers = np.rint(values / _LOG_2)
    rest = values - powers * _LOG_2
    found = np.full_like(values, _TAYLOR[0])
    for term in _TAYLOR[1:]:
        found = found * rest + term
    exact: Array = np.ldexp(found, powers.astype(np.int64))
    return exact


def column_squares(rows: Array) -> Array:
    """Sums of squares float64 [K] over the rows [n, K], row after row."""
    total = np.zeros(rows.shape[1])
    for row in rows.astype(np.float64):
        total += row * row
    return total
