"""The library's sampler against plain NumPy in float64, in every tier, and its refusals."""

import ctypes
import math

import numpy as np
import pytest

from ortloom.errors import KernelUnavailable
from ortloom.kernels import isa, sampling
from ortloom.kernels.sampling import LogprobsReport, Sampler, SampleRow
from ortloom.runtime.philox import uniform

VOCABS = [1, 2, 63, 64, 65, 700, 9000]


class Row:
    """A SampleRow and the arrays it points to."""

    def __init__(self, temperature=1.0, **fields):
        self.c = SampleRow()
        self.c.inverse_temperature = 1.0 / temperature if temperature else 0.0
        self.c.log_min_p = -math.inf
        self.c.top_p = 1.0
        self.c.repetition_penalty = 1.0
        self.keep = []
        for name, value in fields.items():
            if isinstance(value, np.ndarray):
                self.keep.append(value)
                value = value.ctypes.data
            setattr(self.c, name, value)

    def report(self, which, num_top, extra=(), kind=sampling.LOGPROBS):
        count = 1 + num_top + len(extra)
        self.ids, self.values = np.zeros(count, np.int64), np.zeros(count, np.float64)
        self.ranks, self.extra = np.zeros(count, np.int64), np.array(extra, np.int64)
        target = getattr(self.c, which)
        target.kind, target.num_top, target.num_extra = kind, num_top, len(extra)
        target.extra, target.ids = self.extra.ctypes.data, self.ids.ctypes.data
        target.values, target.ranks = self.values.ctypes.data, self.ranks.ctypes.data
        return self


def run(sampler, logits, rows):
    sampler.run(logits, [ctypes.addressof(row.c) for row in rows])
    return [row.c.token if row.c.status == sampling.SAMPLED else -row.c.status for row in rows]


def normal(seed, rows, vocab, deviation=3.0):
    generator = np.random.default_rng(seed)
    return (generator.standard_normal((rows, vocab)) * deviation).astype(np.float32)


@pytest.fixture
def make(tier, monkeypatch):
    monkeypatch.setenv(isa.ISA_VARIABLE, tier)
    return Sampler


@pytest.mark.parametrize("vocab", VOCABS)
def test_argmax_takes_the_lowest_id_of_a_tie_and_refuses_what_is_not_finite(make, vocab):
    logits = normal(vocab, 5, vocab)
    logits[1] = -2.0
    logits[2, vocab // 2 :] = 50.0
    logits[3, -1] = np.nan
    logits[4] = -np.inf
    expected = logits[:3].argmax(axis=1).tolist()
    assert make(vocab).argmax(logits) == [*expected, -1, -1]
    logits[0, vocab // 3] = np.inf
    assert make(vocab).argmax(logits)[0] == -1


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.nan])
def test_a_value_that_is_not_finite_is_found_wherever_it_is(make, vocab, bad):
    sampler = make(vocab)
    for place in {0, vocab // 2, vocab - 1}:
        logits = normal(1, 1, vocab)
        logits[0, place] = bad
        for temperature in (0.0, 1.0):
            assert run(sampler, logits.copy(), [Row(temperature)]) == [-sampling.NOT_FINITE]


def test_a_temperature_that_overflows_the_best_value_is_not_finite(make):
    logits = np.full((1, 70), 3e38, np.float32)
    assert run(make(70), logits, [Row(0.01)]) == [-sampling.NOT_FINITE]


@pytest.mark.parametrize("deviation", [0.0, 0.001, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("vocab", [65, 9000, 60000])
def test_draws_follow_the_sorted_distribution(make, vocab, deviation):
    """Every path of the search: few tokens, many, and the whole vocabulary with one value."""
    logits = normal(3, 1, vocab, deviation)
    order = np.argsort(-logits[0], kind="stable")
    mass = np.exp(logits[0, order].astype(np.float64) - logits[0].max())
    edges = np.cumsum(mass) / mass.sum()
    place = np.empty(vocab, np.int64)
    place[order] = np.arange(vocab)
    sampler = make(vocab)
    for top_p in (1.0, 0.999, 0.5):
        cut = min(int(np.searchsorted(edges, top_p)), vocab - 1)
        whole = edges[cut] if top_p < 1 else 1.0
        for seed in range(24):
            row = Row(top_p=top_p, seed=seed)
            (token,) = run(sampler, logits.copy(), [row])
            at = place[token]
            goal = uniform(row.c.seed, 0, 0) * whole
            below = edges[at - 1] if at else 0.0
            assert below - 1e-5 <= goal <= edges[at] + 1e-5


def test_tiers_agree_bitwise(monkeypatch):
    """Sums are exact, so nothing depends on the width of a vector."""
    tiers = [t.name for t in isa.isa_report().tiers if not t.state.startswith("lacks")]
    seen = []
    for tier in tiers:
        monkeypatch.setenv(isa.ISA_VARIABLE, tier)
        sampler = Sampler(5001)
        for seed in range(40):
            deviation = (0.001, 1.0, 4.0)[seed % 3]
            row = Row(0.7, top_p=(1.0, 0.9)[seed % 2], seed=seed).report("processed", 3, [7])
            token = run(sampler, normal(seed, 1, 5001, deviation), [row])
            seen.append((seed, token, row.values.tolist(), row.ranks.tolist()))
    assert all(seen[i] == seen[i % 40] for i in range(len(seen)))


def test_masks_hold_at_every_bit(make):
    vocab = 130
    sampler = make(vocab)
    for keep in (0, 31, 32, 63, 64, 127, 128, 129):
        bits = np.zeros((vocab + 31) // 32, np.uint32)
        bits[keep // 32] = 1 << (keep % 32)
        for field in ("grammar", "allowed"):
            assert run(sampler, normal(keep, 1, vocab), [Row(0.0, **{field: bits})]) == [keep]
        forbidden = np.array([keep], np.int64)
        row = Row(0.0, grammar=bits, forbidden=forbidden, num_forbidden=1)
        assert run(sampler, normal(keep, 1, vocab), [row]) == [-sampling.NOTHING_ALLOWED]


def test_penalties_and_bias_are_those_of_the_formula(make):
    logits = normal(5, 1, 500)
    ids, counts = np.array([3, 400, 77], np.int64), np.array([1, 5, 2], np.float32)
    bias = np.array([4.0, -1.5, 0.25], np.float32)
    row = Row(
        0.0, bias_ids=ids, bias=bias, num_bias=3, seen_ids=ids, num_seen=3, repetition_penalty=1.7,
        output_ids=ids, output_counts=counts, num_output=3, frequency_penalty=0.3,
        presence_penalty=-0.2,
    )  # fmt: skip
    expected = logits[0].astype(np.float64)
    expected[ids] += bias
    expected[ids] = np.where(expected[ids] > 0, expected[ids] / 1.7, expected[ids] * 1.7)
    expected[ids] -= 0.3 * counts - 0.2
    run(make(500), logits, [row])
    assert logits[0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("k", [0, 1, 5, 200, 4999, 5000])
@pytest.mark.parametrize("ties", [False, True])
def test_raw_entries_are_those_of_a_sort(make, k, ties):
    row = normal(k, 1, 5000)
    if ties:
        row = np.round(row)
    row[0, 4000:4100] = -np.inf
    order = np.argsort(-row[0], kind="stable")
    wide = row[0].astype(np.float64)
    logprobs = wide - wide.max() - math.log(np.exp(wide - wide.max()).sum())
    holder = Row(0.0).report("raw", k, [9, 4050])
    make(5000).describe(row, 1234, holder.c.raw)
    assert holder.ids.tolist() == [1234, *order[:k], 9, 4050]
    expected = np.where(np.isfinite(logprobs), logprobs, -9999.0)[holder.ids]
    assert holder.values == pytest.approx(expected, abs=1e-5)
    ascending = np.sort(row[0])
    ranks = 5000 - np.searchsorted(ascending, row[0, holder.ids], side="left")
    assert holder.ranks.tolist() == ranks.tolist()


def test_a_row_left_out_is_not_touched(make):
    logits = normal(2, 3, 300)
    before = logits.copy()
    rows = [Row(0.0), Row(0.0)]
    make(300).run(logits, [ctypes.addressof(rows[0].c), 0, ctypes.addressof(rows[1].c)])
    assert [row.c.token for row in rows] == [before[0].argmax(), before[2].argmax()]


@pytest.mark.parametrize("field", ["forbidden", "ends", "bias_ids", "seen_ids", "output_ids"])
@pytest.mark.parametrize("bad", [-1, 300, 2**62])
def test_ids_outside_the_vocabulary_are_refused_before_anything_is_written(make, field, bad):
    number = "num_" + field.removesuffix("_ids")
    ids, weights = np.array([5, bad], np.int64), np.ones(2, np.float32)
    row = Row(1.0, **{field: ids, number: 2}, bias=weights, output_counts=weights)
    logits = normal(2, 1, 300)
    before = logits.copy()
    assert run(make(300), logits, [row]) == [-sampling.BAD_ID]
    assert np.array_equal(before, logits)


@pytest.mark.parametrize(("num_top", "extra"), [(301, []), (-1, []), (2, [300]), (2, [-1])])
def test_reports_that_do_not_fit_the_vocabulary_are_refused(make, num_top, extra):
    row = Row(0.0).report("raw", 302, [0])
    row.c.raw.num_top = num_top
    row.extra[:] = extra or [0]
    assert run(make(300), normal(2, 1, 300), [row]) == [-sampling.BAD_ID]
    with pytest.raises(IndexError):
        make(300).describe(normal(2, 1, 300), 5, row.c.raw)
    with pytest.raises(IndexError):
        make(300).describe(normal(2, 1, 300), 300, LogprobsReport())


def test_arrays_of_a_wrong_kind_are_refused(make):
    sampler = make(300)
    row = Row(0.0)
    addresses = [ctypes.addressof(row.c)]
    for bad in (
        np.zeros((1, 299), np.float32),
        np.zeros((2, 300), np.float32),
        np.zeros((1, 300), np.float64),
        np.zeros((1, 600), np.float32)[:, ::2],
    ):
        with pytest.raises(ValueError, match="contiguous float32"):
            sampler.run(bad, addresses)
    fixed = np.zeros((1, 300), np.float32)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="writeable"):
        sampler.run(fixed, addresses)
    assert sampler.argmax(fixed) == [0]


@pytest.mark.parametrize("vocab", [0, -5, sampling.LARGEST_VOCABULARY + 1])
def test_vocabularies_out_of_range_are_refused(vocab):
    with pytest.raises(KernelUnavailable, match="1 to 524288"):
        Sampler(vocab)


def test_an_unknown_tier_and_a_library_without_a_sampler_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv(isa.ISA_VARIABLE, "sse9")
    with pytest.raises(KernelUnavailable, match="sse9 is unknown"):
        Sampler(10)
    with pytest.raises(KernelUnavailable, match="has no sampler"):
        Sampler(10, tmp_path / "none.so")


def test_a_row_of_another_size_is_refused(monkeypatch):
    class Longer(SampleRow):
        _fields_ = (("more", ctypes.c_int64),)

    monkeypatch.setattr(sampling, "SampleRow", Longer)
    with pytest.raises(KernelUnavailable, match="another size"):
        Sampler(10)
