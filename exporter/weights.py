"""weights/model.bin: layout, and streaming from the source without holding a model in memory.

How a runtime loads it. Graphs lie in `graphs/`, weights in `weights/`, and the external data
references inside the graphs are relative to the **bundle root** (`weights/model.bin`): ONNX Runtime
refuses `..` in such references, and resolves them against the folder named by the session option
`session.model_external_initializers_file_folder_path`. So a session is made with that option set to
the bundle folder and the path of the graph file; weights are then memory-mapped (measured with ONNX
Runtime 1.32, by path and by bytes). Matrices lie in the panels that our ops read straight from the
map, so no runtime packs them again.

A tied matrix is stored once: the output layer and the embedding read the same panels. Matrices that
one graph variant reads as one and another one by one lie side by side without padding; ONNX Runtime
maps such parts from the middle of a page as well (measured with 1.32).
"""

import contextlib
import hashlib
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ortloom.errors import SourceInvalid
from ortloom.models.manifest import FileEntry
from ortloom.models.weight_file import WEIGHT_ALIGNMENT, WeightFile, WeightTensor, weight_header

WEIGHT_PATH = "weights/model.bin"

CHUNK_BYTES = 32 * 1024 * 1024
"""Target size of one fp32 chunk while streaming."""

Array = np.ndarray[Any, Any]

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1}
"""Bytes of an element by the manifest's name of its type."""

ELEMENT_TYPES = {
    "float32": "FLOAT",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "uint8": "UINT8",
}
"""ONNX's name of each type."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of the weight file."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class JoinedTensor:
    """Tensors of equal row shape that lie side by side: `name` is all their rows, in this order."""

    name: str
    parts: tuple[str, ...]


Chunks = Iterator[tuple[StoredTensor, int, Array]]
"""(tensor, byte offset inside it, data) in any order."""


@dataclass(frozen=True)
class WeightJob:
    """Produces one or more stored tensors together (a quantised weight and its scales)."""

    tensors: tuple[StoredTensor, ...]
    produce: Callable[[], Chunks]


@dataclass
class WeightLayout:
    """Where each tensor lies; the order of jobs decides the order in the file."""

    jobs: list[WeightJob] = field(default_factory=list)
    joined: tuple[JoinedTensor, ...] = ()

    def places(self) -> dict[str, tuple[StoredTensor, int]]:
        """Tensor name → (tensor, byte offset), in order of the offsets."""
        tensors = {tensor.name: tensor for job in self.jobs for tensor in job.tensors}
        groups = {name: joined.parts for joined in self.joined for name in joined.parts}
        offset = WEIGHT_ALIGNMENT
        found: dict[str, tuple[StoredTensor, int]] = {}
        for name in tensors:
            if name in found:
                continue
            for part in groups.get(name, (name,)):
                found[part] = (tensors[part], offset)
                offset += tensors[part].nbytes
            offset = -(-offset // WEIGHT_ALIGNMENT) * WEIGHT_ALIGNMENT
        return found

    def size(self) -> int:
        """Bytes of the whole file; the last tensor is not padded."""
        places = list(self.places().values())
        if not places:
            return WEIGHT_ALIGNMENT
        tensor, offset = places[-1]
        return offset + tensor.nbytes

    def described(self) -> tuple[WeightTensor, ...]:
        """Manifest entries in order of the offsets; joined tensors come before their parts."""
        parents = {name: joined for joined in self.joined for name in joined.parts}
        places = self.places()
        entries = []
        for name, (tensor, offset) in places.items():
            parent = parents.get(name)
            if parent is not None and parent.parts[0] == name:
                parts = [places[part][0] for part in parent.parts]
                whole = WeightTensor(
                    name=parent.name,
                    dtype=tensor.dtype,
                    shape=(sum(part.shape[0] for part in parts), *tensor.shape[1:]),
                    offset=offset,
                    length=sum(part.nbytes for part in parts),
                )
                entries.append(whole)
            entry = WeightTensor(
                name=name,
                dtype=tensor.dtype,
                shape=tensor.shape,
                offset=offset,
                length=tensor.nbytes,
                part_of=None if parent is None else parent.name,
            )
            entries.append(entry)
        return tuple(entries)

    def payload(self) -> int:
        """Bytes of tensor data."""
        return sum(tensor.nbytes for job in self.jobs for tensor in job.tensors)

    def write(
        self, root: Path, variants: tuple[str, ...], advance: Callable[[int], None]
    ) -> WeightFile:
        """Write the file under `root` and describe it.

        Args:
            root: the bundle folder being built.
            variants: graph variants that use the file.
            advance: told about each written byte count.
        """
        path = root / WEIGHT_PATH
        path.parent.mkdir(parents=True, exist_ok=True)
        places, tensors = self.places(), self.described()
        with path.open("wb") as file:
            file.write(weight_header(len(tensors)))
            file.truncate(self.size())
            for job in self.jobs:
                for tensor, offset, data in _named(job):
                    file.seek(places[tensor.name][1] + offset)
                    file.write(np.ascontiguousarray(data).data)
                    advance(data.nbytes)
            file.flush()
            os.fsync(file.fileno())
        entry = FileEntry(path=WEIGHT_PATH, size=path.stat().st_size, sha256=hash_from_disk(path))
        return WeightFile(file=entry, variants=variants, tensors=tensors)


def _named(job: "WeightJob") -> Chunks:
    """What a job produces; SourceInvalid names the tensor of values that cannot be stored."""
    try:
        yield from job.produce()
    except ValueError as error:
        raise SourceInvalid(f"{job.tensors[0].name}: {error}") from error


def hash_from_disk(path: Path) -> str:
    """sha256 of a file that was written and synced, as hex, read anew from the disk.

    What the writing left in the page cache lies in many small pieces. It is let go and read again
    in huge pages where the file system has them, so that a server started next finds the weights
    as it would like to have them (docs/operations.md).
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            ask_for_huge_pages(content)
            with memoryview(content) as view:
                for start in range(0, len(view), CHUNK_BYTES):
                    digest.update(view[start : start + CHUNK_BYTES])
    return digest.hexdigest()


def ask_for_huge_pages(content: mmap.mmap) -> None:
    """Ask the system to back a map by huge pages; it may have none."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            content.madvise(mmap.MADV_HUGEPAGE)


def row_chunks(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Row ranges of a tensor so that one fp32 chunk stays near `CHUNK_BYTES`."""
    rows = shape[0] if shape else 1
    width = int(np.prod(shape[1:], dtype=np.int64)) * 4
    step = max(1, CHUNK_BYTES // max(1, width))
    for start in range(0, rows, step):
        yield start, min(rows, start + step)


def plain_job(
    name: str, shape: tuple[int, ...], rows: Callable[[str, int, int], Array]
) -> WeightJob:
    """A tensor stored as fp32."""
    tensor = StoredTensor(name, "float32", shape)
    width = int(np.prod(shape[1:], dtype=np.int64)) * 4

    def produce() -> Chunks:
        for start, stop in row_chunks(shape):
            yield tensor, start * width, rows(name, start, stop)

    return WeightJob((tensor,), produce)


def array_job(name: str, array: Array) -> WeightJob:
    """A tensor that is at hand (rotary tables)."""
    tensor = StoredTensor(name, "float32", array.shape)

    def produce() -> Chunks:
        yield tensor, 0, array

    return WeightJob((tensor,), produce)
