"""Cutting the plan of a step into graph calls.

One call has a bounded number of packed tokens and of logits rows. A request's tokens stay in order
over the calls, so later calls read what earlier ones wrote; since the ops' results do not depend on
how tokens are grouped, the numbers are those of a single call.
"""

from collections.abc import Sequence

from ortloom.runtime.model_inputs import Segment
from ortloom.runtime.scheduler_output import ScheduledRequest


def wants_prompt_logprobs(item: ScheduledRequest) -> bool:
    """Prompt logprobs are delivered with the first output; a recompute after that wants none."""
    request = item.request
    return request.sampling.prompt_logprobs is not None and request.num_output_tokens == 0


def wanted_rows(item: ScheduledRequest) -> tuple[int, int]:
    """Absolute positions first .. last + 1 of the tokens whose logits are wanted: the last one if
    the chunk samples, and with prompt logprobs every one that predicts a prompt token."""
    end = item.start + item.num_tokens
    first = end - 1 if item.samples else end
    if wants_prompt_logprobs(item):
        predicting = min(end, item.request.num_prompt_tokens - 1)
        if item.start < predicting:
            first = item.start
    return first, end


def graph_calls(
    scheduled: Sequence[ScheduledRequest], max_tokens: int, max_rows: int
) -> list[list[Segment]]:
    """Segments of each call, in order; no call has two segments of one request."""
    calls: list[list[Segment]] = []
    current: list[Segment] = []
    tokens_left, rows_left = max_tokens, max_rows
    for index, item in enumerate(scheduled):
        first, end = wanted_rows(item)
        position = item.start
        while position < end:
            count = min(end - position, tokens_left)
            rows = max(0, position + count - max(first, position))
            if rows > rows_left:
                count -= rows - rows_left
                rows = rows_left
            if count > 0:
                current.append(Segment(index, item.request, position, count, rows, item.block_ids))
                position += count
                tokens_left -= count
                rows_left -= rows
            if position < end:
                calls.append(current)
                current, tokens_left, rows_left = [], max_tokens, max_rows
    if current:
        calls.append(current)
    return calls
