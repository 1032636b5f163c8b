"""NumPy oracle of `ortloom::PackedLinear` and `ortloom::PackedEmbedding` (`packed_contract`).

Written for reading, not for speed: panels are unpacked to rows first; activations are rounded in
fp32 as the contract says, integer sums are exact, all else is float64, rounded to fp32 at the end.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ortloom.kernels.packed_contract import ACTIVATION_GROUP, ZERO, PackedAttributes
from ortloom.kernels.packing import (
    CODES_IN_BYTE,
    Array,
    unpack_blocks,
    unpack_codes,
    unpack_float,
)

_ERF = np.frompyfunc(math.erf, 1, 1)


def unpacked_weight(attributes: PackedAttributes, inputs: Mapping[str, Array]) -> Array:
    """W fp32 [N, K] as the contract's formulas give it.

    Args:
        attributes: of the node.
        inputs: `weight`, and `scales` and `mins` where the format has them; bfloat16 as uint16.
    """
    rows, width = attributes.N, attributes.K
    if attributes.format not in CODES_IN_BYTE:
        return unpack_float(inputs["weight"], attributes.format, rows)
    codes = unpack_codes(inputs["weight"], attributes.format, rows).astype(np.float32)
    codes = codes.reshape(rows, -1, attributes.block_size)
    scales = unpack_blocks(inputs["scales"], rows).astype(np.float32)[..., None]
    if "mins" in inputs:
        values = scales * codes
        values += unpack_blocks(inputs["mins"], rows).astype(np.float32)[..., None]
    else:
        values = scales * (codes - np.float32(ZERO[attributes.format]))
    whole: Array = values.reshape(rows, width)
    return whole


def quantise_activations(x: Array) -> tuple[Array, Array]:
    """Round finite rows fp32 [T, K] to int8 by row and group of 32.

    A group so small that 127 / amax is infinite is all zero, as one of zeros is.

    Returns:
        Integers [T, K] as float64, and scales fp32 [T, K / 32].
    """
    groups = x.reshape(len(x), x.shape[1] // ACTIVATION_GROUP, ACTIVATION_GROUP)
    largest = np.abs(groups).max(axis=2)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(127) / largest
    inverse = np.where(np.isinf(inverse), np.float32(0), inverse)
    rounded = np.rint(groups * inverse[..., None]).reshape(x.shape).astype(np.float64)
    return rounded, largest / np.float32(127)


def silu(x: Array) -> Array:
    """The sigmoid linear unit, x * sigmoid(x)."""
    with np.errstate(over="ignore"):
        result: Array = x / (1 + np.exp(-x))
    return result


def gelu(x: Array) -> Array:
    """GELU, x * Φ(x), by the error function."""
    bent = np.asarray(_ERF(x / math.sqrt(2)), dtype=np.float64)
    result: Array = 0.5 * x * (1 + bent)
    return result


def gelu_tanh(x: Array) -> Array:
    """GELU by its tanh approximation: 0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))."""
    result: Array = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return result


ACTIVATIONS = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh}


def _quantised_product(attributes: PackedAttributes, inputs: Mapping[str, Array]) -> Array:
    x = np.asarray(inputs["x"], dtype=np.float32)
    finite = np.asarray(np.isfinite(x).all(axis=1))
    rounded, steps = quantise_activations(np.where(finite[:, None], x, np.float32(0)))
    rows, block = attributes.N, attributes.block_size
    codes = unpack_codes(inputs["weight"], attributes.format, rows).astype(np.float64)
    scales = unpack_blocks(inputs["scales"], rows).astype(np.float64)
    mins = unpack_blocks(inputs["mins"], rows).astype(np.float64) if "mins" in inputs else None
    span = min(ACTIVATION_GROUP, block)
    y = np.zeros((len(x), rows))
    for start in range(0, attributes.K, span):
        part = rounded[:, start : start + span]
        dot = part @ codes[:, start : start + span].T  # integers below 2**53: exact
        total = part.sum(axis=1, keepdims=True)
        scale = scales[:, start // block]
        if mins is None:
            weighted = scale * (dot - ZERO[attributes.format] * total)
        else:
            weighted = scale * dot + mins[:, start // block] * total
        y += steps[:, start // ACTIVATION_GROUP, None].astype(np.float64) * weighted
    y[~finite] = np.nan
    return y


def packed_linear(attributes: PackedAttributes, inputs: Mapping[str, Array]) -> Array:
    """Run one PackedLinear node.

    Args:
        attributes: of the node.
        inputs: tensors by the names of `LINEAR_INPUTS`; bfloat16 as uint16 bit patterns.

    Returns:
        fp32 [T, N], or [T, N / 2] with an activation.
    """
    with np.errstate(invalid="ignore"):
        if attributes.format in CODES_IN_BYTE:
            y = _quantised_product(attributes, inputs)
        else:
            weight = unpacked_weight(attributes, inputs).astype(np.float64)
            y = np.asarray(inputs["x"], dtype=np.float64) @ weight.T
        if "bias" in inputs:
            y = y + np.asarray(inputs["bias"], dtype=np.float64)
        if attributes.activation:
            half = attributes.N // 2
            y = ACTIVATIONS[attributes.activation](y[:, :half]) * y[:, half:]
    result: np.ndarray[Any, Any] = y.astype(np.float32)
    return result


def packed_embedding(attributes: PackedAttributes, inputs: Mapping[str, Array]) -> Array:
    """Run one PackedEmbedding node.

    Args:
        attributes: of the node.
        inputs: tensors by the names of `EMBEDDING_INPUTS`; bfloat16 as uint16 bit patterns.

    Returns:
        fp32 [T, K], exact.

    Raises:
        IndexError: an id outside 0 .. N-1.
    """
    ids = np.asarray(inputs["ids"])
    wrong = ids[(ids < 0) | (ids >= attributes.N)]
    if wrong.size:
        raise IndexError(f"id {wrong[0]} is outside 0 .. {attributes.N - 1}")
    rows: Array = unpacked_weight(attributes, inputs)[ids]
    return rows
