"""Picking one token from a row of logits: temperature, min_p, top_k, top_p, then inverse CDF.

Tokens are ordered by descending value, ties by lower id; every cut keeps a prefix of that order,
and the draw walks the same order. A cut keeps: min_p the tokens whose probability is at least
min_p times the largest; top_k the first k; top_p the shortest prefix whose mass, after the cuts
before it, reaches top_p.

Masses are multiples of 2^-34, so that sums of up to 2^19 of them are exact in float64 in whatever
order they are taken: the op library, which adds up in another order, draws the same tokens, and a
row's token does not depend on the batch. What this costs: a mass is off by up to 2^-35 of the
largest one, and a token 2^35 times less likely than the best is never drawn.

Full sorts are avoided: `leading` finds the first k tokens through the maxima of 64-row columns of
the row (the k-th largest column maximum is a lower bound of the k-th largest value).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ortloom.runtime.sampling_params import SAMPLING_EPS

_FOLD = 64
_FIRST_TRY, _SECOND_TRY = 128, 4096
_SMALL_SORT = 2048

# exp(x) = 2^(n + f): n = round(x / ln 2) by adding and taking away 1.5 * 2^23, and a minimax
# polynomial of 2^f with constant term 1. The relative error, all rounding counted, is 2e-7 near 0
# and 2e-6 where the mass is next to nothing. Every step is one float32 operation, the same as in
# kernels/csrc/sampler_body.h.
_LOWEST = np.float32(-30.0)
_LOG2_E = np.float32(1.44269504)
_SHIFT = np.float32(12582912.0)
_COEFFICIENTS = tuple(
    np.float32(c)
    for c in (
        1.3264705194e-03,
        9.6715241671e-03,
        5.5507339537e-02,
        2.4022242427e-01,
        6.9314700365e-01,
        1.0,
    )
)
_GRAINS = 1.5 * 2**18
"""Doubles of this size are 2^-34 apart: adding it rounds to a multiple of that."""

_PIECE = 8192
"""Values that are worked on at a time, so that what lies between stays in the cache."""


@dataclass(slots=True)
class Draw:
    """A drawn token and what the cuts kept.

    `kept` [n] i64 are the surviving ids in descending order, or None if nothing was cut.
    `log_mass` is log(sum(exp(value))) over the survivors, in the units of the scaled row.
    """

    token_id: int
    kept: NDArray[np.int64] | None
    log_mass: float


def inverse_temperature(temperature: float) -> np.float32:
    """What logits are multiplied by."""
    return np.float32(1.0) / np.float32(temperature)


def scaled_by(
    row: NDArray[np.float32], temperature: float, out: NDArray[np.float32]
) -> NDArray[np.float32]:
    """`row` [V] f32 over the temperature: in `out`, or itself where that is 1."""
    if temperature == 1.0:
        return row
    with np.errstate(over="ignore"):
        return np.multiply(row, inverse_temperature(temperature), out=out)


def masses(values: NDArray[np.float32], top: np.float32) -> NDArray[np.float64]:
    """exp(value - top) in multiples of 2^-34.

    Args:
        values: [n] f32, none above `top`, no NaN.
        top: finite.
    """
    result = np.empty(len(values), np.float64)
    with np.errstate(over="ignore"):  # what is that far below the top has no mass
        for start in range(0, len(values), _PIECE):
            _fill_masses(values[start : start + _PIECE], top, result[start : start + _PIECE])
    return result


def _fill_masses(values: NDArray[np.float32], top: np.float32, out: NDArray[np.float64]) -> None:
    x = values - top
    np.maximum(x, _LOWEST, out=x)
    x *= _LOG2_E
    shifted = x + _SHIFT
    x -= shifted - _SHIFT
    polynomial = x * _COEFFICIENTS[0]
    for coefficient in _COEFFICIENTS[1:-1]:
        polynomial += coefficient
        polynomial *= x
    polynomial += _COEFFICIENTS[-1]
    bits = polynomial.view(np.uint32)
    bits += shifted.view(np.uint32) << np.uint32(23)
    np.add(polynomial, _GRAINS, out=out, dtype=np.float64)
    out -= _GRAINS


def log_floor(min_p: float) -> np.float32:
    """How far below the largest scaled logit min_p cuts; -inf = off."""
    return np.float32(math.log(min_p)) if min_p > SAMPLING_EPS else np.float32(-np.inf)


def ordered(row: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """`ids` (ascending) sorted by descending value, ties by lower id.

    Large sets sort one u64 key each: the value's bits made monotone, above the id.
    """
    values = row[ids]
    if len(ids) <= _SMALL_SORT:
        return ids[np.argsort(-values, kind="stable")]
    bits = (values + np.float32(0)).view(np.uint32)  # adding 0 turns -0.0 into 0.0: a tie
    flip = np.where(bits >> 31, np.uint32(0), np.uint32(0x7FFFFFFF))
    keys = ((bits ^ flip).astype(np.uint64) << np.uint64(32)) | ids.astype(np.uint64)
    keys.sort()
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


def leading(row: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """At least the first `k` tokens of the order, never one at -inf; all ties of the last one.

    Args:
        row: [V] f32, no NaN.
        k: at least 1.

    Returns:
        [n] i64 ids in order; n < k only if fewer tokens are above -inf.
    """
    columns = len(row) // _FOLD
    if k >= len(row):
        return ordered(row, np.flatnonzero(row > -np.inf))
    if 2 * k <= columns:
        maxima = row[: columns * _FOLD].reshape(_FOLD, columns).max(axis=0)
        bound = np.partition(maxima, columns - k)[columns - k]
    else:
        bound = np.partition(row, len(row) - k)[len(row) - k]
    if bound == -np.inf:
        return ordered(row, np.flatnonzero(row > bound))
    return ordered(row, np.flatnonzero(row >= bound))


def draw_token(
    row: NDArray[np.float32], top_k: int, top_p: float, min_p: float, random: float
) -> Draw:
    """Cut and draw.

    Args:
        row: [V] f32 logits already divided by the temperature; its maximum is finite.
        top_k: 0 or -1 = off.
        top_p: 1.0 = off.
        min_p: 0.0 = off.
        random: in [0, 1).
    """
    top = row.max()
    limit = top_k if 0 < top_k < len(row) else len(row)
    floor = top + log_floor(min_p)
    if limit < len(row) or floor > -np.inf:
        if limit < len(row):
            ids = leading(row, limit)[:limit]
            ids = ids[row[ids] >= floor]
        else:
            ids = ordered(row, np.flatnonzero(row >= floor))
        mass = np.cumsum(masses(row[ids], top))
        if top_p < 1.0:
            return _pick(ids[: _prefix(mass, top_p * mass[-1])], mass, random, float(top))
        return _pick(ids, mass, random, float(top))
    each = masses(row, top)
    total = float(each.sum())
    goal = (top_p if top_p < 1.0 else random) * total
    for k in (_FIRST_TRY, _SECOND_TRY, len(row)):
        ids = leading(row, k)
        mass = np.cumsum(each[ids])
        if mass[-1] > goal:
            break
    if top_p < 1.0:
        return _pick(ids[: _prefix(mass, goal)], mass, random, float(top))
    return Draw(int(ids[_index(mass, goal)]), None, float(top) + math.log(total))


def _prefix(mass: NDArray[np.float64], goal: float) -> int:
    """Length of the shortest prefix whose mass reaches `goal`."""
    return min(int(np.searchsorted(mass, goal, side="left")) + 1, len(mass))


def _index(mass: NDArray[np.float64], target: float) -> int:
    """First entry whose running mass is above `target`; rounding never picks a token of no mass."""
    last = int(np.searchsorted(mass, mass[-1], side="left"))
    return min(int(np.searchsorted(mass, target, side="right")), last)


def _pick(ids: NDArray[np.int64], mass: NDArray[np.float64], random: float, top: float) -> Draw:
    mass = mass[: len(ids)]
    token = int(ids[_index(mass, random * float(mass[-1]))])
    return Draw(token, ids, top + math.log(mass[-1]))
