"""GGUF files: bitwise the values their blocks stand for, as transformers reads them."""

import json
import struct

import gguf
import numpy as np
import pytest
from gguf_files import HIDDEN, TYPES, blocks, finish, new_writer, stored_name

from ortloom.errors import SourceInvalid, UnsupportedModel
from ortloom.exporter.architectures import parameter_shapes
from ortloom.exporter.sources.gguf_config import read_config
from ortloom.exporter.sources.gguf_file import GgufFile
from ortloom.exporter.verify import schedule
from ortloom.exporter.verify.check import check_tokens
from ortloom.exporter.verify.figures import FP32_TOLERANCE, compare
from ortloom.exporter.verify.reference import load_model, model_logits
from ortloom.exporter.verify.session import GraphRunner
from ortloom.kernels import packing
from ortloom.kernels.packed_contract import PackedAttributes
from ortloom.kernels.packed_reference import unpacked_weight
from ortloom.models.manifest import Manifest


def write_gguf(path, arch="llama", kinds=(*TYPES, "F32"), tied=False, **extra):
    config = {
        "model_type": arch, "hidden_size": HIDDEN, "intermediate_size": 256,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "vocab_size": 320, "max_position_embeddings": 256, "tie_word_embeddings": tied,
    }  # fmt: skip
    rng = np.random.default_rng(5)
    writer = new_writer(path, arch, extra)
    stored = {}
    matrices = 0
    for name, shape in parameter_shapes(config).items():
        kind = "F32"
        if len(shape) == 2:
            kind = kinds[matrices % len(kinds)]
            matrices += 1
            data = blocks(kind, shape, rng)
        else:
            data = (1 + 0.2 * rng.standard_normal(shape)).astype(np.float32)
        stored[name] = (kind, data)
        writer.add_tensor(stored_name(name), data, raw_dtype=gguf.GGMLQuantizationType[kind])
    finish(writer)
    return stored


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return path, write_gguf(path)


def test_every_type_is_read_bitwise(mixed):
    path, stored = mixed
    file = GgufFile(path)
    seen = set()
    for name, (kind, data) in stored.items():
        if ".q_proj." in name or ".k_proj." in name:
            continue
        if kind in ("F32", "F16"):
            values = data.astype(np.float32)
        else:
            values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
        np.testing.assert_array_equal(file.rows(name, 0, values.shape[0]), values, err_msg=name)
        seen.add(kind)
    assert seen == set(TYPES)
    assert file.quantised
    assert {i.dtype for i in file.tensors.values()} == set(TYPES)


def test_values_are_those_of_transformers_own_reader(mixed):
    """Names, the interleaved query and key rows, and chunks of rows included."""
    path, _ = mixed
    theirs = load_model(path, {}).state_dict()
    file = GgufFile(path)
    assert set(file.tensors) == set(theirs)
    for name, tensor in theirs.items():
        rows = tensor.shape[0]
        np.testing.assert_array_equal(file.rows(name, 0, rows), tensor.numpy(), err_msg=name)
        np.testing.assert_array_equal(file.rows(name, 3, rows - 2), tensor.numpy()[3 : rows - 2])


def test_a_bundle_from_gguf_is_the_model(mixed, tiny, tmp_path):
    from transformers import AutoTokenizer

    path, _ = mixed
    out = tmp_path / "out"
    tiny.run_export(path, out)
    manifest = Manifest.load(out)
    architecture = manifest.architecture
    assert (architecture.bos_token_id, architecture.eos_token_ids) == (256, (257,))
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == [257, 256]
    assert (out / "chat_template.jinja").read_text().startswith("{% for m in messages %}")

    tokens = check_tokens(out, 320)
    graph = manifest.graph("cpu")
    runner = GraphRunner((out / graph.file.path).read_bytes(), out, graph, manifest.kv_groups)
    found = runner.run(schedule.steps(tokens))
    got = np.stack([found[s, p] for s in (0, 1) for p in range(schedule.LENGTHS[s])])
    wanted = np.concatenate(model_logits(load_model(path, {}), tokens))
    assert compare(got, wanted).relative <= FP32_TOLERANCE

    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    from tokenizers import Tokenizer

    ours = Tokenizer.from_file(str(out / "tokenizer.json"))
    for text in ("the other thing in there", "Grüße 世界\n\t<|end|>", "  x  "):
        assert ours.encode(text).ids == theirs(text).input_ids


def test_quantising_a_quantised_source_says_so(mixed, tiny, tmp_path):
    tiny.run_export(mixed[0], tmp_path / "out", quant="int4")
    assert Manifest.load(tmp_path / "out").quantization.requantised
    assert "re-quantised" in json.loads((tmp_path / "out" / "report.json").read_text())["note"]


@pytest.mark.parametrize(("kind", "kept"), [("Q8_0", True), ("Q4_0", True), ("Q4_1", False)])
def test_int8_keeps_the_values_of_blocks_that_it_can_hold(kind, kept, tiny, tmp_path):
    """No factors are moved into their columns then."""
    path = tmp_path / "m.gguf"
    write_gguf(path, kinds=(kind,))
    tiny.run_export(path, tmp_path / "out", quant="int8")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["balanced_norms"] == 0) == kept
    source, manifest = GgufFile(path), Manifest.load(tmp_path / "out")
    for name, info in source.tensors.items():
        if name.endswith("v_proj.weight"):
            found = stored_values(tmp_path / "out", manifest, name, info.shape[0])
            wanted = source.rows(name, 0, info.shape[0])
            assert np.array_equal(found, wanted) == kept


def stored_values(folder, manifest, name, rows):
    """The fp32 values that the weight file holds of a matrix, whatever its form."""
    file = manifest.weights[0]
    data = np.memmap(folder / file.file.path, np.uint8, "r")
    found = {}
    for tensor in file.tensors:
        base, _, suffix = tensor.name.rpartition(".")
        kind = "uint16" if tensor.dtype == "bfloat16" else tensor.dtype
        raw = data[tensor.offset : tensor.offset + tensor.length]
        if tensor.name == name:  # a table that only the embedding reads, row by row
            return raw.view(kind).reshape(tensor.shape)
        if base == name:
            found[suffix] = raw.view(kind).reshape(tensor.shape)
    (form,) = set(found) - {"scales", "mins"}
    panels = found.pop(form)
    if not found:
        return packing.unpack_float(panels, form, rows)
    width = panels.shape[1] * (8 if form == "u4" else 4)
    attributes = PackedAttributes(form, rows, width, width // found["scales"].shape[1])
    return unpacked_weight(attributes, {"weight": panels, **found})


def test_keep_stores_every_matrix_with_its_own_values(mixed, tiny, tmp_path):
    path, stored = mixed
    out = tmp_path / "out"
    tiny.run_export(path, out, quant="keep", check=True)
    manifest, file = Manifest.load(out), GgufFile(path)
    quantization = manifest.quantization
    assert (quantization.method, quantization.bits, quantization.requantised) == (
        "source",
        4,
        False,
    )
    assert quantization.asked == "keep"
    kinds = set()
    for name, (kind, _) in stored.items():
        info = file.tensors[name]
        if len(info.shape) == 2:
            rows = info.shape[0]
            kept = stored_values(out, manifest, name, rows)
            np.testing.assert_array_equal(kept, file.rows(name, 0, rows), err_msg=name)
            kinds.add(kind)
    assert kinds == set(TYPES)
    report = json.loads((out / "report.json").read_text())
    assert report["parity"]["targets"]["cpu"]["scheduled_against_one_shot_max_abs"] == 0


def test_a_window_makes_it_mistral(tmp_path):
    write_gguf(tmp_path / "w.gguf", llama__attention__sliding_window=12)
    config = GgufFile(tmp_path / "w.gguf").config()
    assert (config["model_type"], config["sliding_window"]) == ("mistral", 12)


def test_qwen_rows_are_stored_in_order(tmp_path):
    stored = write_gguf(tmp_path / "q.gguf", "qwen3", kinds=("F32",))
    file = GgufFile(tmp_path / "q.gguf")
    name = "model.layers.0.self_attn.q_proj.weight"
    np.testing.assert_array_equal(file.rows(name, 0, 256), stored[name][1])
    assert "model.layers.1.self_attn.k_norm.weight" in file.tensors


def test_damaged_files_are_refused(mixed, tmp_path):
    data = mixed[0].read_bytes()
    cases = {
        "not GGUF": b"nope" + data[4:],
        "version": data[:4] + struct.pack("<I", 9) + data[8:],
        "cut header": data[:300],
        "cut data": data[:-100],
        "wild length": data[:24] + struct.pack("<Q", 2**60) + data[32:],
    }
    for what, damaged in cases.items():
        path = tmp_path / "x.gguf"
        path.write_bytes(damaged)
        with pytest.raises(SourceInvalid, match=r"x\.gguf"):
            GgufFile(path)
        assert what


def test_what_is_not_supported_is_named(tmp_path):
    write_gguf(tmp_path / "k.gguf", kinds=("F32",))
    for arch, tensors, named in (
        ("gpt2", set(), "gpt2"),
        ("llama", {"rope_freqs.weight"}, "rope_freqs"),
    ):
        with pytest.raises(UnsupportedModel, match=named):
            read_config({"general.architecture": arch}, tensors)
    with pytest.raises(SourceInvalid, match=r"llama\.embedding_length"):
        read_config({"general.architecture": "llama"}, set())
    data = bytearray((tmp_path / "k.gguf").read_bytes())
    name = b"blk.0.ffn_up.weight"
    place = data.index(name) + len(name) + 4 + 16
    data[place : place + 4] = struct.pack("<I", 12)  # claims Q4_K: fewer bytes, still inside
    data[place : place + 4] = struct.pack("<I", 10)  # Q2_K is not read
    (tmp_path / "k2.gguf").write_bytes(data)
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.ffn_up\.weight.*Q2_K"):
        GgufFile(tmp_path / "k2.gguf")
