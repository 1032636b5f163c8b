"""A box of one processor and 1 GiB of memory: a control group where the system lets us make one."""

import os
import sys
from pathlib import Path

MIB = 1 << 20
ENTER = (
    "import os, sys\n"
    "if sys.argv[1]:\n"
    "    with open(sys.argv[1], 'w') as file:\n"
    "        file.write(str(os.getpid()))\n"
    "os.sched_setaffinity(0, {int(sys.argv[2])})\n"
    "os.execv(sys.argv[3], sys.argv[3:])\n"
)


def _own_groups():
    """Controllers (empty for v2) -> path of this process's group."""
    found = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _candidates():
    """(folder that may get a child group, whether it is v2), likeliest first."""
    groups, base = _own_groups(), Path("/sys/fs/cgroup")
    if "memory" in groups:
        for folder in dict.fromkeys(
            (base / "memory" / groups["memory"].lstrip("/"), base / "memory")
        ):
            yield folder, False
    if (base / "cgroup.controllers").exists():
        for folder in dict.fromkeys((base / groups.get("", "/").lstrip("/"), base)):
            yield folder, True


class MemoryGroup:
    """A control group of our own with a limit of memory; removed when closed, once empty."""

    def __init__(self, folder: Path, is_v2: bool) -> None:
        self.folder = folder
        self.is_v2 = is_v2

    @property
    def procs(self) -> Path:
        return self.folder / "cgroup.procs"

    def members(self) -> set[int]:
        return {int(pid) for pid in self.procs.read_text().split()}

    def peak(self) -> int:
        name = "memory.peak" if self.is_v2 else "memory.max_usage_in_bytes"
        return int((self.folder / name).read_text())

    def oom_kills(self) -> int:
        name = "memory.events" if self.is_v2 else "memory.oom_control"
        lines = (self.folder / name).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def close(self) -> None:
        self.folder.rmdir()


def make_group(limit: int) -> MemoryGroup | None:
    """A group with the limit, or None where the system lets us make none."""
    for parent, is_v2 in _candidates():
        folder = parent / f"ortloom-edge-{os.getpid()}"
        try:
            if is_v2 and "memory" not in (parent / "cgroup.subtree_control").read_text().split():
                (parent / "cgroup.subtree_control").write_text("+memory")
            folder.mkdir()
        except OSError:
            continue
        group = MemoryGroup(folder, is_v2)
        try:
            name = "memory.max" if is_v2 else "memory.limit_in_bytes"
            (folder / name).write_text(str(limit))
            group.oom_kills(), group.peak()
        except OSError:
            group.close()
            continue
        return group
    return None


def enter(command: list[str], group: MemoryGroup | None) -> list[str]:
    """The command, run on one processor and inside the group."""
    procs = "" if group is None else str(group.procs)
    return [sys.executable, "-c", ENTER, procs, str(min(os.sched_getaffinity(0))), *command]


def drop_pages(bundle: Path) -> None:
    """Ask the kernel to forget a bundle's pages, so that who reads them is charged for them."""
    for path in bundle.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def total_pss(pids: set[int]) -> int:
    """Proportional memory of processes that still run."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(li.split()[1]) * 1024 for li in text.splitlines() if li.startswith("Pss:"))
    return total
