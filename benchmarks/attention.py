"""Speed of the paged attention op: decode in µs and GB/s of KV read, prefill in GFLOP/s.

    python -m benchmarks.attention [--threads 1 2] [--tiers avx512 avx2] [--heads 9] [--kv-heads 3]

Decode goes through as many pools in turn as a model has layers, so that what is read comes from
where it would in a model; `warm` is one pool over and over. The memory line is a plain read of a
buffer larger than the caches, on one thread, in the same run: the bound for one thread. All times
are the shortest call of many, which other load on the machine disturbs least.
"""

import argparse
import itertools
import os
import time

import numpy as np
import onnxruntime as ort

from ortloom.kernels import isa, load, team
from ortloom.kernels.contract import PagedAttentionAttributes
from ortloom.kernels.probe_model import paged_attention_model

BLOCK_SIZE = 32
CONTEXTS = (128, 1024, 4096)
PREFILL = 1024
READ_BYTES, PIECE_BYTES = 512 << 20, 8 << 20


def best_of(call, seconds=0.6, least=5):
    """Shortest of the calls that fit into `seconds`."""
    call()
    best, end, count = float("inf"), time.perf_counter() + seconds, 0
    while count < least or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        count += 1
    return best


def memory_read():
    """Bytes a second of one thread reading what no cache holds, piece by piece."""
    pieces = itertools.cycle(np.ones((READ_BYTES // PIECE_BYTES, PIECE_BYTES // 8), dtype=np.int64))
    return PIECE_BYTES / best_of(lambda: np.bitwise_or.reduce(next(pieces)), seconds=2)


class Step:
    """One request: `added` tokens behind `past` tokens, over one of `layers` pools a call."""

    def __init__(self, options, added, past, threads, layers):
        heads, kv_heads, size = options.heads, options.kv_heads, options.head_size
        self.kv_bytes = (past + added) * kv_heads * size * 4 * 2
        pairs = sum(range(past + 1, past + added + 1))
        self.flops = 4 * pairs * heads * size
        generator = np.random.default_rng(0)
        session_options = ort.SessionOptions()
        session_options.intra_op_num_threads = 1
        load.register(session_options)
        team.configure(threads, spin_microseconds=1000)
        self._session = ort.InferenceSession(
            paged_attention_model(PagedAttentionAttributes(heads, kv_heads)),
            session_options,
            providers=["CPUExecutionProvider"],
        )
        blocks = -(-(past + added) // BLOCK_SIZE)
        table = 1 + generator.permutation(blocks).astype(np.int32)[None]
        positions = np.arange(past, past + added)
        slots = table[0, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE

        def draw(*shape):
            return generator.standard_normal(shape, dtype=np.float32)

        self._arrays = {
            "query": draw(added, heads * size),
            "key": draw(added, kv_heads * size),
            "value": draw(added, kv_heads * size),
            "cumulative_sequence_length": np.array([0, added], dtype=np.int32),
            "past_seqlens": np.array([past], dtype=np.int32),
            "block_table": table,
            "slot_mapping": slots.astype(np.int32),
        }
        self._output = np.empty((added, heads * size), dtype=np.float32)
        pool = (blocks + 1, BLOCK_SIZE, kv_heads, size)
        self._pools = [(draw(*pool), draw(*pool)) for _ in range(layers)]
        self._bindings = [self._bind(*pools) for pools in self._pools]
        self._turn = 0

    def _bind(self, key_pool, value_pool):
        binding = self._session.io_binding()
        for name, array in self._arrays.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for name, array in (("key_cache", key_pool), ("value_cache", value_pool)):
            value = ort.OrtValue.ortvalue_from_numpy(array)
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(f"{name}_out", value)
        binding.bind_ortvalue_output("output", ort.OrtValue.ortvalue_from_numpy(self._output))
        return binding

    def one_call(self):
        self._session.run_with_iobinding(self._bindings[self._turn])
        self._turn = (self._turn + 1) % len(self._bindings)


def measure(options, threads):
    for context in CONTEXTS:
        cold = Step(options, 1, context - 1, threads, options.layers)
        cold_time = best_of(cold.one_call)
        warm = Step(options, 1, context - 1, threads, 1)
        warm_time = best_of(warm.one_call)
        print(
            f"  decode  {context:5d} keys: {cold_time * 1e6:7.0f} us "
            f"{cold.kv_bytes / cold_time / 1e9:5.1f} GB/s   warm {warm_time * 1e6:7.0f} us "
            f"{warm.kv_bytes / warm_time / 1e9:5.1f} GB/s"
        )
    prefill = Step(options, PREFILL, 0, threads, 1)
    seconds = best_of(prefill.one_call)
    print(
        f"  prefill {PREFILL:5d} tokens: {seconds * 1e3:6.2f} ms "
        f"{prefill.flops / seconds / 1e9:5.1f} GFLOP/s"
    )


def main():
    tiers = [t.name for t in isa.isa_report().tiers if not t.state.startswith("lacks")]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tiers", nargs="+", default=tiers)
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--head-size", type=int, default=64)
    parser.add_argument("--layers", type=int, default=30)
    options = parser.parse_args()
    print(
        f"{options.heads} heads, {options.kv_heads} KV heads, D {options.head_size}, "
        f"block size {BLOCK_SIZE}, onnxruntime {ort.__version__}"
    )
    print(f"memory read, 1 thread: {memory_read() / 1e9:.1f} GB/s")
    for tier in options.tiers:
        os.environ[isa.ISA_VARIABLE] = tier
        for threads in options.threads:
            print(f"{tier}, {threads} threads")
            measure(options, threads)
    print(f"memory read, 1 thread: {memory_read() / 1e9:.1f} GB/s")


if __name__ == "__main__":
    main()
