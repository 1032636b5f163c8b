"""Draws the inputs of attention calls: requests, their blocks and pools full of data."""

from dataclasses import dataclass

import numpy as np

from ortloom.kernels.pool_values import STORAGE, bfloat16_bits


@dataclass(frozen=True)
class Request:
    """Tokens in the cache before the step, and tokens added by it."""

    past: int
    added: int


class StepFactory:
    """Draws the inputs of one call."""

    def __init__(self, seed):
        self.generator = np.random.default_rng(seed)

    def floats(self, *shape):
        return self.generator.standard_normal(shape, dtype=np.float32)

    def pools(self, kind, shape):
        """Random pools, scale pools included where the type has them."""
        made = {name: self.floats(*shape) for name in ("key_cache", "value_cache")}
        if kind == "bfloat16":
            return {name: bfloat16_bits(array) for name, array in made.items()}
        if kind == "int8":
            codes = {name: np.clip(array * 40, -127, 127).astype(np.int8)
                     for name, array in made.items()}  # fmt: skip
            scales = {name: np.abs(self.floats(*shape[:3])) / 30 for name in ("k_scale", "v_scale")}
            return {**codes, **scales}
        return {name: array.astype(STORAGE[kind]) for name, array in made.items()}

    def step(
        self,
        attributes,
        requests,
        *,
        head_size=64,
        block_size=16,
        rotary_half=None,
        sinks=False,
        norms=False,
        spare_blocks=1,
        pools="float32",
    ):
        """Blocks are spread at random over pools of type `pools` of which every slot holds data.

        The last block of the pool always belongs to the last request, so that a write or read at
        slot -1 taken as "the last slot" would hit live data.
        """
        heads, kv_heads = attributes.num_heads, attributes.kv_num_heads
        needed = [-(-(r.past + r.added) // block_size) for r in requests]
        num_blocks = 1 + sum(needed) + spare_blocks
        free = list(self.generator.permutation(np.arange(1, num_blocks - 1)))
        table = np.full((len(requests), max(needed) + 1), -1, dtype=np.int32)
        slots = []
        for r, request in enumerate(requests):
            for block in range(needed[r]):
                table[r, block] = free.pop()
            if r == len(requests) - 1:
                table[r, needed[r] - 1] = num_blocks - 1
            for p in range(request.past, request.past + request.added):
                slots.append(table[r, p // block_size] * block_size + p % block_size)
        tokens = len(slots)
        pool = (num_blocks, block_size, kv_heads, head_size)
        inputs = {
            "query": self.floats(tokens, heads * head_size),
            "key": self.floats(tokens, kv_heads * head_size),
            "value": self.floats(tokens, kv_heads * head_size),
            **self.pools(pools, pool),
            "cumulative_sequence_length": np.cumsum(
                [0, *(r.added for r in requests)], dtype=np.int32
            ),
            "past_seqlens": np.array([r.past for r in requests], dtype=np.int32),
            "block_table": table,
            "slot_mapping": np.array(slots, dtype=np.int32),
        }
        if attributes.do_rotary:
            half = rotary_half if rotary_half is not None else head_size // 2
            positions = np.arange(max(r.past + r.added for r in requests))
            angles = positions[:, None] * 10000.0 ** (-np.arange(half) / half)
            inputs["cos_cache"] = np.cos(angles).astype(np.float32)
            inputs["sin_cache"] = np.sin(angles).astype(np.float32)
        if sinks:
            inputs["head_sink"] = self.floats(heads)
        if norms:
            inputs["q_norm_weight"] = self.floats(head_size)
            inputs["k_norm_weight"] = self.floats(head_size)
        return inputs


def packed(inputs):
    """The same call with query, key and value as one packed QKV tensor."""
    rest = {n: a for n, a in inputs.items() if n not in ("query", "key", "value")}
    parts = [inputs[name] for name in ("query", "key", "value")]
    return {"query": np.concatenate(parts, axis=1), **rest}
