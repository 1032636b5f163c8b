"""Symmetric round-to-nearest weight quantisation in the layout of com.microsoft::MatMulNBits.

A linear weight [N, K] becomes B uint8 [N, K/block, block*bits/8] (two 4-bit values a byte, low
nibble first) and scales fp32 [N, K/block]; value = (q - zero) * scale with the implied zero 8
(4 bits) or 128 (8 bits). No zero-point tensor is ever made: float zero points make the kernel tens
of times slower. Rounding is numpy's (ties to even), so the bytes are the same everywhere.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ortloom.exporter.weights import Array, Chunks, StoredTensor, WeightJob, row_chunks

BLOCK = 32
ACCURACY_LEVEL = 4
"""Activations are rounded to int8 per row and block of 32: batch invariant, and the fast path."""


def quantisable(name: str, shape: tuple[int, ...], is_tied: bool) -> bool:
    """Whether a parameter is stored quantised: linear weights whose width is a multiple of the
    block; the embedding table only where it is the output matrix as well."""
    if len(shape) != 2 or shape[1] % BLOCK or not name.endswith(".weight"):
        return False
    return is_tied or "embed_tokens" not in name


def round_to_nearest(rows: Array, bits: int) -> tuple[Array, Array]:
    """Quantise rows fp32 [n, K].

    The value of largest magnitude in a block lands on an end of the range: for 4 bits the sign is
    chosen so that it lands on -8, the longer side, which uses all 16 levels.

    Returns:
        q uint8 [n, K / BLOCK, BLOCK * bits / 8] and scales fp32 [n, K / BLOCK].
    """
    count, width = rows.shape
    blocks = rows.reshape(count, width // BLOCK, BLOCK)
    half = 1 << (bits - 1)
    place = np.abs(blocks).argmax(axis=2)[..., None]
    peak = np.take_along_axis(blocks, place, axis=2)[..., 0]
    scales = (peak / np.float32(-half)).astype(np.float32)
    inverse = np.zeros_like(scales)
    np.divide(np.float32(1), scales, out=inverse, where=scales != 0)
    codes = np.rint(blocks * inverse[..., None]) + np.float32(half)
    codes = np.clip(codes, 0, 2 * half - 1).astype(np.uint8)
    if bits == 4:
        codes = codes[..., 0::2] | np.left_shift(codes[..., 1::2], 4)
    return codes, scales


def dequantise(codes: Array, scales: Array, bits: int) -> Array:
    """Values fp32 [n, K] of quantised rows."""
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:2], -1)
    zero = np.float32(1 << (bits - 1))
    values: Array = (codes.astype(np.float32) - zero) * scales[..., None]
    return values.reshape(codes.shape[0], -1)


def quantised_job(
    name: str,
    shape: tuple[int, int],
    bits: int,
    rows: Callable[[str, int, int], Array],
    shared: bool,
) -> WeightJob:
    """The two stored tensors `<name>.q<bits>` and `<name>.scales` of a linear weight.

    Args:
        name: of the parameter.
        shape: [N, K].
        bits: 4 or 8.
        rows: reads fp32 rows of a parameter.
        shared: the codes are read by a Gather as well, which wants them two-dimensional.
    """
    count, width = shape
    packed = width * bits // 8
    alias: tuple[tuple[str, tuple[int, ...]], ...] = ()
    if shared:
        alias = ((f"{name}.q{bits}.table", (count, packed)),)
    per_block = BLOCK * bits // 8
    codes = StoredTensor(f"{name}.q{bits}", "uint8", (count, width // BLOCK, per_block), alias)
    scales = StoredTensor(f"{name}.scales", "float32", (count, width // BLOCK))

    def produce() -> Chunks:
        for start, stop in row_chunks(shape):
            q, s = round_to_nearest(rows(name, start, stop), bits)
            yield codes, start * packed, q
            yield scales, start * (width // BLOCK) * 4, s

    return WeightJob((codes, scales), produce)


def matmul_attributes(shape: tuple[int, int], bits: int) -> dict[str, Any]:
    """Attributes of the MatMulNBits node of a weight [N, K]."""
    return {
        "N": shape[0],
        "K": shape[1],
        "bits": bits,
        "block_size": BLOCK,
        "accuracy_level": ACCURACY_LEVEL,
    }
