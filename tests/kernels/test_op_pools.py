"""The ops of head-major pools against the NumPy oracle, in every instruction set tier."""

import dataclasses

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ortloom.kernels.contract import (
    CANONICAL_LAYOUT,
    HEAD_MAJOR_LAYOUT,
    POOLS,
    PagedAttentionAttributes,
)
from ortloom.kernels.pool_layout import as_stored, by_token
from ortloom.kernels.reference import paged_attention

MIXED = ((0, 5), (37, 1), (16, 11), (63, 2), (250, 5))


def head_major(*heads, **attributes):
    return PagedAttentionAttributes(*heads, kv_layout=HEAD_MAJOR_LAYOUT, **attributes)


@pytest.fixture(scope="module")
def oracle():
    """The oracle, which is slow and says the same for every tier."""
    known = {}

    def call(attributes, inputs):
        key = (attributes, *((name, a.tobytes()) for name, a in sorted(inputs.items())))
        if key not in known:
            known[key] = paged_attention(attributes, inputs)
        return known[key]

    return call


@pytest.fixture
def agree(run_op, steps, request_of, close, pack, oracle, tier):
    def check(attributes, pools, requests=MIXED, edit=None, threads=1, packed=False, **kinds):
        inputs = steps(0).step(attributes, [request_of(*r) for r in requests], pools=pools, **kinds)
        if edit is not None:
            edit(inputs)
        given = pack(inputs) if packed else inputs
        got = run_op(attributes, given, threads, tier)
        close(got, oracle(attributes, inputs), first_block=1)
        # What is read out of the op's own pools has no rounding but float32's.
        names = [name for name in POOLS if name in inputs]
        again = {**inputs, **dict(zip(names, got[1:], strict=True))}
        again["slot_mapping"] = np.full_like(inputs["slot_mapping"], -1)
        output = oracle(attributes, again).output
        assert np.abs(got[0] - output).max() <= 1e-5 * np.abs(output).max()

    return check


CASES = {
    "groups": (head_major(9, 3), {}),
    "norm, rotation, packed": (
        head_major(6, 2, do_rotary=1, qk_norm_epsilon=0.1),
        {"norms": True, "packed": True},
    ),
    "interleaved": (
        head_major(6, 2, do_rotary=1, rotary_interleaved=1, rotary_offset=8),
        {"rotary_half": 16, "block_size": 32},
    ),
    "window, softcap, sinks": (
        head_major(14, 2, local_window_size=17, softcap=3.0),
        {"sinks": True, "block_size": 32},
    ),
    "head 80": (head_major(6, 2), {"head_size": 80, "block_size": 64}),
    "head 96": (head_major(7, 1, scale=0.2), {"head_size": 96}),
    "head 128": (
        head_major(4, 4, local_window_size=200),
        {"head_size": 128, "block_size": 64, "packed": True},
    ),
    "head 256": (head_major(6, 3), {"head_size": 256, "block_size": 32}),
    "bidirectional": (head_major(6, 2, is_causal=0), {"block_size": 48}),
    "threads": (head_major(9, 3), {"requests": ((1500, 1), (700, 3)), "threads": 3}),
}


@pytest.mark.parametrize("case", CASES)
def test_features(agree, pools, case):
    attributes, kinds = CASES[case]
    agree(attributes, pools, **kinds)


def not_a_number(array):
    return 0x7FC0 if array.dtype == np.uint16 else np.nan


def test_slots_and_table_entries_of_minus_one(agree, pools):
    def punch(inputs):
        inputs["slot_mapping"][::3] = -1
        inputs["block_table"][1, 0] = -1
        inputs["block_table"][4, [2, 5]] = -1
        for name in POOLS:  # the null block: nobody's data
            if name in inputs and inputs[name].dtype != np.int8:
                inputs[name][0] = not_a_number(inputs[name])

    agree(head_major(6, 2, softcap=3.0), pools, edit=punch, sinks=True)


def test_data_past_the_end_of_a_request_cannot_reach_it(steps, request_of, run_op, tier, pools):
    attributes = head_major(6, 2)
    inputs = steps(5).step(attributes, [request_of(3, 18)], pools=pools)
    clean, *_ = run_op(attributes, inputs, 1, tier)
    last = inputs["block_table"][0, 1]
    for name in [name for name in POOLS if name in inputs]:
        rows = by_token(name, inputs[name], HEAD_MAJOR_LAYOUT)
        rows[last, 21 - 16 :] = 127 if rows.dtype == np.int8 else not_a_number(rows)
        inputs[name] = as_stored(name, rows, HEAD_MAJOR_LAYOUT)
    dirty, *_ = run_op(attributes, inputs, 1, tier)
    assert np.array_equal(clean.view(np.uint32), dirty.view(np.uint32))


def test_heads_of_zeros_and_of_tiny_values_have_codes_of_zero(
    steps, request_of, run_op, close, tier
):
    attributes = head_major(6, 2)
    inputs = steps(6).step(attributes, [request_of(0, 4)], pools="int8")
    inputs["key"][1], inputs["value"][2], inputs["value"][3] = 0, 0, 1e-31
    expected = paged_attention(attributes, inputs)
    close(run_op(attributes, inputs, 1, tier), expected)


def test_both_layouts_of_float32_pools_give_the_same_bits(steps, request_of, run_op, tier):
    attributes = head_major(9, 3, local_window_size=90)
    inputs = steps(7).step(attributes, [request_of(*r) for r in MIXED])
    output, *pools = run_op(attributes, inputs, 1, tier)
    names = ("key_cache", "value_cache")
    plain = {**inputs, **{n: by_token(n, inputs[n], HEAD_MAJOR_LAYOUT) for n in names}}
    canonical = dataclasses.replace(attributes, kv_layout=CANONICAL_LAYOUT)
    other, *other_pools = run_op(canonical, plain, 1, tier)
    assert np.array_equal(output.view(np.uint32), other.view(np.uint32))
    for name, a, b in zip(names, pools, other_pools, strict=True):
        assert np.array_equal(by_token(name, a, HEAD_MAJOR_LAYOUT), b)


@st.composite
def nodes(draw):
    kv_heads = draw(st.integers(1, 4))
    attributes = head_major(
        kv_heads * draw(st.integers(1, 8)),
        kv_heads,
        softcap=draw(st.sampled_from([0.0, 20.0])),
        local_window_size=draw(st.one_of(st.just(-1), st.integers(1, 400))),
        do_rotary=draw(st.integers(0, 1)),
        is_causal=draw(st.integers(0, 1)),
    )
    requests = draw(
        st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), min_size=1, max_size=4)
    )
    kinds = {
        "head_size": 16 * draw(st.integers(4, 16)),
        "block_size": 16 * draw(st.integers(1, 16)),
        "sinks": draw(st.booleans()),
        "norms": draw(st.booleans()),
    }
    return attributes, requests, kinds


@settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(node=nodes())
def test_drawn_nodes(agree, pools, node):
    attributes, requests, kinds = node
    agree(attributes, pools, requests, **kinds)


# ---- refusals --------------------------------------------------------------------------------


@pytest.fixture
def session_and_values(run_op, steps, request_of):
    def make(edit=lambda inputs: None):
        attributes = head_major(6, 2)
        inputs = steps(1).step(attributes, [request_of(0, 3), request_of(20, 2)], pools="int8")
        edit(inputs)
        session = run_op.session(attributes, inputs)
        return session, {n: ort.OrtValue.ortvalue_from_numpy(a) for n, a in inputs.items()}, inputs

    return make


def bind(session, values, apart=()):
    """A binding with every pool in place but those `apart`."""
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for name in POOLS:
        if name in apart:
            binding.bind_output(f"{name}_out")
        else:
            binding.bind_ortvalue_output(f"{name}_out", values[name])
    binding.bind_output("output")
    return binding


@pytest.mark.parametrize("apart", POOLS)
def test_every_pool_must_be_bound_in_place(session_and_values, apart):
    session, values, inputs = session_and_values()
    before = {name: inputs[name].copy() for name in POOLS}
    text = f"{apart}_out must be bound to the same memory as {apart}: bind one OrtValue"
    with pytest.raises(Exception, match=text):
        session.run_with_iobinding(bind(session, values, [apart]))
    assert all(np.array_equal(before[name], inputs[name]) for name in POOLS)


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scale_pools_of_another_shape_are_refused(session_and_values, name, axis):
    def grow(inputs):
        shape = list(inputs[name].shape)
        shape[axis] += 1
        inputs[name] = np.zeros(shape, np.float32)

    session, values, _ = session_and_values(grow)
    with pytest.raises(Exception, match=rf"{name} has shape .* axis {axis} must be .*key_cache"):
        session.run_with_iobinding(bind(session, values))


@pytest.mark.parametrize("missing", ["k_scale", "v_scale"])
def test_int8_pools_need_their_scales(run_op, steps, request_of, missing):
    attributes = head_major(6, 2)
    inputs = steps(1).step(attributes, [request_of(0, 3)], pools="int8")
    del inputs[missing]
    with pytest.raises(Exception, match=missing):
        run_op(attributes, inputs)


@pytest.mark.parametrize(
    "pools", [pytest.param(p, id=i) for p, i in (("float16", "f16"), ("bfloat16", "bf16"),
                                                 ("int8", "int8"))]
)  # fmt: skip
def test_typed_pools_in_token_order_are_refused(run_op, steps, request_of, pools):
    attributes = PagedAttentionAttributes(6, 2)
    inputs = steps(1).step(attributes, [request_of(0, 3)], pools=pools)
    with pytest.raises(Exception, match=r"kv_layout .* is not supported.*not float32"):
        run_op.session(attributes, inputs)
