"""A Llama checkpoint of a few kilobytes with random weights, as a Hugging Face folder."""

import json

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HIDDEN, HEADS, KV_HEADS, HEAD, LAYERS, MIDDLE = 128, 2, 1, 64, 2, 256


def tensors(vocab, seed=0):
    """Parameters by name, float32."""
    draw = np.random.default_rng(seed)

    def normal(*shape):
        return (draw.standard_normal(shape) * 0.05).astype(np.float32)

    out = {
        "model.embed_tokens.weight": normal(vocab, HIDDEN),
        "lm_head.weight": normal(vocab, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        out |= {
            at + "input_layernorm.weight": np.ones(HIDDEN, np.float32),
            at + "post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
            at + "self_attn.q_proj.weight": normal(HEADS * HEAD, HIDDEN),
            at + "self_attn.k_proj.weight": normal(KV_HEADS * HEAD, HIDDEN),
            at + "self_attn.v_proj.weight": normal(KV_HEADS * HEAD, HIDDEN),
            at + "self_attn.o_proj.weight": normal(HIDDEN, HEADS * HEAD),
            at + "mlp.gate_proj.weight": normal(MIDDLE, HIDDEN),
            at + "mlp.up_proj.weight": normal(MIDDLE, HIDDEN),
            at + "mlp.down_proj.weight": normal(HIDDEN, MIDDLE),
        }
    return out


def config(vocab):
    """config.json as a dict."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": MIDDLE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": vocab,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def write(folder):
    """Write the folder and return it."""
    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<s>": 0, "</s>": 1} | {letter: i + 2 for i, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": template})
    )
    (folder / "config.json").write_text(json.dumps(config(len(vocab))))
    save_file(tensors(len(vocab)), folder / "model.safetensors")
    return folder


def shard(folder):
    """Split model.safetensors in two with an index; returns the index's weight map."""
    everything = tensors(json.loads((folder / "config.json").read_text())["vocab_size"])
    names = sorted(everything)
    halves = {"model-00001-of-00002.safetensors": names[::2]}
    halves["model-00002-of-00002.safetensors"] = names[1::2]
    for file, part in halves.items():
        save_file({name: everything[name] for name in part}, folder / file)
    (folder / "model.safetensors").unlink()
    weight_map = {name: file for file, part in halves.items() for name in part}
    write_index(folder, weight_map)
    return weight_map


def write_index(folder, weight_map):
    """Write the index file."""
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)
