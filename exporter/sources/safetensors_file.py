"""One .safetensors file: header checks and row reads, without torch and without copies."""

import json
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ortloom.errors import SourceInvalid
from ortloom.exporter.sources.checkpoint import FloatRows, TensorInfo

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

ITEM_SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4,
    "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip

READABLE = frozenset({"F32", "F16", "BF16"})
"""Types that carry weights here; anything else is a quantised form of a later release."""


@dataclass(frozen=True)
class _Place:
    info: TensorInfo
    start: int
    stop: int


def _to_float32(raw: np.ndarray[Any, Any], dtype: str) -> FloatRows:
    if dtype == "F32":
        return np.frombuffer(raw, dtype="<f4").astype(np.float32, copy=False)
    if dtype == "F16":
        return np.frombuffer(raw, dtype="<f2").astype(np.float32)
    wide = np.frombuffer(raw, dtype="<u2").astype(np.uint32)
    return np.left_shift(wide, 16, out=wide).view(np.float32)


class SafetensorsFile:
    """A memory-mapped file.

    Raises:
        SourceInvalid: not a safetensors file, truncated, or with a header that does not fit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places: dict[str, _Place] = {}
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                head = file.read(8)
                length = int.from_bytes(head, "little") if len(head) == 8 else -1
                if length < 2 or length > min(MAX_HEADER_BYTES, size - 8):
                    raise SourceInvalid(
                        f"'{path.name}' is not a safetensors file or is truncated "
                        f"({size} bytes, header length {length})"
                    )
                header = self._parse(file.read(length))
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise SourceInvalid(f"cannot read '{path.name}': {error.strerror}") from None
        self._check(header, 8 + length, size)

    def _parse(self, raw: bytes) -> dict[str, Any]:
        try:
            header = json.loads(raw)
        except (ValueError, UnicodeDecodeError):
            raise SourceInvalid(f"'{self.path.name}' has a corrupt safetensors header") from None
        if not isinstance(header, dict):
            raise SourceInvalid(f"'{self.path.name}' has a corrupt safetensors header")
        header.pop("__metadata__", None)
        return header

    def _check(self, header: dict[str, Any], base: int, size: int) -> None:
        for name, entry in header.items():
            try:
                dtype, shape = str(entry["dtype"]), tuple(int(d) for d in entry["shape"])
                start, stop = (int(o) for o in entry["data_offsets"])
                item = ITEM_SIZES[dtype]
            except (KeyError, TypeError, ValueError):
                raise SourceInvalid(
                    f"'{self.path.name}' has a corrupt safetensors header (tensor '{name}')"
                ) from None
            count = 1
            for dim in shape:
                count *= dim
            if min((*shape, start, stop - start), default=0) < 0 or stop - start != count * item:
                raise SourceInvalid(
                    f"'{self.path.name}' has a corrupt safetensors header: tensor '{name}' of "
                    f"shape {list(shape)} and type {dtype} does not fit its {stop - start} bytes"
                )
            if base + stop > size:
                raise SourceInvalid(
                    f"'{self.path.name}' is truncated: tensor '{name}' ends at byte "
                    f"{base + stop}, the file has {size}"
                )
            self._places[name] = _Place(TensorInfo(shape, dtype), base + start, base + stop)

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """All tensors of the file."""
        return {name: place.info for name, place in self._places.items()}

    def rows(self, name: str, start: int, stop: int) -> FloatRows:
        """Rows start .. stop along the first axis as fp32.

        Raises:
            SourceInvalid: the tensor's type holds no plain floats.
        """
        place = self._places[name]
        shape, dtype = place.info.shape, place.info.dtype
        if dtype not in READABLE:
            raise SourceInvalid(f"tensor '{name}' has type {dtype}, which is not supported")
        row = ITEM_SIZES[dtype]
        for dim in shape[1:]:
            row *= dim
        begin = place.start + start * row
        raw = np.frombuffer(self._map, dtype=np.uint8, count=(stop - start) * row, offset=begin)
        return _to_float32(raw, dtype).reshape(stop - start, *shape[1:])
