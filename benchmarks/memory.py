"""Proportional memory (PSS) of a server's processes."""

from pathlib import Path


def pss_bytes(pid: int) -> int:
    """Proportional set size of one process, from /proc/PID/smaps_rollup."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"no Pss line for process {pid}")


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            found += tree(int(child))
    return found
