"""The op library for arm64 macOS compiles without a warning and links; no Mac has run it."""

import os
import sys
from pathlib import Path

import mach_o
import pytest
from arm64_tools import ROOT, TOOLS, run, zig

from ortloom.kernels import load

pytestmark = pytest.mark.full

BUILD = TOOLS / "macos"
# What the linker puts into every library.
LINKER_NAMES = {"__mh_dylib_header", "___dso_handle"}


@pytest.fixture(scope="session")
def library():
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    run(
        "cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_CXX_FLAGS=-Werror",
        f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'tools' / 'aarch64-macos.cmake'}",
        f"-DORTLOOM_ZIG={zig()}",
        env=tools,
    )  # fmt: skip
    run("cmake", "--build", BUILD, env=tools)
    return mach_o.read(BUILD / "kernels" / "csrc" / "libortloom_ops.dylib")


def test_it_is_a_library_for_arm64_macs(library):
    assert (library.processor, library.kind) == (mach_o.ARM64, mach_o.DYLIB)
    assert library.libraries == ("/usr/lib/libSystem.B.dylib",)


def test_it_exports_what_the_library_here_exports(library):
    lines = run("nm", "-D", "--defined-only", load.library_path()).splitlines()
    own = {line.split()[2] for line in lines}
    assert own
    assert library.exported - LINKER_NAMES == {f"_{name}" for name in own}


def test_it_asks_the_system_for_the_processor(library):
    assert "_sysctlbyname" in library.needed
    assert "_getauxval" not in library.needed
