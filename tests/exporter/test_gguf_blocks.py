"""GGUF blocks as codes, scales and minima: bitwise the values that gguf's own reader gives."""

import gguf
import numpy as np
import pytest

from ortloom.exporter.gguf_blocks import BLOCK_TYPES, block_rows
from ortloom.exporter.sources.gguf_container import BLOCKS, GgufContainer
from ortloom.kernels.packed_contract import PackedAttributes
from ortloom.kernels.packed_reference import packed_embedding
from ortloom.kernels.packing import pack_blocks, pack_codes

HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
"""Where the fp16 numbers of a block lie; every other byte may be anything."""
SPECIAL = np.array([0.0, -0.0, 6e-8, -6e-8, 65504.0, -65504.0, 1.0], dtype=np.float16)


def drawn(kind, rows, width, seed=0):
    """Bytes of random blocks; the fp16 numbers are finite."""
    rng = np.random.default_rng(seed)
    facts = BLOCK_TYPES[kind]
    raw = rng.integers(0, 256, (rows, width // facts.elements, facts.nbytes), dtype=np.uint8)
    for at in HALVES[kind]:
        numbers = rng.standard_normal(raw.shape[:2]).astype(np.float16)
        numbers.flat[: len(SPECIAL)] = rng.permutation(SPECIAL)
        raw[..., at : at + 2] = numbers[..., None].view(np.uint8)
    return raw.reshape(rows, -1)


def stored_values(raw, kind):
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])


def packed_values(parts):
    """The values as the op's oracle computes them from packed panels, every row gathered."""
    rows, width = parts.codes.shape
    inputs = {
        "ids": np.arange(rows),
        "weight": pack_codes(parts.codes, parts.format),
        "scales": pack_blocks(parts.scales),
    }
    if parts.mins is not None:
        inputs["mins"] = pack_blocks(parts.mins)
    attributes = PackedAttributes(parts.format, rows, width, parts.block_size)
    return packed_embedding(attributes, inputs)


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_values_are_bitwise_those_of_gguf(kind):
    raw = drawn(kind, 37, 1024)
    parts = block_rows(raw, kind)
    facts = BLOCK_TYPES[kind]
    assert (parts.format, parts.block_size) == (facts.format, facts.block_size)
    assert parts.scales.dtype == facts.scale_type
    assert (parts.mins is not None) == facts.has_mins
    if parts.mins is not None:
        assert (parts.mins.dtype, parts.mins.shape) == (parts.scales.dtype, parts.scales.shape)
    found, wanted = packed_values(parts), stored_values(raw, kind)
    assert np.isfinite(wanted).all()
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))
    assert (
        len(np.unique(parts.codes)) == {"u4": 16, "u8": 256 if kind == "Q8_0" else 64}[facts.format]
    )


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_rows_stand_for_themselves(kind):
    """Slices, rows in another order, and a view with gaps."""
    raw = drawn(kind, 40, 512, seed=1)
    whole = block_rows(raw, kind)
    for wanted in (slice(16, 32), slice(7, 8), slice(5, 5), np.array([3, 39, 0]), slice(0, 40, 3)):
        part = block_rows(raw[wanted], kind)
        assert np.array_equal(part.codes, whole.codes[wanted])
        assert np.array_equal(part.scales, whole.scales[wanted])
        assert (part.mins is None) or np.array_equal(part.mins, whole.mins[wanted])


def test_the_directory_agrees_on_block_sizes():
    known = {name: (elements, size) for name, elements, size in BLOCKS.values()}
    for kind, facts in BLOCK_TYPES.items():
        assert known[kind] == (facts.elements, facts.nbytes)
        width = facts.elements
        assert block_rows(np.zeros((1, facts.nbytes), np.uint8), kind).codes.shape == (1, width)


def test_every_tensor_of_the_demo_model(demo_gguf):
    file = GgufContainer(demo_gguf)
    seen = set()
    for name, tensor in file.tensors.items():
        if tensor.kind not in BLOCK_TYPES:
            continue
        raw = np.frombuffer(file.data, np.uint8, tensor.length, tensor.start)
        rows = raw.reshape(-1, tensor.row_bytes)
        rows = rows[:: max(1, len(rows) // 64)]
        found = packed_values(block_rows(rows, tensor.kind))
        wanted = stored_values(np.ascontiguousarray(rows), tensor.kind)
        assert np.array_equal(found.view(np.uint32), wanted.view(np.uint32)), name
        seen.add(tensor.kind)
    assert "Q4_1" in seen


def test_what_is_not_blocks_is_refused():
    with pytest.raises(ValueError, match="Q2_K has no block form"):
        block_rows(np.zeros((1, 84), np.uint8), "Q2_K")
    for rows in (np.zeros((1, 19), np.uint8), np.zeros(18, np.uint8), np.zeros((1, 18), np.int8)):
        with pytest.raises(ValueError, match="not bytes in blocks of 18"):
            block_rows(rows, "Q4_0")
