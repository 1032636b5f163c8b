"""4-bit blocks with minima: how well they fit, and that their bytes are the same everywhere."""

import hashlib

import numpy as np
import pytest

from ortloom.exporter import fit_blocks as fitting
from ortloom.exporter.fit_blocks import FIT_BLOCK, fit_blocks, fitted_values
from ortloom.exporter.quantize import dequantise, round_to_nearest


def rows(n, k, seed=0):
    return np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)


def plain_rounding(weight):
    """Codes over the whole range of a block, nothing searched; values fp32."""
    blocks = weight.reshape(-1, FIT_BLOCK)
    low = blocks.min(axis=1, keepdims=True).astype(np.float16).astype(np.float32)
    step = (blocks.max(axis=1, keepdims=True) - low) / np.float32(15)
    step = np.maximum(step, 1e-12).astype(np.float16).astype(np.float32)
    step = np.where(step == 0, np.float32(1), step)
    return (np.clip(np.rint((blocks - low) / step), 0, 15) * step + low).reshape(weight.shape)


def square_error(values, weight):
    return ((values.astype(np.float64) - weight) ** 2).reshape(-1, FIT_BLOCK).sum(axis=1)


def test_shapes_and_types():
    blocks = fit_blocks(rows(40, 192))
    assert (blocks.codes.shape, blocks.codes.dtype) == ((40, 192), np.uint8)
    assert blocks.codes.max() == 15
    for part in (blocks.scales, blocks.mins):
        assert (part.shape, part.dtype) == ((40, 3), np.float16)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_search_beats_rounding_over_the_whole_range(seed):
    weight = rows(200, 128, seed)
    weight[::7, 5] *= 8  # outliers
    fitted = square_error(fitted_values(fit_blocks(weight)), weight)
    plain = square_error(plain_rounding(weight), weight)
    assert (fitted <= plain * 1.02).all()  # of the few that the search leaves as they are
    assert fitted.sum() < 0.92 * plain.sum()


def test_it_beats_symmetric_blocks_of_the_same_size():
    weight = rows(400, 192, 3)
    fitted = square_error(fitted_values(fit_blocks(weight)), weight).sum()
    symmetric = square_error(dequantise(round_to_nearest(weight, 4), 4), weight).sum()
    assert fitted < symmetric


def test_values_on_sixteen_levels_come_back_exactly():
    generator = np.random.default_rng(4)
    codes = generator.integers(0, 16, (30, 128)).astype(np.float32)
    codes[:, [0, 64]], codes[:, [1, 65]] = 0, 15
    scale = np.float32(2.0**-7)
    low = generator.integers(-12, 3, (30, 2)).astype(np.float32) * scale
    weight = codes * scale + np.repeat(low, FIT_BLOCK, axis=1)
    np.testing.assert_array_equal(fitted_values(fit_blocks(weight)), weight)


def test_flat_empty_and_tiny_blocks():
    weight = np.zeros((4, 64), np.float32)
    weight[1] = 0.375
    weight[2] = 1e-30 * np.arange(64)
    weight[3] = -1000 + np.arange(64) / 64
    values = fitted_values(fit_blocks(weight))
    np.testing.assert_array_equal(values[0], 0)
    np.testing.assert_array_equal(values[1], 0.375)
    assert np.abs(values[2]).max() < 1e-7
    assert np.abs(values[3] - weight[3]).max() < 0.3  # fp16 has steps of 0.5 there


def test_pieces_of_rows_give_the_bytes_of_the_whole(monkeypatch):
    weight = rows(50, 128, 5)
    whole = fit_blocks(weight)
    monkeypatch.setattr(fitting, "CHUNK", 7)
    parts = [fit_blocks(weight[a : a + 13]) for a in range(0, 50, 13)]
    for name in ("codes", "scales", "mins"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        assert getattr(whole, name).tobytes() == joined.tobytes()


def test_the_bytes_are_those_of_every_machine():
    steps = np.arange(96 * 192, dtype=np.int64) * 2654435761 % 4093
    weight = ((steps - 2046).astype(np.float32) / np.float32(30000)).reshape(96, 192)
    weight *= np.float32(1) + (steps.reshape(96, 192) % 5 == 0)
    blocks = fit_blocks(weight)
    digest = hashlib.sha256(b"".join((blocks.codes, blocks.scales, blocks.mins))).hexdigest()
    assert digest == "f19337d8a5e02fddad7e03ace3bc9297de6314b1660555cba7e862d59264c49b"


@pytest.mark.parametrize(
    ("value", "message"),
    [(np.inf, "not a finite"), (np.nan, "not a finite"), (1e9, "too large for float16")],
)
def test_what_fp16_cannot_hold_is_refused(value, message):
    weight = rows(2, 64)
    weight[1, 3] = value
    with pytest.raises(ValueError, match=message):
        fit_blocks(weight)


def test_blocks_without_minima_are_no_fitted_ones():
    with pytest.raises(ValueError, match="without minima"):
        fitted_values(round_to_nearest(rows(4, 64), 4))
