"""Weight quantisation: the bytes, the values they stand for, and the graphs that read them."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortloom.exporter.quantize import (
    BLOCK,
    dequantise,
    matmul_attributes,
    quantisable,
    round_to_nearest,
)
from ortloom.exporter.verify import schedule
from ortloom.exporter.verify.check import check_tokens
from ortloom.exporter.verify.figures import compare
from ortloom.exporter.verify.reference import load_model, model_logits
from ortloom.exporter.verify.session import GraphRunner
from ortloom.models.manifest import Manifest


def rows(n, k, seed=0):
    return np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)


@pytest.mark.parametrize("bits", [4, 8])
def test_every_value_is_within_half_a_step(bits):
    weight = rows(40, 96)
    weight[3, 32:64] = 0
    weight[5] *= 1e-30
    codes, scales = round_to_nearest(weight, bits)
    assert codes.shape == (40, 3, BLOCK * bits // 8)
    assert codes.dtype == np.uint8
    assert scales.shape == (40, 3)
    step = np.repeat(np.abs(scales), BLOCK, axis=1)
    error = np.abs(dequantise(codes, scales, bits) - weight)
    # the far end of the range (7 of -8..7) may be cut by up to one step
    assert (error <= step * 1.0001).all()
    inner = np.abs(weight) < step * ((1 << (bits - 1)) - 1)
    assert (error[inner] <= step[inner] * 0.5001).all()
    np.testing.assert_array_equal(dequantise(codes, scales, bits)[3, 32:64], 0)


def test_the_largest_value_of_a_block_is_exact_in_four_bits():
    weight = rows(8, 64)
    values = dequantise(*round_to_nearest(weight, 4), 4).reshape(8, 2, BLOCK)
    blocks = weight.reshape(8, 2, BLOCK)
    place = np.abs(blocks).argmax(axis=2)[..., None]
    np.testing.assert_allclose(
        np.take_along_axis(values, place, 2), np.take_along_axis(blocks, place, 2), rtol=1e-6
    )


def test_chunks_of_rows_give_the_bytes_of_the_whole():
    weight = rows(50, 64)
    whole = round_to_nearest(weight, 4)
    parts = [round_to_nearest(weight[a : a + 13], 4) for a in range(0, 50, 13)]
    for index in (0, 1):
        np.testing.assert_array_equal(whole[index], np.concatenate([p[index] for p in parts]))


@pytest.mark.parametrize("bits", [4, 8])
def test_the_runtime_reads_the_layout_as_we_mean_it(bits):
    """Activations that int8 holds exactly: what is left is the weights' layout."""
    weight = rows(24, 64)
    codes, scales = round_to_nearest(weight, bits)
    x = np.random.default_rng(3).integers(-127, 128, (5, 64)).astype(np.float32)
    x[:, ::BLOCK] = 127  # the block's scale is then exactly 1
    node = helper.make_node(
        "MatMulNBits", ["x", "q", "s"], ["y"], domain="com.microsoft",
        **matmul_attributes((24, 64), bits),
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", 24])],
        [numpy_helper.from_array(codes, "q"), numpy_helper.from_array(scales, "s")],
    )
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    wanted = x @ dequantise(codes, scales, bits).T
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, atol=2e-3 * 127, rtol=1e-4)


def test_what_is_quantised():
    assert quantisable("model.layers.0.mlp.up_proj.weight", (64, 128), False)
    assert not quantisable("model.layers.0.mlp.up_proj.weight", (64, 72), False)
    assert not quantisable("model.embed_tokens.weight", (64, 128), False)
    assert quantisable("model.embed_tokens.weight", (64, 128), True)
    assert not quantisable("model.norm.weight", (128,), False)


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
    assert "model.embed_tokens.weight.q4" in names
    assert "model.embed_tokens.weight" not in names
    ops = dict(manifest.graph("cpu").ops)
    assert ops["com.microsoft::GatherBlockQuantized"] == 1
    assert ops["com.microsoft::MatMulNBits"] == 11
    quantization = manifest.quantization
    assert (quantization.bits, quantization.block_size, quantization.accuracy_level) == (4, 32, 4)
    assert (quantization.symmetric, quantization.requantised) == (True, False)


def test_an_untied_embedding_stays_fp32(bundles):
    manifest = Manifest.load(bundles("qwen2", "int4"))
    names = [t.name for t in manifest.weights[0].tensors]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight.q4" in names
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
