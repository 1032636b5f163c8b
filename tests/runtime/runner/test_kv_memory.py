"""Sizing of the KV pools: a table of budgets, precedence and refusals."""

from mmap import mmap

import pytest

from ortloom.errors import ConfigError, ManifestError
from ortloom.models.manifest import FileEntry, Graph, GraphIO, TensorSpec
from ortloom.runtime.kv_memory import KVDemand, activation_bytes, check_block_size, plan_kv
from ortloom.runtime.kv_pools import PoolSpec, host_pool, pool_specs

MIB = 2**20


def demand(**changes):
    values = {
        "block_size": 16,
        "block_bytes": MIB,
        "model_max_len": 1024,
        "asked_max_len": None,
        "max_num_seqs": 4,
        **changes,
    }
    return KVDemand(**values)


@pytest.mark.parametrize(
    ("changes", "left", "activations", "blocks", "context"),
    [
        ({}, 10_000 * MIB, 0, 256, 1024),  # 4 sequences of 64 blocks
        ({}, 200 * MIB, 0, 80, 1024),  # 40 % of what is left
        ({}, 200 * MIB, 50 * MIB, 60, 960),  # activations are set aside first
        ({"memory_fraction": 0.5}, 200 * MIB, 0, 100, 1024),
        ({"memory_bytes": 70 * MIB + 5, "memory_fraction": 0.5}, 200 * MIB, 0, 70, 1024),
        ({"num_blocks": 90, "memory_bytes": MIB, "memory_fraction": 0.1}, 200 * MIB, 0, 90, 1024),
        ({"num_blocks": 1}, 200 * MIB, 0, 1, 16),
        ({"num_blocks": 10, "asked_max_len": -1}, 200 * MIB, 0, 10, 160),
        ({"num_blocks": 10, "asked_max_len": 160}, 200 * MIB, 0, 10, 160),
        ({"asked_max_len": 100}, 10_000 * MIB, 0, 28, 100),  # 4 sequences of 7 blocks
        ({"memory_bytes": 150 * MIB}, 151 * MIB, 100 * MIB, 150, 1024),
    ],
)
def test_budgets(changes, left, activations, blocks, context):
    plan = plan_kv(demand(**changes), left, activations)
    assert (plan.num_blocks, plan.max_model_len) == (blocks, context)
    assert bool(plan.notices) == (context < min(1024, changes.get("asked_max_len") or 1024)) or (
        changes.get("asked_max_len") == -1
    )


def test_fitting_down_names_both_lengths():
    (notice,) = plan_kv(demand(num_blocks=10), 100 * MIB, 0).notices
    assert "1024" in notice
    assert "160" in notice


@pytest.mark.parametrize(
    ("changes", "left", "words"),
    [
        (
            {"num_blocks": 10, "asked_max_len": 161},
            100 * MIB,
            ["161", "11 KV blocks", "11.0 MiB", "10.0 MiB", "--max-model-len to 160"],
        ),
        ({"memory_bytes": MIB - 1}, 100 * MIB, ["1.0 MiB", "below one block", "--block-size"]),
        ({"num_blocks": 0}, 100 * MIB, ["below one block", "--num-gpu-blocks-override 0"]),
        ({}, 2 * MIB, ["below one block", "--kv-cache-memory-bytes"]),
        ({"num_blocks": 101}, 100 * MIB, ["101.0 MiB", "100.0 MiB"]),
        ({"memory_fraction": 1.5}, 100 * MIB, ["--gpu-memory-utilization", "1.5"]),
        ({"asked_max_len": 1025}, 10**12, ["--max-model-len 1025", "1024"]),
        ({"asked_max_len": 0}, 10**12, ["--max-model-len"]),
        ({"block_size": 24}, 10**12, ["--block-size", "multiple of 16", "24"]),
    ],
)
def test_refusals_name_sizes_and_flags(changes, left, words):
    with pytest.raises(ConfigError) as raised:
        plan_kv(demand(**changes), left, 0)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize("size", [0, 8, 17, 272, -16])
def test_block_sizes_refused(size):
    with pytest.raises(ConfigError):
        check_block_size(size)


def test_block_sizes_taken():
    for size in range(16, 257, 16):
        check_block_size(size)


def test_activations_are_measured():
    def run(tokens):
        # One MiB a token, given back at once; from the kernel, since a heap that other tests left
        # large hands out pages that are resident already.
        with mmap(-1, tokens * MIB) as area:
            for _ in range(tokens):
                area.write(bytes([1]) * MIB)

    assert 0.7 * 512 * MIB < activation_bytes(run, 512) < 1.6 * 512 * MIB


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_host_pools_share_lazily_touched_memory(dtype):
    spec = PoolSpec("k", "ko", dtype, (2, 64))
    pool = host_pool(spec, 1000, 16)
    assert pool.shape() == [1001, 16, 2, 64]
    assert pool.data_ptr() % 4096 == 0
    assert spec.bytes_per_token() == 128 * {"float32": 4, "int8": 1}.get(dtype, 2)


def graph(io, inputs):
    entry = FileEntry(path="graphs/cpu.onnx", size=0, sha256="")
    return Graph(variant="cpu", file=entry, io=io, inputs=inputs, outputs=(), opset_imports=())


def test_pool_specs_come_from_the_manifest():
    shape = ("num_blocks", "block_size", 3, 64)
    io = GraphIO(k_cache=("a",), v_cache=("b",), k_cache_out=("c",), v_cache_out=("d",))
    inputs = tuple(TensorSpec(name=n, dtype="float32", shape=shape) for n in "ba")
    assert pool_specs(graph(io, inputs)) == (
        PoolSpec("a", "c", "float32", (3, 64)),
        PoolSpec("b", "d", "float32", (3, 64)),
    )
    with pytest.raises(ManifestError, match="'b'"):
        pool_specs(graph(io, inputs[1:]))
    bad = (inputs[1], TensorSpec(name="b", dtype="float64", shape=shape))
    with pytest.raises(ManifestError, match="unusable form"):
        pool_specs(graph(io, bad))
    stateful = GraphIO(state_pools=("s",), state_pools_out=("t",))
    with pytest.raises(ManifestError, match="recurrent state"):
        pool_specs(graph(stateful, ()))
