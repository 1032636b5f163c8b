"""A row's result is bitwise the same alone, in any batch, chunking and at any thread count.

`Stream` holds one request's tokens; `check_schedules` runs it through different schedules and
compares the bits of every output row and of the pools. The last tests show that the comparison
fails on libraries built from sources with a changed order of arithmetic.
"""

import numpy as np
import onnxruntime as ort
import pytest

from ortloom.kernels.contract import PagedAttentionAttributes
from ortloom.kernels.probe_model import paged_attention_model

BLOCK = 16
PLAIN = PagedAttentionAttributes(9, 3)


class Stream:
    """One request of `length` tokens over a pool that has room for a second request."""

    def __init__(self, length, attributes=PLAIN, head_size=64, seed=11):
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
            "key_cache": pools[0],
            "value_cache": pools[1],
            "cumulative_sequence_length": np.array(cu, dtype=np.int32),
            "past_seqlens": np.array(past, dtype=np.int32),
            "block_table": wide,
            "slot_mapping": np.concatenate(slots).astype(np.int32),
            **self.extra,
        }

    def empty_pools(self):
        return np.zeros(self.pool_shape, np.float32), np.zeros(self.pool_shape, np.float32)

    def run(self, call, chunks, beside=0):
        """Outputs [length, H*D] and this request's pool rows, computed chunk by chunk."""
        pools, outputs, begin = self.empty_pools(), [], 0
        for size in chunks:
            end = min(begin + size, self.length)
            output, *pools = call(self.step(pools, begin, end, beside))
            outputs.append(output[beside:])
            begin = end
        assert begin == self.length
        return np.concatenate(outputs), pools[0][self.table], pools[1][self.table]


def every(size, length):
    return [size] * -(-length // size)


def differing_rows(a, b):
    """Indices of rows whose bits differ."""
    bits = a.view(np.uint32) != b.view(np.uint32)
    return np.flatnonzero(bits.reshape(len(a), -1).any(axis=1))


def assert_same_bits(results):
    (first_name, first), *others = results.items()
    for name, result in others:
        for part, a, b in zip(("output", "key pool", "value pool"), first, result, strict=True):
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


@pytest.fixture
def runners(run_op, tier):
    """A runner for each thread count of 1 to 4, in the current tier."""

    def make(attributes, threads=(1, 2, 3, 4)):
        return {
            f"{n} threads": lambda inputs, n=n: run_op(attributes, inputs, n, tier) for n in threads
        }

    return make


def test_schedules_agree_across_a_partition(runners):
    check_schedules(Stream(300), runners(PLAIN))


@pytest.mark.parametrize(
    "attributes",
    [
        PagedAttentionAttributes(4, 4, local_window_size=40, softcap=10.0),
        PagedAttentionAttributes(14, 2, do_rotary=1, local_window_size=300),
    ],
)
def test_schedules_agree_with_every_feature(runners, run_op, pack, tier, attributes):
    calls = runners(attributes, threads=(1, 3))
    calls["packed QKV"] = lambda inputs: run_op(attributes, pack(inputs), 2, tier)
    check_schedules(Stream(340, attributes), calls)


def test_schedules_agree_at_other_head_sizes(runners):
    attributes = PagedAttentionAttributes(3, 1)
    check_schedules(Stream(150, attributes, head_size=80), runners(attributes, threads=(2,)))
    check_schedules(Stream(70, attributes, head_size=256), runners(attributes, threads=(2,)))


# Group 16, tile 64, partition 256 keys, 16-token register tiles of 48 rows: one below, at, above.
THRESHOLDS = sorted({edge + d for edge in (16, 64, 256, 512, 1024, 4096) for d in (-1, 0, 1)})


def test_kv_lengths_at_every_threshold(runners):
    """Rows at the thresholds, up to 4k keys: alone, in a chunk, beside others, and in one shot."""
    attributes = PagedAttentionAttributes(3, 1)
    stream = Stream(max(THRESHOLDS) + 60, attributes)
    calls = runners(attributes)
    whole = {name: stream.run(call, every(2048, stream.length)) for name, call in calls.items()}
    assert_same_bits(whole)
    output, *pools_of_request = next(iter(whole.values()))
    pools = stream.empty_pools()
    for pool, rows in zip(pools, pools_of_request, strict=True):
        pool[stream.table] = rows
    for call in calls.values():
        for length in THRESHOLDS:
            row = length - 1
            for begin, end, beside in (
                (row, row + 1, 0),
                (row, row + 1, 17),
                (max(row - 5, 0), row + 3, 0),
                (max(row - 16, 0), row + 40, 5),
            ):
                got, *_ = call(stream.step(pools, begin, end, beside))
                rows = differing_rows(output[begin:end], got[beside:])
                assert len(rows) == 0, f"tokens {begin} to {end} beside {beside}: rows {rows}"


def test_many_requests_in_one_call_equal_each_alone(runners, run_op, steps, request_of, tier):
    requests = [request_of(p, n) for p, n in ((0, 30), (255, 1), (256, 1), (900, 2), (63, 65))]
    inputs = steps(21).step(PLAIN, requests)
    cu = inputs["cumulative_sequence_length"]
    for threads in (1, 2, 4):
        together, *_ = run_op(PLAIN, inputs, threads, tier)
        for r, request in enumerate(requests):
            rows = slice(cu[r], cu[r + 1])
            alone = dict(inputs)
            for name in ("query", "key", "value", "slot_mapping"):
                alone[name] = inputs[name][rows]
            alone["past_seqlens"] = inputs["past_seqlens"][r : r + 1]
            alone["block_table"] = inputs["block_table"][r : r + 1]
            alone["cumulative_sequence_length"] = np.array([0, request.added], dtype=np.int32)
            single, *_ = run_op(PLAIN, alone, 1, tier)
            assert len(differing_rows(together[rows], single)) == 0


# ---- seeded mutants -------------------------------------------------------------------------

MUTANTS = {
    # The partitions of a single-token step are folded backwards.
    "merge order by batch shape": (
        "partials + static_cast<size_t>(p - first) * stride;",
        "partials + static_cast<size_t>(tile.count == 1 ? last - 1 - p : p - first) * stride;",
    ),
    # Tiles start where the chunk starts, not at an absolute multiple of 64.
    "tile edges by chunk": (
        "for (int64_t base = begin; base < end; base += kTileKeys)",
        "const int64_t shift = tile.kv_length < 192 ? tile.position / 16 % 4 * 16 : 0;\n"
        "  for (int64_t base = begin - shift; base < end; base += kTileKeys)",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_suite_fails_on_a_changed_order(mutant, compile_mutant, options, bound, monkeypatch):
    monkeypatch.delenv("ORTLOOM_CPU_ISA", raising=False)
    library = compile_mutant(mutant.replace(" ", "_"), "attention_body.h", *MUTANTS[mutant])
    session_options = options(1)
    session_options.register_custom_ops_library(str(library))
    session = ort.InferenceSession(
        paged_attention_model(PLAIN), session_options, providers=["CPUExecutionProvider"]
    )
    stream = Stream(530)

    def call(inputs):
        return bound(session, inputs)

    # The mutants are right in value: only the order of arithmetic depends on the schedule.
    whole, *_ = stream.run(call, [stream.length])
    single, *_ = stream.run(call, every(1, stream.length))
    assert np.abs(whole - single).max() <= 5e-6 * np.abs(whole).max()
    with pytest.raises(AssertionError, match="differs from one shot"):
        check_schedules(stream, {"1 thread": call})


def test_a_single_flipped_bit_is_found():
    a = np.ones((4, 8), dtype=np.float32)
    b = a.copy()
    b.view(np.uint32)[2, 5] ^= 1
    assert list(differing_rows(a, b)) == [2]
    assert list(differing_rows(np.zeros((1, 1), np.float32), -np.zeros((1, 1), np.float32))) == [0]
