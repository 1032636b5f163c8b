"""Which architectures are proven, and the parameter shapes their configs imply.

The trace is the truth about an architecture; this module answers what must be known without torch:
whether to start at all, and how large the result will be.
"""

from collections.abc import Mapping
from typing import Any

from ortloom.errors import SourceInvalid, UnsupportedModel
from ortloom.kernels import contract
from ortloom.kernels.packed_contract import PANEL

PROVEN = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "OlmoeForCausalLM": "olmoe",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "SmolLM3ForCausalLM": "smollm3",
}
"""Architecture class → model_type."""

ATTENTION_BIAS = frozenset({"llama", "olmoe", "qwen3", "qwen3_moe", "smollm3"})
"""Model types whose `attention_bias` is read; qwen2 always has biases on query, key and value."""

MLP_BIAS = frozenset({"llama", "smollm3"})
"""Model types whose `mlp_bias` is read."""

REFUSED_ROPE = frozenset({"dynamic", "longrope"})
"""Rotary forms whose angles depend on the sequence length."""

Config = Mapping[str, Any]


def integer(config: Config, key: str, default: int | None = None) -> int:
    """An integer of the config.

    Raises:
        SourceInvalid: missing without default, or not a positive integer.
    """
    value = config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SourceInvalid(f"config.json: '{key}' must be a positive integer, it is {value!r}")
    return value


def head_size(config: Config) -> int:
    """Elements of one head."""
    heads = integer(config, "num_attention_heads")
    return integer(config, "head_dim", integer(config, "hidden_size") // heads)


def kv_heads(config: Config) -> int:
    """Key and value heads of a layer."""
    return integer(config, "num_key_value_heads", integer(config, "num_attention_heads"))


def rope_parameters(config: Config) -> dict[str, Any]:
    """Rotary parameters in one form, from the newer (`rope_parameters`) or older keys."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    return rope


def require_supported(config: Config) -> str:
    """The architecture class of a config that can be exported.

    Raises:
        UnsupportedModel: names the architecture, rotary form or head size that is not supported.
        SourceInvalid: the config lacks what every architecture states.
    """
    classes = config.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes else None
    if name is None:
        by_type = {v: k for k, v in PROVEN.items()}
        name = by_type.get(str(config.get("model_type")))
    if name not in PROVEN:
        shown = name or config.get("model_type")
        raise UnsupportedModel(
            f"architecture '{shown}' is not supported (supported: {', '.join(sorted(PROVEN))})"
        )
    if config.get("model_type") != PROVEN[name]:
        raise SourceInvalid(
            f"config.json: architecture '{name}' and model_type "
            f"'{config.get('model_type')}' contradict each other"
        )
    kind = rope_parameters(config)["rope_type"]
    if kind in REFUSED_ROPE:
        raise UnsupportedModel(f"rope type '{kind}' is not supported (angles depend on the length)")
    heads, keys, head = integer(config, "num_attention_heads"), kv_heads(config), head_size(config)
    if heads % keys:
        raise UnsupportedModel(f"{heads} query heads are not a multiple of {keys} key-value heads")
    low, high = contract.MIN_HEAD_SIZE, contract.MAX_HEAD_SIZE
    if not low <= head <= high or head % contract.HEAD_SIZE_MULTIPLE:
        raise UnsupportedModel(
            f"head size {head} is not supported: it must be {low} to {high} and a multiple of "
            f"{contract.HEAD_SIZE_MULTIPLE}"
        )
    if config.get("clip_qkv") is not None:
        raise UnsupportedModel("clipped queries, keys and values (clip_qkv) are not supported")
    if any(sparse_layers(config)) and expert_width(config) % PANEL:
        raise UnsupportedModel(
            f"experts of {expert_width(config)} inner channels are not supported: it must be a "
            f"multiple of {PANEL}"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"activation '{config['hidden_act']}' is not supported")
    return str(name)


def tied(config: Config) -> bool:
    """Whether the config ties the output matrix to the embedding."""
    default = config.get("model_type") == "smollm3"
    return bool(config.get("tie_word_embeddings", default))


def attention_window(config: Config) -> int | None:
    """Tokens that a windowed layer sees, where every layer has the window; else None."""
    kind = config.get("model_type")
    windowed = kind in ("mistral", "mixtral") or (
        kind == "qwen3_moe" and bool(config.get("use_sliding_window", False))
    )
    return config.get("sliding_window") if windowed else None


def sparse_layers(config: Config) -> tuple[bool, ...]:
    """Whether each layer has experts instead of one gated projection."""
    layers, kind = integer(config, "num_hidden_layers"), config.get("model_type")
    if kind != "qwen3_moe":
        return (kind in ("mixtral", "olmoe"),) * layers
    if config.get("num_experts", config.get("num_local_experts")) == 0:
        return (False,) * layers
    step, dense = integer(config, "decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
    return tuple(i not in dense and (i + 1) % step == 0 for i in range(layers))


def expert_count(config: Config) -> int:
    """Experts of a sparse layer."""
    default = {"qwen3_moe": 128, "mixtral": 8, "olmoe": 64}[str(config.get("model_type"))]
    return integer(config, "num_experts", integer(config, "num_local_experts", default))


def expert_width(config: Config) -> int:
    """Inner channels of an expert."""
    if config.get("model_type") == "qwen3_moe":
        return integer(config, "moe_intermediate_size", 768)
    return integer(config, "intermediate_size")


def parameter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Parameter name → shape, tied ones under their first name only."""
    hidden, sparse = integer(config, "hidden_size"), sparse_layers(config)
    inner = 0 if all(sparse) else integer(config, "intermediate_size")
    head, vocab = head_size(config), integer(config, "vocab_size")
    q_width, kv_width = integer(config, "num_attention_heads") * head, kv_heads(config) * head
    kind = config.get("model_type")
    out_bias = kind in ATTENTION_BIAS and bool(config.get("attention_bias", False))
    qkv_bias = kind == "qwen2" or out_bias
    mlp_bias = kind in MLP_BIAS and bool(config.get("mlp_bias", False))
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}

    def linear(name: str, out: int, width: int, bias: bool) -> None:
        shapes[f"{name}.weight"] = (out, width)
        if bias:
            shapes[f"{name}.bias"] = (out,)

    for layer in range(integer(config, "num_hidden_layers")):
        prefix = f"model.layers.{layer}"
        linear(f"{prefix}.self_attn.q_proj", q_width, hidden, qkv_bias)
        linear(f"{prefix}.self_attn.k_proj", kv_width, hidden, qkv_bias)
        linear(f"{prefix}.self_attn.v_proj", kv_width, hidden, qkv_bias)
        linear(f"{prefix}.self_attn.o_proj", hidden, q_width, out_bias)
        if kind in ("qwen3", "qwen3_moe"):
            shapes[f"{prefix}.self_attn.q_norm.weight"] = (head,)
            shapes[f"{prefix}.self_attn.k_norm.weight"] = (head,)
        if kind == "olmoe":
            shapes[f"{prefix}.self_attn.q_norm.weight"] = (hidden,)
            norm_width = hidden // integer(config, "num_attention_heads") * kv_heads(config)
            shapes[f"{prefix}.self_attn.k_norm.weight"] = (norm_width,)
        if sparse[layer]:
            experts, width = expert_count(config), expert_width(config)
            shapes[f"{prefix}.mlp.experts.gate_up_proj"] = (experts, 2 * width, hidden)
            shapes[f"{prefix}.mlp.experts.down_proj"] = (experts, hidden, width)
            shapes[f"{prefix}.mlp.gate.weight"] = (experts, hidden)
        else:
            linear(f"{prefix}.mlp.gate_proj", inner, hidden, mlp_bias)
            linear(f"{prefix}.mlp.up_proj", inner, hidden, mlp_bias)
            linear(f"{prefix}.mlp.down_proj", hidden, inner, mlp_bias)
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not tied(config):
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes
