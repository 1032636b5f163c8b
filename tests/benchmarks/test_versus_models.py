"""The synthetic model of the comparison: its weights, its tokenizer and its GGUF file."""

import json

import numpy as np
import pytest
import torch
from benchmarks.versus.models import find
from benchmarks.versus.roofline import Shape
from benchmarks.versus.setup import gguf_file, synthetic
from benchmarks.versus.setup.steps import made
from gguf import GGUFReader, GGUFWriter
from safetensors import safe_open
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM

TINY = synthetic.LLAMA_1B | {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
FIRST_DRAWS = (-0.0162381008, 0.0152908778, 0.0096075423, 0.0046007950)
"""Of tensor 3, worked out once."""


@pytest.fixture(scope="module")
def tokenizer():
    """A byte-level BPE of all bytes and one merge, as small as one can be."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: i for i, text in enumerate([*letters, "he"])}
    found = Tokenizer(models.BPE(vocabulary, [("h", "e")]))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens(["<|end|>"])
    return found


@pytest.fixture(scope="module")
def checkpoint(tokenizer, tmp_path_factory):
    source = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(source / "tokenizer.json"))
    (source / "config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 257}))
    folder = tmp_path_factory.mktemp("model") / "checkpoint"
    synthetic.write(source, folder, TINY)
    return folder


@pytest.fixture(scope="module")
def tokenizer_gguf(tokenizer, tmp_path_factory):
    """A GGUF file of nothing but a tokenizer."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.gguf"
    writer = GGUFWriter(path, "llama")
    count = tokenizer.get_vocab_size()
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([tokenizer.id_to_token(i) for i in range(count)])
    writer.add_token_types([1] * (count - 1) + [3])
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(count - 1)
    writer.add_chat_template("{{ messages }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def loaded(checkpoint):
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def gguf(checkpoint, tokenizer_gguf):
    out = checkpoint.parent / "tiny.gguf"
    gguf_file.write(checkpoint, tokenizer_gguf, out)
    return out


def test_the_synthetic_model_has_llama_1b_sizes():
    shapes = synthetic.shapes(synthetic.LLAMA_1B)
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 1_235_814_400


def test_draws_are_the_same_everywhere_and_bell_shaped():
    values = np.concatenate(list(synthetic.draw(3, 100_000)))
    assert values[:4].tolist() == pytest.approx(list(FIRST_DRAWS), abs=1e-9)
    assert abs(values.mean()) < 3e-4
    assert values.std() == pytest.approx(0.02, rel=0.01)
    assert not np.array_equal(values[:64], next(synthetic.draw(4, 64)))


def test_draws_do_not_depend_on_the_slice(monkeypatch):
    whole = np.concatenate(list(synthetic.draw(0, 1000)))
    monkeypatch.setattr(synthetic, "SLICE", 96)
    pieces = list(synthetic.draw(0, 1000))
    assert len(pieces) == 11
    assert np.array_equal(np.concatenate(pieces), whole)


def test_the_vocabulary_is_filled_up_and_old_ids_stay(checkpoint, tokenizer):
    filled = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    text = "when the light is there"
    assert filled.get_vocab_size() == TINY["vocab_size"]
    assert filled.encode(text).ids == tokenizer.encode(text).ids
    assert filled.token_to_id("<|end|>") == 257
    assert filled.decode([299]) == "<unused299>"


def test_a_tokenizer_larger_than_the_vocabulary_is_refused():
    tokenizer = {"model": {"vocab": {"a": 0, "b": 8}}, "added_tokens": [{"id": 9, "content": "c"}]}
    with pytest.raises(ValueError, match="id 9, beyond a vocabulary of 9"):
        synthetic.pad_vocabulary(tokenizer, 9)


def test_activations_are_finite_and_of_ordinary_size(loaded):
    with torch.inference_mode():
        found = loaded(torch.arange(100, 164)[None], output_hidden_states=True)
    assert torch.isfinite(found.logits).all()
    assert 0.01 < found.logits.std() < 10
    assert 0.1 < found.hidden_states[-1].std() < 10


def test_the_gguf_file_holds_the_same_model(gguf, loaded):
    again = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    ours, theirs = loaded.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
    assert again.config.vocab_size == TINY["vocab_size"]
    assert again.config.rope_parameters["rope_theta"] == TINY["rope_theta"]


def test_the_gguf_file_stores_matrices_in_bf16_and_vectors_in_fp32(gguf):
    reader = GGUFReader(gguf)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert kinds["blk.1.attn_q.weight"] == "BF16"
    assert kinds["blk.1.attn_norm.weight"] == "F32"
    assert "output.weight" not in kinds  # tied
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert len(tokens) == TINY["vocab_size"]
    assert tokens[-1] == "<unused299>"
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    assert types[256:259] == [1, 3, 1]
    assert len(types) == len(tokens)
    assert reader.fields["tokenizer.ggml.eos_token_id"].contents() == 257
    assert reader.fields["tokenizer.chat_template"].contents() == "{{ messages }}"


def test_a_tensor_that_llama_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"no GGUF name .*q_norm"):
        gguf_file.gguf_name("model.layers.0.self_attn.q_norm.weight")


def test_weights_are_stored_in_bf16(checkpoint):
    with safe_open(checkpoint / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in synthetic.shapes(TINY)} == {torch.bfloat16}


def test_the_shape_for_the_bounds_comes_from_the_checkpoint(checkpoint):
    shape = Shape.load(checkpoint)
    assert shape == Shape(2, 64, 4, 2, 16, 96, 300)
    matrices = [
        s for name, s in synthetic.shapes(TINY).items() if len(s) > 1 and "embed" not in name
    ]
    assert shape.body == sum(int(np.prod(s)) for s in matrices)


def test_files_of_the_models_lie_apart(tmp_path):
    origin = tmp_path / "demo.Q4_1.gguf"
    demo, synthetic_model = find("demo", origin), find("llama-1b", origin)
    assert demo.source == demo.gguf == origin
    assert synthetic_model.source == synthetic_model.checkpoint
    assert not synthetic_model.trained
    peers = ("ortloom", "llama.cpp", "genai", "openvino")
    places = [model.place(peer) for model in (demo, synthetic_model) for peer in peers]
    assert len(set(places)) == len(places)


def test_what_is_made_appears_only_when_it_is_complete(tmp_path):
    target = tmp_path / "model"

    def make(fail: bool) -> None:
        with made(target) as partial:
            partial.mkdir()
            (partial / "weights").write_text(f"{fail}")
            if fail:
                raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        make(True)
    assert not target.exists()
    make(False)  # over what the failure left
    assert (target / "weights").read_text() == "False"
    with pytest.raises(RuntimeError):
        make(True)
    assert (target / "weights").read_text() == "False"
    with made(tmp_path / "file") as partial:
        partial.write_text("x")
    assert (tmp_path / "file").read_text() == "x"
