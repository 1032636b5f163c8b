"""GGUF metadata → Hugging Face config and parameter names.

Keys are those of the GGUF specification (`<arch>.block_count`, `tokenizer.ggml.*` ...).
"""

import re
from collections.abc import Mapping
from typing import Any

from ortloom.errors import SourceInvalid, UnsupportedModel

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

PERMUTED = frozenset({"llama", "mistral"})
"""Architectures whose query and key rows are stored in interleaved rotary order."""

OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def parameter_name(tensor: str) -> str | None:
    """The Hugging Face name of a GGUF tensor, None for one without a counterpart."""
    if tensor in OUTER:
        return OUTER[tensor]
    match = _BLOCK.fullmatch(tensor)
    if match is None or match[2] not in INNER:
        return None
    return f"model.layers.{match[1]}.{INNER[match[2]]}.{match[3]}"


def _rope(fields: Mapping[str, Any], arch: str) -> dict[str, Any]:
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": float(fields.get(f"{arch}.rope.freq_base", 10000.0)),
    }
    kind = fields.get(f"{arch}.rope.scaling.type", "none")
    if kind == "none":
        return rope
    if kind not in ("linear", "yarn"):
        raise UnsupportedModel(f"rope scaling '{kind}' of the GGUF file is not supported")
    rope["rope_type"] = kind
    rope["factor"] = float(fields.get(f"{arch}.rope.scaling.factor", 1.0))
    original = fields.get(f"{arch}.rope.scaling.original_context_length")
    if kind == "yarn" and original is not None:
        rope["original_max_position_embeddings"] = int(original)
    return rope


def read_config(fields: Mapping[str, Any], tensors: set[str]) -> dict[str, Any]:
    """The Hugging Face config of a GGUF file.

    Args:
        fields: metadata by key.
        tensors: names of the stored tensors (GGUF names).

    Raises:
        SourceInvalid: a required key is missing.
        UnsupportedModel: the architecture or its rotary form is not supported.
    """
    arch = str(fields.get("general.architecture", ""))
    if not arch:
        raise SourceInvalid("the GGUF file does not name its architecture")
    if arch not in CLASSES:
        raise UnsupportedModel(
            f"GGUF architecture '{arch}' is not supported (supported: {', '.join(sorted(CLASSES))})"
        )
    if "rope_freqs.weight" in tensors:
        raise UnsupportedModel(
            "the GGUF file scales its rotary frequencies by a tensor (rope_freqs.weight), which is "
            "not supported: export the safetensors checkpoint of the model instead"
        )

    def number(key: str, default: float | None = None) -> Any:
        value = fields.get(f"{arch}.{key}", default)
        if value is None:
            raise SourceInvalid(f"the GGUF file has no '{arch}.{key}'")
        return value

    hidden, heads = int(number("embedding_length")), int(number("attention.head_count"))
    head = int(number("attention.key_length", hidden // heads))
    rotary = int(number("rope.dimension_count", head))
    if rotary != head:
        raise UnsupportedModel(
            f"rotary embedding over {rotary} of {head} head dimensions is not supported"
        )
    window = fields.get(f"{arch}.attention.sliding_window")
    model_type = "mistral" if window and arch == "llama" else arch
    vocab = fields.get(f"{arch}.vocab_size") or len(fields.get("tokenizer.ggml.tokens", ()))
    config: dict[str, Any] = {
        "architectures": [CLASSES[model_type]],
        "model_type": model_type,
        "dtype": "float32",
        "vocab_size": int(vocab),
        "hidden_size": hidden,
        "intermediate_size": int(number("feed_forward_length")),
        "num_hidden_layers": int(number("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(number("attention.head_count_kv", heads)),
        "head_dim": head,
        "hidden_act": "silu",
        "max_position_embeddings": int(number("context_length")),
        "rms_norm_eps": float(number("attention.layer_norm_rms_epsilon")),
        "rope_parameters": _rope(fields, arch),
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    if model_type == "mistral":
        config["sliding_window"] = int(window) if window else None
    if "blk.0.attn_q.bias" in tensors and model_type in ("llama", "qwen3"):
        config["attention_bias"] = True
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        token = fields.get(f"tokenizer.ggml.{theirs}_token_id")
        config[f"{ours}_token_id"] = None if token is None else int(token)
    return config


def generation_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json: the special ids, with the end-of-turn id as second end id."""
    ids: dict[str, Any] = {}
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        token = fields.get(f"tokenizer.ggml.{theirs}_token_id")
        if token is not None:
            ids[f"{ours}_token_id"] = int(token)
    turn = fields.get("tokenizer.ggml.eot_token_id")
    if turn is not None and "eos_token_id" in ids and int(turn) != ids["eos_token_id"]:
        ids["eos_token_id"] = [ids["eos_token_id"], int(turn)]
    return ids
