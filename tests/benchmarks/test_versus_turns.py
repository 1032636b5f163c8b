"""Who is loaded when, and that every engine gets the same prompts."""

from collections import Counter

import pytest
from benchmarks.versus import measure
from benchmarks.versus.cases import CASES
from benchmarks.versus.engines import Engine
from benchmarks.versus.measure import Field
from benchmarks.versus.memory_plan import BESIDES_WEIGHTS, expected_bytes, fit_together
from benchmarks.versus.process import EngineFailed

MEASURED = ("decode1", "prefill128", "startup", "rss")


class FakeEngine:
    """Stands in for a worker: notes what it is asked, makes as many tokens as it should."""

    version = "1"
    startup = 1.5

    def __init__(self, yard, name):
        self.yard, self.name = yard, name
        yard.loaded.append(name)
        yard.starts[name] += 1
        yard.most = max(yard.most, len(yard.loaded))

    def run(self, case, prompts):
        if self.name in self.yard.broken:
            raise EngineFailed(f"{self.name} broke")
        self.yard.asked.setdefault(self.name, []).append((case.name, case.new, prompts))
        return {"first": 0.5, "last": 1.0, "tokens": float(len(prompts) * case.new)}

    def cpu_seconds(self):
        return 0.0

    def peak_bytes(self):
        return 7 * measure.MIB

    def stop(self):
        if self.name in self.yard.loaded:
            self.yard.loaded.remove(self.name)


class Yard:
    """All that the fakes note."""

    def __init__(self):
        self.loaded, self.asked, self.starts = [], {}, Counter()
        self.most, self.broken = 0, set()


@pytest.fixture
def yard(monkeypatch):
    yard = Yard()
    monkeypatch.setattr(measure, "start", lambda engine, logs: FakeEngine(yard, engine.label))
    return yard


def run_field(tmp_path, together, labels=("a", "b", "c"), rounds=2, judge=None):
    engines = [Engine("peer", "int4", label, ()) for label in labels]
    field = Field(engines, [CASES[name] for name in MEASURED], tmp_path, together)
    field.run(rounds, 1, judge)
    return field.records


def test_one_at_a_time_never_loads_two(yard, tmp_path):
    run_field(tmp_path, together=False)
    assert yard.most == 1
    assert yard.loaded == []
    # a load and a measured start, each round
    assert yard.starts == {"a": 4, "b": 4, "c": 4}


def test_together_loads_each_once_and_starts_beside_them(yard, tmp_path):
    run_field(tmp_path, together=True)
    assert yard.most == 4
    assert yard.loaded == []
    assert yard.starts == {"a": 3, "b": 3, "c": 3}


@pytest.mark.parametrize("together", [True, False])
def test_every_round_gives_a_sample_of_each_case(yard, tmp_path, together):
    for record in run_field(tmp_path, together):
        assert record.failure == ""
        assert {case: len(samples) for case, samples in record.samples.items()} == {
            "decode1": 2, "prefill128": 2, "startup": 2, "rss": 1 if together else 2,
        }  # fmt: skip
        assert record.samples["decode1"] == [127 / 0.5] * 2
        assert record.samples["rss"][0] == 7


@pytest.mark.parametrize("together", [True, False])
def test_all_engines_get_the_same_prompts_and_no_measured_one_twice(yard, tmp_path, together):
    run_field(tmp_path, together)
    assert yard.asked["a"] == yard.asked["b"] == yard.asked["c"]
    warm = [p for _, new, batch in yard.asked["a"] if new == measure.WARM_NEW for p in batch]
    measured = [tuple(p) for _, new, batch in yard.asked["a"] if new == 128 for p in batch]
    assert len(set(measured)) == len(measured) == 2
    assert not {tuple(p) for p in warm} & set(measured)


def test_both_ways_measure_with_the_same_prompts(yard, tmp_path):
    run_field(tmp_path, together=True)
    kept = [entry for entry in yard.asked.pop("a") if entry[1] == 128]
    run_field(tmp_path, together=False)
    assert [entry for entry in yard.asked["a"] if entry[1] == 128] == kept


@pytest.mark.parametrize("together", [True, False])
def test_a_broken_engine_is_left_out_and_stopped(yard, tmp_path, together):
    yard.broken.add("b")
    records = {r.engine.label: r for r in run_field(tmp_path, together)}
    assert records["b"].failure == "b broke"
    assert records["b"].samples == {}
    assert len(records["a"].samples["decode1"]) == len(records["c"].samples["decode1"]) == 2
    assert yard.loaded == []
    assert yard.starts["b"] == 1


@pytest.mark.parametrize("together", [True, False])
def test_each_engine_is_judged_once_while_it_is_loaded(yard, tmp_path, together):
    class Judge:
        def judge(self, scorer):
            assert scorer.name in yard.loaded
            return f"of {scorer.name}"

    records = run_field(tmp_path, together, judge=Judge())
    assert [record.agreement for record in records] == ["of a", "of b", "of c"]


def test_expected_memory_counts_all_files_below_a_folder(tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "w.bin").write_bytes(bytes(1000))
    (tmp_path / "graph").write_bytes(bytes(24))
    assert expected_bytes(tmp_path) == 2 * 1024 + BESIDES_WEIGHTS
    assert expected_bytes(tmp_path / "graph") == 2 * 24 + BESIDES_WEIGHTS


def test_engines_fit_together_with_a_second_start_of_the_largest():
    engines = [Engine("peer", "int4", str(need), (), memory=need) for need in (100, 300)]
    assert fit_together(engines, 800)  # 700 of 720
    assert not fit_together(engines, 770)  # 700 of 693
    assert fit_together([], 0)
