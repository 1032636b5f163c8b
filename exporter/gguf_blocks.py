"""GGUF's quantised blocks as codes, scales and minima, without a change of any value.

For each type the scale, code and minimum (or implied zero point) of `ortloom.kernels.
packed_contract`, evaluated in fp32 as it says, give bitwise the value that the block stands for.

Blocks, little endian (fp16 scales d, m, dmin; block formats of the GGUF specification):
  Q4_0  32 elements: d, 16 bytes (low nibbles are elements 0-15, high ones 16-31); d * (q - 8)
  Q4_1  32 elements: d, m, 16 bytes as above; d * q + m
  Q8_0  32 elements: d, 32 int8; d * q
  Q4_K  256 elements: d, dmin, 12 bytes of 6-bit scales s and minima t of 8 blocks of 32, then 128
        bytes, 32 of them for two blocks (low nibbles the first); (d * s) * q - (dmin * t)
  Q6_K  256 elements: 128 bytes of low nibbles, 64 of high bit pairs, 16 int8 scales s of blocks of
        16, d; (d * s) * (q - 32)
Products of d with an integer scale need more than 11 bits, so those scales are fp32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class BlockRows:
    """Rows of a quantised tensor: codes uint8 [n, K]; scales fp16 or fp32 [n, K / block_size];
    mins of the same type and shape, or None for the zero point that the format implies."""

    format: Literal["u4", "u8"]
    block_size: int
    codes: Array
    scales: Array
    mins: Array | None


@dataclass(frozen=True)
class BlockType:
    """How a GGUF type maps: elements and bytes of a stored block, and the packed form's facts."""

    elements: int
    nbytes: int
    format: Literal["u4", "u8"]
    block_size: int
    scale_type: Literal["float16", "float32"]
    has_mins: bool


BLOCK_TYPES = {
    "Q4_0": BlockType(32, 18, "u4", 32, "float16", False),
    "Q4_1": BlockType(32, 20, "u4", 32, "float16", True),
    "Q8_0": BlockType(32, 34, "u8", 32, "float16", False),
    "Q4_K": BlockType(256, 144, "u4", 32, "float32", True),
    "Q6_K": BlockType(256, 210, "u8", 16, "float32", False),
}

_Parts = tuple[Array, Array, Array | None]
"""Codes [blocks, elements], scales and mins [blocks, elements / block_size]."""


def _half(blocks: Array, at: int) -> Array:
    """The fp16 number at a byte of every block [m, bytes] → [m, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")


def _halves(packed: Array) -> Array:
    """[m, g, b] bytes → [m, g * 2 * b] codes: of each group the low nibbles, then the high ones."""
    count, groups, size = packed.shape
    codes = np.empty((count, groups, 2, size), dtype=np.uint8)
    np.bitwise_and(packed, 15, out=codes[:, :, 0])
    np.right_shift(packed, 4, out=codes[:, :, 1])
    return codes.reshape(count, groups * 2 * size)


def _q4_0(blocks: Array) -> _Parts:
    return _halves(blocks[:, None, 2:]), _half(blocks, 0), None


def _q4_1(blocks: Array) -> _Parts:
    return _halves(blocks[:, None, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Array) -> _Parts:
    # Flipping the sign bit of an int8 is adding 128 to it.
    return blocks[:, 2:] ^ np.uint8(0x80), _half(blocks, 0), None


def _q4_k(blocks: Array) -> _Parts:
    d, dmin = _half(blocks, 0).astype(np.float32), _half(blocks, 2).astype(np.float32)
    first, second, third = (blocks[:, at : at + 4] for at in (4, 8, 12))
    # Blocks 0-3 have their 6 bits in one byte; of blocks 4-7 the upper two bits are the top bits
    # of the bytes of blocks 0-3.
    scales = np.hstack([first & 0x3F, (third & 0x0F) | ((first >> 2) & 0x30)])
    mins = np.hstack([second & 0x3F, (third >> 4) | ((second >> 2) & 0x30)])
    codes = _halves(blocks[:, 16:].reshape(-1, 4, 32))
    return codes, d * scales.astype(np.float32), -(dmin * mins.astype(np.float32))


def _q6_k(blocks: Array) -> _Parts:
    low = _halves(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    high = (pairs >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]) & np.uint8(3)
    codes = (low | (high << np.uint8(4))).reshape(-1, 256)
    codes += np.uint8(96)  # the zero point 32 becomes the one of the packed form, 128
    steps = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return codes, _half(blocks, 208).astype(np.float32) * steps, None


_READERS: dict[str, Callable[[Array], _Parts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}


def block_rows(rows: Array, kind: str) -> BlockRows:
    """The parts of stored rows.

    Args:
        rows: bytes uint8 [n, bytes of a row], whole rows of the tensor.
        kind: the GGUF type, a key of `BLOCK_TYPES`.

    Raises:
        ValueError: another type, or rows that are not whole blocks.
    """
    if kind not in BLOCK_TYPES:
        raise ValueError(f"{kind} has no block form (there are: {', '.join(BLOCK_TYPES)})")
    facts = BLOCK_TYPES[kind]
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] % facts.nbytes:
        raise ValueError(
            f"rows are {rows.dtype} {list(rows.shape)}, not bytes in blocks of {facts.nbytes}"
        )
    count = rows.shape[0]
    width = rows.shape[1] // facts.nbytes * facts.elements
    codes, scales, mins = _READERS[kind](np.ascontiguousarray(rows).reshape(-1, facts.nbytes))
    blocks = (count, width // facts.block_size)
    return BlockRows(
        facts.format,
        facts.block_size,
        codes.reshape(count, width),
        scales.reshape(blocks),
        None if mins is None else mins.reshape(blocks),
    )
