"""Weights, activations and comparisons that the tests of the packed ops share."""

import numpy as np
import pytest

from ortloom.kernels.packed_contract import LINEAR_INPUTS, PACKED_LINEAR, PackedAttributes
from ortloom.kernels.packing import pack_blocks, pack_codes, pack_float

TOLERANCE = 5e-6  # of the largest output
BRAIN_TOLERANCE = 2e-2  # the same, where a tier rounds activations to bfloat16
ROWS = (1, 2, 3, 5, 8, 16, 17, 33, 130)
MATRIX, VECTOR = ("float32", 2), ("float32", 1)
QUANTISED = [
    # format, block size, scale type, minima
    ("u4", 16, np.float16, True),
    ("u4", 32, np.float16, False),
    ("u4", 64, np.float32, True),
    ("u4", 128, np.float32, False),
    ("u8", 16, np.float16, False),
    ("u8", 32, np.float16, False),
    ("u8", 128, np.float16, True),
    ("u8", 256, np.float32, True),
    ("u8", 64, np.float32, False),
]
FLOATING = [(name, 0, None, False) for name in ("f32", "f16", "bf16")]


def weights(kind, rows, width, *, bias=False, seed=0, extreme=False):
    """Inputs of the weight's side; `extreme` has the largest and smallest codes in long runs."""
    name, block, scale_type, minima = kind
    generator = np.random.default_rng(seed)
    if not block:
        given = {"weight": pack_float(generator.standard_normal((rows, width), np.float32), name)}
    else:
        top = 255 if name == "u8" else 15
        codes = generator.integers(0, top + 1, (rows, width), dtype=np.uint8)
        if extreme:
            codes = np.where(codes > top // 2, top, 0).astype(np.uint8)
            codes[: rows // 3], codes[rows // 3 : 2 * rows // 3] = 0, top
        scales = generator.uniform(-0.02, 0.02, (rows, width // block))
        given = {
            "weight": pack_codes(codes, name),
            "scales": pack_blocks(scales.astype(scale_type)),
        }
        if minima:
            floor = generator.uniform(-0.5, 0.1, (rows, width // block))
            given["mins"] = pack_blocks(floor.astype(scale_type))
    if bias:
        given["bias"] = generator.standard_normal(rows, dtype=np.float32)
    return given


def attributes_for(kind, rows, width, activation=""):
    return PackedAttributes(kind[0], rows, width, kind[1], activation)


def draw(rows, width, seed=1):
    """Activations whose groups differ in size by orders of magnitude; one group is all zero."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((rows, width), dtype=np.float32)
    x *= np.float32(10) ** generator.integers(-2, 2, (rows, -(-width // 32))).repeat(32, 1)[
        :, :width
    ].astype(np.float32)
    x[0, :32] = 0
    return x


def tolerance(tier, format_name):
    """What the results of a format may differ by in a tier, of the largest one."""
    return BRAIN_TOLERANCE if (tier, format_name) == ("avx512-bf16", "bf16") else TOLERANCE


def check(got, wanted, part=TOLERANCE):
    limit = part * float(np.abs(wanted).max())
    difference = float(np.abs(got - wanted).max())
    assert difference <= limit, f"off by {difference:g} > {limit:g}"


def same_bits(a, b):
    assert (a.view(np.uint32) == b.view(np.uint32)).all()


def refused(run_node, text, attributes, inputs, op=PACKED_LINEAR, slots=LINEAR_INPUTS):
    with pytest.raises(Exception, match=rf"ortloom::{op}: .*{text}"):
        run_node(op, slots, {"y": MATRIX}, attributes, inputs)
