"""NumPy oracle of `ortloom::PagedAttention` version 1 (`ortloom.kernels.contract`).

Written for reading, not for speed: one loop a request and head, float64 throughout, rounded to
float32 once at the end, and to the pools' element type where keys and values are stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ortloom.kernels.contract import POOL_OPS, POOLS, PagedAttentionAttributes, layouts_of
from ortloom.kernels.pool_layout import as_stored, by_token
from ortloom.kernels.pool_values import element_type, quantise, stored, widened

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PagedAttentionResult:
    """What the op leaves: `output` [T, H*D] f32 and the pools after the write, in the element type
    and order of memory that they came in (uint16 holds the bits of bfloat16); scale pools of int8
    pools only."""

    output: npt.NDArray[np.float32]
    key_cache: npt.NDArray[Any]
    value_cache: npt.NDArray[Any]
    k_scale: npt.NDArray[np.float32] | None = None
    v_scale: npt.NDArray[np.float32] | None = None


def rms_norm(x: Array, weight: Array, epsilon: float) -> Array:
    """RMSNorm over the last axis: x / sqrt(mean(x²) + epsilon) * weight."""
    scaled: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight
    return scaled


def rotate(x: Array, cos: Array, sin: Array, offset: int, interleaved: bool) -> Array:
    """Rotary embedding of heads x [T, n, D] by cos and sin [T, rotary_dim / 2].

    Channels offset .. offset + rotary_dim rotate in pairs (i, i + rotary_dim / 2), or in pairs
    (2i, 2i + 1) if interleaved; the others stay.
    """
    half = cos.shape[-1]
    span = x[..., offset : offset + 2 * half]
    first, second = (
        (span[..., 0::2], span[..., 1::2]) if interleaved else (span[..., :half], span[..., half:])
    )
    cos, sin = cos[:, None, :], sin[:, None, :]
    turned_first, turned_second = first * cos - second * sin, second * cos + first * sin
    out = x.copy()
    if interleaved:
        out[..., offset : offset + 2 * half : 2] = turned_first
        out[..., offset + 1 : offset + 2 * half : 2] = turned_second
    else:
        out[..., offset : offset + half] = turned_first
        out[..., offset + half : offset + 2 * half] = turned_second
    return out


def paged_attention(
    attributes: PagedAttentionAttributes, inputs: Mapping[str, npt.NDArray[np.generic]]
) -> PagedAttentionResult:
    """Run one node.

    Args:
        attributes: the node's attributes.
        inputs: tensors by the names of `contract.INPUTS`; absent ones are optional. The pools are
            not changed; copies come back. The pools' type (float32, float16, uint16 for bfloat16,
            int8) says which op this is.

    Returns:
        The output and the pools after the write.

    Raises:
        ValueError: an element type or layout that no op has.
    """
    heads, kv_heads = attributes.num_heads, attributes.kv_num_heads
    kind, layout = element_type(inputs["key_cache"]), attributes.kv_layout
    if layout not in layouts_of(POOL_OPS[kind]):
        raise ValueError(f"kv_layout '{layout}' is not supported by {POOL_OPS[kind]}")
    pools = {name: by_token(name, inputs[name], layout) for name in POOLS if name in inputs}
    key_cache, value_cache = pools["key_cache"], pools["value_cache"]
    block_size, size = key_cache.shape[1], key_cache.shape[3]
    cu = np.asarray(inputs["cumulative_sequence_length"], dtype=np.int64)
    past = np.asarray(inputs["past_seqlens"], dtype=np.int64)
    table = np.asarray(inputs["block_table"], dtype=np.int64)
    slots = np.asarray(inputs["slot_mapping"], dtype=np.int64)
    tokens = len(slots)
    parts = [inputs["query"]]
    if "key" in inputs:
        parts += [inputs["key"], inputs["value"]]
    # Separate or packed, a token's heads are those of query, key and value in this order.
    together = np.concatenate(parts, axis=1).reshape(tokens, heads + 2 * kv_heads, size)
    query = together[:, :heads].astype(np.float64)
    key = together[:, heads : heads + kv_heads].astype(np.float64)
    value = together[:, heads + kv_heads :].astype(np.float32)
    added = np.diff(cu)
    request_of = np.repeat(np.arange(len(added)), added)
    positions = past[request_of] + np.arange(tokens) - cu[request_of]

    if "q_norm_weight" in inputs:
        epsilon = attributes.qk_norm_epsilon
        query = rms_norm(query, np.asarray(inputs["q_norm_weight"], dtype=np.float64), epsilon)
        key = rms_norm(key, np.asarray(inputs["k_norm_weight"], dtype=np.float64), epsilon)
    if attributes.do_rotary:
        cos = np.asarray(inputs["cos_cache"], dtype=np.float64)[positions]
        sin = np.asarray(inputs["sin_cache"], dtype=np.float64)[positions]
        offset, interleaved = attributes.rotary_offset, bool(attributes.rotary_interleaved)
        query = rotate(query, cos, sin, offset, interleaved)
        key = rotate(key, cos, sin, offset, interleaved)

    written = slots >= 0
    for name, scales, heads_of_step in (
        ("key_cache", "k_scale", key[written].astype(np.float32)),
        ("value_cache", "v_scale", value[written]),
    ):
        rows = pools[name].reshape(-1, kv_heads, size)
        if kind == "int8":
            rows[slots[written]], scale_rows = quantise(heads_of_step)
            pools[scales].reshape(-1, kv_heads)[slots[written]] = scale_rows
        else:
            rows[slots[written]] = stored(heads_of_step, kind)

    scale = attributes.scale if attributes.scale > 0 else 1.0 / np.sqrt(size)
    sinks = inputs.get("head_sink")
    output = np.zeros((tokens, heads, size), dtype=np.float64)
    for request in range(len(added)):
        begin, end = int(cu[request]), int(cu[request + 1])
        length = int(past[request]) + end - begin
        indices = np.arange(length)
        blocks = table[request, indices // block_size] if end > begin else indices[:0]
        for t in range(begin, end):
            position = int(positions[t])
            seen = blocks >= 0
            if attributes.is_causal:
                seen &= indices <= position
            if attributes.local_window_size > 0:
                seen &= position - indices < attributes.local_window_size
            visible = np.flatnonzero(seen)
            if len(visible) == 0:
                continue
            block, place = blocks[visible], visible % block_size
            keys = widened(key_cache[block, place]).astype(np.float64)
            values = widened(value_cache[block, place]).astype(np.float64)
            if kind == "int8":
                keys *= pools["k_scale"][block, place, :, None]
                values *= pools["v_scale"][block, place, :, None]
            for head in range(heads):
                kv_head = head // (heads // kv_heads)
                scores = scale * (keys[:, kv_head] @ query[t, head])
                if attributes.softcap > 0:
                    scores = attributes.softcap * np.tanh(scores / attributes.softcap)
                top = scores.max()
                if sinks is not None:
                    top = max(top, float(sinks[head]))
                weights = np.exp(scores - top)
                denominator = weights.sum()
                if sinks is not None:
                    denominator += np.exp(float(sinks[head]) - top)
                output[t, head] = weights @ values[:, kv_head] / denominator
    return PagedAttentionResult(
        output=output.reshape(tokens, heads * size).astype(np.float32),
        **{name: as_stored(name, pool, layout) for name, pool in pools.items()},
    )
