"""The two ways the op library finds the file behind an address: the kernel's answer to a question
(Linux 6.11 and later), and its list of all maps."""

import os
import platform
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "kernels" / "csrc"
PAGE = os.sysconf("SC_PAGESIZE")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What the driver says of two files: the facts, and each way's lines."""
    folder = tmp_path_factory.mktemp("areas")
    program = folder / "driver"
    compiler = os.environ.get("CXX", "g++")
    command = [
        compiler, "-std=c++17", "-O1", "-Wall", "-Werror", f"-I{CSRC}",
        HERE / "file_areas_driver.cc", "-o", program,
    ]  # fmt: skip
    subprocess.run([str(part) for part in command], check=True, timeout=300)
    files = [folder / "weights one.bin", folder / "two.bin"]
    for file in files:
        file.write_bytes(bytes(4 * PAGE))
    done = subprocess.run([program, *files], capture_output=True, text=True, timeout=60, check=True)
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    return files, lines


def told(lines, way):
    return [rest for name, rest in lines if name == way]


def expected(files):
    return sorted(
        f"{2 * PAGE} {offset} {file.stat().st_ino} {file}"
        for file in files
        for offset in (0, 2 * PAGE)
    )


def test_the_list_names_the_files_and_no_other_area(seen):
    files, lines = seen
    assert sorted(told(lines, "read")) == expected(files)


def test_the_question_has_the_same_answer_where_the_kernel_knows_it(seen):
    _, lines = seen
    version = tuple(int(part) for part in platform.release().split(".")[:2])
    if version >= (6, 11):
        assert told(lines, "answered") == ["1"]
    if told(lines, "answered") == ["1"]:
        assert told(lines, "asked") == told(lines, "read")


def test_what_does_not_answer_is_told_from_an_address_without_a_file(seen):
    assert told(seen[1], "refused") == ["1"]
