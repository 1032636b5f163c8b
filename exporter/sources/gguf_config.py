"""GGUF metadata → Hugging Face config and parameter names.

Keys are those of the GGUF specification (`<arch>.block_count`, `tokenizer.ggml.*` ...).
"""

import re
from collections.abc import Mapping
from typing import Any

from ortloom.errors import SourceInvalid, UnsupportedModel
from ortloom.exporter.sources.gguf_experts import layer_with_experts

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
"""Model type → class."""

TYPES = {
    "llama": "llama",
    "mistral": "mistral",
    "olmoe": "olmoe",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
}
"""GGUF architecture → model type; a llama with experts is a mixtral, with a window a mistral."""

PERMUTED = frozenset({"llama", "mistral", "mixtral"})
"""Model types whose query and key rows are stored in interleaved rotary order."""

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
    "ffn_gate_inp": "mlp.gate",
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


OTHER_EXPERTS = ("_shexp.", "_chexps.", "exp_probs_b")
"""Parts of names of tensors beside routed experts that no supported model has."""


def _experts(
    fields: Mapping[str, Any], arch: str, model_type: str, tensors: set[str]
) -> dict[str, Any]:
    """What the config of a mixture of experts says besides.

    Raises:
        SourceInvalid: a required key or every tensor of experts is missing.
        UnsupportedModel: another routing, or experts beside the routed ones.
    """
    odd = sorted(name for name in tensors if any(part in name for part in OTHER_EXPERTS))
    if odd:
        raise UnsupportedModel(f"tensor '{odd[0]}' of the GGUF file is not supported")
    for key, plain in (
        ("expert_gating_func", (0, 1)),  # not said, and softmax
        ("expert_weights_scale", (0.0, 1.0)),
        ("expert_shared_count", (0,)),
        ("expert_group_count", (0, 1)),
    ):
        value = fields.get(f"{arch}.{key}")
        if value is not None and value not in plain:
            raise UnsupportedModel(f"{arch}.{key} = {value} of the GGUF file is not supported")

    def count(key: str) -> int:
        value = fields.get(f"{arch}.{key}")
        if value is None:
            raise SourceInvalid(f"the GGUF file has no '{arch}.{key}'")
        return int(value)

    sparse = {layer_with_experts(name) for name in tensors} - {None}
    if not sparse:
        raise SourceInvalid(f"the GGUF file of architecture '{arch}' has no tensors of experts")
    layers = range(count("block_count"))
    dense = [layer for layer in layers if layer not in sparse]
    made: dict[str, Any] = {
        "num_local_experts" if model_type == "mixtral" else "num_experts": count("expert_count"),
        "num_experts_per_tok": count("expert_used_count"),
    }
    width = fields.get(f"{arch}.expert_feed_forward_length")
    if model_type == "qwen3_moe":
        made["moe_intermediate_size"] = count("expert_feed_forward_length")
        made["decoder_sparse_step"], made["mlp_only_layers"] = 1, dense
    elif dense:
        raise UnsupportedModel(f"layer {dense[0]} of the GGUF file has no experts, others have")
    elif width is not None:
        made["intermediate_size"] = int(width)
    if model_type != "mixtral":  # which always divides by the sum of the chosen weights
        default = model_type == "qwen3_moe"
        made["norm_topk_prob"] = bool(fields.get(f"{arch}.expert_weights_norm", default))
    elif not fields.get(f"{arch}.expert_weights_norm", True):
        raise UnsupportedModel(f"{arch}.expert_weights_norm = false is not supported")
    return made


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
    if arch not in TYPES:
        raise UnsupportedModel(
            f"GGUF architecture '{arch}' is not supported (supported: {', '.join(sorted(TYPES))})"
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
    sparse = {layer_with_experts(name) for name in tensors} - {None}
    model_type = TYPES[arch]
    if arch == "llama":
        model_type = "mixtral" if sparse else "mistral" if window else "llama"
    vocab = fields.get(f"{arch}.vocab_size") or len(fields.get("tokenizer.ggml.tokens", ()))
    config: dict[str, Any] = {
        "architectures": [CLASSES[model_type]],
        "model_type": model_type,
        "dtype": "float32",
        "vocab_size": int(vocab),
        "hidden_size": hidden,
        "intermediate_size": int(
            number("feed_forward_length", fields.get(f"{arch}.expert_feed_forward_length"))
        ),
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
    if model_type in ("mistral", "mixtral"):
        config["sliding_window"] = int(window) if window else None
    if sparse or model_type in ("olmoe", "qwen3_moe"):
        config |= _experts(fields, arch, model_type, tensors)
    if "blk.0.attn_q.bias" in tensors and model_type in ("llama", "olmoe", "qwen3", "qwen3_moe"):
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
