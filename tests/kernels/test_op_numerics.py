"""The op against the NumPy oracle, in every instruction set tier."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ortloom.kernels.contract import PagedAttentionAttributes
from ortloom.kernels.reference import paged_attention

MIXED = ((0, 5), (37, 1), (16, 19), (63, 2), (250, 9))


@pytest.fixture
def agree(run_op, steps, request_of, close, tier):
    def check(attributes, requests=MIXED, seed=0, edit=None, threads=1, compare=None, **kinds):
        inputs = steps(seed).step(attributes, [request_of(*r) for r in requests], **kinds)
        if edit is not None:
            edit(inputs)
        expected = paged_attention(attributes, inputs)
        close(run_op(attributes, inputs, threads, tier), expected, **(compare or {}))

    return check


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (8, 8), (9, 3), (14, 2), (32, 4), (7, 1)])
def test_head_ratios(agree, heads, kv_heads):
    agree(PagedAttentionAttributes(heads, kv_heads))


@pytest.mark.parametrize("head_size", [64, 80, 96, 112, 128, 192, 256])
def test_head_sizes(agree, head_size):
    agree(PagedAttentionAttributes(6, 2), head_size=head_size)


@pytest.mark.parametrize("block_size", [16, 32, 48, 256])
def test_block_sizes(agree, block_size):
    agree(PagedAttentionAttributes(6, 2), block_size=block_size)


@pytest.mark.parametrize("window", [1, 2, 16, 17, 63, 64, 65, 256, 257, 1000])
def test_windows(agree, window):
    agree(PagedAttentionAttributes(6, 2, local_window_size=window))


@pytest.mark.parametrize("scale", [0.0, 0.03, 1.0])
@pytest.mark.parametrize("softcap", [0.0, 0.7, 30.0])
def test_scale_and_softcap(agree, scale, softcap):
    agree(PagedAttentionAttributes(6, 2, scale=scale, softcap=softcap))


def test_sinks(agree):
    agree(PagedAttentionAttributes(6, 2), sinks=True)
    agree(PagedAttentionAttributes(6, 2, softcap=5.0, local_window_size=20), sinks=True)


@pytest.mark.parametrize("epsilon", [1e-6, 0.3])
def test_query_and_key_norm(agree, epsilon):
    agree(PagedAttentionAttributes(6, 2, qk_norm_epsilon=epsilon), norms=True)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("offset", "half"), [(0, 32), (0, 12), (8, 16), (32, 16), (40, 1)])
def test_rotary(agree, interleaved, offset, half):
    attributes = PagedAttentionAttributes(
        6, 2, do_rotary=1, rotary_interleaved=interleaved, rotary_offset=offset
    )
    agree(attributes, rotary_half=half)
    agree(attributes, rotary_half=half, norms=True)


def test_bidirectional(agree):
    agree(PagedAttentionAttributes(6, 2, is_causal=0))
    agree(PagedAttentionAttributes(6, 2, is_causal=0, local_window_size=24))


def test_several_threads_split_long_contexts(agree):
    agree(PagedAttentionAttributes(9, 3), requests=((1500, 1), (700, 3)), threads=3)


def test_slots_of_minus_one_write_nothing(agree, steps, request_of, run_op, tier):
    attributes = PagedAttentionAttributes(6, 2)

    def skip_some(inputs):
        inputs["slot_mapping"][::2] = -1

    agree(attributes, edit=skip_some)
    inputs = steps(3).step(attributes, [request_of(0, 8), request_of(20, 12)])
    inputs["slot_mapping"][:] = -1
    _, key_pool, value_pool = run_op(attributes, inputs, 1, tier)
    assert np.array_equal(key_pool, inputs["key_cache"])
    assert np.array_equal(value_pool, inputs["value_cache"])


def test_table_entries_of_minus_one_are_not_read(agree):
    def punch(inputs):
        inputs["block_table"][1, 0] = -1
        inputs["block_table"][4, [2, 5]] = -1
        inputs["slot_mapping"][0] = -1
        inputs["value_cache"][0] = np.nan  # the null block: nobody's data
        inputs["key_cache"][0] = np.nan

    owned = {"first_block": 1}
    agree(PagedAttentionAttributes(6, 2), edit=punch, compare=owned)
    agree(PagedAttentionAttributes(6, 2, softcap=3.0), edit=punch, compare=owned, sinks=True)


def test_a_query_that_sees_no_key_gives_zeros(steps, request_of, run_op, tier):
    attributes = PagedAttentionAttributes(6, 2, local_window_size=16)
    inputs = steps(4).step(attributes, [request_of(0, 3), request_of(48, 1)], sinks=True)
    inputs["block_table"][1, 2:] = -1
    output, _, _ = run_op(attributes, inputs, 1, tier)
    assert np.all(output[3] == 0.0)
    assert np.all(output[:3] != 0.0)


def test_data_past_the_end_of_a_request_cannot_reach_it(steps, request_of, run_op, tier):
    attributes = PagedAttentionAttributes(6, 2)
    inputs = steps(5).step(attributes, [request_of(3, 18)])
    clean, _, _ = run_op(attributes, inputs, 1, tier)
    last = inputs["block_table"][0, 1]
    inputs["key_cache"][last, 21 - 16 :] = np.nan
    inputs["value_cache"][last, 21 - 16 :] = np.inf
    dirty, _, _ = run_op(attributes, inputs, 1, tier)
    assert np.array_equal(clean.view(np.uint32), dirty.view(np.uint32))


def test_requests_without_tokens_and_empty_steps(steps, request_of, run_op, close, tier):
    attributes = PagedAttentionAttributes(6, 2)
    inputs = steps(6).step(
        attributes, [request_of(0, 0), request_of(4, 2), request_of(9, 0), request_of(1, 1)]
    )
    close(run_op(attributes, inputs, 1, tier), paged_attention(attributes, inputs))
    nothing = steps(6).step(attributes, [request_of(4, 0)])
    output, key_pool, _ = run_op(attributes, nothing, 1, tier)
    assert output.shape == (0, 6 * 64)
    assert np.array_equal(key_pool, nothing["key_cache"])


def test_large_scores_do_not_overflow(agree):
    def loud(inputs):
        inputs["query"] *= 100.0

    # float32 scores near 1000 are rounded to 6e-5, which is the error of a weight.
    agree(PagedAttentionAttributes(6, 2), edit=loud, compare={"tolerance": 2e-4})


@st.composite
def nodes(draw):
    kv_heads = draw(st.integers(1, 4))
    window = draw(st.one_of(st.just(-1), st.integers(1, 400)))
    attributes = PagedAttentionAttributes(
        num_heads=kv_heads * draw(st.integers(1, 8)),
        kv_num_heads=kv_heads,
        scale=draw(st.sampled_from([0.0, 0.1])),
        softcap=draw(st.sampled_from([0.0, 20.0])),
        local_window_size=window,
        do_rotary=draw(st.integers(0, 1)),
        rotary_interleaved=draw(st.integers(0, 1)),
        is_causal=draw(st.integers(0, 1)),
    )
    requests = draw(
        st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), min_size=1, max_size=5)
    )
    kinds = {
        "head_size": 16 * draw(st.integers(4, 16)),
        "block_size": 16 * draw(st.integers(1, 16)),
        "sinks": draw(st.booleans()),
        "norms": draw(st.booleans()),
    }
    return attributes, requests, kinds


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(nodes())
def test_drawn_nodes(agree, node):
    attributes, requests, kinds = node
    agree(attributes, requests, **kinds)
