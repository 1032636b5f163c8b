"""Weight files: their layout, what a manifest says of them, and whether a file is what it says."""

from pathlib import Path

import msgspec

from ortloom.errors import ManifestError
from ortloom.models.bundle_files import sized
from ortloom.models.graph_entry import FileEntry

WEIGHT_ALIGNMENT = 64 * 1024
"""Bytes; every tensor in a weight file starts on such a boundary, the parts of one aside."""

WEIGHT_MAGIC = b"ORTLOOMW"
"""A weight file starts with magic, u32 LE format version, u32 LE tensor count, then zeros up to
WEIGHT_ALIGNMENT; tensor data follows."""

WEIGHT_FORMAT_VERSION = 1


class WeightTensor(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One tensor in a weight file; `offset` and `length` in bytes.

    `part_of` names the tensor whose bytes these are some of: rows of a matrix that one variant
    reads whole and another in parts.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int
    part_of: str | None = None


class WeightFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One weight file with its layout; which graph variants use it."""

    file: FileEntry
    variants: tuple[str, ...]
    tensors: tuple[WeightTensor, ...]


def weight_header(num_tensors: int) -> bytes:
    """The first WEIGHT_ALIGNMENT bytes of a weight file."""
    head = WEIGHT_MAGIC + WEIGHT_FORMAT_VERSION.to_bytes(4, "little")
    return (head + num_tensors.to_bytes(4, "little")).ljust(WEIGHT_ALIGNMENT, b"\0")


def check_header(folder: Path, weight: WeightFile) -> None:
    """Check the size and header of a weight file, and where its tensors lie.

    Raises:
        ManifestError: what does not fit.
    """
    full = sized(folder, weight.file)
    with full.open("rb") as file:
        head = file.read(16)
    if head != weight_header(len(weight.tensors))[:16]:
        raise ManifestError(f"'{weight.file.path}' does not start with its weight header")
    whole = {t.name: (t.offset, t.length) for t in weight.tensors if t.part_of is None}
    for tensor in weight.tensors:
        start, size = 0, weight.file.size
        if tensor.part_of is not None:
            start, size = whole.get(tensor.part_of, (0, 0))
        elif tensor.offset % WEIGHT_ALIGNMENT:
            raise ManifestError(f"tensor '{tensor.name}' is not aligned in '{weight.file.path}'")
        if tensor.offset < start or tensor.offset + tensor.length > start + size:
            outside = weight.file.path if tensor.part_of is None else tensor.part_of
            raise ManifestError(f"tensor '{tensor.name}' lies outside '{outside}'")
