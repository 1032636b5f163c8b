"""Finding, registering and checking the library; tiers and their failures."""

import subprocess
import sys

import numpy as np
import onnxruntime as ort
import pytest

from ortloom.errors import KernelUnavailable
from ortloom.kernels import isa, library, load
from ortloom.kernels.contract import PagedAttentionAttributes
from ortloom.kernels.probe_model import one_node_model, paged_attention_model


def run_python(code, **environment):
    import os

    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )


def test_the_library_is_inside_the_package():
    path = load.library_path()
    assert path.name == library.LIBRARY_NAME
    assert path.parent.name == "kernels"


def test_self_test_passes_in_every_tier(tier, monkeypatch):
    monkeypatch.setenv(isa.ISA_VARIABLE, tier)
    load.self_test()
    assert load.isa_tier() == tier


def test_the_best_runnable_tier_is_used_by_default(monkeypatch):
    monkeypatch.delenv(isa.ISA_VARIABLE, raising=False)
    monkeypatch.delenv(isa.ISA_ALIAS_VARIABLE, raising=False)
    report = isa.isa_report()
    runnable = [t.name for t in report.tiers if not t.state.startswith("lacks")]
    assert report.tiers[-1].name == "portable"
    assert load.isa_tier() == runnable[0]


def test_the_alias_is_read_where_the_own_variable_is_not_set(monkeypatch):
    monkeypatch.delenv(isa.ISA_VARIABLE, raising=False)
    monkeypatch.setenv(isa.ISA_ALIAS_VARIABLE, "portable")
    assert load.isa_tier() == "portable"
    monkeypatch.setenv(isa.ISA_ALIAS_VARIABLE, "nonsense")
    monkeypatch.setenv(isa.ISA_VARIABLE, "portable")
    assert load.isa_tier() == "portable"


@pytest.mark.parametrize("variable", ["ORTLOOM_CPU_ISA", "VT_CPU_MATMUL_TIER", "VT_CPU_Q8_DOT"])
def test_auto_forces_nothing(variable, monkeypatch):
    for name in (isa.ISA_VARIABLE, isa.ISA_ALIAS_VARIABLE, *isa.DOT_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    best = load.isa_tier()
    monkeypatch.setenv(variable, "auto")
    assert not isa.tier_is_forced()
    assert load.isa_tier() == best


def test_an_unknown_tier_fails_closed(monkeypatch):
    monkeypatch.setenv(isa.ISA_VARIABLE, "sse9")
    with pytest.raises(KernelUnavailable, match="sse9 is unknown; choices: portable"):
        load.register(ort.SessionOptions())
    with pytest.raises(KernelUnavailable, match="sse9 is unknown"):
        load.isa_tier()
    with pytest.raises(KernelUnavailable, match="sse9 is unknown"):
        load.self_test()


def test_a_report_names_what_a_tier_lacks():
    report = isa.parse_report("avx512\tlacks avx512f, avx512bw\navx2\tused\nportable\tavailable\n")
    assert report.used == "avx2"
    assert report.tiers[0] == isa.TierState("avx512", "lacks avx512f, avx512bw")
    broken = isa.parse_report("portable\tavailable\nerror\tORTLOOM_CPU_ISA=avx2: lacks avx2\n")
    with pytest.raises(KernelUnavailable, match="lacks avx2"):
        _ = broken.used


@pytest.mark.parametrize("value", ["1", "yes"])
def test_switched_off_by_environment(monkeypatch, value):
    monkeypatch.setenv(load.NO_OPS_VARIABLE, value)
    for call in (load.library_path, load.self_test, load.isa_tier):
        with pytest.raises(KernelUnavailable, match="switched off by ORTLOOM_NO_OPS"):
            call()
    with pytest.raises(KernelUnavailable, match="switched off"):
        load.register(ort.SessionOptions())


@pytest.mark.parametrize("value", ["", "0"])
def test_zero_and_nothing_leave_the_library_on(monkeypatch, value):
    monkeypatch.setenv(load.NO_OPS_VARIABLE, value)
    load.library_path()


def test_a_missing_library_is_explained(monkeypatch, tmp_path):
    monkeypatch.setattr("ortloom.kernels.__path__", [str(tmp_path)])
    with pytest.raises(KernelUnavailable, match="built with ORTLOOM_NO_NATIVE=1"):
        load.library_path()


def test_a_broken_library_is_explained(monkeypatch, tmp_path):
    (tmp_path / library.LIBRARY_NAME).write_bytes(b"not a library")
    monkeypatch.setattr("ortloom.kernels.__path__", [str(tmp_path)])
    with pytest.raises(KernelUnavailable, match="cannot be registered"):
        load.register(ort.SessionOptions())
    with pytest.raises(KernelUnavailable, match="cannot be loaded"):
        load.isa_tier()


def test_a_library_that_computes_something_else_fails_the_self_test(monkeypatch):
    real = load.paged_attention

    def shifted(attributes, inputs):
        result = real(attributes, inputs)
        result.output[0, 0] += 1e-3
        return result

    monkeypatch.setattr(load, "paged_attention", shifted)
    with pytest.raises(KernelUnavailable, match="output is off by"):
        load.self_test()


def test_only_the_documented_symbols_are_exported():
    out = subprocess.run(
        ["nm", "-D", "--defined-only", str(load.library_path())],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert {line.split()[-1] for line in out.splitlines()} == {
        "RegisterCustomOps",
        "OrtloomIsaReport",
        "OrtloomSamplerArgmax",
        "OrtloomSamplerCreate",
        "OrtloomSamplerDescribe",
        "OrtloomSamplerDestroy",
        "OrtloomSamplerRun",
        "OrtloomSelectOps",
        "OrtloomTeamConfigure",
        "OrtloomTeamThreads",
    }


def test_a_registration_for_one_model_gives_what_that_model_needs():
    """And only the next one of this thread; a name that is part of a longer one is given too."""
    attention = paged_attention_model(PagedAttentionAttributes(4, 2))
    norm = one_node_model(
        "SkipRMSNorm",
        {"epsilon": 1e-5},
        ("x", "skip", "weight"),
        {"x": ("float32", 2), "skip": ("float32", 2), "weight": ("float32", 1)},
        {"y": ("float32", 2), "sum": ("float32", 2)},
    )

    def start(model, registered):
        options = ort.SessionOptions()
        load.register(options, registered)
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    start(attention, attention)
    start(norm, norm)
    with pytest.raises(Exception, match="SkipRMSNorm"):
        start(norm, attention)
    start(norm, None)
    start(attention, attention + norm)
    with pytest.raises(Exception, match="PagedAttention"):
        start(attention, b"")


def test_serving_needs_neither_onnx_nor_torch():
    code = (
        "from ortloom.kernels import isa, load, reference\n"
        "load.self_test()\n"
        "import sys\n"
        "print([m for m in ('onnx', 'torch') if m in sys.modules])"
    )
    assert run_python(code).stdout.strip() == "[]"


def test_sessions_outlive_the_options_and_each_other(run_op, steps, request_of, attributes_of):
    import gc

    attributes = attributes_of(6, 2)
    inputs = steps(0).step(attributes, [request_of(0, 4)])
    expected, *_ = run_op(attributes, inputs)
    for _ in range(20):
        load.self_test()
        gc.collect()
    again, *_ = run_op(attributes, inputs)
    assert (expected == again).all()


def test_a_wrong_packed_linear_fails_the_self_test(monkeypatch):
    real = load.packed_linear
    monkeypatch.setattr(load, "packed_linear", lambda *given: real(*given) + np.float32(0.01))
    with pytest.raises(KernelUnavailable, match="PackedLinear failed: y is off by"):
        load.self_test()
