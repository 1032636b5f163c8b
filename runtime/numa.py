"""NUMA nodes: their processors, and binding this process's memory to one (Linux)."""

import os
import platform
from pathlib import Path

from ortloom.runtime.machine import affinity, processors

_ROOT = Path("/")
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""System call numbers by machine."""

_MPOL_BIND = 2
_MASK_BITS = 1024
"""Largest node number the kernel may be built for, and one more."""


def node_processors(root: Path = _ROOT) -> dict[int, set[int]]:
    """Processors of each NUMA node; empty where the system names none."""
    found: dict[int, set[int]] = {}
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*")):
        try:
            text = (folder / "cpulist").read_text().strip()
            found[int(folder.name.removeprefix("node"))] = processors(text) if text else set()
        except (OSError, ValueError):
            continue
    return found


def best_node(root: Path = _ROOT, allowed: set[int] | None = None) -> int | None:
    """The node with most processors this process may use; the lowest of equals."""
    usable = affinity() if allowed is None else allowed
    nodes = node_processors(root)
    return max(nodes, key=lambda node: (len(nodes[node] & usable), -node), default=None)


def bind_memory(node: int) -> str | None:
    """Take memory from one node only, for this thread and those it will start.

    Returns:
        Why it could not be done, or None.
    """
    import ctypes  # not on the way to a server's start

    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None or not 0 <= node < _MASK_BITS:
        return f"no system call for it on {platform.machine()}"
    mask = (ctypes.c_ulong * (_MASK_BITS // 64))()
    mask[node // 64] = 1 << node % 64
    library = ctypes.CDLL(None, use_errno=True)
    done = library.syscall(
        ctypes.c_long(number), ctypes.c_int(_MPOL_BIND), mask, ctypes.c_ulong(_MASK_BITS)
    )
    return None if done == 0 else os.strerror(ctypes.get_errno())
