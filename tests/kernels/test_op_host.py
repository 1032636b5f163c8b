"""Every tier of the installed library inside the op host, and the forcing of tiers by name."""

import os
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
from host_cases import CHECKS, check_linears, linear_call, sampler_call
from op_host import COMPILE, OpHost
from packed_cases import FLOATING, QUANTISED, attributes_for, draw, weights

from ortloom.kernels import isa, load, sampling

VARIABLES = ("VT_CPU_Q8_DOT", "VT_CPU_QUANT_MMLA", "VT_CPU_QUANT_REPACK")


TIERS = [t.name for t in isa.isa_report().tiers if not t.state.startswith("lacks")]


@pytest.fixture(params=TIERS)
def tier(request):
    return request.param


@pytest.fixture(scope="session")
def host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("op_host")
    program = folder / "op_host"
    command = [os.environ.get("CXX", "g++"), *COMPILE, "-o", program]
    # The compiler itself needs no sanitizer, where the tests run with one.
    clean = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run([str(part) for part in command], check=True, timeout=300, env=clean)
    return OpHost((program,), load.library_path(), folder)


@pytest.fixture
def kit(steps, request_of, close):
    return SimpleNamespace(steps=steps, request=request_of, close=close)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__.removeprefix("check_") + "_bf16")
def test_every_tier(host, kit, tier, check):
    check(host, tier, kit)


def test_the_host_gives_what_onnxruntime_gives(host, run_node, tier):
    """The same bits from a session, so that the host stands for one."""
    attributes = attributes_for(QUANTISED[1], 40, 64)
    inputs = {"x": draw(5, 64), **weights(QUANTISED[1], 40, 64)}
    call = linear_call(attributes, inputs["x"], inputs)
    ((got,),) = host([call], tier)
    (wanted,) = run_node(call.op, call.slots, {"y": ("float32", 2)}, attributes, inputs, tier=tier)
    assert (got.view(np.uint32) == wanted.view(np.uint32)).all()


def test_the_checks_fail_for_another_tier_s_tolerance(host, kit, tier, monkeypatch):
    """The same cases must not pass where results are a thousandth off."""
    monkeypatch.setattr(
        "host_cases.packed_linear", lambda *given: load.packed_linear(*given) * np.float32(1.001)
    )
    with pytest.raises(AssertionError, match="off by"):
        check_linears(host, tier, kit)


def test_the_sampler_in_the_host_is_the_sampler_in_the_process(host):
    call = sampler_call()
    rows, _ = host([call])[0]
    got = [sampling.SampleRow.from_buffer_copy(row.tobytes()).token for row in rows]
    buffer = bytearray(call.inputs["rows"].tobytes())
    size = len(buffer) // len(rows)
    own = [sampling.SampleRow.from_buffer(buffer, i * size) for i in range(len(rows))]
    import ctypes

    sampler = sampling.Sampler(call.inputs["logits"].shape[1])
    sampler.run(call.inputs["logits"].copy(), [ctypes.addressof(row) for row in own])
    assert got == [row.token for row in own]


# ---- forcing ----------------------------------------------------------------------------------


def test_the_report_names_the_same_tiers(host):
    assert host.report() == isa.isa_report()


def test_every_tier_that_cannot_run_is_refused_by_name(host):
    for state in host.report().tiers:
        for variable in (isa.ISA_VARIABLE, isa.ISA_ALIAS_VARIABLE):
            forced = host.report(**{variable: state.name})
            if state.state.startswith("lacks"):
                missing = state.state.removeprefix("lacks ")
                assert forced.error == f"{variable}={state.name}: this machine lacks {missing}"
                assert forced.error in host.refusal(**{variable: state.name})
            else:
                assert forced.used == state.name


def test_arm64_switches_fail_closed_elsewhere(host):
    for variable, value, tier in (
        ("VT_CPU_Q8_DOT", "sdot", "dotprod"),
        ("VT_CPU_QUANT_MMLA", "1", "i8mm"),
        ("VT_CPU_QUANT_REPACK", "i8mm", "i8mm"),
    ):
        error = host.report(**{variable: value}).error
        assert error.startswith(f"{variable}={value} needs the tier {tier}, which is not among")
        assert "portable, sse2, sse2+f16c, avx2, avx2-vnni, avx512" in error
        assert error in host.refusal(**{variable: value})


def test_unknown_values_fail_closed(host):
    for variable, choices in (
        ("VT_CPU_MATMUL_TIER", "portable, "),
        ("VT_CPU_Q8_DOT", "auto, portable, sdot"),
        ("VT_CPU_QUANT_MMLA", "auto, 0, 1"),
        ("VT_CPU_QUANT_REPACK", "auto, 0, 1"),
    ):
        error = host.report(**{variable: "sse9"}).error
        assert error.startswith(f"{variable}=sse9 is unknown; choices: {choices}")


def test_values_that_forbid_nothing_here_leave_the_best_tier(host):
    best = host.report().used
    assert host.report(VT_CPU_MATMUL_TIER="auto").used == best
    for variable in VARIABLES:
        assert host.report(**{variable: "auto"}).used == best
        assert host.report(**{variable: ""}).used == best
    assert host.report(VT_CPU_Q8_DOT="portable", VT_CPU_QUANT_MMLA="0").used == best


def test_the_own_variable_comes_first(host):
    assert host.report(ORTLOOM_CPU_ISA="portable", VT_CPU_Q8_DOT="sdot").used == "portable"


def test_floating_formats_are_among_the_cases():
    assert {kind[0] for kind in QUANTISED + FLOATING} == {"f32", "f16", "bf16", "u8", "u4"}
