"""The GGUF container (version 2 and 3, little endian): metadata and the tensor directory.

Layout, from the GGUF specification: magic, u32 version, u64 tensor count, u64 metadata count, then
key-value pairs (string key, u32 type, value), then per tensor name, u32 rank, u64 sizes (innermost
first), u32 type and u64 offset; data starts at the next multiple of `general.alignment`. Arrays
(vocabulary, merges) can be long and are skipped: only their length is kept.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortloom.errors import SourceInvalid

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9

BLOCKS = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292), 30: ("BF16", 1, 2),
}  # fmt: skip
"""Type number → (name, elements a block, bytes a block)."""


@dataclass(frozen=True)
class StoredGguf:
    """A tensor of the directory: shape outermost first, byte range in the file."""

    shape: tuple[int, ...]
    kind: str
    start: int
    length: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one index of the first axis (of the whole tensor if it has one axis)."""
        return self.length // self.shape[0] if len(self.shape) > 1 else self.length


class GgufContainer:
    """A memory-mapped file.

    Raises:
        SourceInvalid: not GGUF, another version, corrupt or truncated.
    """

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self.fields: dict[str, Any] = {}
        self.tensors: dict[str, StoredGguf] = {}
        try:
            with path.open("rb") as file:
                if file.read(4) != MAGIC:
                    raise SourceInvalid(f"'{path.name}' is not a GGUF file")
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise SourceInvalid(f"cannot read '{path.name}': {error.strerror}") from None
        self._at = 4
        try:
            self._parse()
        except (struct.error, UnicodeDecodeError, KeyError, OverflowError) as error:
            raise SourceInvalid(f"'{path.name}' is corrupt or truncated: {error!r}") from None

    def _scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.data, self._at)
        self._at += struct.calcsize(form)
        return value

    def _string(self) -> str:
        length = self._scalar("<Q")
        if self._at + length > len(self.data):
            raise SourceInvalid(f"'{self._name}' is corrupt or truncated")
        raw = self.data[self._at : self._at + length]
        self._at += length
        return raw.decode("utf-8", errors="replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind])
        inner, count = self._scalar("<I"), self._scalar("<Q")
        if inner == _STRING:
            for _ in range(count):
                self._at += 8 + struct.unpack_from("<Q", self.data, self._at)[0]
        elif inner == _ARRAY:
            for _ in range(count):
                self._value(inner)
        else:
            self._at += count * struct.calcsize(_SCALARS[inner])
        if self._at > len(self.data):
            raise SourceInvalid(f"'{self._name}' is corrupt or truncated")
        return range(count)

    def _parse(self) -> None:
        version = self._scalar("<I")
        if version not in VERSIONS:
            raise SourceInvalid(f"'{self._name}' has GGUF version {version}; 2 and 3 are supported")
        count, pairs = self._scalar("<Q"), self._scalar("<Q")
        for _ in range(pairs):
            key = self._string()
            self.fields[key] = self._value(self._scalar("<I"))
        entries = []
        for _ in range(count):
            name, rank = self._string(), self._scalar("<I")
            if rank > 4:
                raise SourceInvalid(f"'{self._name}' is corrupt: tensor '{name}' has {rank} axes")
            sizes = tuple(self._scalar("<Q") for _ in range(rank))
            entries.append((name, sizes, self._scalar("<I"), self._scalar("<Q")))
        alignment = int(self.fields.get("general.alignment", DEFAULT_ALIGNMENT))
        base = -(-self._at // alignment) * alignment
        for name, sizes, kind, offset in entries:
            self.tensors[name] = self._place(name, sizes, kind, base + offset)

    def _place(self, name: str, sizes: tuple[int, ...], kind: int, start: int) -> StoredGguf:
        label, block, size = BLOCKS.get(kind, (f"type {kind}", 1, 0))
        total = 1
        for axis in sizes:
            total *= axis
        if not sizes or total < 1 or sizes[0] % block:
            raise SourceInvalid(f"'{self._name}' is corrupt: tensor '{name}' has sizes {sizes}")
        length = total // block * size
        if start + length > len(self.data):
            raise SourceInvalid(
                f"'{self._name}' is truncated: tensor '{name}' ends at byte {start + length}, the "
                f"file has {len(self.data)}"
            )
        return StoredGguf(tuple(reversed(sizes)), label, start, length)
