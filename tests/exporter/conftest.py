"""Tiny random checkpoints with a real tokenizer, and their bundles."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ortloom.exporter.architectures import parameter_shapes
from ortloom.exporter.options import ExportOptions
from ortloom.exporter.pipeline import export
from ortloom.exporter.progress import LineProgress

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:  # for gguf_files: tests are no package
    sys.path.insert(0, HERE)

VOCAB = 320
BASE = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 257,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 50000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

FAMILIES = {
    "llama": {"model_type": "llama", "tie_word_embeddings": True},
    "llama3-rope": {"model_type": "llama", "rope_parameters": LLAMA3_ROPE},
    "mistral": {"model_type": "mistral", "sliding_window": 12},
    "qwen2": {
        "model_type": "qwen2",
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "sliding_window": 12,
        "max_window_layers": 1,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    },
    "qwen3": {"model_type": "qwen3", "num_key_value_heads": 1},
    "mixtral": {
        "model_type": "mixtral",
        "num_hidden_layers": 1,
        "intermediate_size": 64,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "olmoe": {
        "model_type": "olmoe",
        "num_hidden_layers": 1,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "norm_topk_prob": False,
    },
    "qwen3-moe": {
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 64,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
    },
    "qwen3-moe-mixed": {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 5,
        "moe_intermediate_size": 64,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "norm_topk_prob": False,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
        "tie_word_embeddings": True,
    },
    "smollm3": {
        "model_type": "smollm3",
        "num_hidden_layers": 4,
        "no_rope_layers": [1, 0, 1, 1],
        "tie_word_embeddings": True,
    },
}
CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def family_config(name, **changes):
    config = {**BASE, "rope_parameters": DEFAULT_ROPE, **FAMILIES[name], **changes}
    config["architectures"] = [CLASSES[config["model_type"]]]
    return config


def random_tensors(config, seed=0):
    """Weights that make every part of the model matter: O(1) activations, uneven norms."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in parameter_shapes(config).items():
        if len(shape) >= 2:
            scale = 1.0 if "embed_tokens" in name else 1.5 / np.sqrt(shape[-1])
            tensors[name] = (rng.standard_normal(shape) * scale).astype(np.float32)
        elif name.endswith("bias"):
            tensors[name] = (rng.standard_normal(shape) * 0.5).astype(np.float32)
        else:
            tensors[name] = (1 + 0.3 * rng.standard_normal(shape)).astype(np.float32)
    return split_experts(tensors, config["model_type"])


def split_experts(tensors, model_type):
    """Experts as published checkpoints store them: every matrix of every expert apart."""
    stored = {}
    names = dict(gate="gate_proj", up="up_proj", down="down_proj")
    if model_type == "mixtral":
        names = dict(gate="w1", up="w3", down="w2")
    for name, array in tensors.items():
        if model_type == "mixtral":
            name = name.replace(".mlp.", ".block_sparse_moe.")
        prefix, found, role = name.partition(".experts.")
        if not found:
            stored[name] = array
            continue
        for number, matrix in enumerate(array):
            half = len(matrix) // 2
            parts = {"down": matrix}
            if role == "gate_up_proj":
                parts = {"gate": matrix[:half], "up": matrix[half:]}
            for part, rows in parts.items():
                stored[f"{prefix}.experts.{number}.{names[part]}.weight"] = rows.copy()
    return stored


def write_tokenizer(folder):
    """A byte-level tokenizer: 256 bytes, two special tokens, a few merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: i for i, symbol in enumerate(alphabet)}
    merges = [("t", "h"), ("th", "e"), ("i", "n"), ("e", "r"), ("Ġ", "the")]
    special = ["<|start|>", "<|end|>"]
    for number, (left, right) in enumerate(merges):
        vocab[left + right] = len(alphabet) + len(special) + number
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    for number, token in enumerate(special):
        assert len(alphabet) + number == 256 + number
        tokenizer.add_special_tokens([AddedToken(token, special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    facts = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|start|>",
        "eos_token": "<|end|>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    ids = {"bos_token_id": 256, "eos_token_id": [257, 256]}
    (folder / "generation_config.json").write_text(json.dumps(ids))


def write_checkpoint(folder, config, tensors=None):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(random_tensors(config) if tensors is None else tensors, folder / "model.safetensors")
    write_tokenizer(folder)
    return folder


def write_shards(folder, config, tensors, count=3):
    """The same checkpoint in several files with an index."""
    write_checkpoint(folder, config, tensors)
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for number in range(count):
        file = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        part = {n: tensors[n] for n in names[number::count]}
        save_file(part, folder / file)
        weight_map.update(dict.fromkeys(part, file))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def run_export(source, output, **options):
    return export(
        ExportOptions(source=str(source), output=str(output), **options), LineProgress(sys.stderr)
    )


@pytest.fixture(scope="session")
def tiny():
    """The helpers of this file, for tests that make their own checkpoints."""
    return sys.modules[__name__]


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Family name → checkpoint folder, made on demand."""
    root = tmp_path_factory.mktemp("checkpoints")

    def folder(name) -> Path:
        path = root / name
        if not path.exists():
            write_checkpoint(path, family_config(name))
        return path

    return folder


@pytest.fixture(scope="session")
def bundles(checkpoints, tmp_path_factory):
    """(family, quant) → bundle folder, exported on demand and without a check."""
    root = tmp_path_factory.mktemp("bundles")

    def folder(name, quant=None) -> Path:
        path = root / f"{name}-{quant}"
        if not path.exists():
            run_export(checkpoints(name), path, quant=quant)
        return path

    return folder
