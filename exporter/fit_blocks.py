"""4-bit rounding with a scale and a minimum a block, searched for the least squared error.

value = scale * code + min, codes 0 .. 15, blocks of 64 neighbours along a row: the bits of a matrix
are those of blocks of 32 with a scale alone. For each of several shares of a block's range, codes
are rounded to nearest, the scale and minimum that suit these codes best are solved for (ordinary
least squares of the values on the codes), rounded to fp16, and the codes rounded once more; the
candidate of least squared error is kept, the earliest among equals.

Every step is an elementwise fp32 operation, and sums are trees of elementwise additions, so no
instruction set and no library changes the bytes.
"""

import numpy as np

from ortloom.exporter.sources.checkpoint import Blocks
from ortloom.exporter.weights import Array
from ortloom.kernels.packing import round_to_f16

FIT_BLOCK = 64

SHARES = (1.0, 1.05, 0.95, 0.9, 0.85, 0.8, 0.75)
"""Shares of the distance from a block's least to its largest value that the first codes span."""

TOP_CODE = 15

CHUNK = 2048
"""Blocks fitted at a time: the arrays of a chunk stay in a processor's cache."""


def fit_blocks(rows: Array) -> Blocks:
    """Quantise rows fp32 [n, K], K a multiple of 64, to 4 bits.

    Raises:
        ValueError: a value, or a block's range, is not finite or beyond fp16.
    """
    count, width = rows.shape
    blocks = np.ascontiguousarray(rows, dtype=np.float32).reshape(-1, FIT_BLOCK)
    if not np.isfinite(blocks).all():
        raise ValueError("a weight is not a finite number")
    codes = np.empty(blocks.shape, dtype=np.uint8)
    scales = np.empty(len(blocks), dtype="<f2")
    mins = np.empty(len(blocks), dtype="<f2")
    for start in range(0, len(blocks), CHUNK):
        part = slice(start, start + CHUNK)
        # Elements of a block come first, so that a sum over them adds whole arrays.
        values = np.ascontiguousarray(blocks[part].T)
        scales[part], mins[part], best = _fit(values)
        codes[part] = best.T
    shape = (count, width // FIT_BLOCK)
    return Blocks(codes.reshape(count, width), scales.reshape(shape), mins.reshape(shape))


def fitted_values(blocks: Blocks) -> Array:
    """Values fp32 [n, K] of fitted rows.

    Raises:
        ValueError: the blocks have no minima.
    """
    if blocks.mins is None:
        raise ValueError("blocks without minima are not fitted ones")
    codes = blocks.codes.reshape(*blocks.scales.shape, FIT_BLOCK).astype(np.float32)
    values: Array = codes * blocks.scales.astype(np.float32)[..., None]
    values += blocks.mins.astype(np.float32)[..., None]
    return values.reshape(blocks.codes.shape)


def _fit(values: Array) -> tuple[Array, Array, Array]:
    """Scales fp16 [m], minima fp16 [m] and codes fp32 [64, m] of values fp32 [64, m]."""
    half = np.float32(0.5)
    low, high = values.min(axis=0) * half, values.max(axis=0) * half
    centre, reach = low + high, high - low
    # About its centre a block has no large common part in which fp32 sums would lose digits.
    centred = values - centre
    total = _sum(centred)
    best: tuple[Array, Array, Array] | None = None
    least = np.empty(values.shape[1], dtype=np.float32)
    for share in SHARES:
        part = reach * np.float32(share)
        scale, minimum = _f16(part / np.float32(TOP_CODE * 0.5)), _f16(centre - part)
        slope, offset, usable = _solved(centred, total, _codes(values, scale, minimum))
        np.copyto(scale, _f16(slope), where=usable)
        np.copyto(minimum, _f16(offset + centre), where=usable)
        codes = _codes(values, scale, minimum)
        error = codes * scale
        error += minimum
        error -= values
        np.multiply(error, error, out=error)
        square = _sum(error)
        if best is None:
            best, least = (scale, minimum, codes), square
            continue
        better = square < least
        np.copyto(least, square, where=better)
        for kept, found in zip(best, (scale, minimum, codes), strict=True):
            np.copyto(kept, found, where=better)
    assert best is not None  # SHARES is not empty
    return best[0].astype("<f2"), best[1].astype("<f2"), best[2]


def _codes(values: Array, scale: Array, minimum: Array) -> Array:
    """Nearest codes fp32 [64, m]; 0 where the scale is 0."""
    inverse = np.zeros_like(scale)
    np.divide(np.float32(1), scale, out=inverse, where=scale != 0)
    codes = values - minimum
    codes *= inverse
    np.rint(codes, out=codes)
    np.clip(codes, 0, TOP_CODE, out=codes)
    return codes


def _solved(values: Array, total: Array, codes: Array) -> tuple[Array, Array, Array]:
    """Least-squares slope and offset fp32 [m] of values on codes, and where there are such: not in
    blocks whose codes are all equal. Sums of codes and of their squares are exact in fp32."""
    codes_sum, squares = _sum(codes), _sum(codes * codes)
    product = _sum(codes * values)
    size = np.float32(FIT_BLOCK)
    spread = size * squares - codes_sum * codes_sum
    usable = spread > 0
    slope, offset = np.zeros_like(total), np.zeros_like(total)
    np.divide(size * product - codes_sum * total, spread, out=slope, where=usable)
    np.divide(squares * total - codes_sum * product, spread, out=offset, where=usable)
    return slope, offset, usable


def _f16(values: Array) -> Array:
    """Values fp32 rounded to what fp16 holds."""
    rounded: Array = round_to_f16(values).astype(np.float32)
    return rounded


def _sum(terms: Array) -> Array:
    """Sum over the first axis, of 64, by halving it."""
    while len(terms) > 1:
        half = len(terms) // 2
        terms = terms[:half] + terms[half:]
    found: Array = terms[0]
    return found
