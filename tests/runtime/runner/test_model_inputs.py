"""The arrays of a call against a plain rebuild, over many random steps."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ortloom.runtime.graph_calls import graph_calls
from ortloom.runtime.model_inputs import InputBuilder, Segment
from ortloom.runtime.request import Request
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.runtime.scheduler_output import ScheduledRequest

SIZE = 16


def expected(segments, columns):
    tokens, positions, slots, cu, indices = [], [], [], [0], []
    table = np.full((len(segments), columns), -1, np.int32)
    for i, s in enumerate(segments):
        for p in range(s.start, s.start + s.num_tokens):
            tokens.append(s.request.token_ids[p])
            positions.append(p)
            slots.append(s.block_ids[p // SIZE] * SIZE + p % SIZE)
        cu.append(len(tokens))
        indices += range(len(tokens) - s.num_rows, len(tokens))
        table[i, : len(s.block_ids)] = s.block_ids
    return tokens, positions, slots, cu, indices, table


def check(inputs, segments):
    tokens, positions, slots, cu, indices, table = expected(segments, inputs.block_table.shape[1])
    assert inputs.input_ids.tolist() == tokens
    assert inputs.positions.tolist() == positions
    assert inputs.slot_mapping.tolist() == slots
    assert inputs.cu_seqlens.tolist() == cu
    assert inputs.past_seqlens.tolist() == [s.start for s in segments]
    assert inputs.logits_indices.tolist() == (indices or [0])
    assert inputs.num_rows == len(indices)
    assert np.array_equal(inputs.block_table, table)
    for array, dtype in (
        (inputs.input_ids, np.int64),
        (inputs.positions, np.int64),
        (inputs.cu_seqlens, np.int32),
        (inputs.past_seqlens, np.int32),
        (inputs.block_table, np.int32),
        (inputs.slot_mapping, np.int32),
        (inputs.logits_indices, np.int64),
    ):
        assert array.dtype == dtype
        assert array.flags.c_contiguous


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_reused_buffers_equal_fresh_ones(data):
    builder = InputBuilder(SIZE)
    next_block = iter(range(1, 10**6))
    requests = [Request(f"r{i}", [i] * 400, SamplingParams(), 1000) for i in range(5)]
    for _ in range(data.draw(st.integers(2, 12))):
        chosen = data.draw(st.permutations(requests))[: data.draw(st.integers(1, 5))]
        segments = []
        for i, request in enumerate(chosen):
            if data.draw(st.integers(0, 9)) == 0:  # preempted: other blocks, from the start
                request.num_computed_tokens = 0
                request.block_ids = []
                request.num_preemptions += 1
            start = request.num_computed_tokens
            count = min(data.draw(st.sampled_from([1, 1, 1, 5, 16, 90])), 400 - start)
            if count == 0:
                continue
            while len(request.block_ids) * SIZE < start + count:
                request.block_ids.append(next(next_block))
            rows = data.draw(st.integers(0, min(count, 3)))
            segments.append(Segment(i, request, start, count, rows, request.block_ids))
            request.num_computed_tokens += count
        if segments:
            check(builder.build(segments), segments)


def test_three_position_rows():
    request = Request("r", list(range(40)), SamplingParams(), 100)
    segments = [Segment(0, request, 0, 20, 1, [1, 2]), Segment(1, request, 20, 1, 1, [1, 2])]
    inputs = InputBuilder(SIZE, positions_rows=3).build(segments)
    assert inputs.positions.shape == (3, 21)
    assert (inputs.positions == np.array([*range(20), 20])).all()


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 59)), min_size=1, max_size=8),
    with_prompt_logprobs=st.booleans(),
    max_tokens=st.integers(1, 80),
    max_rows=st.integers(1, 40),
)
def test_calls_cover_every_token_in_order_within_the_limits(
    lengths, with_prompt_logprobs, max_tokens, max_rows
):
    plan, wanted = [], []
    for i, (total, start) in enumerate(lengths):
        start = min(start, total - 1)
        params = SamplingParams(prompt_logprobs=1 if with_prompt_logprobs and i % 2 else None)
        request = Request(f"r{i}", [1] * total, params, 1000)
        plan.append(ScheduledRequest(request, start, total - start, True, list(range(1, 9))))
        prompt_rows = params.prompt_logprobs is not None
        wanted.append(list(range(start, total)) if prompt_rows else [total - 1])
    tokens: list[list[int]] = [[] for _ in plan]
    rows: list[list[int]] = [[] for _ in plan]
    for segments in graph_calls(plan, max_tokens, max_rows):
        assert segments
        assert sum(s.num_tokens for s in segments) <= max_tokens
        assert sum(s.num_rows for s in segments) <= max_rows
        assert len({s.index for s in segments}) == len(segments)
        for s in segments:
            end = s.start + s.num_tokens
            tokens[s.index] += range(s.start, end)
            rows[s.index] += range(end - s.num_rows, end)
    assert tokens == [list(range(p.start, p.start + p.num_tokens)) for p in plan]
    assert rows == wanted
