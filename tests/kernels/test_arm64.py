"""The arm64 wheel: what is in it, and its library in every tier under qemu's user emulation.

qemu's CPU models stand for processors: `max` has all that the library asks for, a Cortex-A76 has
dot products but no int8 matrix instructions, a Cortex-A72 has neither.
"""

import struct
import sys
import zipfile
from types import SimpleNamespace

import pytest
from arm64_tools import ROOT, TOOLS, emulator, run, zig
from host_cases import CHECKS, check_sampler
from op_host import COMPILE, OpHost

from ortloom.kernels import load

pytestmark = pytest.mark.full

TIERS = ("i8mm", "dotprod", "neon", "portable")
GLIBC = "2.28"
AARCH64 = 183  # e_machine
LIBRARY = "ortloom/kernels/libortloom_ops.so"
# Encodings of vector forms, with the bits that do not name registers.
INSTRUCTIONS = {"sdot": (0xFFE0FC00, 0x4E809400), "usmmla": (0xFFE0FC00, 0x4E80AC00)}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import wheel_aarch64
    finally:
        sys.path.remove(str(ROOT / "tools"))
    return wheel_aarch64.build(tmp_path_factory.mktemp("wheel"), zig(), TOOLS / "cmake")


@pytest.fixture(scope="session")
def library(wheel, tmp_path_factory):
    with zipfile.ZipFile(wheel) as archive:
        return archive.extract(LIBRARY, tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="session")
def host_on(library, tmp_path_factory):
    """A host on a processor that qemu plays."""
    folder = tmp_path_factory.mktemp("arm64_host")
    program = folder / "op_host"
    run(zig(), "c++", "-target", f"aarch64-linux-gnu.{GLIBC}", *COMPILE, "-o", program)
    command = emulator()
    return lambda cpu: OpHost((*command, "-cpu", cpu, program), library, folder)


@pytest.fixture
def kit(steps, request_of, close):
    return SimpleNamespace(steps=steps, request=request_of, close=close)


# ---- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TIERS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__.removeprefix("check_"))
def test_every_tier(host_on, kit, name, check):
    check(host_on("max"), name, kit)


@pytest.mark.parametrize(("cpu", "name"), [("cortex-a76", "dotprod"), ("cortex-a72", "neon")])
def test_older_processors_run_their_own_tier(host_on, kit, cpu, name):
    """No instruction of a later tier has got into it: qemu would stop at one."""
    host = host_on(cpu)
    assert host.report().used == name
    for check in CHECKS:
        check(host, name, kit)


def test_the_sampler_gives_what_it_gives_here(host_on, kit, tmp_path):
    """Log-probabilities and tokens have the same bits as on this machine."""
    program = tmp_path / "op_host"
    run("g++", *COMPILE, "-o", program)
    here = OpHost((program,), load.library_path(), tmp_path)
    rows, values = check_sampler(host_on("max"), "i8mm", kit)
    own_rows, own_values = check_sampler(here, "portable", kit)
    assert (rows == own_rows).all()
    assert values.tobytes() == own_values.tobytes()


# ---- choice -----------------------------------------------------------------------------------


def states(host):
    return {tier.name: tier.state for tier in host.report().tiers}


def test_the_best_tier_that_the_processor_has_is_used(host_on):
    assert states(host_on("max")) == {
        "i8mm": "used", "dotprod": "available", "neon": "available", "portable": "available",
    }  # fmt: skip
    assert states(host_on("cortex-a76")) == {
        "i8mm": "lacks i8mm", "dotprod": "used", "neon": "available", "portable": "available",
    }  # fmt: skip
    assert states(host_on("cortex-a72")) == {
        "i8mm": "lacks asimddp, i8mm", "dotprod": "lacks asimddp", "neon": "used",
        "portable": "available",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cpu", "variable", "value", "lacking"),
    [
        ("cortex-a72", "ORTLOOM_CPU_ISA", "dotprod", "asimddp"),
        ("cortex-a72", "VT_CPU_MATMUL_TIER", "i8mm", "asimddp, i8mm"),
        ("cortex-a72", "VT_CPU_Q8_DOT", "sdot", "asimddp"),
        ("cortex-a76", "VT_CPU_QUANT_MMLA", "1", "i8mm"),
        ("cortex-a76", "VT_CPU_QUANT_REPACK", "1", "i8mm"),
    ],
)
def test_what_the_processor_lacks_is_refused(host_on, cpu, variable, value, lacking):
    refusal = host_on(cpu).refusal(**{variable: value})
    assert f"{variable}={value}: this machine lacks {lacking}" in refusal


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ({"VT_CPU_MATMUL_TIER": "neon"}, "neon"),
        ({"VT_CPU_Q8_DOT": "sdot"}, "dotprod"),
        ({"VT_CPU_Q8_DOT": "portable"}, "neon"),
        ({"VT_CPU_QUANT_MMLA": "0"}, "dotprod"),
        ({"VT_CPU_QUANT_REPACK": "off"}, "dotprod"),
        ({"VT_CPU_QUANT_MMLA": "1", "VT_CPU_QUANT_REPACK": "1"}, "i8mm"),
        ({"VT_CPU_Q8_DOT": "auto", "VT_CPU_QUANT_MMLA": "auto"}, "i8mm"),
        ({"ORTLOOM_CPU_ISA": "neon", "VT_CPU_QUANT_MMLA": "1"}, "neon"),
    ],
    ids=lambda v: v if isinstance(v, str) else "+".join(f"{k}={w}" for k, w in v.items()),
)
def test_names_choose(host_on, given, used):
    assert host_on("max").report(**given).used == used


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"VT_CPU_MATMUL_TIER": "neon", "VT_CPU_QUANT_MMLA": "1"},
            "VT_CPU_QUANT_MMLA=1 asks for the tier i8mm, but VT_CPU_MATMUL_TIER=neon for neon",
        ),
        (
            {"VT_CPU_QUANT_MMLA": "0", "VT_CPU_QUANT_REPACK": "1"},
            "VT_CPU_QUANT_REPACK=1 asks for the tier i8mm, which VT_CPU_QUANT_MMLA=0 forbids",
        ),
        (
            {"VT_CPU_MATMUL_TIER": "dotprod", "VT_CPU_Q8_DOT": "portable"},
            "VT_CPU_MATMUL_TIER=dotprod asks for the tier dotprod, which VT_CPU_Q8_DOT=portable "
            "forbids",
        ),
        (
            {"VT_CPU_MATMUL_TIER": "avx2"},
            "VT_CPU_MATMUL_TIER=avx2 is unknown; choices: portable, neon, dotprod, i8mm",
        ),
    ],
    ids=["two-tiers", "on-and-off", "named-and-forbidden", "unknown"],
)
def test_contradictions_are_refused(host_on, given, reason):
    host = host_on("max")
    assert host.report(**given).error == reason
    assert reason in host.refusal(**given)


# ---- wheel ------------------------------------------------------------------------------------


def test_the_wheel_is_for_arm64_and_any_python(wheel):
    assert wheel.name.endswith("-py3-none-manylinux_2_28_aarch64.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (info,) = (name for name in names if name.endswith(".dist-info/WHEEL"))
        assert "Tag: py3-none-manylinux_2_28_aarch64" in archive.read(info).decode()
    assert [name for name in names if name.endswith(".so")] == [LIBRARY]
    assert "ortloom/cli.py" in names
    assert "ortloom/kernels/isa.py" in names
    assert not [name for name in names if "csrc" in name]


def test_the_library_is_an_arm64_one(library):
    with open(library, "rb") as file:
        head = file.read(20)
    assert head[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", head, 18) == (AARCH64,)


def dynamic_symbols(path):
    """Name and version of each symbol: those it defines, and those it needs."""
    defined, needed = set(), set()
    for line in run("readelf", "-W", "--dyn-syms", path).splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].rstrip(":").isdigit():
            continue
        (needed if fields[6] == "UND" else defined).add(fields[7])
    return defined, needed


def test_it_exports_what_the_library_here_exports(library):
    assert dynamic_symbols(library)[0] == dynamic_symbols(load.library_path())[0]


def test_it_needs_nothing_newer_than_its_tag_says(library):
    versions = {
        tuple(int(part) for part in name.rpartition("@GLIBC_")[2].split("."))
        for name in dynamic_symbols(library)[1]
        if "@GLIBC_" in name
    }
    assert versions
    assert max(versions) <= tuple(int(part) for part in GLIBC.split("."))
    libraries = run("readelf", "-d", library)
    assert "libc.so.6" in libraries
    assert "libstdc++" not in libraries


def test_the_tiers_have_their_instructions(library):
    with open(library, "rb") as file:
        data = file.read()
    words = struct.unpack(f"<{len(data) // 4}I", data[: len(data) // 4 * 4])
    for name, (mask, pattern) in INSTRUCTIONS.items():
        assert sum(word & mask == pattern for word in words) > 100, name
