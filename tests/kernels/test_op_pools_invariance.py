"""Head-major pools of every type: a row's bits do not depend on batch, chunking or threads."""

import pytest
from streams import Stream, assert_same_bits, differing_rows, every

from ortloom.kernels import isa
from ortloom.kernels.contract import HEAD_MAJOR_LAYOUT, PagedAttentionAttributes

TIERS = [t.name for t in isa.isa_report().tiers if not t.state.startswith("lacks")]
PLAIN = PagedAttentionAttributes(3, 1, kv_layout=HEAD_MAJOR_LAYOUT)
EVERYTHING = PagedAttentionAttributes(
    14, 2, do_rotary=1, local_window_size=200, softcap=10.0, kv_layout=HEAD_MAJOR_LAYOUT
)
# Group 16, tile 64, partition 256 keys: one below, at, above; and a long context.
THRESHOLDS = sorted({edge + d for edge in (16, 64, 256, 512, 4096) for d in (-1, 0, 1)})


def test_schedules_agree(run_op, pack, tier, pools):
    stream = Stream(290, EVERYTHING, pools=pools)
    n = stream.length

    def call(threads):
        return lambda inputs: run_op(EVERYTHING, inputs, threads, tier)

    assert_same_bits(
        {
            "one shot": stream.run(call(1), [n]),
            "one shot, 3 threads, packed QKV": stream.run(
                lambda inputs: run_op(EVERYTHING, pack(inputs), 3, tier), [n]
            ),
            "chunks of 7, 2 threads": stream.run(call(2), every(7, n)),
            "beside 33 tokens, 2 threads": stream.run(call(2), every(45, n), beside=33),
            "token by token beside one": stream.run(call(1), every(1, n), beside=1),
        }
    )


@pytest.mark.unsanitized
@pytest.mark.parametrize("tier", sorted({TIERS[0], TIERS[-1]}))
def test_kv_lengths_at_every_threshold(run_op, tier, pools):
    """Rows at the thresholds, up to 4k keys: alone, in a chunk, beside others, and in one shot."""
    stream = Stream(max(THRESHOLDS) + 40, PLAIN, pools=pools)

    def call(threads):
        return lambda inputs: run_op(PLAIN, inputs, threads, tier)

    whole = {
        "chunks of 2048, 2 threads": stream.run(call(2), every(2048, stream.length)),
        "chunks of 511": stream.run(call(1), every(511, stream.length)),
    }
    assert_same_bits(whole)
    output, *blocks = next(iter(whole.values()))
    made = stream.empty_pools()
    for pool, rows in zip(made, blocks, strict=True):
        pool[stream.table] = rows
    for threads in (1, 3):
        for length in THRESHOLDS:
            row = length - 1
            for begin, end, beside in (
                (row, row + 1, 0),
                (row, row + 1, 17),
                (max(row - 16, 0), row + 40, 5),
            ):
                got, *_ = call(threads)(stream.step(made, begin, end, beside))
                rows = differing_rows(output[begin:end], got[beside:])
                assert len(rows) == 0, f"tokens {begin} to {end} beside {beside}: rows {rows}"
