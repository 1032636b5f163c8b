"""Pools between the order of memory and the order of tokens, in NumPy.

A pool's array has the declared shape [num_blocks, block_size, KH, ...]; in the head-major layout
(`contract.HEAD_MAJOR_LAYOUT`) the elements of a block lie in another order than that shape says.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ortloom.kernels.contract import CANONICAL_LAYOUT, HEAD_MAJOR_LAYOUT, KEY_LANES

Pool = npt.NDArray[Any]


def _is_canonical(layout: str) -> bool:
    if layout not in (CANONICAL_LAYOUT, HEAD_MAJOR_LAYOUT):
        raise ValueError(f"kv_layout '{layout}' is not supported")
    return layout == CANONICAL_LAYOUT


def by_token(name: str, pool: Pool, layout: str) -> Pool:
    """A pool's elements indexed [block, place, kv head, ...] as declared.

    Args:
        name: of the pool's input: key_cache, value_cache, k_scale or v_scale.
        pool: as it lies in memory, in its declared shape.
        layout: the node's kv_layout.

    Returns:
        A new array.

    Raises:
        ValueError: no such layout.
    """
    if _is_canonical(layout):
        return pool.copy()
    blocks, size, heads, *channels = pool.shape
    if name == "key_cache":
        tiles = pool.reshape(blocks, heads, size // KEY_LANES, *channels, KEY_LANES)
        return np.ascontiguousarray(tiles.transpose(0, 2, 4, 1, 3)).reshape(pool.shape)
    rows = pool.reshape(blocks, heads, size, *channels)
    return np.ascontiguousarray(np.moveaxis(rows, 1, 2))


def as_stored(name: str, pool: Pool, layout: str) -> Pool:
    """The inverse of `by_token`: the elements as they lie in memory, in the declared shape.

    Raises:
        ValueError: no such layout.
    """
    if _is_canonical(layout):
        return pool.copy()
    blocks, size, heads, *channels = pool.shape
    if name == "key_cache":
        tiles = pool.reshape(blocks, size // KEY_LANES, KEY_LANES, heads, *channels)
        stored = tiles.transpose(0, 3, 1, 4, 2)
    else:
        stored = np.moveaxis(pool, 2, 1)
    return np.ascontiguousarray(stored).reshape(pool.shape)
