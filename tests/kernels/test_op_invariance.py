"""A row's result is bitwise the same alone, in any batch, chunking and at any thread count.

`Stream` (streams.py) holds one request's tokens; `check_schedules` runs it through different
schedules and compares the bits of every output row and of the pools. The last tests show that the
comparison fails on libraries built from sources with a changed order of arithmetic.
"""

import numpy as np
import onnxruntime as ort
import pytest
from streams import PLAIN, Stream, assert_same_bits, check_schedules, differing_rows, every

from ortloom.kernels.contract import PagedAttentionAttributes
from ortloom.kernels.probe_model import paged_attention_model


@pytest.fixture
def runners(run_op, tier):
    """A runner for each thread count of 1 to 4, in the current tier."""

    def make(attributes, threads=(1, 2, 3, 4)):
        return {
            f"{n} threads": lambda inputs, n=n: run_op(attributes, inputs, n, tier) for n in threads
        }

    return make


@pytest.mark.unsanitized
def test_schedules_agree_across_a_partition(runners):
    check_schedules(Stream(300), runners(PLAIN))


@pytest.mark.parametrize(
    "attributes",
    [
        PagedAttentionAttributes(4, 4, local_window_size=40, softcap=10.0),
        pytest.param(
            PagedAttentionAttributes(14, 2, do_rotary=1, local_window_size=300),
            marks=pytest.mark.unsanitized,
        ),
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


# Group 16, tile 64, partition 256 keys, tasks of 48 or 96 rows: one below, at, above.
THRESHOLDS = sorted({edge + d for edge in (16, 64, 256, 512, 1024, 4096) for d in (-1, 0, 1)})


@pytest.mark.unsanitized
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


@pytest.mark.unsanitized
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
