"""What float32 keys and values become in a pool of another element type, in NumPy.

NumPy has no bfloat16: its bits are uint16 here.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

STORAGE: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,
    "int8": np.int8,
}
"""Element type of a pool → NumPy's type of what is stored."""

MOST = 127
"""Largest code of an int8 pool."""

SMALLEST = 2.0**-100
"""Largest value of a head below which its codes are all 0: 127 / it might not be finite."""


def element_type(pool: npt.NDArray[Any]) -> str:
    """The element type of a pool's array; uint16 is bfloat16.

    Raises:
        ValueError: no pool has this type.
    """
    for name, stored in STORAGE.items():
        if pool.dtype == stored:
            return name
    raise ValueError(f"a pool cannot hold {pool.dtype}")


def bfloat16_bits(x: Float32) -> npt.NDArray[np.uint16]:
    """The bits of x rounded to bfloat16, to nearest, ties to even; x must be finite."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def from_bfloat16(bits: npt.NDArray[np.uint16]) -> Float32:
    """bfloat16 bits as float32, exactly."""
    return (np.ascontiguousarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def quantise(x: Float32) -> tuple[npt.NDArray[np.int8], Float32]:
    """Codes [..., D] and scales [...] of heads x [..., D]: int8 with one scale a token and head."""
    largest = np.abs(x).max(axis=-1).astype(np.float32)
    scale = largest / np.float32(MOST)
    some = largest >= SMALLEST
    inverse = np.divide(np.float32(MOST), largest, out=np.zeros_like(largest), where=some)
    codes = np.clip(np.rint(x * inverse[..., None]), -MOST, MOST)
    return codes.astype(np.int8), scale


def stored(x: Float32, kind: str) -> npt.NDArray[Any]:
    """Heads rounded to a float pool's element type `kind`."""
    return bfloat16_bits(x) if kind == "bfloat16" else x.astype(STORAGE[kind])


def widened(pool: npt.NDArray[Any]) -> Float32:
    """A pool's elements as float32, exactly; codes without their scales."""
    return from_bfloat16(pool) if pool.dtype == np.uint16 else pool.astype(np.float32)
