"""One request's tokens through different schedules, and a comparison of all bits that come out."""

import numpy as np

from ortloom.kernels.contract import POOLS, PagedAttentionAttributes
from ortloom.kernels.pool_values import STORAGE

PLAIN = PagedAttentionAttributes(9, 3)
BLOCK = 16


class Stream:
    """One request of `length` tokens over pools that have room for a second request."""

    def __init__(self, length, attributes=PLAIN, head_size=64, seed=11, pools="float32"):
        generator = np.random.default_rng(seed)
        self.length, self.attributes = length, attributes
        heads, kv_heads = attributes.num_heads, attributes.kv_num_heads
        self.query, self.key, self.value = (
            generator.standard_normal((length, n * head_size), dtype=np.float32)
            for n in (heads, kv_heads, kv_heads)
        )
        self.other = generator.standard_normal((64, heads * head_size), dtype=np.float32)
        blocks = -(-length // BLOCK)
        ids = generator.permutation(np.arange(1, blocks + 9)).astype(np.int32)
        self.table, self.other_table = ids[:blocks], ids[blocks : blocks + 8]
        self.pool_shape = (blocks + 9, BLOCK, kv_heads, head_size)
        self.pool_type = STORAGE[pools]
        self.pool_names = POOLS if pools == "int8" else POOLS[:2]
        self.extra = {}
        if attributes.do_rotary:
            angles = np.arange(length + 200)[:, None] * 10000.0 ** (-np.arange(16) / 16)
            self.extra["cos_cache"] = np.cos(angles).astype(np.float32)
            self.extra["sin_cache"] = np.sin(angles).astype(np.float32)
            self.extra["q_norm_weight"] = self.other[0, :head_size]
            self.extra["k_norm_weight"] = self.other[1, :head_size]
            self.extra["head_sink"] = self.other[2, :heads]

    def slots(self, table, begin, end):
        positions = np.arange(begin, end)
        return table[positions // BLOCK] * BLOCK + positions % BLOCK

    def step(self, pools, begin, end, beside=0):
        """Inputs that compute tokens begin .. end, behind `beside` tokens of another request."""
        rows = slice(begin, end)
        cu, past = [0, end - begin], [begin]
        table = [self.table]
        parts = [(self.query[rows], self.key[rows], self.value[rows])]
        slots = [self.slots(self.table, begin, end)]
        if beside:
            width = self.key.shape[1]
            other = self.other[:beside]
            parts.insert(0, (other, other[:, :width], other[:, :width] * 2))
            slots.insert(0, self.slots(self.other_table, 60, 60 + beside))
            cu, past = [0, beside, beside + end - begin], [60, begin]
            table.insert(0, self.other_table)
        query, key, value = (np.concatenate(p) for p in zip(*parts, strict=True))
        wide = np.full((len(table), max(map(len, table))), -1, dtype=np.int32)
        for row, blocks in zip(wide, table, strict=True):
            row[: len(blocks)] = blocks
        return {
            "query": query,
            "key": key,
            "value": value,
            **dict(zip(self.pool_names, pools, strict=True)),
            "cumulative_sequence_length": np.array(cu, dtype=np.int32),
            "past_seqlens": np.array(past, dtype=np.int32),
            "block_table": wide,
            "slot_mapping": np.concatenate(slots).astype(np.int32),
            **self.extra,
        }

    def empty_pools(self):
        caches = [np.zeros(self.pool_shape, self.pool_type) for _ in range(2)]
        return caches + [np.zeros(self.pool_shape[:3], np.float32) for _ in self.pool_names[2:]]

    def run(self, call, chunks, beside=0):
        """Outputs [length, H*D] and this request's blocks of the pools, computed chunk by chunk."""
        pools, outputs, begin = self.empty_pools(), [], 0
        for size in chunks:
            end = min(begin + size, self.length)
            output, *pools = call(self.step(pools, begin, end, beside))
            outputs.append(output[beside:])
            begin = end
        assert begin == self.length
        return np.concatenate(outputs), *(pool[self.table] for pool in pools)


def every(size, length):
    return [size] * -(-length // size)


def differing_rows(a, b):
    """Indices of rows whose bits differ."""
    bits = np.ascontiguousarray(a).view(np.uint8) != np.ascontiguousarray(b).view(np.uint8)
    return np.flatnonzero(bits.reshape(len(a), -1).any(axis=1))


def assert_same_bits(results):
    (first_name, first), *others = results.items()
    for name, result in others:
        for part, a, b in zip(("output", *POOLS), first, result, strict=False):
            rows = differing_rows(a, b)
            assert len(rows) == 0, f"{part} of {name} differs from {first_name} in rows {rows[:8]}"


def check_schedules(stream, calls):
    """Every schedule with every runner gives the same bits."""
    results = {}
    for who, call in calls.items():
        n = stream.length
        results[f"one shot, {who}"] = stream.run(call, [n])
        results[f"chunks of 16, {who}"] = stream.run(call, every(16, n))
        results[f"chunks of 7, {who}"] = stream.run(call, every(7, n))
        results[f"token by token, {who}"] = stream.run(call, every(1, n))
        results[f"beside 33 tokens, {who}"] = stream.run(call, every(45, n), beside=33)
        results[f"beside 1 token, {who}"] = stream.run(call, every(1, n), beside=1)
    assert_same_bits(results)
