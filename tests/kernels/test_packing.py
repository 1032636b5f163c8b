"""Panels: every element where the contract puts it, there and back, rounding, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortloom.kernels.packing import (
    block_shape,
    check_block_size,
    pack_blocks,
    pack_codes,
    pack_float,
    panel_count,
    round_to_bf16,
    unpack_blocks,
    unpack_codes,
    unpack_float,
    weight_shape,
    widen_bf16,
)

ROWS, WIDTH = 37, 64


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_floats_lie_where_the_contract_says(rng):
    rows = rng.integers(-99, 99, (ROWS, WIDTH)).astype(np.float32)
    for format, kind in (("f32", np.float32), ("f16", np.float16), ("bf16", np.uint16)):
        panels = pack_float(rows, format)
        assert (panels.dtype, panels.shape) == (kind, weight_shape(format, ROWS, WIDTH))
        assert panels.flags.c_contiguous
        wide = widen_bf16(panels) if format == "bf16" else panels
        for n, k in ((0, 0), (15, 63), (16, 1), (36, 40)):
            assert wide[n // 16, k, n % 16] == rows[n, k]
        assert not wide[2, :, ROWS - 32 :].any()


def test_codes_lie_where_the_contract_says(rng):
    for format, limit in (("u8", 256), ("u4", 16)):
        codes = rng.integers(0, limit, (ROWS, WIDTH), dtype=np.uint8)
        panels = pack_codes(codes, format)
        assert panels.shape == weight_shape(format, ROWS, WIDTH)
        assert panels.flags.c_contiguous
        for p, i, r, j in np.ndindex(panels.shape):
            n, byte = 16 * p + r, int(panels[p, i, r, j])
            row = codes[n] if n < ROWS else np.zeros(WIDTH, np.uint8)
            if format == "u8":
                assert byte == row[4 * i + j]
            else:
                assert (byte & 15, byte >> 4) == (row[8 * i + j], row[8 * i + 4 + j])


def test_blocks_lie_where_the_contract_says(rng):
    for kind in (np.float16, np.float32):
        values = rng.standard_normal((ROWS, 4)).astype(kind)
        panels = pack_blocks(values)
        assert (panels.dtype, panels.shape) == (kind, block_shape(16, ROWS, WIDTH))
        for n, b in np.ndindex(values.shape):
            assert panels[n // 16, b, n % 16] == values[n, b]
        assert not panels[2, :, ROWS - 32 :].any()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(rows=st.integers(0, 70), groups=st.integers(1, 5), seed=st.integers(0, 9))
def test_there_and_back_whole_and_in_slices(rows, groups, seed):
    rng = np.random.default_rng(seed)
    width = 32 * groups
    codes = rng.integers(0, 16, (rows, width), dtype=np.uint8)
    values = rng.integers(-99, 99, (rows, width)).astype(np.float32)
    steps = [slice(start, start + 32) for start in range(0, rows, 32)]
    for format in ("u4", "u8"):
        panels = pack_codes(codes, format)
        assert panels.shape == weight_shape(format, rows, width)
        assert np.array_equal(unpack_codes(panels, format, rows), codes)
        parts = [pack_codes(codes[step], format) for step in steps]
        assert not rows or np.array_equal(np.concatenate(parts), panels)
    for format in ("f32", "f16", "bf16"):
        panels = pack_float(values, format)
        assert np.array_equal(unpack_float(panels, format, rows), values)
        parts = [pack_float(values[step], format) for step in steps]
        assert not rows or np.array_equal(np.concatenate(parts), panels)
    assert np.array_equal(unpack_blocks(pack_blocks(values), rows), values)


def test_rows_need_not_be_contiguous(rng):
    codes = rng.integers(0, 16, (WIDTH, ROWS), dtype=np.uint8).T
    for format in ("u8", "u4"):
        assert np.array_equal(unpack_codes(pack_codes(codes, format), format, ROWS), codes)


def test_bfloat16_rounds_to_nearest_even():
    below, tie_down, tie_up, above = 0x3F807FFF, 0x3F808000, 0x3F818000, 0x3F808001
    bits = np.array([below, tie_down, tie_up, above, 0x80000001, 0x7F7F7FFF], dtype=np.uint32)
    rounded = round_to_bf16(bits.view(np.float32))
    assert rounded.tolist() == [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x8000, 0x7F7F]


def test_bfloat16_of_every_value_between_is_the_nearest(rng):
    values = rng.integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    values = values[np.abs(values) < 3e38]
    rounded = round_to_bf16(values)
    error = np.abs(widen_bf16(rounded).astype(np.float64) - values)
    for neighbour in (rounded + np.uint16(1), rounded - np.uint16(1)):
        other = np.abs(widen_bf16(neighbour).astype(np.float64) - values)
        assert (error <= other)[np.isfinite(other)].all()


def test_bfloat16_keeps_what_is_not_finite():
    bits = np.array([0x7F800000, 0xFF800000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], dtype=np.uint32)
    wide = widen_bf16(round_to_bf16(bits.view(np.float32)))
    assert wide[:2].tolist() == [np.inf, -np.inf]
    assert np.isnan(wide[2:]).all()


def test_values_beyond_a_format_are_refused(rng):
    rows = rng.standard_normal((3, 32), dtype=np.float32)
    rows[1, 7] = -65520
    with pytest.raises(ValueError, match="too large for float16: 65520"):
        pack_float(rows, "f16")
    rows[1, 7] = 65519
    assert pack_float(rows, "f16")[0, 7, 1] == 65504
    rows[1, 7] = np.finfo(np.float32).max
    with pytest.raises(ValueError, match="too large for bfloat16"):
        pack_float(rows, "bf16")
    rows[1, 7] = np.inf
    for format in ("f32", "f16", "bf16"):
        assert np.isinf(unpack_float(pack_float(rows, format), format, 3)[1, 7])


def test_what_does_not_fit_is_refused(rng):
    codes = rng.integers(0, 16, (16, 64), dtype=np.uint8)
    codes[3, 3] = 16
    floats = codes.astype(np.float32)
    cases = [
        (lambda: pack_codes(codes, "u4"), "code 16 does not fit"),
        (lambda: pack_codes(codes, "f32"), "no quantised format"),
        (lambda: pack_codes(codes[:, :40], "u8"), "a multiple of 32"),
        (lambda: pack_codes(floats, "u8"), "not uint8"),
        (lambda: pack_float(floats, "u8"), "no floating format"),
        (lambda: pack_float(floats[0], "f32"), "must be a matrix"),
        (lambda: pack_blocks(codes), "not uint8"),
        (lambda: unpack_float(pack_float(floats, "f32"), "f16", 16), "not of the format"),
        (lambda: unpack_float(pack_float(floats, "f32"), "f32", 17), "do not hold 17 rows"),
        (lambda: unpack_codes(codes, "u8", 16), "not uint8"),
        (lambda: unpack_blocks(floats[None], 16), r"not \[P, w, 16\]"),
        (lambda: check_block_size(48, 96), "block size 48"),
        (lambda: check_block_size(64, 96), "width 96"),
        (lambda: check_block_size(16, 48), "width 48"),
    ]
    for call, text in cases:
        with pytest.raises(ValueError, match=text):
            call()
    check_block_size(16, 96)
    assert [panel_count(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]
