"""The pages of mapped weight files: in which size they come, and which are given back.

Our ops read weights through a map that asks for huge pages (kernels/csrc/weight_map.h). Without our
library ONNX Runtime unpacks most weights into memory of its own while it loads, and
reads the originals through a private map of the weight file, whose pages stay resident although
no step needs more than a few rows of them. Dropping clean pages of such a map costs nothing but a
soft fault when a row is read again. Where our ops read the map itself nothing is dropped.
"""

import contextlib
import ctypes
import mmap
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ortloom.models.weight_file import WeightFile

_DONTNEED = 4
_HUGE = 2 << 20
_SMALL = 64 << 10
"""Bytes below which ONNX Runtime's kernels, not ours, may read a tensor."""

_AREA = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S{4} \S+ \S+ \S+\s+(.*)$")


def read_in_huge_pages(path: Path, weights: WeightFile) -> int:
    """Bring the parts of a weight file that ONNX Runtime itself reads into the page cache.

    It copies the small tensors while it loads, and what is not cached then comes in small pages, as
    does all around it afterwards. So their surroundings are read first, through a map that asks for
    huge pages. Parts that are cached already cost nothing and stay as they are; the rest of the
    file is left to the moment in which it is needed.

    Returns:
        Huge pages that were touched; 0 where there are none.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return 0
    small = [tensor for tensor in weights.tensors if tensor.length < _SMALL]
    pages = sorted({tensor.offset // _HUGE for tensor in small})
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        with contextlib.suppress(OSError):
            content.madvise(mmap.MADV_HUGEPAGE)
        for page in pages:
            content[page * _HUGE]
    return len(pages)


def drop_clean_pages(files: Iterable[Path]) -> int:
    """Drop the resident pages of this process's maps of `files`.

    Areas with pages of our own (written to, so not in the file) are left alone.

    Returns:
        Bytes that were resident in the dropped areas; 0 where the system does not tell.
    """
    wanted = {str(path.resolve()) for path in files}
    if not wanted:
        return 0
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        areas = list(_clean_areas(wanted, Path("/proc/self/smaps").read_text()))
    except (OSError, AttributeError):
        return 0
    dropped = 0
    for start, end, resident in areas:
        if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONTNEED) == 0:
            dropped += resident
    return dropped


def _clean_areas(files: set[str], smaps: str) -> Iterator[tuple[int, int, int]]:
    """(start, end, resident bytes) of the areas that map `files` and hold no private page."""
    area: tuple[int, int] | None = None
    resident = 0
    for line in smaps.splitlines():
        if match := _AREA.match(line):
            start, end, name = match.groups()
            area = (int(start, 16), int(end, 16)) if name in files else None
        elif area is not None and line.startswith("Rss:"):
            resident = int(line.split()[1]) * 1024
        elif area is not None and line.startswith("Anonymous:"):
            if line.split()[1] == "0" and resident:
                yield (*area, resident)
            area = None
