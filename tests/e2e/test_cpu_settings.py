"""Flags and variables that choose threads, processors, tier and library: refused with one line, or
well defined."""

import os
import platform
import sys

import pytest

served = sys.modules["ortloom_test_served"]

ALLOWED = sorted(os.sched_getaffinity(0))
ISA, TIER, DOT = "ORTLOOM_CPU_ISA", "VT_CPU_MATMUL_TIER", "VT_CPU_Q8_DOT"
MMLA, REPACK = "VT_CPU_QUANT_MMLA", "VT_CPU_QUANT_REPACK"
LIBRARY, NO_OPS = "ORTLOOM_OPS_LIBRARY", "ORTLOOM_NO_OPS"
VARIABLES = (ISA, TIER, DOT, MMLA, REPACK, LIBRARY, NO_OPS)
UNSET = dict.fromkeys(VARIABLES, "")
FOREIGN = "i8mm" if platform.machine() == "x86_64" else "avx2"
NO_LIST = "is not a list of processors such as 0-3,8"

WRONG_FLAGS = [
    ("--threads", "-1", "must be at least 0, got -1"),
    ("--threads", "", "invalid integer: ''"),
    ("--threads", "two", "invalid integer: 'two'"),
    ("--threads", "1.5", "invalid integer: '1.5'"),
    ("--threads", "257", "257 is more than 256"),
    ("--threads", "9" * 25, "is more than 256"),
    ("--cpu-affinity", "", f"'' {NO_LIST}"),
    ("--cpu-affinity", ",", f"',' {NO_LIST}"),
    ("--cpu-affinity", "0,", f"'0,' {NO_LIST}"),
    ("--cpu-affinity", "-1", f"'-1' {NO_LIST}"),
    ("--cpu-affinity", "0x1", f"'0x1' {NO_LIST}"),
    ("--cpu-affinity", "0-²", f"'0-²' {NO_LIST}"),
    ("--cpu-affinity", "3-1", "'3-1' is not a range of processors"),
    ("--cpu-affinity", "0-99999999999", "is not a range of processors"),
    ("--cpu-affinity", "4095", "processor 4095 is not one this process may use"),
]

WRONG_VARIABLES = {
    "unknown": ({ISA: "sse9"}, "ORTLOOM_CPU_ISA=sse9 is unknown; choices: portable, "),
    "upper case": ({ISA: "PORTABLE"}, "ORTLOOM_CPU_ISA=PORTABLE is unknown; choices: portable, "),
    "blank": ({ISA: " portable"}, "ORTLOOM_CPU_ISA= portable is unknown; choices: portable, "),
    "AUTO": ({TIER: "AUTO"}, "VT_CPU_MATMUL_TIER=AUTO is unknown; choices: portable, "),
    "other machine's": ({TIER: FOREIGN}, f"VT_CPU_MATMUL_TIER={FOREIGN} is unknown; choices: "),
    "dot": ({DOT: "SDOT"}, "VT_CPU_Q8_DOT=SDOT is unknown; choices: auto, portable, sdot"),
    "matrices": ({MMLA: "yes"}, "VT_CPU_QUANT_MMLA=yes is unknown; choices: auto, 0, 1"),
    "repack": ({REPACK: "2"}, "VT_CPU_QUANT_REPACK=2 is unknown; choices: auto, 0, 1"),
    "two tiers": ({TIER: "portable", MMLA: "1"}, "VT_CPU_QUANT_MMLA=1"),
    "no file": ({LIBRARY: "/nowhere/ops.so"}, "names '/nowhere/ops.so', which is no file"),
    "a folder": ({LIBRARY: "/"}, "ORTLOOM_OPS_LIBRARY names '/', which is no file"),
    "no library": ({LIBRARY: "/proc/self/status"}, "/proc/self/status cannot be loaded"),
    "tier of nothing": ({ISA: "portable", NO_OPS: "1"}, "switched off by ORTLOOM_NO_OPS"),
    "library of nothing": ({LIBRARY: "/x.so", NO_OPS: "1"}, "switched off by ORTLOOM_NO_OPS"),
}


def refused(bundle, *flags, env, reason):
    """Exit code 2, and the reason in the only line that tells of an error."""
    where = ["--host", "127.0.0.1", "--port", str(served.free_port())]
    done = served.run_cli("serve", str(bundle), *where, *flags, env={**UNSET, **env}, limit=120)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "error: " in line]
    assert reason in line
    assert "ONNXRuntimeError" not in line


@pytest.mark.parametrize(("flag", "value", "reason"), WRONG_FLAGS)
def test_wrong_flags(demo_bundle_int4, flag, value, reason):
    refused(demo_bundle_int4, f"{flag}={value}", env={}, reason=reason)


def test_a_processor_outside_the_mask(demo_bundle_int4):
    """With two processors or more, one that exists but is not for this process."""
    other = ALLOWED[-1] if len(ALLOWED) > 1 else ALLOWED[0] + 1
    try:
        os.sched_setaffinity(0, ALLOWED[:1])
        reason = f"processor {other} is not one this process may use"
        refused(demo_bundle_int4, f"--cpu-affinity={other}", env={}, reason=reason)
    finally:
        os.sched_setaffinity(0, ALLOWED)


@pytest.mark.parametrize("case", WRONG_VARIABLES)
def test_wrong_variables(demo_bundle_int4, case):
    env, reason = WRONG_VARIABLES[case]
    refused(demo_bundle_int4, env=env, reason=reason)


def test_another_provider_is_no_way_round(demo_bundle_int4):
    env, reason = WRONG_VARIABLES["unknown"]
    refused(demo_bundle_int4, "--provider", "plain", env=env, reason=reason)


@pytest.mark.parametrize(
    ("env", "flags", "shown"),
    [
        ({}, ["--threads", "0"], "ortloom ops on "),
        (dict.fromkeys((ISA, TIER, DOT, MMLA, REPACK), "auto"), [], "ortloom ops on "),
        ({ISA: "portable", TIER: "sse9", MMLA: "1", DOT: "SDOT"}, [], "ortloom ops on portable"),
        ({}, ["--cpu-affinity", str(ALLOWED[0]), "--threads", "3"], "ortloom ops on "),
    ],
    ids=["nothing", "auto", "the first name counts", "more threads than processors"],
)
def test_what_is_well_defined(demo_bundle_int4, env, flags, shown):
    flags = [*flags, "--num-gpu-blocks-override", "64"]
    with served.Served(demo_bundle_int4, *flags, env={**UNSET, **env}) as server:
        body = {"prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0}
        assert server.client.post("/v1/completions", json=body).status_code == 200
        assert shown in server.text()
