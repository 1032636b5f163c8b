"""Speed of the paged attention op: decode in µs and GB/s of KV read, prefill in GFLOP/s.

    python -m benchmarks.attention [--threads 1 2] [--tiers avx512 avx2] [--heads 9] [--kv-heads 3]
        [--pools float32 float16 bfloat16 int8] [--layout head-major]

Decode goes through as many pools in turn as the caches cannot hold, as it does in a model; `warm`
is one pool over and over. Blocks lie scattered. The machine's own rates come from loops that do
nothing else, in the same run: reading memory from end to end and fp32 multiply-adds. GFLOP/s count
4 x head size x heads for each key that a token sees. All times are the shortest call of many, which
other load on the machine disturbs least.
"""

import argparse
import os
import time

import numpy as np
import onnxruntime as ort

from benchmarks.linear import Machine
from ortloom.kernels import isa, load, team
from ortloom.kernels.contract import (
    CANONICAL_LAYOUT,
    HEAD_MAJOR_LAYOUT,
    POOL_OPS,
    PagedAttentionAttributes,
)
from ortloom.kernels.pool_values import STORAGE
from ortloom.kernels.probe_model import ELEMENT_TYPES, paged_attention_model

BLOCK_SIZE = 32
DECODES = ((1, 128), (1, 1024), (1, 4096), (1, 32768), (8, 512), (32, 128))
"""Requests of a decode step, and keys of each."""

PREFILL = 1024
COLD_BYTES = 128 << 20
LAYOUTS = {"canonical": CANONICAL_LAYOUT, "head-major": HEAD_MAJOR_LAYOUT}


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


class Step:
    """`requests` requests of `added` tokens behind `past` tokens each, over one pool a call: always
    the same one, or `cold` ones in turn."""

    def __init__(self, options, pools, requests, added, past, threads, cold=False):
        heads, kv_heads, size = options.heads, options.kv_heads, options.head_size
        scaled, element = pools == "int8", np.dtype(STORAGE[pools])
        layout = options.layout if pools == "float32" else "head-major"
        token_bytes = kv_heads * (size * element.itemsize + (4 if scaled else 0)) * 2
        self.kv_bytes = requests * (past + added) * token_bytes
        pairs = sum(range(past + 1, past + added + 1))
        self.flops = 4 * requests * pairs * heads * size
        generator = np.random.default_rng(0)
        names = ["query", "key", "value", "key_cache", "value_cache", "block_table"]
        names += ["cumulative_sequence_length", "past_seqlens", "slot_mapping"]
        names += ["k_scale", "v_scale"] if scaled else []
        session_options = ort.SessionOptions()
        session_options.intra_op_num_threads = 1
        load.register(session_options)
        team.configure(threads, spin_microseconds=1000)
        attributes = PagedAttentionAttributes(heads, kv_heads, kv_layout=LAYOUTS[layout])
        self._session = ort.InferenceSession(
            paged_attention_model(attributes, names, pools),
            session_options,
            providers=["CPUExecutionProvider"],
        )
        blocks = -(-(past + added) // BLOCK_SIZE)
        table = 1 + generator.permutation(requests * blocks).astype(np.int32)
        table = table.reshape(requests, blocks)
        positions = np.arange(past, past + added)
        slots = table[:, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE

        def draw(*shape):
            return generator.standard_normal(shape, dtype=np.float32)

        tokens = requests * added
        self._arrays = {
            "query": draw(tokens, heads * size),
            "key": draw(tokens, kv_heads * size),
            "value": draw(tokens, kv_heads * size),
            "cumulative_sequence_length": np.arange(0, tokens + 1, added, dtype=np.int32),
            "past_seqlens": np.full(requests, past, dtype=np.int32),
            "block_table": table,
            "slot_mapping": slots.ravel().astype(np.int32),
        }
        self._output = np.empty((tokens, heads * size), dtype=np.float32)
        shape = (requests * blocks + 1, BLOCK_SIZE, kv_heads, size)
        first = {}
        for name in ("key_cache", "value_cache"):
            values = draw(*shape)
            if pools == "bfloat16":
                values = values.view(np.uint32) >> 16
            first[name] = (values * 40 if scaled else values).astype(element)
        if scaled:
            first |= {
                name: np.full(shape[:3], 0.025, np.float32) for name in ("k_scale", "v_scale")
            }
        copies = 1 + COLD_BYTES // self.kv_bytes if cold else 1
        self._pools = [{n: a.copy() for n, a in first.items()} for _ in range(copies)]
        self._bindings = [self._bind(made, pools) for made in self._pools]
        self._turn = 0

    def _bind(self, made, pools):
        binding = self._session.io_binding()
        for name, array in self._arrays.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        binding.bind_ortvalue_output("output", ort.OrtValue.ortvalue_from_numpy(self._output))
        for name, array in made.items():
            if pools == "bfloat16":
                value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
                    array, ELEMENT_TYPES["bfloat16"]
                )
            else:
                value = ort.OrtValue.ortvalue_from_numpy(array)
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(f"{name}_out", value)
        return binding

    def one_call(self):
        self._session.run_with_iobinding(self._bindings[self._turn])
        self._turn = (self._turn + 1) % len(self._bindings)


def measure(options, pools, threads, machine):
    for requests, context in DECODES:
        cold = Step(options, pools, requests, 1, context - 1, threads, cold=True)
        cold_time = best_of(cold.one_call, options.seconds)
        warm = Step(options, pools, requests, 1, context - 1, threads)
        warm_time = best_of(warm.one_call, options.seconds)
        cold_rate, warm_rate = (cold.kv_bytes / seconds for seconds in (cold_time, warm_time))
        print(
            f"  {pools:8s} decode {requests:2d} x {context:5d} keys: {cold_time * 1e6:6.0f} us "
            f"{cold_rate / 1e9:5.1f} GB/s ({cold_rate / machine.read:4.0%})   "
            f"warm {warm_time * 1e6:6.0f} us {warm_rate / 1e9:5.1f} GB/s"
        )
    prefill = Step(options, pools, 1, PREFILL, 0, threads)
    rate = prefill.flops / best_of(prefill.one_call, 2 * options.seconds)
    print(
        f"  {pools:8s} prefill {PREFILL:5d} tokens: {prefill.flops / rate * 1e3:6.2f} ms "
        f"{rate / 1e9:5.1f} GFLOP/s ({rate / machine.floating:4.0%})"
    )


def main():
    tiers = [t.name for t in isa.isa_report().tiers if not t.state.startswith("lacks")]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tiers", nargs="+", default=tiers)
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--head-size", type=int, default=64)
    parser.add_argument("--pools", nargs="+", choices=POOL_OPS, default=list(POOL_OPS))
    parser.add_argument("--layout", choices=LAYOUTS, default="head-major", help="of float32 pools")
    parser.add_argument("--seconds", type=float, default=0.4, help="for each figure")
    options = parser.parse_args()
    print(
        f"{options.heads} heads, {options.kv_heads} KV heads, D {options.head_size}, "
        f"block size {BLOCK_SIZE}, onnxruntime {ort.__version__}"
    )
    machines = {threads: Machine(threads) for threads in options.threads}
    for tier in options.tiers:
        os.environ[isa.ISA_VARIABLE] = tier
        for threads, machine in machines.items():
            machine.measure()
            print(f"{tier}, {machine}")
            for pools in options.pools:
                measure(options, pools, threads, machine)


if __name__ == "__main__":
    main()
