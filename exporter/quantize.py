"""Symmetric round-to-nearest weight quantisation in blocks of 32 along a row.

value = (code - zero) * scale, with the zero 8 (4 bits) or 128 (8 bits). Scales are fp16, and codes
are rounded against the scale as it is stored. Rounding is numpy's (ties to even), so the bytes are
the same everywhere. Bundles use it for 4 bits where the width is no multiple of fit_blocks' blocks;
with 8 bits it is what fit_scales is held against.
"""

import numpy as np

from ortloom.exporter.sources.checkpoint import Blocks
from ortloom.exporter.weights import Array
from ortloom.kernels.packing import round_to_f16

BLOCK = 32


def round_to_nearest(rows: Array, bits: int) -> Blocks:
    """Quantise rows fp32 [n, K].

    The value of largest magnitude in a block lands on an end of the range: for 4 bits the sign is
    chosen so that it lands on -8, the longer side, which uses all 16 levels.

    Raises:
        ValueError: a block's scale is beyond fp16.
    """
    count, width = rows.shape
    blocks = rows.reshape(count, width // BLOCK, BLOCK)
    half = 1 << (bits - 1)
    place = np.abs(blocks).argmax(axis=2)[..., None]
    peak = np.take_along_axis(blocks, place, axis=2)[..., 0]
    scales = round_to_f16(peak / np.float32(-half))
    wide = scales.astype(np.float32)
    inverse = np.zeros_like(wide)
    np.divide(np.float32(1), wide, out=inverse, where=wide != 0)
    codes = np.rint(blocks * inverse[..., None]) + np.float32(half)
    codes = np.clip(codes, 0, 2 * half - 1).astype(np.uint8)
    return Blocks(codes.reshape(count, width), scales, None)


def dequantise(blocks: Blocks, bits: int) -> Array:
    """Values fp32 [n, K] of rounded rows."""
    codes = blocks.codes.reshape(*blocks.scales.shape, BLOCK)
    zero = np.float32(1 << (bits - 1))
    values: Array = (codes.astype(np.float32) - zero) * blocks.scales.astype(np.float32)[..., None]
    return values.reshape(blocks.codes.shape)
