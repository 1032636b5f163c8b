"""The KV cache tensors: what a graph needs a block, and host memory for them.

A pool is [num_blocks + 1, block_size, ...] (block 0 is the null block); quantised ones have pools
of scales beside them, allocated and counted like the others. Host pools are anonymous maps:
page-aligned, zero, and backed by memory only where a block was written.
"""

import math
import mmap
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from ortloom.errors import ManifestError
from ortloom.models.manifest import Graph, TensorSpec

ONNX_ELEMENT_TYPES = {"float32": 1, "int8": 3, "float16": 10, "bfloat16": 16}
"""ONNX's numbers of the element types a pool may have."""

HUGE_PAGE_POOL = 4 << 20
"""Bytes of a pool from which large pages are asked for."""

_STORAGE = {"float32": np.float32, "int8": np.int8, "float16": np.float16, "bfloat16": np.uint16}


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One pool of a graph: bound as input `name` and output `output`; `tail` follows
    [num_blocks, block_size] in its shape."""

    name: str
    output: str
    dtype: str
    tail: tuple[int, ...]

    def bytes_per_token(self) -> int:
        """Bytes one token takes in this pool."""
        return math.prod(self.tail) * np.dtype(_STORAGE[self.dtype]).itemsize


def pool_specs(graph: Graph) -> tuple[PoolSpec, ...]:
    """The pools of a graph, keys before values before their scales, in layer order.

    Raises:
        ManifestError: a pool is not among the graph's inputs, or has an unknown shape or type, or
            the graph needs state this version does not keep.
    """
    io = graph.io
    if io.state_pools or io.inputs_embeds or io.lora_a_pools or io.draft_hidden_states:
        raise ManifestError(
            f"graph '{graph.file.path}' has inputs this version cannot feed (recurrent state, "
            "embeddings, adapters or draft states)"
        )
    by_name = {spec.name: spec for spec in graph.inputs}
    names = [*io.k_cache, *io.v_cache, *io.k_scale, *io.v_scale]
    outputs = [*io.k_cache_out, *io.v_cache_out, *io.k_scale_out, *io.v_scale_out]
    if len(names) != len(outputs):
        raise ManifestError(f"graph '{graph.file.path}' does not give back every pool")
    return tuple(
        _pool_spec(by_name.get(name), name, output)
        for name, output in zip(names, outputs, strict=True)
    )


def _pool_spec(spec: TensorSpec | None, name: str, output: str) -> PoolSpec:
    if spec is None:
        raise ManifestError(f"the graph has no input for pool '{name}'")
    tail = tuple(d for d in spec.shape[2:] if isinstance(d, int))
    if len(spec.shape) < 3 or len(tail) != len(spec.shape) - 2 or spec.dtype not in _STORAGE:
        raise ManifestError(f"pool '{name}' has the unusable form {spec.dtype}{list(spec.shape)}")
    return PoolSpec(name, output, spec.dtype, tail)


def host_pool(spec: PoolSpec, num_blocks: int, block_size: int) -> ort.OrtValue:
    """A zeroed pool [num_blocks + 1, block_size, *tail] in host memory, touched lazily.

    The value shares memory with the map and keeps it alive.
    """
    shape = (num_blocks + 1, block_size, *spec.tail)
    storage = np.dtype(_STORAGE[spec.dtype])
    size = math.prod(shape) * storage.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    region = mmap.mmap(-1, size, flags=flags | getattr(mmap, "MAP_NORESERVE", 0))
    if size >= HUGE_PAGE_POOL and hasattr(mmap, "MADV_HUGEPAGE"):
        # Attention reads blocks from all over the pool: with small pages it waits for page walks.
        with suppress(OSError):  # a kernel without huge pages
            region.madvise(mmap.MADV_HUGEPAGE)
    array: NDArray[np.generic] = np.frombuffer(region, storage).reshape(shape)
    if spec.dtype == "bfloat16":
        element = ONNX_ELEMENT_TYPES[spec.dtype]
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, element)
    return ort.OrtValue.ortvalue_from_numpy(array)
