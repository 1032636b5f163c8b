"""How large the channels of every norm's output usually are, estimated without any text.

Tokens spread over the vocabulary run through the layers, read one matrix at a time. Attention is
replaced by the mean over a token and those before it: what it picks out depends on the text, the
size of the channels hardly does. An estimate that is off costs only accuracy of rounding.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ortloom.errors import SourceInvalid
from ortloom.exporter.architectures import (
    head_size,
    integer,
    kv_heads,
    parameter_shapes,
    sparse_layers,
)
from ortloom.exporter.exact_product import column_squares, exponential, product
from ortloom.exporter.parameters import EMBEDDING
from ortloom.exporter.sources.checkpoint import Checkpoint
from ortloom.exporter.sources.expert_tensors import expert_rows
from ortloom.exporter.weights import Array

RowReader = Callable[[int, int], Array]
"""Reads rows start .. stop of a matrix, fp32 [n, K]."""

TOKENS = 128
"""Twice as many change the estimate little (measured on the demo model)."""

_SCATTER = 0x9E3779B1
"""Multiplier that scatters 0, 1, 2 ... over the vocabulary."""

_ROUTED = {"mixtral": 2, "olmoe": 8, "qwen3_moe": 8}
"""Experts a token where the config does not say it, as transformers has them."""


def typical_inputs(checkpoint: Checkpoint, config: dict[str, Any]) -> Iterator[tuple[str, Array]]:
    """(name of the norm's gain, root of the mean square float64 [K] of its output's channels).

    Args:
        checkpoint: the source.
        config: Hugging Face config of a supported architecture.

    Raises:
        SourceInvalid: the stored bytes cannot be read.
    """
    model = _Model(checkpoint, config, parameter_shapes(config))
    ids = [(i * _SCATTER >> 5) % integer(config, "vocab_size") for i in range(TOKENS)]
    stream = np.stack([checkpoint.rows(EMBEDDING, i, i + 1)[0] for i in ids], axis=1)
    stream = stream.astype(np.float64)
    for layer, sparse in enumerate(sparse_layers(config)):
        prefix = f"model.layers.{layer}"
        gain = f"{prefix}.input_layernorm.weight"
        normed = model.norm(gain, stream)
        yield gain, _sizes(normed)
        stream = stream + model.attention(f"{prefix}.self_attn", normed)
        gain = f"{prefix}.post_attention_layernorm.weight"
        normed = model.norm(gain, stream)
        yield gain, _sizes(normed)
        block = model.experts if sparse else model.gated
        stream = stream + block(f"{prefix}.mlp", normed)
    yield "model.norm.weight", _sizes(model.norm("model.norm.weight", stream))


def _sizes(values: Array) -> Array:
    """Root of the mean square [K] of values [K, T]."""
    found: Array = np.sqrt(column_squares(values.T) / values.shape[1])
    return found


def _named_product(name: str, rows: RowReader, shape: tuple[int, int], values: Array) -> Array:
    """`product` with a parameter; SourceInvalid names one that has a value which is no number."""
    try:
        return product(rows, shape, values)
    except ValueError as error:
        raise SourceInvalid(f"{name}: {error}") from error


def _silu(values: Array) -> Array:
    found: Array = values / (1.0 + exponential(-values))
    return found


@dataclass(frozen=True)
class _Model:
    """The layers of a model over columns: values are float64 [channels, tokens]."""

    checkpoint: Checkpoint
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]

    def norm(self, gain: str, values: Array) -> Array:
        """RMS norm."""
        mean = column_squares(values) / len(values)
        scale = self.checkpoint.rows(gain, 0, len(values)).astype(np.float64)
        epsilon = float(self.config.get("rms_norm_eps", 1e-6))
        found: Array = values / np.sqrt(mean + epsilon) * scale[:, None]
        return found

    def linear(self, name: str, values: Array) -> Array:
        """A linear layer with its bias, if it has one."""
        rows, width = self.shapes[f"{name}.weight"]
        weight = partial(self.checkpoint.rows, f"{name}.weight")
        found = _named_product(f"{name}.weight", weight, (rows, width), values)
        if f"{name}.bias" in self.shapes:
            found += self.checkpoint.rows(f"{name}.bias", 0, rows).astype(np.float64)[:, None]
        return found

    def attention(self, prefix: str, values: Array) -> Array:
        """Every token sees itself and those before it alike."""
        heads, keys = integer(self.config, "num_attention_heads"), kv_heads(self.config)
        found = np.cumsum(self.linear(f"{prefix}.v_proj", values), axis=1)
        found /= np.arange(1, values.shape[1] + 1)
        found = found.reshape(keys, head_size(self.config), values.shape[1])
        found = np.repeat(found, heads // keys, axis=0).reshape(-1, values.shape[1])
        return self.linear(f"{prefix}.o_proj", found)

    def gated(self, prefix: str, values: Array) -> Array:
        """Gated projection of a dense layer."""
        inner = _silu(self.linear(f"{prefix}.gate_proj", values))
        inner *= self.linear(f"{prefix}.up_proj", values)
        return self.linear(f"{prefix}.down_proj", inner)

    def experts(self, prefix: str, values: Array) -> Array:
        """Experts of a sparse layer: of each token those of its largest router logits."""
        kind = str(self.config["model_type"])
        count = integer(self.config, "num_experts_per_tok", _ROUTED[kind])
        logits = self.linear(f"{prefix}.gate", values)
        shares = exponential(logits - logits.max(axis=0))
        chosen = np.argsort(-logits, axis=0, kind="stable")[:count]
        kept = np.zeros_like(shares)
        np.put_along_axis(kept, chosen, np.take_along_axis(shares, chosen, axis=0), axis=0)
        normalised = kind == "mixtral" or bool(self.config.get("norm_topk_prob", False))
        total = np.cumsum(kept if normalised else shares, axis=0)[-1]
        found = np.zeros_like(values)
        for expert in map(int, np.flatnonzero(kept.any(axis=1))):
            tokens = np.flatnonzero(kept[expert])
            gate, up = np.split(self._expert(prefix, "gate_up_proj", expert, values[:, tokens]), 2)
            made = self._expert(prefix, "down_proj", expert, _silu(gate) * up)
            found[:, tokens] += made * (kept[expert] / total)[tokens]
        return found

    def _expert(self, prefix: str, role: str, expert: int, values: Array) -> Array:
        name = f"{prefix}.experts.{role}"
        _, rows, width = self.shapes[name]
        weight = partial(expert_rows, self.checkpoint, name, expert)
        return _named_product(name, weight, (rows, width), values)
