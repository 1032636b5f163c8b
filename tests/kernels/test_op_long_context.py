"""A context of 32 768 tokens: right against the oracle, and the same bits in every schedule."""

from functools import cache

import numpy as np
import pytest
from streams import Stream, assert_same_bits, every

from ortloom.kernels.contract import HEAD_MAJOR_LAYOUT, PagedAttentionAttributes
from ortloom.kernels.reference import paged_attention

CONTEXT = 32_768
CHUNK = 70
"""Tokens at the context's end that are computed: more than a tile's and than a task's."""

CHECKED = 4
"""The last of them, which the oracle computes as well."""

# Scores with a standard deviation of 4: a few keys, which lie anywhere, decide about a row.
ATTRIBUTES = PagedAttentionAttributes(2, 1, scale=0.5, kv_layout=HEAD_MAJOR_LAYOUT)


def filled_pools(stream, kind):
    """Pools that hold random keys and values wherever the op has not written yet."""
    generator = np.random.default_rng(5)
    pools = []
    for pool in stream.empty_pools():
        if kind == "int8" and pool.dtype == np.int8:
            pools.append(generator.integers(-127, 128, pool.shape).astype(np.int8))
        elif kind == "int8":
            pools.append(generator.uniform(0.01, 0.02, pool.shape).astype(np.float32))
        else:
            values = generator.standard_normal(pool.shape, dtype=np.float32)
            pools.append(values.astype(pool.dtype))
    return pools


@cache
def prepared(kind):
    """The stream, its pools with the chunk's first tokens written, and the oracle's last rows."""
    stream = Stream(CONTEXT, ATTRIBUTES, pools=kind)
    pools = filled_pools(stream, kind)
    begin = CONTEXT - CHECKED
    inputs = stream.step(pools, CONTEXT - CHUNK, begin)
    # Only what is written counts here, so no key need be seen.
    unseen = {**inputs, "block_table": np.full_like(inputs["block_table"], -1)}
    before = paged_attention(ATTRIBUTES, unseen)
    written = [before.key_cache, before.value_cache, before.k_scale, before.v_scale]
    written = written[: len(pools)]
    expected = paged_attention(ATTRIBUTES, stream.step(written, begin, CONTEXT)).output
    return stream, pools, expected


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
def test_32k_tokens_of_context(run_op, tier, kind):
    stream, pools, expected = prepared(kind)

    def end_of_context(threads, sizes):
        made, outputs, begin = pools, [], CONTEXT - CHUNK
        for size in sizes:
            end = min(begin + size, CONTEXT)
            output, *made = run_op(ATTRIBUTES, stream.step(made, begin, end), threads, tier)
            outputs.append(output)
            begin = end
        assert begin == CONTEXT
        return np.concatenate(outputs), *made

    results = {
        "one chunk, 1 thread": end_of_context(1, [CHUNK]),
        "one chunk, 3 threads": end_of_context(3, [CHUNK]),
        "chunks of 17, 2 threads": end_of_context(2, every(17, CHUNK)),
        "a chunk, then token by token, 1 thread": end_of_context(1, [CHUNK - 5, 1, 1, 1, 1, 1]),
        "a chunk, then token by token, 2 threads": end_of_context(2, [CHUNK - 5, 1, 1, 1, 1, 1]),
    }
    assert_same_bits(results)
    output = results["one chunk, 1 thread"][0][-CHECKED:]
    # Both round the few new keys and values alike, so that no type needs more than float32's.
    assert np.abs(output - expected).max() <= 1e-5 * np.abs(expected).max()
