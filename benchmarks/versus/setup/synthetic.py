"""A checkpoint of a given shape with random weights: `synthetic TOKENIZER_FOLDER OUT`.

Weights are drawn with the standard deviation that Llama starts training from, norms are 1, so that
activations keep an ordinary size through all layers. The same bits come out on every machine: they
are made of a counter's raw output by integer sums, of which NumPy promises that it stays the same.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

LLAMA_1B: dict[str, Any] = {
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
}
"""Llama 3.2 1B, but for scaled RoPE, which costs no engine time, and the length of contexts."""

SEED = 1
DEVIATION = 0.02
SLICE = 1 << 22
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)

Floats = npt.NDArray[np.float32]


def draw(index: int, count: int) -> Iterator[Floats]:
    """Slices of the `count` values of the tensor number `index`: mean 0, deviation DEVIATION, the
    bell shape of a sum of four uniform bytes."""
    bits = np.random.Philox(key=np.array([SEED, index], dtype=np.uint64))
    scale = np.float32(DEVIATION / np.sqrt(4 * (256.0**2 - 1) / 12))
    for begin in range(0, count, SLICE):
        size = min(SLICE, count - begin)
        raw = bits.random_raw((size + 1) // 2).astype("<u8", copy=False).view(np.uint8)
        sums = raw.reshape(-1, 4).sum(axis=1, dtype=np.int32)[:size]
        yield (sums - 510).astype(np.float32) * scale


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes [out, in] of a Llama checkpoint's tensors, the head tied."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden)
    }
    for i in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{i}."
        found |= {
            f"{prefix}input_layernorm.weight": (hidden,),
            f"{prefix}self_attn.q_proj.weight": (queries, hidden),
            f"{prefix}self_attn.k_proj.weight": (keys, hidden),
            f"{prefix}self_attn.v_proj.weight": (keys, hidden),
            f"{prefix}self_attn.o_proj.weight": (hidden, queries),
            f"{prefix}post_attention_layernorm.weight": (hidden,),
            f"{prefix}mlp.gate_proj.weight": (ffn, hidden),
            f"{prefix}mlp.up_proj.weight": (ffn, hidden),
            f"{prefix}mlp.down_proj.weight": (hidden, ffn),
        }
    return {**found, "model.norm.weight": (hidden,)}


def pad_vocabulary(tokenizer: dict[str, Any], size: int) -> None:
    """Fills a byte-level BPE tokenizer.json up to `size` ids, with ordinary tokens that no merge
    makes: a random model may well choose them, and a server then has a text to send.

    Raises:
        ValueError: the tokenizer has more ids than that.
    """
    vocabulary = tokenizer["model"]["vocab"]
    # an added token that the vocabulary lacks would get the next free id when the file is loaded
    for added in tokenizer.get("added_tokens", []):
        vocabulary.setdefault(added["content"], added["id"])
    taken = set(vocabulary.values())
    if max(taken) >= size:
        raise ValueError(f"the tokenizer has an id {max(taken)}, beyond a vocabulary of {size}")
    for token in range(size):
        if token not in taken:
            vocabulary[filler(token)] = token


def filler(token: int) -> str:
    """The text of an id that the tokenizer did not have."""
    return f"<unused{token}>"


def write(tokenizer_folder: Path, out: Path, config: dict[str, Any]) -> None:
    """The whole folder, weights in bf16."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    out.mkdir(parents=True)
    tensors = {}
    for index, (name, shape) in enumerate(shapes(config).items()):
        tensor = torch.ones(shape, dtype=torch.bfloat16)
        if len(shape) > 1:
            flat, begin = tensor.view(-1), 0
            for values in draw(index, flat.numel()):
                flat[begin : begin + len(values)] = torch.from_numpy(values)
                begin += len(values)
        tensors[name] = tensor
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    for name in TOKENIZER_FILES:
        if (tokenizer_folder / name).exists():
            shutil.copy(tokenizer_folder / name, out / name)
    tokenizer = json.loads((out / "tokenizer.json").read_text())
    pad_vocabulary(tokenizer, config["vocab_size"])
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    special = json.loads((tokenizer_folder / "config.json").read_text())
    ids = {key: special.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    architecture = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    LlamaConfig(**config, **ids, **architecture).save_pretrained(out)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), LLAMA_1B)
