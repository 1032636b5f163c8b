"""What this process may use of the machine: memory, processors, and its own memory figures.

Limits come from the control groups (v2 and v1, every ancestor of our own group counts), the
affinity mask and the processor topology. Sizes in bytes. `root` is the file system root; tests
point it at a made-up tree.

This module knows nothing of models or ONNX Runtime.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_ROOT = Path("/")
_UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2**63; anything this large is none."""

MAX_PROCESSORS = 4096
"""One more than the largest processor number that is taken."""


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _read_int(path: Path) -> int | None:
    text = _read(path)
    try:
        return int(text) if text is not None else None
    except ValueError:  # "max"
        return None


def _memberships(root: Path) -> dict[str, str]:
    """Controller -> path of our group; the v2 hierarchy has the key ''."""
    groups: dict[str, str] = {}
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = path
    return groups


def _ancestors(mount: Path, group: str) -> Iterator[Path]:
    """Our group's folder and its parents up to the mount.

    Inside a container the group path may be that of the host and not exist below the mount; then
    the mount itself is our group.
    """
    folder = mount / group.lstrip("/")
    if not folder.is_dir():
        folder = mount
    while True:
        yield folder
        if folder == mount or mount not in folder.parents:
            return
        folder = folder.parent


def _group_folders(controller: str, root: Path) -> Iterator[tuple[Path, bool]]:
    """(folder, is_v2) of every group whose limits bind us for `controller`."""
    groups = _memberships(root)
    base = root / "sys/fs/cgroup"
    if controller in groups:
        for folder in _ancestors(base / controller, groups[controller]):
            yield folder, False
    if "" in groups and (base / "cgroup.controllers").exists():
        for folder in _ancestors(base, groups[""]):
            yield folder, True


def _stat_field(text: str | None, field: str) -> int:
    for line in (text or "").splitlines():
        name, _, value = line.partition(" ")
        if name == field:
            return int(value)
    return 0


def memory_left(root: Path = _ROOT) -> int:
    """Bytes this process can still take: the least of the system's available memory and what each
    cgroup leaves. Inactive file pages count as free, since the kernel drops them first."""
    left = [_meminfo("MemAvailable", root)]
    for folder, is_v2 in _group_folders("memory", root):
        limit = _read_int(folder / ("memory.max" if is_v2 else "memory.limit_in_bytes"))
        usage = _read_int(folder / ("memory.current" if is_v2 else "memory.usage_in_bytes"))
        if limit is None or usage is None or limit >= _UNLIMITED:
            continue
        field = "inactive_file" if is_v2 else "total_inactive_file"
        inactive = _stat_field(_read(folder / "memory.stat"), field)
        left.append(limit - max(0, usage - inactive))
    return max(0, min(left))


def memory_total(root: Path = _ROOT) -> int:
    """Bytes of memory this process could ever have: installed memory or the least cgroup limit."""
    total = [_meminfo("MemTotal", root)]
    for folder, is_v2 in _group_folders("memory", root):
        limit = _read_int(folder / ("memory.max" if is_v2 else "memory.limit_in_bytes"))
        if limit is not None and limit < _UNLIMITED:
            total.append(limit)
    return min(total)


def _meminfo(field: str, root: Path) -> int:
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return _UNLIMITED


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Processors the cgroups allow per period, or None without a limit."""
    quotas: list[float] = []
    for folder, is_v2 in _group_folders("cpu", root):
        if is_v2:
            words = (_read(folder / "cpu.max") or "max").split()
            if len(words) == 2 and words[0] != "max":
                quotas.append(int(words[0]) / int(words[1]))
        else:
            quota = _read_int(folder / "cpu.cfs_quota_us")
            period = _read_int(folder / "cpu.cfs_period_us")
            if quota is not None and quota > 0 and period:
                quotas.append(quota / period)
    return min(quotas) if quotas else None


def affinity() -> set[int]:
    """Processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def keep_to(cpus: Iterable[int]) -> None:
    """Bind this thread, and those it will start, to `cpus`; nothing where none are given or the
    system has no such call."""
    wanted = set(cpus)
    if wanted and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, wanted)


def processors(text: str) -> set[int]:
    """Processor numbers of a list such as `0-3,8`.

    Raises:
        ValueError: it is no such list.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        numbers = (first, last) if dash else (first,)
        if not all(number.isascii() and number.isdigit() for number in numbers):
            raise ValueError(f"'{text}' is not a list of processors such as 0-3,8")
        low, high = int(first), int(last if dash else first)
        if high < low or high >= MAX_PROCESSORS:
            raise ValueError(f"'{part.strip()}' is not a range of processors")
        found.update(range(low, high + 1))
    return found


def physical_cores(cpus: set[int], root: Path = _ROOT) -> int:
    """Distinct cores among `cpus`; hyperthread siblings count once. An unknown topology counts
    every processor as a core."""
    cores: set[tuple[str, str]] = set()
    for cpu in cpus:
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        package, core = _read(folder / "physical_package_id"), _read(folder / "core_id")
        if package is None or core is None:
            return max(1, len(cpus))
        cores.add((package.strip(), core.strip()))
    return max(1, len(cores))


def default_threads(root: Path = _ROOT, cpus: set[int] | None = None) -> int:
    """Threads for model code: physical cores within the affinity mask, not more than the quota
    (rounded down: a thread too many is throttled and stalls the others)."""
    cores = physical_cores(affinity() if cpus is None else cpus, root)
    quota = cpu_quota(root)
    return cores if quota is None else max(1, min(cores, int(quota)))


def resident_bytes() -> int:
    """Resident memory of this process now."""
    return _status_kib("VmRSS") * 1024


def reset_peak() -> bool:
    """Start a new peak measurement; False where the kernel does not offer it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """Largest resident memory since `reset_peak` (or since start)."""
    return _status_kib("VmHWM") * 1024


def _status_kib(field: str) -> int:
    for line in (_read(Path("/proc/self/status")) or "").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    return 0
