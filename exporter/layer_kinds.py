"""Which layers of a model are alike, and the smaller config that shows each kind.

Tracing costs time per layer, so a model of many equal layers is traced with two layers of each kind
and the rest are stamped (stamp.py). Two, because the pair must come out the same: that a layer's
graph does not depend on its index is checked, not assumed.
"""

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig

from ortloom.exporter.architectures import sparse_layers

MLP_ONLY = "mlp_only_layers"
"""Config list of the layers without experts, by their index."""

COPIES = 2
"""Layers traced of each kind."""


@dataclass(frozen=True)
class LayerPlan:
    """`traced[k]` is the real index of the k-th traced layer; `model_of[i]` is the position in
    `traced` of the layer that layer i is stamped from; `twins` are pairs of positions of one kind.
    """

    config: PreTrainedConfig
    traced: tuple[int, ...]
    model_of: tuple[int, ...]
    twins: tuple[tuple[int, int], ...]

    @property
    def is_whole(self) -> bool:
        """Whether every layer is traced."""
        return len(self.traced) == len(self.model_of)


def _per_layer(config: dict[str, Any], layers: int) -> dict[str, list[Any]]:
    return {
        key: value
        for key, value in config.items()
        if "layer" in key and key != MLP_ONLY and isinstance(value, list) and len(value) == layers
    }


def plan_layers(config: PreTrainedConfig) -> LayerPlan:
    """Choose the layers to trace.

    Layers differ in kind where a per-layer config list differs, and by having experts or not.
    """
    layers = int(config.num_hidden_layers)
    facts = config.to_dict()
    lists = _per_layer(facts, layers)
    sparse = sparse_layers(facts)
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for layer in range(layers):
        key = (sparse[layer], *(repr(values[layer]) for values in lists.values()))
        kinds.setdefault(key, []).append(layer)
    traced = tuple(sorted(i for members in kinds.values() for i in members[:COPIES]))
    place = {layer: k for k, layer in enumerate(traced)}
    model_of = [0] * layers
    twins = []
    for members in kinds.values():
        for layer in members:
            model_of[layer] = place.get(layer, place[members[0]])
        if len(members) > 1:
            twins.append((place[members[0]], place[members[1]]))
    if len(traced) == layers:
        return LayerPlan(config, traced, tuple(model_of), ())
    smaller: dict[str, Any] = {key: [v[i] for i in traced] for key, v in lists.items()}
    if MLP_ONLY in facts:
        dense = [k for k, layer in enumerate(traced) if not sparse[layer]]
        smaller |= {MLP_ONLY: dense, "decoder_sparse_step": 1}
    reduced = type(config).from_dict({**facts, **smaller, "num_hidden_layers": len(traced)})
    return LayerPlan(reduced, traced, tuple(model_of), tuple(twins))
