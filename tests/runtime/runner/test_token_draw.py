"""The cuts and the draw against a slow oracle that sorts everything in float64."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortloom.runtime.token_draw import draw_token, leading, ordered


def slow_order(row):
    return sorted(range(len(row)), key=lambda i: (-row[i], i))


def slow_kept(row, top_k, top_p, min_p):
    """Survivors in order, with float64 probabilities."""
    ids = [i for i in slow_order(row) if row[i] > -np.inf]
    top = float(row[ids[0]])
    if min_p > 0:
        ids = [i for i in ids if float(row[i]) - top >= math.log(min_p) - 1e-9]
    if top_k > 0:
        ids = ids[:top_k]
    mass = np.exp(np.array([float(row[i]) for i in ids]) - top)
    mass /= mass.sum()
    if top_p < 1:
        count = int(np.searchsorted(np.cumsum(mass), top_p)) + 1
        ids, mass = ids[:count], mass[:count]
    return ids, mass / mass.sum()


def draw(row, top_k=0, top_p=1.0, min_p=0.0, random=0.5):
    return draw_token(row, top_k, top_p, min_p, random)


def rows(rng, vocab, kind):
    if kind == "ties":
        return rng.integers(-3, 4, vocab).astype(np.float32)
    if kind == "masked":
        row = rng.normal(size=vocab).astype(np.float32) * 3
        row[rng.random(vocab) < 0.9] = -np.inf
        row[0] = 1
        return row
    scale = {"peaked": 8, "normal": 3, "flat": 0.01}[kind]
    return (rng.normal(size=vocab) * scale).astype(np.float32)


KINDS = ["ties", "masked", "peaked", "normal", "flat"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", [5, 64, 65, 1000, 9000])
def test_leading_tokens_are_the_first_of_the_full_order(kind, vocab):
    row = rows(np.random.default_rng(vocab), vocab, kind)
    full = [i for i in slow_order(row) if row[i] > -np.inf]
    for k in {1, 2, 7, vocab // 3 + 1, vocab - 1, vocab, vocab + 5} - {0}:
        found = leading(row, k).tolist()
        assert found == full[: len(found)]
        assert len(found) >= min(k, len(full))


def test_both_sorts_agree_and_zeros_of_both_signs_tie():
    row = np.zeros(5000, np.float32)
    row[::2] = -0.0
    row[4000] = 1e-30
    row[10] = -1e-30
    ids = np.arange(5000)
    big = ordered(row, ids).tolist()
    assert big == [4000, *[i for i in range(5000) if i not in (4000, 10)], 10]
    assert ordered(row, ids[:100]).tolist() == [i for i in range(100) if i != 10] + [10]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    vocab=st.sampled_from([3, 70, 700, 6000]),
    kind=st.sampled_from(KINDS),
    top_k=st.sampled_from([-1, 0, 1, 3, 50, 10**9]),
    top_p=st.sampled_from([1e-9, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    random=st.floats(0, 1, exclude_max=True),
)
def test_draw_matches_the_oracle(seed, vocab, kind, top_k, top_p, min_p, random):
    row = rows(np.random.default_rng(seed), vocab, kind)
    before = row.copy()
    drawn = draw(row, top_k, top_p, min_p, random)
    assert np.array_equal(row, before)
    ids, mass = slow_kept(row, top_k, top_p, min_p)
    uncut = drawn.kept is None
    kept = ids if uncut else drawn.kept.tolist()
    # float32 exponentials may move a border by next to nothing, or by one of several exact ties
    assert kept[: min(len(kept), len(ids))] == ids[: min(len(kept), len(ids))]
    share = mass[min(len(kept), len(ids)) - 1 :].sum()
    beyond = mass[min(len(kept), len(ids)) :].sum()
    assert len(kept) == len(ids) or beyond < max(2e-3, mass[-1] * 1.01)
    edges = np.concatenate([[0.0], np.cumsum(mass)])
    place = ids.index(drawn.token_id) if drawn.token_id in ids else len(ids) - 1
    assert (
        edges[place] - 2e-5
        <= random * edges[-1]
        <= edges[place + 1] + 2e-5 + share * (len(kept) != len(ids))
    )
    values = np.array([float(row[i]) for i in kept])
    log_mass = values[0] + math.log(np.exp(values - values[0]).sum())
    assert drawn.log_mass == pytest.approx(log_mass, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_cuts_of_one_token_are_greedy(kind):
    rng = np.random.default_rng(9)
    for _ in range(20):
        row = rows(rng, 3000, kind)
        for cut in ({"top_k": 1}, {"top_p": 1e-9}):
            for random in (0.0, 0.5, 0.999999):
                assert draw(row, **cut, random=random).token_id == int(row.argmax())
        unique = row + np.arange(3000, 0, -1, dtype=np.float32) * 1e-3
        assert draw(unique, min_p=1.0, random=0.99).token_id == int(unique.argmax())


def test_draws_follow_the_distribution():
    row = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    counts = np.zeros(4)
    for i in range(4000):
        counts[draw(row, random=(i + 0.5) / 4000).token_id] += 1
    assert counts.tolist() == [2000, 1000, 500, 500]


def test_a_token_without_mass_is_never_drawn():
    row = np.full(300, -200.0, np.float32)
    row[7] = 0.0
    row[9] = -np.inf
    for top_k in (0, 200):
        assert draw(row, top_k=top_k, random=1 - 2**-53).token_id == 7


def test_row_address_does_not_matter():
    rng = np.random.default_rng(1)
    row = rng.normal(size=5001).astype(np.float32)
    results = set()
    for offset in range(17):
        buffer = np.empty(5001 + 32, np.float32)
        view = buffer[offset : offset + 5001]
        view[:] = row
        drawn = draw(view, top_p=0.97, random=0.83)
        results.add((drawn.token_id, drawn.log_mass, len(drawn.kept)))
    assert len(results) == 1
