"""Picking one token from a row of logits: temperature, min_p, top_k, top_p, then inverse CDF.

Tokens are ordered by descending value, ties by lower id; every cut keeps a prefix of that order,
and the draw walks the same order. A cut keeps: min_p the tokens whose probability is at least
min_p times the largest; top_k the first k; top_p the shortest prefix whose mass, after the cuts
before it, reaches top_p.

Full sorts are avoided: `leading` finds the first k tokens through the maxima of 64-row columns of
the row (the k-th largest column maximum is a lower bound of the k-th largest value). All sums run
along one row in a fixed order, so a row's token does not depend on the batch.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ortloom.runtime.sampling_params import SAMPLING_EPS

_FOLD = 64
_FIRST_TRY, _SECOND_TRY = 128, 4096
_SMALL_SORT = 2048


@dataclass(slots=True)
class Draw:
    """A drawn token and what the cuts kept.

    `kept` [n] i64 are the surviving ids in descending order, or None if nothing was cut.
    `log_mass` is log(sum(exp(value))) over the survivors, in the units of the scaled row.
    """

    token_id: int
    kept: NDArray[np.int64] | None
    log_mass: float


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
    row: NDArray[np.float32],
    top_k: int,
    top_p: float,
    min_p: float,
    random: float,
    scratch: NDArray[np.float32],
) -> Draw:
    """Cut and draw.

    Args:
        row: [V] f32 logits already divided by the temperature; its maximum is finite.
        top_k: 0 or -1 = off.
        top_p: 1.0 = off.
        min_p: 0.0 = off.
        random: in [0, 1).
        scratch: [V] f32, overwritten.
    """
    top = row.max()
    limit = top_k if 0 < top_k < len(row) else len(row)
    if limit < len(row) or min_p > SAMPLING_EPS:
        ids = leading(row, limit)[:limit] if limit < len(row) else _above(row, top, min_p)
        if limit < len(row) and min_p > SAMPLING_EPS:
            ids = ids[row[ids] >= _floor(top, min_p)]
        mass = np.cumsum(np.exp(row[ids] - top), dtype=np.float64)
        if top_p < 1.0:
            return _pick(ids[: _prefix(mass, top_p * mass[-1])], mass, random, float(top))
        return _pick(ids, mass, random, float(top))
    np.subtract(row, top, out=scratch)
    np.exp(scratch, out=scratch)
    total = float(scratch.sum(dtype=np.float64))
    goal = (top_p if top_p < 1.0 else random) * total
    for k in (_FIRST_TRY, _SECOND_TRY, len(row)):
        ids = leading(row, k)
        mass = np.cumsum(scratch[ids], dtype=np.float64)
        if mass[-1] > goal:
            break
    if top_p < 1.0:
        return _pick(ids[: _prefix(mass, goal)], mass, random, float(top))
    return Draw(int(ids[_index(mass, goal)]), None, float(top) + math.log(total))


def _floor(top: np.float32, min_p: float) -> np.float32:
    return np.float32(top + np.float32(math.log(min_p)))


def _above(row: NDArray[np.float32], top: np.float32, min_p: float) -> NDArray[np.int64]:
    return ordered(row, np.flatnonzero(row >= _floor(top, min_p)))


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
