"""Giving a runner's memory back to the system, and having it again.

The KV pools are anonymous maps, so letting go of them frees them. Weights are mapped out of their
files: without a session they take no memory of this process, and their pages stay in the system's
page cache until it needs the room, unless they are dropped there too.
"""

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import onnxruntime as ort

from ortloom.models.bundle_files import inside
from ortloom.models.manifest import Graph, Manifest
from ortloom.runtime.kv_pools import PoolSpec, pool_specs
from ortloom.runtime.providers.base import ExecutionProvider
from ortloom.runtime.session import OrtSession
from ortloom.runtime.weight_pages import read_in_huge_pages

PLACEHOLDER_BLOCKS = 1


class Residence:
    """What it takes to open a model and to allocate its pools.

    Args:
        provider: runs it.
        manifest: the bundle's.
        folder: the bundle's folder.
        graph: the variant that runs.
        threads: intra-op threads.
        block_size: tokens a block.
    """

    def __init__(
        self,
        provider: ExecutionProvider,
        manifest: Manifest,
        folder: Path,
        graph: Graph,
        threads: int,
        block_size: int,
    ) -> None:
        self._provider = provider
        self._manifest = manifest
        self._folder = folder
        self._graph = graph
        self._threads = threads
        self._block_size = block_size
        self.specs: tuple[PoolSpec, ...] = pool_specs(graph)

    def open(self) -> OrtSession:
        """A session without pools."""
        if self._provider.reads_weights_in_place:
            for weight in self._manifest.weights:
                read_in_huge_pages(inside(self._folder, weight.file.path), weight)
        return OrtSession(self._provider, self._manifest, self._folder, self._graph, self._threads)

    def pools(self, num_blocks: int) -> list[ort.OrtValue]:
        """Empty pools."""
        return self._provider.allocate_kv(self.specs, num_blocks, self._block_size)

    def placeholder(self) -> list[ort.OrtValue]:
        """Pools of next to no size, for a session that must not be run."""
        return self.pools(PLACEHOLDER_BLOCKS)

    def forget_files(self) -> None:
        """Drop the weight files from the system's page cache."""
        drop_cached(inside(self._folder, weight.file.path) for weight in self._manifest.weights)


def bind(session: OrtSession, specs: Sequence[PoolSpec], pools: Sequence[ort.OrtValue]) -> None:
    """Bind pools and let go of the ones before."""
    session.bind_pools(specs, pools)
    give_back()


def give_back() -> None:
    """Free what Python and the C library keep of memory that nobody uses."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def drop_cached(files: Iterable[Path]) -> None:
    """Ask the system to forget what it caches of files; those in use by others stay."""
    for path in files:
        with contextlib.suppress(OSError, AttributeError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
