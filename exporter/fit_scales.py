"""8-bit rounding with a scale a block of 32, searched for the least squared error.

value = scale * (code - 128). Candidates for a block's scale are

- those that put its value of largest magnitude on code 0 (128 steps below the zero), 127 steps
  below, and so on: steps that fall well for the other values make up for levels that are not used;
- where the values lie on a grid, as those of a source that was rounded to few bits before do: whole
  parts of the grid's step, so that only the place of the grid is rounded, not each value.

Codes are rounded to nearest against a candidate as fp16 holds it, and the candidate of least
squared error is kept, the earliest among equals. Blocks of GGUF's Q8_0 and Q4_0 keep their values
exactly.

Every step is an elementwise fp32 operation, and sums are trees of elementwise additions, so no
instruction set and no library changes the bytes.
"""

import numpy as np

from ortloom.exporter.quantize import BLOCK
from ortloom.exporter.sources.checkpoint import Blocks
from ortloom.exporter.weights import Array
from ortloom.kernels.packing import round_to_f16

LEVELS = 128
"""Steps from the zero to the farther end of the codes."""

ENDS = 8
"""How many places of the largest value are tried: 128, 127 ... steps from the zero."""

GRID_PARTS = 8
"""How many parts of a grid's step are tried, from the smallest that fits the codes."""

F16_MAX = np.float32(65504)

CHUNK = 2048
"""Blocks fitted at a time: the arrays of a chunk stay in a processor's cache."""


def fit_scales(rows: Array) -> Blocks:
    """Quantise rows fp32 [n, K], K a multiple of 32, to 8 bits.

    Raises:
        ValueError: a value is not finite, or a block's scale is beyond fp16.
    """
    count, width = rows.shape
    blocks = np.ascontiguousarray(rows, dtype=np.float32).reshape(-1, BLOCK)
    if not np.isfinite(blocks).all():
        raise ValueError("a weight is not a finite number")
    codes = np.empty(blocks.shape, dtype=np.uint8)
    scales = np.empty(len(blocks), dtype="<f2")
    for start in range(0, len(blocks), CHUNK):
        part = slice(start, start + CHUNK)
        # Elements of a block come first, so that a sum over them adds whole arrays.
        values = np.ascontiguousarray(blocks[part].T)
        peak = _peaks(values)
        scale = _fit(values, peak, _grid_steps(blocks[part], peak))
        scales[part] = scale
        codes[part] = (_steps(values, scale) + np.float32(LEVELS)).T
    return Blocks(codes.reshape(count, width), scales.reshape(count, width // BLOCK), None)


def _peaks(values: Array) -> Array:
    """The value of largest magnitude, fp32 [m], of values fp32 [32, m]; the negative of equals."""
    low, high = values.min(axis=0), values.max(axis=0)
    peaks: Array = np.where(-low >= high, low, high)
    return peaks


def _grid_steps(blocks: Array, peak: Array) -> Array:
    """Least distance fp32 [m] of two different values in blocks fp32 [m, 32]; 0 where it is below
    the step of 8 bits, so that no grid can be told from any other values."""
    gaps = np.diff(np.sort(blocks, axis=1), axis=1)
    gaps[gaps == 0] = np.inf
    least = gaps.min(axis=1)
    least[(least < np.abs(peak) / np.float32(LEVELS)) | np.isinf(least)] = 0
    found: Array = least
    return found


def _fit(values: Array, peak: Array, grid: Array) -> Array:
    """Scales fp32 [m], each as fp16 holds it, of values fp32 [32, m].

    Args:
        values: to be fitted.
        peak: of largest magnitude, [m].
        grid: step of the values' grid, [m]; 0 = they lie on none.
    """
    scale = round_to_f16(peak / np.float32(-LEVELS)).astype(np.float32)
    least = _square_error(values, scale)
    for end in range(LEVELS - 1, LEVELS - ENDS, -1):
        _keep_better(values, scale, least, _f16(peak / np.float32(-end)))
    places = np.flatnonzero(grid)
    if len(places) == 0:
        return scale
    values, step, peak = np.ascontiguousarray(values[:, places]), grid[places], peak[places]
    found, least = scale[places], least[places]
    # A quotient that should be a whole number may have been rounded to just below it.
    slack = np.float32(1 + 2.0**-11)
    parts = np.floor(step * np.float32(LEVELS) / np.abs(peak) * slack)
    step = np.copysign(step, -peak)
    for back in range(GRID_PARTS):
        _keep_better(values, found, least, _f16(step / np.maximum(parts - np.float32(back), 1)))
    scale[places] = found
    return scale


def _keep_better(values: Array, scale: Array, least: Array, candidate: Array) -> None:
    """Replace the scales [m] whose squared error `least` [m] a candidate makes smaller."""
    error = _square_error(values, candidate)
    better = error < least
    np.copyto(scale, candidate, where=better)
    np.copyto(least, error, where=better)


def _steps(values: Array, scale: Array) -> Array:
    """Code - 128, fp32 [32, m], of values fp32 [32, m]; 0 where the scale is 0."""
    inverse = np.zeros_like(scale)
    np.divide(np.float32(1), scale, out=inverse, where=scale != 0)
    steps: Array = values * inverse
    np.rint(steps, out=steps)
    np.clip(steps, -LEVELS, LEVELS - 1, out=steps)
    return steps


def _square_error(values: Array, scale: Array) -> Array:
    """Sum of squared differences fp32 [m]: a tree of elementwise additions."""
    error = _steps(values, scale)
    error *= scale
    error -= values
    np.multiply(error, error, out=error)
    while len(error) > 1:
        half = len(error) // 2
        error = error[:half] + error[half:]
    found: Array = error[0]
    return found


def _f16(values: Array) -> Array:
    """Values fp32 rounded to what fp16 holds, cut to its range."""
    cut = np.clip(values, -F16_MAX, F16_MAX)
    rounded: Array = cut.astype("<f2").astype(np.float32)
    return rounded
