"""Limits read from made-up control-group trees, and this process's own figures."""

import mmap
from pathlib import Path

import pytest

from ortloom.runtime import machine


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


GIB = 2**30
MEMINFO = f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {12 * GIB // 1024} kB\n"


def test_without_groups_the_system_decides(tmp_path):
    write(tmp_path, {"proc/meminfo": MEMINFO})
    assert machine.memory_left(tmp_path) == 12 * GIB
    assert machine.memory_total(tmp_path) == 16 * GIB
    assert machine.cpu_quota(tmp_path) is None


def test_version_2_takes_the_tightest_ancestor(tmp_path):
    base = "sys/fs/cgroup"
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/pod/box\n",
            f"{base}/cgroup.controllers": "cpu memory\n",
            f"{base}/pod/memory.max": f"{4 * GIB}\n",
            f"{base}/pod/memory.current": f"{3 * GIB}\n",
            f"{base}/pod/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            f"{base}/pod/cpu.max": "150000 100000\n",
            f"{base}/pod/box/memory.max": "max\n",
            f"{base}/pod/box/memory.current": "5\n",
            f"{base}/pod/box/cpu.max": "max 100000\n",
        },
    )
    assert machine.memory_left(tmp_path) == 2 * GIB  # inactive file pages can be dropped
    assert machine.memory_total(tmp_path) == 4 * GIB
    assert machine.cpu_quota(tmp_path) == 1.5
    assert machine.default_threads(tmp_path, {0, 1, 2, 3}) == 1


def test_version_1_inside_a_container_reads_the_mount_itself(tmp_path):
    base = "sys/fs/cgroup"
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n",
            f"{base}/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
            f"{base}/memory/memory.usage_in_bytes": f"{GIB}\n",
            f"{base}/memory/memory.stat": "total_inactive_file 1024\n",
            f"{base}/cpu/cpu.cfs_quota_us": "300000\n",
            f"{base}/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert machine.memory_left(tmp_path) == GIB + 1024
    assert machine.cpu_quota(tmp_path) == 3.0


def test_version_1_without_limits(tmp_path):
    base = "sys/fs/cgroup"
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:memory:/\n2:cpu:/\n",
            f"{base}/memory/memory.limit_in_bytes": "9223372036854771712\n",
            f"{base}/memory/memory.usage_in_bytes": f"{GIB}\n",
            f"{base}/cpu/cpu.cfs_quota_us": "-1\n",
            f"{base}/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert machine.memory_left(tmp_path) == 12 * GIB
    assert machine.cpu_quota(tmp_path) is None


def test_hyperthread_siblings_count_once(tmp_path):
    for cpu, (package, core) in {0: (0, 0), 1: (0, 1), 2: (0, 0), 3: (1, 0)}.items():
        folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
        write(
            tmp_path,
            {f"{folder}/physical_package_id": f"{package}\n", f"{folder}/core_id": f"{core}\n"},
        )
    assert machine.physical_cores({0, 1, 2, 3}, tmp_path) == 3
    assert machine.physical_cores({0, 2}, tmp_path) == 1
    assert machine.physical_cores({0, 9}, tmp_path) == 2  # cpu9 has no topology: all count


def test_this_machine():
    assert machine.affinity()
    assert machine.default_threads() >= 1
    assert 0 < machine.memory_left() <= machine.memory_total()


def test_peak_shows_memory_that_was_given_back():
    machine.reset_peak()
    before = machine.resident_bytes()
    region = mmap.mmap(-1, 64 * 2**20)
    region.write(b"x" * (64 * 2**20))
    region.close()
    assert machine.peak_bytes() - before > 60 * 2**20
    assert machine.resident_bytes() - before < 40 * 2**20


def test_processor_lists():
    assert machine.processors("0-3,8") == {0, 1, 2, 3, 8}
    assert machine.processors(" 5 ") == {5}
    for text in ("", "a", "1-", "-1", "3-2", "1,,2", "0-4096"):
        with pytest.raises(ValueError, match=r"range|list"):
            machine.processors(text)
