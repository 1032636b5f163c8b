"""Bounds of the machine, goals and printed tables of the comparison."""

import dataclasses
import math
import sys

import pytest
from benchmarks.versus import __main__ as versus
from benchmarks.versus.cases import CASES
from benchmarks.versus.engines import PRECISIONS, Engine
from benchmarks.versus.measure import Record
from benchmarks.versus.report import Section
from benchmarks.versus.roofline import Machine, Shape, bound
from benchmarks.versus.setup.ours import kv_cache_bytes

LLAMA_1B = Shape(16, 2048, 32, 8, 64, 8192, 128_256)
DEMO = Shape(30, 576, 9, 3, 64, 1536, 49_152)
MISSING = (0.0, -1.0, math.nan, math.inf)
GENERATING = [case for case in CASES.values() if case.more_is_better]


def test_the_fastest_usable_unit_is_the_peak():
    machine = Machine(2, read=40e9, fp32=100e9, int8=800e9, bf16=400e9)
    peaks = {precision: machine.peak(precision) for precision in PRECISIONS}
    assert peaks == {"int4": 800e9, "int8": 800e9, "bf16": 400e9, "fp32": 100e9}
    # Where codes below 16 take fewer instructions than bytes.
    assert dataclasses.replace(machine, int4=900e9).peak("int4") == 900e9


@pytest.mark.parametrize("missing", MISSING)
def test_a_unit_that_is_missing_is_no_peak(missing):
    machine = Machine(2, read=40e9, fp32=100e9, int8=missing, bf16=missing, int4=missing)
    assert {machine.peak(precision) for precision in PRECISIONS} == {100e9}
    assert str(machine).count("no unit") == 3


def test_a_unit_slower_than_fp32_is_passed_over():
    machine = Machine(2, read=40e9, fp32=100e9, int8=60e9, bf16=50e9)
    assert {machine.peak(precision) for precision in PRECISIONS} == {100e9}


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("rate", ["read", "fp32"])
def test_no_bounds_without_memory_or_fp32(rate, missing):
    rates = {"read": 40e9, "fp32": 100e9, "int8": 800e9, "bf16": 400e9, rate: missing}
    with pytest.raises(ValueError, match=f"the measured rate of {rate}"):
        Machine(2, **rates)


@pytest.mark.parametrize("units", [(0.0, 0.0), (800e9, 0.0), (0.0, 400e9), (800e9, 400e9)])
def test_every_bound_is_positive_and_finite(units):
    machine = Machine(2, 40e9, 100e9, *units)
    for precision in PRECISIONS:
        for case in GENERATING:
            found = bound(machine, LLAMA_1B, case, precision, 1_300_000_000)
            assert 0 < found < 1e6, (precision, case.name)


def test_the_bound_of_decode_is_one_reading_of_weights_and_context():
    machine = Machine(2, read=40e9, fp32=100e9, int8=800e9, bf16=0.0)
    context = 2 * 192 * 16 * 8 * 64
    expected = 40e9 / (1_300_000_000 + context)
    assert bound(machine, LLAMA_1B, CASES["decode1"], "int8", 1_300_000_000) == pytest.approx(
        expected
    )


def test_the_kv_cache_has_room_for_all_streams_of_either_model():
    tokens = 32 * (128 + 128)
    for shape in (DEMO, LLAMA_1B):
        for element, size in (("float16", 2), ("float32", 4)):
            assert kv_cache_bytes(shape, element) > size * shape.kv_elements(tokens)
    assert kv_cache_bytes(DEMO, "float16") == 512 << 20


def section(**changes):
    record = Record(Engine("ortloom", "int4", "int4", ()), samples={"decode1": [10.0]})
    return Section("int4", "process", [record], **changes)


def test_agreement_of_random_weights_is_not_applicable():
    trained = "\n".join(section().lines([CASES["decode1"]]))
    random = "\n".join(section(trained=False).lines([CASES["decode1"]]))
    assert "n/a" not in trained
    assert "| n/a | n/a |" in random
    assert "not applicable" in random


def test_the_table_says_that_engines_were_loaded_for_their_turn():
    cases = [CASES["decode1"]]
    assert "for its turn only" not in "\n".join(section().lines(cases))
    assert "for its turn only" in "\n".join(section(together=False).lines(cases))
    assert section(together=False).to_json(cases)["loaded"] == "turn"


def parse(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["versus", *arguments])
    return versus.parse()


def test_records_of_the_models_do_not_overwrite_each_other(monkeypatch, tmp_path):
    assert parse(monkeypatch).json.name == "versus.json"
    assert parse(monkeypatch, "--model", "llama-1b").json.name == "llama-1b.json"
    chosen = parse(monkeypatch, "--model", "llama-1b", "--json", str(tmp_path / "x"))
    assert chosen.json == tmp_path / "x"


def test_an_unknown_model_is_refused(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        parse(monkeypatch, "--model", "llama-8b")
    assert "llama-1b" in capsys.readouterr().err


def test_load_follows_the_memory_or_the_flag(monkeypatch):
    engines = [Engine("peer", "int4", "x", (), memory=1 << 60)]
    assert not versus.load_together(parse(monkeypatch), engines)
    assert versus.load_together(parse(monkeypatch, "--load", "together"), engines)
    small = [Engine("peer", "int4", "x", (), memory=1)]
    assert versus.load_together(parse(monkeypatch), small)
    assert not versus.load_together(parse(monkeypatch, "--load", "turn"), small)
