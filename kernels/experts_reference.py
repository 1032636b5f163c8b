"""NumPy oracle of `ortloom::ExpertRouting` and `ortloom::PackedExperts` (`experts_contract`).

Written for reading: one token and one slot after the other, each expert by the oracle of
`PackedLinear`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ortloom.kernels.experts_contract import ExpertsAttributes, RoutingAttributes
from ortloom.kernels.packed_reference import packed_linear
from ortloom.kernels.packing import Array

WEIGHT_INPUTS = {"": "weight", "_scales": "scales", "_mins": "mins"}
"""Suffix of an input of PackedExperts → input of PackedLinear."""


def expert_routing(
    attributes: RoutingAttributes, inputs: Mapping[str, Array]
) -> tuple[Array, Array]:
    """Run one ExpertRouting node.

    Args:
        attributes: of the node.
        inputs: `logits` fp32 [T, E].

    Returns:
        ids int64 [T, top_k] and weights fp32 [T, top_k].

    Raises:
        ValueError: top_k is not 1 .. E.
    """
    logits = np.asarray(inputs["logits"], dtype=np.float64)
    count = attributes.top_k
    if not 1 <= count <= logits.shape[1]:
        raise ValueError(f"top_k {count} is not 1 .. {logits.shape[1]}")
    ranks = np.where(np.isnan(logits), -np.inf, logits)
    ids = np.argsort(-ranks, axis=1, kind="stable")[:, :count]
    with np.errstate(invalid="ignore"):
        powers = np.exp(logits - ranks.max(axis=1, keepdims=True))
        shares = powers / powers.sum(axis=1, keepdims=True)
        chosen = np.take_along_axis(shares, ids, axis=1)
        if attributes.normalize:
            chosen = chosen / chosen.sum(axis=1, keepdims=True)
    return ids.astype(np.int64), chosen.astype(np.float32)


def expert_weights(inputs: Mapping[str, Array], kind: str, expert: int) -> dict[str, Array]:
    """One expert's weight inputs under PackedLinear's names; `kind` is "gate_up" or "down"."""
    return {
        name: inputs[kind + suffix][expert]
        for suffix, name in WEIGHT_INPUTS.items()
        if kind + suffix in inputs
    }


def packed_experts(attributes: ExpertsAttributes, inputs: Mapping[str, Array]) -> Array:
    """Run one PackedExperts node.

    Args:
        attributes: of the node.
        inputs: tensors by the names of `EXPERTS_INPUTS`; bfloat16 as uint16 bit patterns.

    Returns:
        fp32 [T, K].

    Raises:
        IndexError: an id outside 0 .. E-1.
    """
    x, ids, weights = (np.asarray(inputs[name]) for name in ("x", "ids", "weights"))
    wrong = ids[(ids < 0) | (ids >= attributes.experts)]
    if wrong.size:
        raise IndexError(f"id {wrong[0]} is outside 0 .. {attributes.experts - 1}")
    y = np.zeros((len(x), attributes.K))
    for expert in np.unique(ids):
        tokens, slots = np.nonzero(ids == expert)
        inner = packed_linear(
            attributes.gate_up(), {"x": x[tokens], **expert_weights(inputs, "gate_up", expert)}
        )
        rows = packed_linear(
            attributes.down(), {"x": inner, **expert_weights(inputs, "down", expert)}
        )
        factors = weights[tokens, slots].astype(np.float64)[:, None]
        with np.errstate(invalid="ignore"):
            np.add.at(y, tokens, factors * rows)
    result: np.ndarray[Any, Any] = y.astype(np.float32)
    return result
