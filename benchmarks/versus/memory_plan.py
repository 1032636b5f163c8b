"""Whether all engines of a table fit into memory beside each other."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.versus.engines import Engine

BESIDES_WEIGHTS = 1536 << 20
"""Bytes for the KV cache, activations and the runtime of an engine of this comparison."""
COPIES = 2
"""Of the weights while an engine loads: as read or mapped, and in its own layout."""
SHARE = 0.9
"""Of the free memory that engines may take."""


def size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def expected_bytes(weights: Path) -> int:
    """Memory of an engine that loads this file or folder; generous, since too little ends it."""
    return COPIES * size(weights) + BESIDES_WEIGHTS


def fit_together(engines: Sequence[Engine], free: int) -> bool:
    """Whether `free` bytes hold all engines, and a second process of the largest: starts are
    measured, and predictions compared, while the others stay loaded."""
    needs = [engine.memory for engine in engines]
    return sum(needs) + max(needs, default=0) <= SHARE * free
