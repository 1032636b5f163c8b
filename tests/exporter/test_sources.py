"""Broken, unsafe and contradictory checkpoints (cases EXP-01, EXP-04, EXP-05)."""

import json
import os
import threading

import numpy as np
import pytest
from safetensors.numpy import save_file

from ortloom.errors import SourceInvalid, UnsupportedModel
from ortloom.exporter.architectures import parameter_shapes
from ortloom.exporter.attention import AttentionTracer
from ortloom.exporter.graph_build import make_config
from ortloom.exporter.options import ExportOptions
from ortloom.exporter.parameters import require_parameters, settle_ties
from ortloom.exporter.pipeline import plan
from ortloom.exporter.sources.hf_folder import HfFolder
from ortloom.exporter.sources.open_source import open_source
from ortloom.exporter.trace import build_fake_model
from ortloom.exporter.verify.reference import load_model, model_logits
from ortloom.exporter.verify.schedule import LENGTHS, one_shot
from ortloom.exporter.verify.session import GraphRunner
from ortloom.models.manifest import Manifest

INDEX = "model.safetensors.index.json"
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture
def config(tiny):
    return tiny.family_config("llama", num_hidden_layers=1, tie_word_embeddings=False)


def refused(folder, *parts):
    with pytest.raises(SourceInvalid) as caught:
        HfFolder(folder)
    for part in parts:
        assert part in str(caught.value)
    assert caught.value.exit_code == 3


def edit_json(path, change):
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


# --- one file ---------------------------------------------------------------------------------


def test_a_corrupt_header_is_refused(tiny, config, tmp_path):
    folder = tiny.write_checkpoint(tmp_path / "m", config)
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[8:16] = b"\xff" * 8
    file.write_bytes(data)
    refused(folder, "model.safetensors", "corrupt safetensors header")


def test_a_header_that_contradicts_its_shapes_is_refused(tiny, config, tmp_path):
    folder = tiny.write_checkpoint(tmp_path / "m", config)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"shape":[320,128]', b'"shape":[320,127]', 1))
    refused(folder, "does not fit its")


def test_a_truncated_file_is_refused(tiny, config, tmp_path):
    folder = tiny.write_checkpoint(tmp_path / "m", config)
    file = folder / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1)
    refused(folder, "truncated", "model.safetensors")


def test_a_file_that_is_something_else_is_refused(tiny, config, tmp_path):
    folder = tiny.write_checkpoint(tmp_path / "m", config)
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    refused(folder, "not a safetensors file")


def test_missing_weights_config_and_garbage(tiny, config, tmp_path):
    folder = tiny.write_checkpoint(tmp_path / "m", config)
    (folder / "model.safetensors").unlink()
    refused(folder, "neither model.safetensors nor", INDEX)
    (folder / "config.json").write_text("{oops")
    refused(folder, "config.json", "not valid JSON")
    (folder / "config.json").write_text("[1]")
    refused(folder, "config.json", "not a JSON object")
    (folder / "config.json").unlink()
    refused(folder, "config.json", "missing")


def test_16_bit_tensors_become_their_exact_fp32_values(tiny, config, tmp_path):
    import torch
    from safetensors.torch import save_file as save_torch

    tensors = tiny.random_tensors(config)
    values = np.array([3e38, 1e-40, -0.0, 1.5, 65504.0, 6e-8], dtype=np.float32)
    tensors[EMBEDDING][0, :6] = values
    for kind in (torch.bfloat16, torch.float16):
        folder = tiny.write_checkpoint(tmp_path / str(kind), config, tensors)
        stored = {k: torch.from_numpy(v).clamp(-65504, 65504).to(kind) for k, v in tensors.items()}
        save_torch(stored, folder / "model.safetensors")
        checkpoint = HfFolder(folder)
        for name, tensor in stored.items():
            got = checkpoint.rows(name, 0, tensor.shape[0])
            np.testing.assert_array_equal(got, tensor.float().numpy())
        np.testing.assert_array_equal(
            checkpoint.rows(EMBEDDING, 5, 9), stored[EMBEDDING][5:9].float().numpy()
        )


def test_a_quantised_checkpoint_is_refused_by_name(tiny, config, tmp_path):
    folder = tiny.write_checkpoint(
        tmp_path / "m", {**config, "quantization_config": {"quant_method": "gptq", "bits": 4}}
    )
    refused(folder, "quantised (gptq)")


# --- shards (EXP-04) --------------------------------------------------------------------------


def test_shards_read_like_one_file(tiny, config, tmp_path):
    tensors = tiny.random_tensors(config)
    whole = HfFolder(tiny.write_checkpoint(tmp_path / "one", config, tensors))
    parts = HfFolder(tiny.write_shards(tmp_path / "three", config, tensors))
    assert parts.warnings == []
    assert whole.tensors == parts.tensors
    for name, info in whole.tensors.items():
        rows = info.shape[0]
        np.testing.assert_array_equal(whole.rows(name, 0, rows), parts.rows(name, 0, rows))


def test_a_missing_shard_is_named(tiny, config, tmp_path):
    folder = tiny.write_shards(tmp_path / "m", config, tiny.random_tensors(config))
    (folder / "model-00002-of-00003.safetensors").unlink()
    refused(folder, "model-00002-of-00003.safetensors", "missing")


def test_a_tensor_that_the_index_invents_is_named(tiny, config, tmp_path):
    folder = tiny.write_shards(tmp_path / "m", config, tiny.random_tensors(config))
    shard = "model-00001-of-00003.safetensors"
    edit_json(folder / INDEX, lambda tree: tree["weight_map"].update({"model.ghost": shard}))
    refused(folder, "model.ghost", shard)


def test_a_tensor_in_two_shards_is_named(tiny, config, tmp_path):
    tensors = tiny.random_tensors(config)
    folder = tiny.write_shards(tmp_path / "m", config, tensors)
    from safetensors.numpy import load_file

    for number in (1, 2):
        path = folder / f"model-0000{number}-of-00003.safetensors"
        save_file({**load_file(path), EMBEDDING: tensors[EMBEDDING]}, path)
    refused(folder, EMBEDDING, "in two files")


def test_an_extra_tensor_is_a_warning(tiny, config, tmp_path):
    tensors = tiny.random_tensors(config)
    shapes = {name: array.shape for name, array in tensors.items()}
    tensors["model.layers.0.adapter.weight"] = np.zeros((2, 2), dtype=np.float32)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(4, dtype=np.float32)
    checkpoint = HfFolder(tiny.write_checkpoint(tmp_path / "m", config, tensors))
    require_parameters(checkpoint, shapes, {})
    assert [w for w in checkpoint.warnings if "adapter" in w]
    assert not [w for w in checkpoint.warnings if "inv_freq" in w]


def test_a_missing_or_misshapen_tensor_is_named(tiny, config, tmp_path):
    tensors = tiny.random_tensors(config)
    shapes = {name: array.shape for name, array in tensors.items()}
    del tensors["model.layers.0.mlp.up_proj.weight"]
    checkpoint = HfFolder(tiny.write_checkpoint(tmp_path / "a", config, tensors))
    with pytest.raises(SourceInvalid, match=r"model\.layers\.0\.mlp\.up_proj\.weight.*missing"):
        require_parameters(checkpoint, shapes, {})
    tensors = tiny.random_tensors(config)
    tensors["model.norm.weight"] = np.ones(64, dtype=np.float32)
    checkpoint = HfFolder(tiny.write_checkpoint(tmp_path / "b", config, tensors))
    with pytest.raises(SourceInvalid, match=r"model\.norm\.weight.*\[64\].*\[128\]"):
        require_parameters(checkpoint, shapes, {})


# --- paths (EXP-05) ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../outside/secret.safetensors", "a/../../outside/secret.safetensors", "ABSOLUTE"]
)
def test_an_index_that_points_outside_is_refused_unopened(tiny, config, tmp_path, name):
    secret = tmp_path / "outside" / "secret.safetensors"
    secret.parent.mkdir()
    os.mkfifo(secret)  # opening it would hang
    folder = tiny.write_shards(tmp_path / "m", config, tiny.random_tensors(config))
    target = str(secret) if name == "ABSOLUTE" else name
    edit_json(folder / INDEX, lambda tree: tree["weight_map"].update({EMBEDDING: target}))
    done = threading.Event()

    def attempt():
        refused(folder, "outside the model folder")
        done.set()

    threading.Thread(target=attempt, daemon=True).start()
    assert done.wait(20)


def test_a_link_that_leaves_the_folder_is_refused_unopened(tiny, config, tmp_path):
    secret = tmp_path / "secret.safetensors"
    os.mkfifo(secret)
    folder = tiny.write_shards(tmp_path / "m", config, tiny.random_tensors(config))
    shard = folder / "model-00001-of-00003.safetensors"
    shard.unlink()
    shard.symlink_to(secret)
    done = threading.Event()

    def attempt():
        refused(folder, "leaves the model folder")
        done.set()

    threading.Thread(target=attempt, daemon=True).start()
    assert done.wait(20)


def test_a_hub_cache_snapshot_may_link_to_its_blobs(tiny, config, tmp_path):
    plain = tiny.write_checkpoint(tmp_path / "plain", config)
    cache = tmp_path / "models--org--name"
    snapshot = cache / "snapshots" / "0123abcd"
    (cache / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in plain.iterdir():
        blob = cache / "blobs" / f"hash-of-{file.name}"
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(blob)
    assert HfFolder(snapshot).tensors == HfFolder(plain).tensors


# --- SOURCE -----------------------------------------------------------------------------------


def test_sources_that_are_none(tmp_path):
    with pytest.raises(SourceInvalid, match="does not exist"):
        open_source(str(tmp_path / "nowhere"))
    with pytest.raises(SourceInvalid, match=r"hf download org/name --local-dir"):
        open_source("org/name")
    other = tmp_path / "model.bin"
    other.write_bytes(b"x")
    with pytest.raises(SourceInvalid, match=r"not a \.gguf file"):
        open_source(str(other))


# --- what is supported ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["BloomForCausalLM"], "model_type": "bloom"}, "BloomForCausalLM"),
        ({"architectures": None, "model_type": "gpt2"}, "gpt2"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"type": "longrope"}, "rope_parameters": None}, "longrope"),
        ({"head_dim": 32}, "head size 32"),
        ({"num_attention_heads": 8, "num_key_value_heads": 3}, "8 query heads"),
        ({"hidden_act": "gelu"}, "gelu"),
    ],
)
def test_what_is_not_supported_is_named(tiny, config, tmp_path, changes, named):
    folder = tiny.write_checkpoint(tmp_path / "m", config)
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(UnsupportedModel) as caught:
        plan(ExportOptions(source=str(folder), output=str(tmp_path / "out")))
    assert named in str(caught.value)
    assert caught.value.exit_code == 4


def test_code_in_the_folder_is_never_run(tiny, config, tmp_path):
    marker = tmp_path / "marker"
    evil = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.Evil"}
    folder = tiny.write_checkpoint(tmp_path / "m", {**config, "auto_map": evil})
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    tiny.run_export(folder, tmp_path / "out")
    assert not marker.exists()
    assert "auto_map" not in json.loads((tmp_path / "out" / "config.json").read_text())


# --- ties (EXP-01) ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["tied but different", "tied and equal"])
def test_ties_are_what_the_tensors_say(tiny, tmp_path, case):
    config = tiny.family_config("llama", tie_word_embeddings=True)
    tensors = tiny.random_tensors({**config, "tie_word_embeddings": False})
    if case == "tied and equal":
        tensors["lm_head.weight"] = tensors[EMBEDDING].copy()
    folder = tiny.write_checkpoint(tmp_path / "m", config, tensors)
    checkpoint = HfFolder(folder)
    settled = settle_ties(checkpoint, checkpoint.config())
    two_matrices = case == "tied but different"
    assert settled["tie_word_embeddings"] is not two_matrices
    assert bool(checkpoint.warnings) == two_matrices

    out = tmp_path / "out"
    tiny.run_export(folder, out)
    manifest = Manifest.load(out)
    names = [t.name for t in manifest.weights[0].tensors]
    assert ("lm_head.weight.f32" in names) == two_matrices
    assert manifest.architecture.tied_embeddings is not two_matrices
    tokens = [[(7 * i) % 256 for i in range(n)] for n in LENGTHS]
    wanted = np.concatenate(model_logits(load_model(folder, {}), tokens))
    graph = manifest.graph("cpu")
    runner = GraphRunner((out / graph.file.path).read_bytes(), out, graph, manifest.kv_groups)
    found = runner.run(one_shot(tokens))
    got = np.stack([found[s, p] for s in (0, 1) for p in range(LENGTHS[s])])
    assert np.abs(got - wanted).max() < 1e-3


def test_untied_without_a_head_is_refused(tiny, config, tmp_path):
    tensors = tiny.random_tensors(config)
    del tensors["lm_head.weight"]
    folder = tiny.write_checkpoint(tmp_path / "m", config, tensors)
    with pytest.raises(SourceInvalid, match=r"lm_head\.weight.*not tied"):
        tiny.run_export(folder, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [folder]


def test_parameter_shapes_are_those_of_the_traced_model(tiny):
    AttentionTracer().register()
    for name in tiny.FAMILIES:
        for changes in (
            {},
            {"attention_bias": True, "mlp_bias": True},
            {"tie_word_embeddings": True},
        ):
            config = tiny.family_config(name, **changes)
            model, _ = build_fake_model(make_config(config))
            traced = {n: tuple(p.shape) for n, p in model.named_parameters()}
            assert parameter_shapes(config) == traced, (name, changes)
