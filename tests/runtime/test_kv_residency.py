"""How long blocks keep what they hold: by hand, and through the pool that reports it."""

import pytest

from ortloom.runtime.block_digest import load_digest
from ortloom.runtime.block_hash import extend_chain
from ortloom.runtime.block_pool import BlockPool
from ortloom.runtime.kv_residency import KVResidency
from ortloom.runtime.messages import KV_RESIDENCY_BUCKETS


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def bucket(histogram):
    """Upper bounds of the buckets that hold something, with their counts."""
    bounds = [*KV_RESIDENCY_BUCKETS, float("inf")]
    return {b: c for b, c in zip(bounds, histogram.counts, strict=True) if c}


@pytest.fixture
def clock():
    return Clock()


def test_a_block_from_its_allocation_to_its_eviction(clock):
    pool = BlockPool(1)
    pool.residency = KVResidency(1.0, clock)
    (block,) = pool.take(1)
    pool.cache(block, extend_chain(None, [1, 2], None, load_digest("sha256")))
    for at in (4.0, 4.5, 7.0):
        clock.now = at
        pool.touch([block])
    pool.release([block] * 4)
    clock.now = 19.0
    pool.take(1)
    lifetime, idle, gaps = pool.residency.histograms()
    assert (bucket(lifetime), lifetime.sum) == ({20.0: 1}, 19.0)
    assert (bucket(idle), idle.sum) == ({20.0: 1}, 12.0)
    assert (bucket(gaps), gaps.sum) == ({0.5: 1, 5.0: 2}, 7.0)


def test_a_block_without_a_prefix_is_no_eviction(clock):
    pool = BlockPool(1)
    pool.residency = KVResidency(1.0, clock)
    pool.release(pool.take(1))
    pool.take(1)
    assert [sum(h.counts) for h in pool.residency.histograms()] == [0, 0, 0]


def test_a_reset_counts_nothing(clock):
    pool = BlockPool(1)
    pool.residency = KVResidency(1.0, clock)
    (block,) = pool.take(1)
    pool.cache(block, extend_chain(None, [1], None, load_digest("sha256")))
    pool.release([block])
    assert pool.reset()
    pool.take(1)
    assert [sum(h.counts) for h in pool.residency.histograms()] == [0, 0, 0]


def test_only_the_share_is_followed(clock):
    draws = iter([0.2, 0.3, 0.9, 0.24])
    residency = KVResidency(0.25, clock, lambda: next(draws))
    for block_id in (1, 2, 3, 4):
        residency.taken(block_id)
    for block_id in (1, 2, 3, 4):
        residency.dropped(block_id)
    assert sum(residency.histograms()[0].counts) == 2
