"""Blocks, the free queue and the prefix index."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortloom.runtime.block_digest import load_digest
from ortloom.runtime.block_hash import extend_chain
from ortloom.runtime.block_pool import BlockPool, OutOfBlocks

DIGEST = {"of": load_digest("sha256")}


def chain(*blocks, salt=None):
    nodes = []
    for tokens in blocks:
        nodes.append(extend_chain(nodes[-1] if nodes else None, tokens, salt, DIGEST["of"]))
    return nodes


def test_the_null_block_is_never_given_out():
    pool = BlockPool(5)
    taken = pool.take(5)
    assert sorted(b.block_id for b in taken) == [1, 2, 3, 4, 5]
    with pytest.raises(OutOfBlocks):
        pool.take(1)


def test_a_take_that_fails_changes_nothing():
    pool = BlockPool(3)
    held = pool.take(2)
    with pytest.raises(OutOfBlocks):
        pool.take(2)
    assert pool.num_free == 1
    pool.release(held)
    assert pool.num_free == 3


def test_a_double_release_is_refused():
    pool = BlockPool(2)
    held = pool.take(1)
    pool.release(held)
    with pytest.raises(OutOfBlocks, match="twice"):
        pool.release(held)


def test_a_block_is_free_only_when_its_last_holder_lets_go():
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.touch([block])
    pool.release([block])
    assert pool.num_free == 1
    pool.release([block])
    assert pool.num_free == 2
    assert pool.usage == 0.0


def test_tails_are_reused_before_heads_and_old_sequences_before_new_ones():
    pool = BlockPool(6)
    first, second = pool.take(3), pool.take(3)
    for held, nodes in ((first, chain([1], [2], [3])), (second, chain([4], [5], [6]))):
        for block, node in zip(held, nodes, strict=True):
            pool.cache(block, node)
    pool.release(first)
    pool.release(second)
    order = [pool.take(1)[0] for _ in range(6)]
    assert order == [*reversed(first), *reversed(second)]


def test_worthless_blocks_are_reused_before_cached_ones():
    pool = BlockPool(3)
    held = pool.take(3)
    pool.cache(held[0], chain([1])[0])
    pool.release(held)
    assert pool.take(2) != []
    assert pool.find(chain([1])[0]) is held[0]


def test_a_hit_takes_the_block_out_of_the_middle_of_the_queue():
    pool = BlockPool(3)
    held = pool.take(3)
    nodes = chain([1], [2], [3])
    for block, node in zip(held, nodes, strict=True):
        pool.cache(block, node)
    pool.release(held)
    found = pool.find(chain([1], [2])[1])
    assert found is held[1]
    pool.touch([found])
    assert [b.block_id for b in pool.free_queue] == [held[2].block_id, held[0].block_id]
    assert pool.num_free == 2


def test_taking_a_cached_block_forgets_its_prefix():
    pool = BlockPool(1)
    held = pool.take(1)
    pool.cache(held[0], chain([1])[0])
    pool.release(held)
    assert pool.find(chain([1])[0]) is held[0]
    pool.take(1)
    assert pool.find(chain([1])[0]) is None
    assert not pool.cached


def test_the_salt_separates_all_blocks_of_a_prefix():
    pool = BlockPool(4)
    held = pool.take(2)
    for block, node in zip(held, chain([1], [2], salt="a"), strict=True):
        pool.cache(block, node)
    for other in (None, "b", ""):
        assert [pool.find(n) for n in chain([1], [2], salt=other)] == [None, None]
    assert [pool.find(n) for n in chain([1], [2], salt="a")] == held


def test_equal_tokens_behind_different_prefixes_are_different():
    one, two = chain([1], [9])[1], chain([2], [9])[1]
    assert one.digest != two.digest
    assert not one.same_prefix(two)


def test_reset_needs_all_blocks_free():
    pool = BlockPool(3)
    held = pool.take(1)
    pool.cache(held[0], chain([1])[0])
    assert not pool.reset()
    assert pool.find(chain([1])[0]) is held[0]
    pool.release(held)
    assert pool.reset()
    assert pool.find(chain([1])[0]) is None
    assert held[0].block_hash is None


class TestCollisions:
    """With a hash function that is no use at all, contents still never mix."""

    @pytest.fixture(autouse=True)
    def _constant_hash(self, monkeypatch):
        monkeypatch.setitem(DIGEST, "of", lambda parent, tokens, extra: b"same")

    def test_other_tokens_are_no_hit(self):
        pool = BlockPool(2)
        held = pool.take(1)
        pool.cache(held[0], chain([1])[0])
        assert pool.find(chain([2])[0]) is None
        assert pool.find(chain([1])[0]) is held[0]

    def test_equal_tokens_behind_another_parent_are_no_hit(self):
        pool = BlockPool(2)
        held = pool.take(1)
        pool.cache(held[0], chain([1], [9])[1])
        assert pool.find(chain([2], [9])[1]) is None
        assert pool.find(chain([1], [9])[1]) is held[0]

    def test_another_salt_is_no_hit(self):
        pool = BlockPool(2)
        held = pool.take(1)
        pool.cache(held[0], chain([1], salt="a")[0])
        assert pool.find(chain([1])[0]) is None

    def test_the_first_block_keeps_the_digest(self):
        pool = BlockPool(2)
        held = pool.take(2)
        pool.cache(held[0], chain([1])[0])
        pool.cache(held[1], chain([2])[0])
        assert held[1].block_hash is None
        assert pool.find(chain([1])[0]) is held[0]


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 12), st.lists(st.tuples(st.sampled_from("trhc"), st.integers(0, 11))))
def test_the_queue_agrees_with_a_plain_list(num_blocks, moves):
    """Model test: take, release, hit (touch) and cache against an ordered list."""
    pool = BlockPool(num_blocks)
    free = list(range(1, num_blocks + 1))
    held = []
    for move, number in moves:
        if move == "t" and free:
            assert pool.take(1)[0].block_id == free[0]
            held.append(free.pop(0))
        elif move == "r" and held:
            block = pool.blocks[held.pop(number % len(held))]
            pool.release([block])
            if block.ref_count == 0:
                free.insert(0 if block.block_hash is None else len(free), block.block_id)
        elif move == "h":
            block = pool.find(chain([number])[0])
            if block is not None:
                pool.touch([block])
                if block.block_id in free:
                    free.remove(block.block_id)
                held.append(block.block_id)
        elif move == "c" and held:
            pool.cache(pool.blocks[held[-1]], chain([number])[0])
        assert [b.block_id for b in pool.free_queue] == free
        assert pool.num_free == len(free)
