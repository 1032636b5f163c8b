"""Packed QKV: `query` [T, (H + 2*KH)*D] without key and value is the separate form bit by bit."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ortloom.kernels.contract import PagedAttentionAttributes
from ortloom.kernels.function_body import add_paged_attention_body
from ortloom.kernels.probe_model import paged_attention_model
from ortloom.kernels.reference import paged_attention

PLAIN = PagedAttentionAttributes(6, 2)
EVERYTHING = PagedAttentionAttributes(
    6, 2, do_rotary=1, rotary_offset=8, qk_norm_epsilon=0.1, softcap=9.0, local_window_size=70
)
# A long prefill (stored in parallel), a split decode step, a request without tokens.
MIXED = ((0, 70), (1500, 1), (37, 0), (63, 2))


def same_bits(one, other):
    for name, a, b in zip(("output", "key pool", "value pool"), one, other, strict=True):
        assert a.shape == b.shape, name
        assert np.array_equal(a.view(np.uint32), b.view(np.uint32)), f"{name} differs"


@pytest.fixture
def draw(steps, request_of):
    def make(attributes, requests=MIXED, **kinds):
        inputs = steps(8).step(attributes, [request_of(*r) for r in requests], **kinds)
        inputs["slot_mapping"][1::5] = -1
        inputs["block_table"][0, 0] = -1
        return inputs

    return make


@pytest.fixture
def body_session(options):
    """A session of the body alone: no library is registered."""

    def make(attributes, names):
        model = onnx.load_from_string(paged_attention_model(attributes, tuple(names)))
        model.opset_import[0].version = 21
        add_paged_attention_body(model)
        return ort.InferenceSession(
            model.SerializeToString(), options(1), providers=["CPUExecutionProvider"]
        )

    return make


CASES = {
    "plain": (PLAIN, {}),
    "multi-head": (PagedAttentionAttributes(3, 3, scale=0.2), {"head_size": 80}),
    "one kv head": (PagedAttentionAttributes(7, 1, is_causal=0), {}),
    "rotary, norm, sinks, window, cap": (
        EVERYTHING,
        {"norms": True, "sinks": True, "rotary_half": 20},
    ),
    "interleaved rotary": (
        PagedAttentionAttributes(4, 2, do_rotary=1, rotary_interleaved=1),
        {"head_size": 128, "block_size": 32},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_op_gives_the_same_bits(case, draw, pack, run_op, close, tier):
    attributes, kinds = CASES[case]
    inputs = draw(attributes, **kinds)
    for threads in (1, 3):
        separate = run_op(attributes, inputs, threads, tier)
        same_bits(separate, run_op(attributes, pack(inputs), threads, tier))
    close(separate, paged_attention(attributes, inputs))


@pytest.mark.parametrize("case", CASES)
def test_oracle_and_body_give_the_same_bits(case, draw, pack, body_session, bound, close):
    attributes, kinds = CASES[case]
    inputs = draw(attributes, requests=((0, 20), (37, 1), (5, 0), (63, 2)), **kinds)
    expected = paged_attention(attributes, inputs)
    result = paged_attention(attributes, pack(inputs))
    for name in ("output", "key_cache", "value_cache"):
        assert np.array_equal(getattr(result, name), getattr(expected, name)), name
    separate = bound(body_session(attributes, inputs), inputs)
    body = bound(body_session(attributes, pack(inputs)), pack(inputs))
    same_bits(separate, body)
    close(body, expected, first_block=1)


def test_an_empty_step(steps, request_of, pack, run_op, tier):
    inputs = pack(steps(0).step(PLAIN, [request_of(4, 0)]))
    output, key_pool, _ = run_op(PLAIN, inputs, 1, tier)
    assert output.shape == (0, 6 * 64)
    assert np.array_equal(key_pool, inputs["key_cache"])


def test_the_comparison_sees_a_swapped_layout(draw, pack, run_op):
    """Key heads where the contract has value heads: the figures are others."""
    inputs = draw(PLAIN)
    swapped = pack({**inputs, "key": inputs["value"], "value": inputs["key"]})
    with pytest.raises(AssertionError, match="differs"):
        same_bits(run_op(PLAIN, inputs), run_op(PLAIN, swapped))
