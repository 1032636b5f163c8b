import mmap
from pathlib import Path

from ortloom.models.manifest import FileEntry
from ortloom.models.weight_file import WeightFile, WeightTensor
from ortloom.runtime.weight_pages import drop_clean_pages, read_in_huge_pages

SIZE = 8 * 2**20


def resident(path: Path) -> int:
    """KiB of the file's map that are resident."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    total, inside = 0, False
    for line in lines:
        if "-" in line.split()[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


def test_clean_pages_go_and_come_back(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(b"w" * SIZE)
    with path.open("r+b") as file:
        area = mmap.mmap(file.fileno(), SIZE, flags=mmap.MAP_PRIVATE)
    assert sum(area[::4096]) == ord("w") * (SIZE // 4096)
    assert resident(path) == SIZE // 1024
    assert drop_clean_pages([path]) == SIZE
    assert resident(path) == 0
    assert sum(area[::4096]) == ord("w") * (SIZE // 4096)
    area.close()


def test_written_pages_and_other_files_stay(tmp_path):
    path, other = tmp_path / "mine.bin", tmp_path / "other.bin"
    areas = []
    for name in (path, other):
        name.write_bytes(b"w" * SIZE)
        with name.open("r+b") as file:
            areas.append(mmap.mmap(file.fileno(), SIZE, flags=mmap.MAP_PRIVATE))
    assert sum(areas[1][::4096])
    areas[0][5] = ord("x")
    assert drop_clean_pages([path]) == 0
    assert areas[0][5] == ord("x")
    assert resident(other) == SIZE // 1024
    for area in areas:
        area.close()


def test_only_what_surrounds_small_tensors_is_read_early(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(b"w" * SIZE)
    places = {"small": (5, 2304), "large": (3 << 20, 1 << 20), "other": (7 << 20, 64)}
    tensors = tuple(
        WeightTensor(name=name, dtype="uint8", shape=(length,), offset=offset, length=length)
        for name, (offset, length) in places.items()
    )
    entry = FileEntry(path=path.name, size=SIZE, sha256="0" * 64)
    weights = WeightFile(file=entry, variants=("cpu",), tensors=tensors)
    assert read_in_huge_pages(path, weights) == 2  # pages 0 and 3 of four
    assert resident(path) == 0  # its map is gone again
