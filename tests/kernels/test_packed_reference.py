"""The oracle of the packed ops against the contract's formulas, spelt out element by element."""

import math

import numpy as np
import pytest

from ortloom.kernels.packed_contract import PackedAttributes as Attributes
from ortloom.kernels.packed_reference import (
    ACTIVATIONS,
    packed_embedding,
    packed_linear,
    quantise_activations,
)
from ortloom.kernels.packing import pack_blocks, pack_codes, pack_float

F = np.float32


def spelt_out(x, codes, scales, mins, zero, block):
    """The contract's loop, one output at a time, in exact products and float64 sums."""
    out = np.zeros((len(x), len(codes)))
    for t, n in np.ndindex(out.shape):
        span, y = min(32, block), 0.0
        for start in range(0, x.shape[1], span):
            first = start // 32 * 32
            amax = np.abs(x[t, first : first + 32]).max()
            a = [0] * span
            if amax > 0:
                a = [int(np.rint(v * (F(127) / amax))) for v in x[t, start : start + span]]
            c = [int(v) for v in codes[n, start : start + span]]
            dot, total = sum(p * q for p, q in zip(a, c, strict=True)), sum(a)
            scale = float(scales[n, start // block])
            if mins is None:
                part = scale * (dot - zero * total)
            else:
                part = scale * dot + float(mins[n, start // block]) * total
            y += float(amax / F(127)) * part
        out[t, n] = y
    return out


@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize(("format", "zero"), [("u8", 128), ("u4", 8)])
@pytest.mark.parametrize("has_mins", [False, True])
def test_quantised_products(format, zero, block, has_mins):
    rng = np.random.default_rng(block)
    rows, width = 19, 128
    x = rng.standard_normal((4, width), dtype=F)
    x[1, 32:64] = 0
    codes = rng.integers(0, 2 * zero, (rows, width), dtype=np.uint8)
    scales, mins = (rng.standard_normal((rows, width // block)).astype(np.float16) for _ in "ab")
    attributes = Attributes(format, rows, width, block)
    inputs = {"weight": pack_codes(codes, format), "scales": pack_blocks(scales)}
    if has_mins:
        inputs["mins"] = pack_blocks(mins)
    wanted = spelt_out(x, codes, scales, mins if has_mins else None, zero, block)
    limit = 1e-6 * np.abs(wanted).max()
    assert np.abs(packed_linear(attributes, {"x": x, **inputs}) - wanted).max() <= limit
    bias = rng.standard_normal(rows, dtype=F)
    got = packed_linear(attributes, {"x": x, "bias": bias, **inputs})
    assert np.abs(got - (wanted + bias)).max() <= limit

    values = np.empty((rows, width), F)
    for n, k in np.ndindex(values.shape):
        scale, code = F(scales[n, k // block]), int(codes[n, k])
        value = scale * F(code) + F(mins[n, k // block]) if has_mins else scale * F(code - zero)
        values[n, k] = value
    ids = np.array([18, 0, 16, 16])
    assert np.array_equal(packed_embedding(attributes, {"ids": ids, **inputs}), values[ids])


@pytest.mark.parametrize("format", ["f32", "f16", "bf16"])
def test_float_products(format):
    rng = np.random.default_rng(1)
    w = rng.integers(-100, 100, (20, 48)).astype(F)
    x = rng.integers(-100, 100, (3, 48)).astype(F)
    attributes, inputs = Attributes(format, 20, 48), {"weight": pack_float(w, format)}
    assert np.array_equal(packed_linear(attributes, {"x": x, **inputs}), x @ w.T)
    ids = np.array([19, 3])
    assert np.array_equal(packed_embedding(attributes, {"ids": ids, **inputs}), w[ids])
    for wrong in (-1, 20):
        with pytest.raises(IndexError, match=f"id {wrong} "):
            packed_embedding(attributes, {"ids": np.array([wrong]), **inputs})


def test_activations_are_rounded_half_to_even():
    x = np.zeros((1, 64), dtype=F)
    x[0, :6] = [127, 0.5, 1.5, 2.5, -0.5, -1.5]
    x[0, 32:34] = 1e-39, -1e-40
    rounded, steps = quantise_activations(x)
    assert rounded[0, :6].tolist() == [127, 0, 2, 2, 0, -2]
    assert steps[0, 0] == 1
    assert not rounded[0, 32:].any()
    assert np.isfinite(steps).all()


def test_gated_rows():
    rng = np.random.default_rng(2)
    w = rng.standard_normal((64, 32), dtype=F)
    x = rng.standard_normal((3, 32), dtype=F)
    y = x.astype(np.float64) @ w.T.astype(np.float64)
    slope = 2 * math.sqrt(2 / math.pi)
    for name, act in (
        ("silu", lambda g: g / (1 + math.exp(-g))),
        ("gelu", lambda g: g * 0.5 * math.erfc(-g / math.sqrt(2))),
        ("gelu_tanh", lambda g: g / (1 + math.exp(-slope * (g + 0.044715 * g * g * g)))),
    ):
        wanted = np.vectorize(act)(y[:, :32]) * y[:, 32:]
        attributes = Attributes("f32", 64, 32, activation=name)
        got = packed_linear(attributes, {"x": x, "weight": pack_float(w, "f32")})
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    for act in ACTIVATIONS.values():
        assert np.abs(act(np.array([-300.0, 0.0]))).max() < 1e-12


def test_a_row_that_is_not_finite_stays_alone():
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 256, (16, 64), dtype=np.uint8)
    scales = np.ones((16, 2), dtype=F)
    inputs = {"weight": pack_codes(codes, "u8"), "scales": pack_blocks(scales)}
    x = rng.standard_normal((3, 64), dtype=F)
    clean = packed_linear(Attributes("u8", 16, 64, 32), {"x": x, **inputs})
    x[1, 0] = np.inf
    found = packed_linear(Attributes("u8", 16, 64, 32), {"x": x, **inputs})
    assert not np.isfinite(found[1]).any()
    assert np.array_equal(found[[0, 2]], clean[[0, 2]])
