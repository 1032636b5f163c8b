"""The tiers avx2-vnni and avx512-bf16, on a processor that need have neither instruction.

The library is built from its sources with two changes: VPDPBUSD comes in AVX-512's encoding, and
the bfloat16 instructions are emulated. What is left to hardware is the instructions themselves;
that the library as it is installed has them is read from its disassembly.
"""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from arm64_tools import run
from host_cases import CHECKS
from op_host import COMPILE, CSRC, SOURCE, OpHost

from ortloom.kernels import isa, load

pytestmark = pytest.mark.full

FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-pthread")
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vnni")))
EMULATION = ("-include", str(SOURCE.parent / "bf16_emulation.h"))
# The tiers' sources that are needed, with their flags.
SOURCES = {
    "attention_avx2": AVX2,
    "attention_avx512": AVX512,
    "linear_avx2vnni": (*AVX2, "-mavx512vnni", "-mavx512vl"),
    "linear_avx512bf16": (*AVX512, *EMULATION, "-Wno-psabi"),
    "sampler_avx2": AVX2,
    "sampler_avx512": AVX512,
}
# The table of tiers: the two that are looked at, needing what this build of them needs.
TABLE = """
int list_processor_tiers(Tier* list) {
  list[0] = {"avx512-bf16", &kAvx512Kernels, &kAvx512Bf16Linear, ""};
  list[1] = {"avx2-vnni", &kAvx2Kernels, &kAvx2VnniLinear, ""};
  return 2;
}
"""
CAN_EMULATE = any(
    tier.name == "avx512-vnni" and not tier.state.startswith("lacks")
    for tier in isa.isa_report().tiers
)


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rare_tiers")
    shutil.copytree(CSRC, folder, dirs_exist_ok=True)
    (folder / "isa_x86.cc").write_text(
        f'#include "isa.h"\nnamespace ortloom {{\n{TABLE}\n}}  // namespace ortloom\n'
    )
    compiler = os.environ.get("CXX", "g++")
    tiers = ("avx", "sse2", "neon", "dotprod", "i8mm")
    names = [p.stem for p in folder.glob("*.cc") if not any(f"_{t}" in p.stem for t in tiers)]

    def build(name):
        flags = (*FLAGS, "-DORTLOOM_X86_TIERS", *SOURCES.get(name, ()))
        run(compiler, *flags, "-c", f"{name}.cc", "-o", f"{name}.o", cwd=folder)
        return f"{name}.o"

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(build, [*SOURCES, *names]))
    run(compiler, "-shared", "-pthread", "-o", "libops.so", *objects, cwd=folder)
    run(compiler, *COMPILE, "-o", folder / "op_host")
    return OpHost((folder / "op_host",), folder / "libops.so", folder)


@pytest.fixture
def kit(steps, request_of, close):
    return SimpleNamespace(steps=steps, request=request_of, close=close)


if CAN_EMULATE:

    @pytest.mark.parametrize("name", ["avx2-vnni", "avx512-bf16"])
    @pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__.removeprefix("check_"))
    def test_the_code_around_the_instructions(host, kit, name, check):
        check(host, name, kit)


def test_the_installed_library_has_the_instructions():
    """VPDPBUSD on ymm registers without AVX-512's prefix, and VDPBF16PS on zmm registers."""
    disassembly = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(load.library_path())],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    vex = [line for line in disassembly if "{vex} vpdpbusd" in line]
    assert len(vex) > 100
    assert all("%ymm" in line for line in vex)
    pairs = [line for line in disassembly if "vdpbf16ps" in line]
    assert len(pairs) > 100
    assert all("%zmm" in line for line in pairs)
