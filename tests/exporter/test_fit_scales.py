"""8-bit blocks with a searched scale: how well they fit, and that their bytes are the same
everywhere."""

import hashlib
import itertools

import numpy as np
import pytest

from ortloom.exporter import fit_scales as fitting
from ortloom.exporter.fit_scales import fit_scales
from ortloom.exporter.gguf_blocks import block_rows
from ortloom.exporter.quantize import BLOCK, dequantise, round_to_nearest


def rows(n, k, seed=0):
    return np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)


def square_error(blocks, weight):
    error = dequantise(blocks, 8).astype(np.float64) - weight
    return (error**2).reshape(-1, BLOCK).sum(axis=1)


def searched(block):
    """The scale of one block [32], by the definition: candidates in order, errors in float64."""
    peak = min(block, key=lambda value: (-abs(value), value))
    candidates = [peak / -np.float32(end) for end in range(128, 120, -1)]
    gaps = [b - a for a, b in itertools.pairwise(sorted(set(block)))]
    if gaps and min(gaps) >= abs(peak) / np.float32(128):
        parts = int(min(gaps) * np.float32(128) / abs(peak) * np.float32(1 + 2.0**-11))
        sign = np.float32(-1 if peak > 0 else 1)
        candidates += [sign * min(gaps) / np.float32(max(parts - back, 1)) for back in range(8)]
    best, least = np.float32(0), None
    for candidate in candidates:
        scale = np.float32(np.float16(candidate))
        inverse = np.float32(1) / scale if scale else np.float32(0)
        codes = np.clip(np.rint(block * inverse), -128, 127)
        error = ((codes.astype(np.float64) * scale - block) ** 2).sum()
        if least is None or error < least * (1 - 1e-5):
            best, least = scale, error
    return best


def on_grid(levels, n=60, k=96, seed=4):
    """Values low + step * (0 .. levels-1), one step and one low a block of 32."""
    generator = np.random.default_rng(seed)
    codes = generator.integers(0, levels, (n, k // BLOCK, BLOCK)).astype(np.float32)
    step = generator.uniform(0.01, 0.02, (n, k // BLOCK, 1)).astype(np.float16)
    low = generator.uniform(-0.2, -0.02, (n, k // BLOCK, 1)).astype(np.float16)
    values = codes * step.astype(np.float32) + low.astype(np.float32)
    return values.reshape(n, k)


def test_shapes_and_types():
    blocks = fit_scales(rows(40, 96))
    assert (blocks.codes.shape, blocks.codes.dtype) == ((40, 96), np.uint8)
    assert (blocks.scales.shape, blocks.scales.dtype) == ((40, 3), np.float16)
    assert blocks.mins is None


@pytest.mark.parametrize("weight", [rows(30, 96, 7), on_grid(16)], ids=["noise", "grid"])
def test_it_is_the_search_that_the_module_describes(weight):
    blocks = fit_scales(weight)
    same = 0
    for scale, codes, block in zip(
        blocks.scales.ravel(),
        blocks.codes.reshape(-1, BLOCK),
        weight.reshape(-1, BLOCK),
        strict=True,
    ):
        inverse = np.float32(1) / np.float32(scale)
        np.testing.assert_array_equal(codes, np.clip(np.rint(block * inverse), -128, 127) + 128)
        same += scale == searched(block)
    assert same >= 0.98 * blocks.scales.size  # the rest are equal to a rounding of fp32 sums


@pytest.mark.parametrize("seed", [1, 2])
def test_no_block_is_worse_than_rounding_to_nearest(seed):
    weight = rows(200, 128, seed)
    weight[::7, 5] *= 8  # outliers
    fitted = square_error(fit_scales(weight), weight)
    plain = square_error(round_to_nearest(weight, 8), weight)
    assert (fitted <= plain * 1.0001).all()
    assert np.median(fitted) < 0.85 * np.median(plain)


@pytest.mark.parametrize("levels", [4, 16])
def test_values_on_a_grid_lose_little(levels):
    weight = on_grid(levels)
    fitted = square_error(fit_scales(weight), weight).sum()
    assert fitted < 0.3 * square_error(round_to_nearest(weight, 8), weight).sum()


@pytest.mark.parametrize(("kind", "size"), [("Q8_0", 34), ("Q4_0", 18)])
def test_symmetric_blocks_of_gguf_keep_their_values(kind, size):
    generator = np.random.default_rng(6)
    stored = generator.integers(0, 256, (64, 4, size), dtype=np.uint8)
    stored[..., :2] = generator.uniform(0.001, 0.01, (64, 4, 1)).astype("<f2").view(np.uint8)
    if kind == "Q8_0":
        # As its writers make them: the largest magnitude has the code 127, none has -128.
        codes = np.maximum(stored[..., 2:].view(np.int8), -127)
        codes[..., 9] = 127
        stored[..., 2:] = codes.view(np.uint8)
    else:
        stored[..., 7] &= 0xF0  # a code of 0, the value of largest magnitude
    own = block_rows(stored.reshape(64, -1), kind)
    zero = 128 if kind == "Q8_0" else 8
    scales = np.repeat(own.scales.astype(np.float32), BLOCK, axis=1)
    weight = (own.codes.astype(np.float32) - zero) * scales
    np.testing.assert_array_equal(dequantise(fit_scales(weight), 8), weight)


def test_flat_empty_and_tiny_blocks():
    weight = np.zeros((6, 32), np.float32)
    weight[1] = -0.375
    weight[2] = 1e-30 * np.arange(32)
    weight[3, 7] = 1e-4  # its scale is one of few that fp16 has down there
    weight[4] = 0.25
    weight[5, :2] = 2.0, -2.0
    values = dequantise(fit_scales(weight), 8)
    for row in (0, 1, 4):
        np.testing.assert_array_equal(values[row], weight[row])
    np.testing.assert_allclose(values[5], weight[5], rtol=2**-11)  # what fp16 scales hold
    np.testing.assert_array_equal(values[2], 0)
    assert np.abs(values[3] - weight[3]).max() < 5e-6


def test_pieces_of_rows_give_the_bytes_of_the_whole(monkeypatch):
    weight = np.concatenate([rows(25, 96, 5), on_grid(16, n=25)])
    whole = fit_scales(weight)
    monkeypatch.setattr(fitting, "CHUNK", 7)
    parts = [fit_scales(weight[a : a + 13]) for a in range(0, 50, 13)]
    for name in ("codes", "scales"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        assert getattr(whole, name).tobytes() == joined.tobytes()


def test_the_bytes_are_those_of_every_machine():
    steps = np.arange(96 * 192, dtype=np.int64) * 2654435761 % 4093
    weight = ((steps - 2046).astype(np.float32) / np.float32(30000)).reshape(96, 192)
    weight *= np.float32(1) + (steps.reshape(96, 192) % 5 == 0)
    weight[48:] = np.rint(weight[48:] * np.float32(100)) / np.float32(128)  # on a grid
    blocks = fit_scales(weight)
    digest = hashlib.sha256(b"".join((blocks.codes, blocks.scales))).hexdigest()
    assert digest == "e0599b22fe2e66a261068a00211770027655f2e92f8e30f6a7202641bfecc7d1"


@pytest.mark.parametrize(
    ("value", "message"),
    [(np.inf, "not a finite"), (np.nan, "not a finite"), (1e9, "too large for float16")],
)
def test_what_fp16_cannot_hold_is_refused(value, message):
    weight = rows(2, 64)
    weight[1, 3] = value
    with pytest.raises(ValueError, match=message):
        fit_scales(weight)
