"""Refusals of PackedLinear; PackedEmbedding and SkipRMSNorm of the library."""

import numpy as np
import pytest
from packed_cases import (
    FLOATING,
    MATRIX,
    QUANTISED,
    attributes_for,
    check,
    draw,
    refused,
    same_bits,
    weights,
)

from ortloom.kernels.norm_contract import NORM_INPUTS, SKIP_RMS_NORM, NormAttributes
from ortloom.kernels.norm_reference import skip_rms_norm
from ortloom.kernels.packed_contract import (
    EMBEDDING_INPUTS,
    LINEAR_INPUTS,
    PACKED_EMBEDDING,
    PACKED_LINEAR,
    PackedAttributes,
)
from ortloom.kernels.packed_reference import packed_embedding

# ---- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        (PackedAttributes("u3", 32, 64, 32), r'format "u3" is unknown; choices: f32, f16'),
        (PackedAttributes("", 32, 64, 32), r'format "" is unknown'),
        (PackedAttributes("u4", 0, 64, 32), r"N = 0 and K = 64 must be 1 to"),
        (PackedAttributes("f32", 32, -1), r"N = 32 and K = -1 must be"),
        (PackedAttributes("f32", 1 << 40, 64), r"must be 1 to 268435456"),
        (PackedAttributes("f32", 32, 64, 32), r"format f32 has no blocks"),
        (PackedAttributes("u4", 32, 64, 0), r"block_size = 0 is not one of 16, 32, 64, 128, 256"),
        (PackedAttributes("u4", 32, 64, 48), r"block_size = 48 is not one of"),
        (PackedAttributes("u4", 32, 80, 16), r"K = 80 must be a multiple of 32"),
        (PackedAttributes("u4", 32, 64, 128), r"K = 64 must be .* block_size = 128"),
        (PackedAttributes("u4", 32, 64, 32, "relu"), r'activation "relu" is unknown; choices: s'),
        (PackedAttributes("u4", 48, 64, 32, "silu"), r"N = 48 must be a multiple of 32"),
    ],
)  # fmt: skip
def test_wrong_attributes(run_node, attributes, text):
    inputs = {"x": draw(2, 64), **weights(QUANTISED[1], 32, 64)}
    refused(run_node, text, attributes, inputs)


def without(name):
    return lambda inputs: inputs.pop(name)


def put(name, edit):
    def change(inputs):
        inputs[name] = edit(inputs[name])

    return change


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        (r"x has shape \[2, 32\], but must be \[any, 64\]", put("x", lambda a: a[:, :32])),
        (r"x has shape \[2, 64, 1\]", put("x", lambda a: a[..., None])),
        (r"weight has shape \[1, 8, 16, 4\], .* \[3, 8, 16, 4\]", put("weight", lambda a: a[:1])),
        (r"weight has shape \[3, 4, 16, 4\]", put("weight", lambda a: a[:, :4])),
        (r"weight has shape \[3, 512\]", put("weight", lambda a: a.reshape(3, 512))),
        (r"weight is float32, but must be uint8", put("weight", lambda a: a.astype(np.float32))),
        (r"scales is missing: format u4 needs it", without("scales")),
        (r"scales is int32, .* float16 or float32", put("scales", lambda a: a.astype(np.int32))),
        (r"scales has shape \[3, 1, 16\], .* \[3, 2, 16\]", put("scales", lambda a: a[:, :1])),
        (r"mins is float32, but must be float16", put("mins", lambda a: a.astype(np.float32))),
        (r"mins has shape \[2, 2, 16\]", put("mins", lambda a: a[:2])),
        (r"bias has shape \[39\], but must be \[40\]", put("bias", lambda a: a[:39])),
    ],
)  # fmt: skip
def test_wrong_tensors(run_node, text, edit):
    kind = ("u4", 32, np.float16, True)
    inputs = {"x": draw(2, 64), **weights(kind, 40, 64, bias=True)}
    attributes = attributes_for(kind, 40, 64)
    run_node(PACKED_LINEAR, LINEAR_INPUTS, {"y": MATRIX}, attributes, inputs)
    edit(inputs)
    refused(run_node, text, attributes, inputs)


def test_floating_formats_have_no_scales(run_node):
    inputs = {"x": draw(2, 64), **weights(FLOATING[0], 40, 64)}
    inputs["scales"] = np.zeros((3, 2, 16), np.float32)
    refused(run_node, "format f32 has neither scales", PackedAttributes("f32", 40, 64), inputs)
    del inputs["scales"]
    half = PackedAttributes("f16", 40, 64)
    refused(run_node, "weight is float32, but must be float16", half, inputs)


# ---- embedding --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", QUANTISED + FLOATING, ids=lambda k: f"{k[0]}-{k[1]}")
def test_embedding_rows_are_exact(run_node, tier, kind):
    width = 256 if kind[1] else 77
    attributes = attributes_for(kind, 40, width)
    ids = np.array([0, 39, 7, 7, 16, 15, 31, 32, *range(40)] * 3)
    inputs = {"ids": ids, **weights(kind, 40, width)}
    for threads in (1, 3):
        (got,) = run_node(
            PACKED_EMBEDDING, EMBEDDING_INPUTS, {"rows": MATRIX}, attributes, inputs,
            tier=tier, threads=threads,
        )  # fmt: skip
        same_bits(got, packed_embedding(attributes, inputs))
    inputs["ids"] = ids[:0]
    (got,) = run_node(PACKED_EMBEDDING, EMBEDDING_INPUTS, {"rows": MATRIX}, attributes, inputs)
    assert got.shape == (0, width)


def test_half_precision_specials_are_exact(run_node, tier):
    """Every fp16 and bf16 bit pattern that is a number, subnormals and infinities included."""
    patterns = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    panels = np.ascontiguousarray(patterns.reshape(16, 16, 256).transpose(0, 2, 1))
    for name, array in (("f16", panels.view(np.float16)), ("bf16", panels)):
        attributes = PackedAttributes(name, 256, 256)
        inputs = {"ids": np.arange(256), "weight": array}
        (got,) = run_node(
            PACKED_EMBEDDING, EMBEDDING_INPUTS, {"rows": MATRIX}, attributes, inputs, tier=tier
        )
        wanted = packed_embedding(attributes, inputs)
        numbers = ~np.isnan(wanted)
        same_bits(got[numbers], wanted[numbers])
        assert np.isnan(got[~numbers]).all()


@pytest.mark.parametrize("wrong", [-1, 40, 1 << 60])
def test_ids_out_of_range(run_node, wrong):
    inputs = {"ids": np.array([3, wrong]), **weights(QUANTISED[1], 40, 64)}
    attributes = attributes_for(QUANTISED[1], 40, 64)
    text = rf"ids\[1\] = {wrong} is outside 0 .. 39"
    refused(run_node, text, attributes, inputs, PACKED_EMBEDDING, EMBEDDING_INPUTS)


# ---- norm -------------------------------------------------------------------------------------

BOTH = {"y": MATRIX, "sum": MATRIX}


@pytest.mark.parametrize("width", [1, 15, 16, 17, 64, 576, 1000])
@pytest.mark.parametrize("skip", [True, False])
def test_norm_agrees_with_the_oracle(run_node, tier, width, skip):
    attributes = NormAttributes(epsilon=1e-5)
    generator = np.random.default_rng(width)
    inputs = {
        "x": generator.standard_normal((131, width), dtype=np.float32),
        "gamma": generator.standard_normal(width, dtype=np.float32),
    }
    if skip:
        inputs["skip"] = generator.standard_normal((131, width), dtype=np.float32)
    y, total = skip_rms_norm(attributes, inputs)
    got = run_node(SKIP_RMS_NORM, NORM_INPUTS, BOTH, attributes, inputs, tier=tier, threads=2)
    check(got[0], y)
    same_bits(got[1], total)
    (alone,) = run_node(SKIP_RMS_NORM, NORM_INPUTS, {"y": MATRIX}, attributes, inputs, tier=tier)
    same_bits(alone, got[0])
    for row in (0, 57, 130):
        one = {k: a[row : row + 1] if a.ndim == 2 else a for k, a in inputs.items()}
        got_one = run_node(SKIP_RMS_NORM, NORM_INPUTS, BOTH, attributes, one, tier=tier)
        same_bits(got_one[0][0], got[0][row])


def test_norm_refusals(run_node):
    generator = np.random.default_rng(0)
    inputs = {
        "x": generator.standard_normal((3, 8), dtype=np.float32),
        "skip": generator.standard_normal((3, 8), dtype=np.float32),
        "gamma": np.ones(8, np.float32),
    }

    def wrong(text, epsilon=1e-6, **change):
        attributes = NormAttributes(epsilon)
        refused(run_node, text, attributes, {**inputs, **change}, SKIP_RMS_NORM, NORM_INPUTS)

    wrong("epsilon must be finite and not negative", epsilon=-1.0)
    wrong("epsilon must be finite", epsilon=float("nan"))
    wrong(r"skip has shape \[2, 8\], but must be \[3, 8\]", skip=inputs["skip"][:2])
    wrong(r"gamma has shape \[7\], but must be \[8\]", gamma=inputs["gamma"][:7])
    wrong(r"x has shape \[3, 0\]: D must be", x=inputs["x"][:, :0], skip=inputs["skip"][:, :0])
    empty = {"x": inputs["x"][:0], "gamma": inputs["gamma"]}
    assert run_node(SKIP_RMS_NORM, NORM_INPUTS, BOTH, NormAttributes(), empty)[1].shape == (0, 8)
