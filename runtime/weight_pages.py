"""Giving back weight pages that are mapped but no longer needed in memory.

Without our library ONNX Runtime unpacks most weights into memory of its own while it loads, and
reads the originals through a private map of the weight file, whose pages stay resident although
no step needs more than a few rows of them. Dropping clean pages of such a map costs nothing but a
soft fault when a row is read again. Where our ops read the map itself nothing is dropped.
"""

import ctypes
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_DONTNEED = 4
_AREA = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S{4} \S+ \S+ \S+\s+(.*)$")


def drop_clean_pages(files: Iterable[Path]) -> int:
    """Drop the resident pages of this process's maps of `files`.

    Areas with pages of our own (written to, so not in the file) are left alone.

    Returns:
        Bytes that were resident in the dropped areas; 0 where the system does not tell.
    """
    wanted = {str(path.resolve()) for path in files}
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
