"""GGUF files with experts: their names, stacked and apart, every type bit by bit, and the model."""

import json
import re

import gguf
import numpy as np
import pytest
from gguf_files import HIDDEN, TYPES, blocks, finish, new_writer, stored_name

from ortloom.errors import SourceInvalid, UnsupportedModel
from ortloom.exporter.architectures import parameter_shapes
from ortloom.exporter.packed_form import PackedForm
from ortloom.exporter.sources.expert_tensors import expert_blocks, expert_rows
from ortloom.exporter.sources.gguf_config import read_config
from ortloom.exporter.sources.gguf_file import native_form
from ortloom.exporter.sources.open_source import open_source
from ortloom.exporter.verify.reference import load_model
from ortloom.exporter.verify.stored_weights import StoredWeights
from ortloom.kernels.packed_contract import ACTIVATION_GROUP
from ortloom.models.manifest import Manifest

EXPERTS, WIDTH, LAYERS = 4, 256, 2
ARCHS = {"llama": "mixtral", "olmoe": "olmoe", "qwen3moe": "qwen3_moe"}
# (gate and up, down) of each layer, so that every type is somewhere.
KINDS = {
    "llama": (("Q4_0", "Q8_0"), ("Q4_1", "F32")),
    "olmoe": (("Q4_K", "Q6_K"), ("F16", "Q4_1")),
    "qwen3moe": (("BF16", "Q4_0"), ("Q6_K", "Q4_K")),
}


def values_of(kind, data):
    """fp32 values by the gguf package."""
    if kind in ("F32", "F16"):
        return data.astype(np.float32)
    return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])


def config_of(arch, dense=()):
    return {
        "model_type": ARCHS[arch], "hidden_size": HIDDEN, "intermediate_size": WIDTH,
        "moe_intermediate_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 320,
        "max_position_embeddings": 256, "num_experts": EXPERTS, "mlp_only_layers": list(dense),
    }  # fmt: skip


def write_mixture(path, arch, *, stacked=True, dense=(), kinds=None, left_out="", **extra):
    """A file of random values; gives the fp32 values [E, N, K] of every stack by its own name."""
    rng = np.random.default_rng(7)
    facts = {f"{arch}__expert_count": EXPERTS, f"{arch}__expert_used_count": 2}
    if arch == "qwen3moe":
        facts[f"{arch}__expert_feed_forward_length"] = WIDTH
    writer, known = new_writer(path, arch, {**facts, **extra}), {}

    def add(name, kind, data):
        if not left_out or left_out not in name:
            writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])

    for name, shape in parameter_shapes(config_of(arch, dense)).items():
        if ".experts." not in name:
            place, matrix = stored_name(name), len(shape) == 2
            kind = "Q8_0" if matrix and "gate_inp" not in place else "F32"
            plain = (1 + 0.2 * rng.standard_normal(shape)).astype(np.float32)
            if matrix:
                plain = blocks(kind, shape, rng)
            add(place, kind, plain)
            continue
        layer = int(name.split(".")[2])
        up, down = (kinds or KINDS[arch])[layer]
        for part in ("down",) if "down" in name else ("gate", "up"):
            kind = down if part == "down" else up
            rows = shape[1] if part == "down" else shape[1] // 2
            data = blocks(kind, (EXPERTS, rows, shape[2]), rng)
            known[layer, part] = values_of(kind, data)
            if stacked:
                add(f"blk.{layer}.ffn_{part}_exps.weight", kind, data)
            else:
                for expert in range(EXPERTS):
                    add(f"blk.{layer}.ffn_{part}.{expert}.weight", kind, data[expert])
    finish(writer)
    return known


@pytest.fixture(scope="module", params=ARCHS)
def mixture(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / f"{request.param}.gguf"
    return request.param, path, write_mixture(path, request.param)


def names(layer):
    prefix = f"model.layers.{layer}.mlp.experts."
    return prefix + "gate_up_proj", prefix + "down_proj"


def test_every_type_is_somewhere():
    assert {kind for layers in KINDS.values() for pair in layers for kind in pair} == set(TYPES)


def test_experts_are_read_bitwise(mixture):
    arch, path, known = mixture
    source = open_source(str(path))
    assert source.config()["model_type"] == ARCHS[arch]
    for layer in range(LAYERS):
        both = np.concatenate([known[layer, "gate"], known[layer, "up"]], axis=1)
        for name, wanted in zip(names(layer), (both, known[layer, "down"]), strict=True):
            assert source.tensors[name].shape == wanted.shape
            np.testing.assert_array_equal(source.rows(name, 0, EXPERTS), wanted)
            part = expert_rows(source, name, 2, 3, wanted.shape[1] - 5)
            np.testing.assert_array_equal(part, wanted[2, 3:-5])
    assert source.warnings == []
    assert set(source.tensors) == set(parameter_shapes(source.config()))


def test_forms_and_blocks_are_the_stored_ones(mixture):
    arch, path, _ = mixture
    source = open_source(str(path))
    for layer in range(LAYERS):
        for name, kind in zip(names(layer), KINDS[arch][layer], strict=True):
            form = source.block_form(name)
            assert form == native_form(kind)
            if form is None or not form.quantised:
                continue
            found = expert_blocks(source, name, 3, 200, 256)
            codes = found.codes.reshape(56, -1, form.block_size).astype(np.float32)
            zero = {"u4": 8, "u8": 128}[form.format] if found.mins is None else 0
            values = found.scales.astype(np.float32)[..., None] * (codes - np.float32(zero))
            if found.mins is not None:
                values += found.mins.astype(np.float32)[..., None]
            wanted = expert_rows(source, name, 3, 200, 256)
            np.testing.assert_array_equal(values.reshape(wanted.shape), wanted)


def test_experts_stored_apart_are_the_same_model(tmp_path):
    known = write_mixture(tmp_path / "stacked.gguf", "llama")
    again = write_mixture(tmp_path / "apart.gguf", "llama", stacked=False)
    one, other = (open_source(str(tmp_path / f"{n}.gguf")) for n in ("stacked", "apart"))
    assert one.config() == other.config()
    assert one.tensors == other.tensors
    for layer in range(LAYERS):
        np.testing.assert_array_equal(known[layer, "up"], again[layer, "up"])
        for name in names(layer):
            np.testing.assert_array_equal(one.rows(name, 0, EXPERTS), other.rows(name, 0, EXPERTS))
            assert one.block_form(name) == other.block_form(name)


def test_experts_of_several_types_are_kept_as_floats(tmp_path):
    write_mixture(tmp_path / "m.gguf", "llama", kinds=(("Q4_0", "Q8_0"),) * 2)
    source = open_source(str(tmp_path / "m.gguf"))
    stored = source._stored._stored
    part = "model.layers.0.mlp.experts.0.up_proj.weight"
    stored[part] = type(stored[part])(stored[part].shape, "F16", 0, 0)
    gate_up, down = names(0)
    assert source.block_form(gate_up) is None
    assert source.block_form(down) == PackedForm("u8", ACTIVATION_GROUP, native=True)


def test_names_are_those_of_transformers_own_reader(tmp_path):
    """It knows Qwen3-MoE, but for the width of its experts."""
    path = tmp_path / "q.gguf"
    write_mixture(path, "qwen3moe", kinds=(("F32", "F16"),) * 2)
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    config.moe_intermediate_size, config.head_dim = WIDTH, 64
    theirs = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, config=config
    ).state_dict()
    ours = load_model(path, {})
    assert set(theirs) == set(ours.state_dict())
    for name, tensor in ours.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), theirs[name].numpy(), err_msg=name)
    assert (config.norm_topk_prob, config.num_experts) == (True, EXPERTS)
    assert ours.config.norm_topk_prob


def test_kept_values_are_the_source_s_and_the_bundle_is_the_model(mixture, tiny, tmp_path):
    arch, path, _ = mixture
    out = tmp_path / "out"
    tiny.run_export(path, out, quant="keep", check=True)
    source, stored, manifest = open_source(str(path)), StoredWeights(out), Manifest.load(out)
    quantization = manifest.quantization
    assert (quantization.method, quantization.requantised) == ("source", False)
    for name, info in source.tensors.items():
        wanted = source.rows(name, 0, info.shape[0])
        np.testing.assert_array_equal(stored.values(name, info.shape), wanted, err_msg=name)
    held = {tensor.name: tensor.dtype for file in manifest.weights for tensor in file.tensors}
    for layer in range(LAYERS):
        for name, kind in zip(names(layer), KINDS[arch][layer], strict=True):
            form = native_form(kind) or PackedForm("f32")
            assert f"{name}.{form.format}" in held
            assert held.get(f"{name}.scales") == (form.scale_dtype if form.quantised else None)
    report = json.loads((out / "report.json").read_text())
    for target in report["parity"]["targets"].values():
        assert target["against_transformers"]["cosine"] > 0.99
        assert target["routing"]["largest_gap"] < 0.1
    assert report["parity"]["targets"]["cpu"]["scheduled_against_one_shot_max_abs"] == 0
    assert (out / "tokenizer.json").exists()


def test_floats_are_held_to_the_last_digits(tiny, tmp_path):
    write_mixture(tmp_path / "m.gguf", "llama", stacked=False, kinds=(("F16", "F32"),) * 2)
    tiny.run_export(tmp_path / "m.gguf", tmp_path / "out", check=True)
    parity = json.loads((tmp_path / "out" / "report.json").read_text())["parity"]
    for target in parity["targets"].values():
        assert target["against_transformers"]["relative"] <= parity["tolerance"] == 2e-5
        assert target["routing"]["moved"] == 0


# ---- what the metadata says -------------------------------------------------------------------


def test_configs(tmp_path):
    def config(arch, **extra):
        write_mixture(tmp_path / "c.gguf", arch, **extra)
        return open_source(str(tmp_path / "c.gguf")).config()

    found = config("llama", llama__attention__sliding_window=12)
    assert (found["num_local_experts"], found["num_experts_per_tok"]) == (EXPERTS, 2)
    assert (found["sliding_window"], found["intermediate_size"]) == (12, WIDTH)
    found = config("olmoe")
    assert (found["num_experts"], found["norm_topk_prob"]) == (EXPERTS, False)
    found = config("qwen3moe", dense=[1], qwen3moe__expert_gating_func=1)
    assert (found["mlp_only_layers"], found["moe_intermediate_size"]) == ([1], WIDTH)
    assert found["norm_topk_prob"]
    found = config("qwen3moe", qwen3moe__expert_weights_norm=0)
    assert not found["norm_topk_prob"]


BASE = {
    "block_count": 1, "embedding_length": 64, "context_length": 64, "feed_forward_length": 64,
    "attention.head_count": 1, "attention.layer_norm_rms_epsilon": 1e-5, "expert_count": 4,
    "expert_used_count": 2, "expert_feed_forward_length": 64,
}  # fmt: skip
STACKS = {f"blk.0.ffn_{part}_exps.weight" for part in ("gate", "up", "down")}


@pytest.mark.parametrize(
    ("arch", "changes", "tensors", "text"),
    [
        ("llama", {"expert_gating_func": 2}, set(), "expert_gating_func = 2"),
        ("olmoe", {"expert_weights_scale": 2.5}, set(), "expert_weights_scale = 2.5"),
        ("qwen3moe", {"expert_shared_count": 1}, set(), "expert_shared_count = 1"),
        ("qwen3moe", {}, {"blk.0.ffn_up_shexp.weight"}, "'blk.0.ffn_up_shexp.weight'"),
        ("olmoe", {"block_count": 2}, set(), "layer 1 of the GGUF file has no experts"),
        ("llama", {"expert_weights_norm": False}, set(), "expert_weights_norm = false"),
    ],
)
def test_other_mixtures_are_refused(arch, changes, tensors, text):
    fields = {f"{arch}.{key}": value for key, value in {**BASE, **changes}.items()}
    with pytest.raises(UnsupportedModel, match=re.escape(text)):
        read_config({"general.architecture": arch, **fields}, STACKS | tensors)


@pytest.mark.parametrize("key", ["expert_count", "expert_used_count"])
def test_a_missing_key_is_named(key):
    fields = {f"llama.{name}": value for name, value in BASE.items() if name != key}
    with pytest.raises(SourceInvalid, match=rf"no 'llama\.{key}'"):
        read_config({"general.architecture": "llama", **fields}, STACKS)


def test_an_architecture_of_experts_without_any_is_refused():
    fields = {f"qwen3moe.{name}": value for name, value in BASE.items()}
    with pytest.raises(SourceInvalid, match="has no tensors of experts"):
        read_config({"general.architecture": "qwen3moe", **fields}, set())


@pytest.mark.parametrize(
    ("stacked", "left_out", "text"),
    [
        (True, "blk.1.ffn_up_exps", "expert 0 of 'model.layers.1.mlp.experts.gate_up_proj' lacks"),
        (False, "blk.0.ffn_gate.2", "expert 2 of 'model.layers.0.mlp.experts.gate_up_proj' lacks"),
    ],
)
def test_incomplete_experts_are_refused(stacked, left_out, text, tmp_path):
    write_mixture(tmp_path / "m.gguf", "llama", stacked=stacked, left_out=left_out)
    with pytest.raises(SourceInvalid, match=re.escape(text)):
        open_source(str(tmp_path / "m.gguf"))
