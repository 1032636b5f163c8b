"""Weight quantisation: the bytes, the values they stand for, and the graphs that read them."""

import json

import numpy as np
import pytest

from ortloom.exporter.form_choice import choose_form
from ortloom.exporter.options import Storage
from ortloom.exporter.packed_form import PackedForm
from ortloom.exporter.quantize import BLOCK, dequantise, round_to_nearest
from ortloom.exporter.verify import schedule
from ortloom.exporter.verify.check import check_tokens
from ortloom.exporter.verify.figures import compare
from ortloom.exporter.verify.reference import load_model, model_logits
from ortloom.exporter.verify.session import GraphRunner
from ortloom.models.manifest import Manifest

FITTED = PackedForm("u4", 64, has_mins=True)


def rows(n, k, seed=0):
    return np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)


@pytest.mark.parametrize("bits", [4, 8])
def test_every_value_is_within_half_a_step(bits):
    weight = rows(40, 96)
    weight[3, 32:64] = 0
    weight[5] *= 1e-30
    blocks = round_to_nearest(weight, bits)
    assert (blocks.codes.shape, blocks.codes.dtype) == ((40, 96), np.uint8)
    assert (blocks.scales.shape, blocks.scales.dtype) == ((40, 3), np.float16)
    assert blocks.mins is None
    step = np.repeat(np.abs(blocks.scales.astype(np.float32)), BLOCK, axis=1)
    error = np.abs(dequantise(blocks, bits) - weight)
    assert error[5].max() < 1e-29  # below what fp16 scales can say: zero
    weight[5], error[5] = 0, 0
    # the far end of the range (7 of -8..7) may be cut by up to one step
    assert (error <= step * 1.0001).all()
    inner = np.abs(weight) < step * ((1 << (bits - 1)) - 1)
    assert (error[inner] <= step[inner] * 0.5001).all()
    np.testing.assert_array_equal(dequantise(blocks, bits)[3, 32:64], 0)


def test_the_largest_value_of_a_block_is_exact_to_the_scale_in_four_bits():
    weight = rows(8, 64)
    values = dequantise(round_to_nearest(weight, 4), 4).reshape(8, 2, BLOCK)
    blocks = weight.reshape(8, 2, BLOCK)
    place = np.abs(blocks).argmax(axis=2)[..., None]
    np.testing.assert_allclose(
        np.take_along_axis(values, place, 2), np.take_along_axis(blocks, place, 2), rtol=2**-11
    )


def test_chunks_of_rows_give_the_bytes_of_the_whole():
    weight = rows(50, 64)
    whole = round_to_nearest(weight, 4)
    parts = [round_to_nearest(weight[a : a + 13], 4) for a in range(0, 50, 13)]
    np.testing.assert_array_equal(whole.codes, np.concatenate([p.codes for p in parts]))
    np.testing.assert_array_equal(whole.scales, np.concatenate([p.scales for p in parts]))


def test_a_scale_beyond_fp16_is_refused():
    with pytest.raises(ValueError, match="too large for float16"):
        round_to_nearest(rows(1, 32) * np.float32(1e9), 4)


@pytest.mark.parametrize(
    ("name", "shape", "linear", "storage", "form"),
    [
        ("a.up_proj.weight", (64, 128), True, Storage(quant="int4"), FITTED),
        ("a.up_proj.weight", (64, 96), True, Storage(quant="int4"), PackedForm("u4", 32)),
        ("lm_head.weight", (64, 128), True, Storage(quant="int4"), PackedForm("u8", 32)),
        ("lm_head.weight", (64, 128), True, Storage(quant="int4", lm_head_quant="int4"), FITTED),
        ("lm_head.weight", (64, 128), True, Storage(quant="int8"), PackedForm("u8", 32)),
        ("a.up_proj.weight", (64, 128), True, Storage(quant="int8"), PackedForm("u8", 32)),
        ("a.up_proj.weight", (64, 72), True, Storage(quant="int4"), PackedForm("f32")),
        ("a.up_proj.weight", (64, 72), True, Storage(), PackedForm("f32")),
        ("a.up_proj.weight", (64, 72), True, Storage(dtype="bf16"), PackedForm("bf16")),
        ("model.embed_tokens.weight", (64, 128), False, Storage(quant="int4"), None),
        ("model.embed_tokens.weight", (64, 128), False, Storage(dtype="fp16"), PackedForm("f16")),
        ("model.embed_tokens.weight", (64, 128), True, Storage(quant="int4"), PackedForm("u8", 32)),
        ("model.norm.weight", (128,), False, Storage(dtype="bf16", quant="int4"), None),
    ],
)
def test_which_form_a_parameter_gets(name, shape, linear, storage, form):
    found = choose_form(name, shape, read_as_linear=linear, storage=storage, checkpoint=None)
    assert found == form


def logits(folder, tokens):
    manifest = Manifest.load(folder)
    graph = manifest.graph("cpu")
    data = (folder / graph.file.path).read_bytes()
    found = GraphRunner(data, folder, graph, manifest.kv_groups).run(schedule.steps(tokens))
    return np.stack([found[s, p] for s in (0, 1) for p in range(schedule.LENGTHS[s])])


@pytest.mark.parametrize(
    ("name", "quant", "cosine"),
    [
        ("qwen2", "int8", 0.99),
        ("qwen2", "int4", 0.9),
        ("llama", "int8", 0.99),
        ("llama", "int4", 0.85),  # a tied table of noise is rounded as well
    ],
)
def test_quantised_bundles_stay_close_to_fp32(name, quant, cosine, bundles):
    tokens = check_tokens(bundles(name), 320)
    figures = compare(logits(bundles(name, quant), tokens), logits(bundles(name), tokens))
    assert figures.cosine > cosine
    assert figures.max_abs > 0, "it must be another model than the fp32 one"


def test_a_tied_table_is_stored_once(bundles):
    manifest = Manifest.load(bundles("llama", "int4"))
    names = [t.name for t in manifest.weights[0].tensors]
    assert "model.embed_tokens.weight.u8" in names
    assert "model.embed_tokens.weight" not in names
    ops = dict(manifest.graph("contract").ops)
    assert ops["ortloom::PackedEmbeddingSymmetric"] == 1
    assert ops["ortloom::PackedLinearSymmetric"] == 1
    assert ops["ortloom::PackedLinearMinima"] > 1
    quantization = manifest.quantization
    assert (quantization.bits, quantization.block_size, quantization.activation_bits) == (
        4,
        None,
        8,
    )
    assert (quantization.symmetric, quantization.requantised) == (False, False)


def test_an_untied_embedding_stays_fp32(bundles):
    manifest = Manifest.load(bundles("qwen2", "int4"))
    names = [t.name for t in manifest.weights[0].tensors]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight.u8" in names
    assert manifest.quantization.excluded == ("model.embed_tokens.weight",)


def test_widths_that_no_block_divides_stay_fp32(tiny, tmp_path):
    """Hidden size 72 with outlier channels: the linears of that width are left as they are."""
    config = tiny.family_config(
        "llama", hidden_size=72, intermediate_size=96, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=False,
    )  # fmt: skip
    tensors = tiny.random_tensors(config)
    tensors["model.layers.0.mlp.down_proj.weight"][:, 5] *= 20
    source = tiny.write_checkpoint(tmp_path / "m", config, tensors)
    tiny.run_export(source, tmp_path / "out", quant="int4")
    manifest = Manifest.load(tmp_path / "out")
    assert "model.layers.0.mlp.up_proj.weight" in manifest.quantization.excluded
    assert "model.layers.0.mlp.down_proj.weight" not in manifest.quantization.excluded
    tokens = check_tokens(tmp_path / "out", 320)
    wanted = np.concatenate(model_logits(load_model(source, {}), tokens))
    assert compare(logits(tmp_path / "out", tokens), wanted).cosine > 0.9


def test_keep_stores_16_bit_floats_as_they_are_and_says_so(tiny, tmp_path):
    config = tiny.family_config("llama")
    tensors = {n: t.astype(np.float16) for n, t in tiny.random_tensors(config).items()}
    source = tiny.write_checkpoint(tmp_path / "m", config, tensors)
    tiny.run_export(source, tmp_path / "out", quant="keep", check=True)
    manifest = Manifest.load(tmp_path / "out")
    assert manifest.dtypes.weights == "float16"
    assert (manifest.quantization.asked, manifest.quantization.bits) == ("keep", None)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["parity"]["tolerance"] is not None  # equal values: held to fp32's tolerance
