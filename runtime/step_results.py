"""What a step's result means for the requests in it: published blocks, new tokens, endings."""

from ortloom.runtime.finish_rules import check_finish
from ortloom.runtime.messages import EngineOutput, FinishReason
from ortloom.runtime.request import Request
from ortloom.runtime.request_table import RequestTable, prompt_logprobs_of, times_of
from ortloom.runtime.sampling_state import NOT_FINITE
from ortloom.runtime.scheduler_output import RowResult, ScheduledRequest


class StepResults:
    """Applies results to a table of requests."""

    def __init__(self, table: RequestTable) -> None:
        self._table = table

    def apply(self, item: ScheduledRequest, row: RowResult, now: float) -> int:
        """One request's share of a step; the number of tokens it generated.

        Args:
            item: what was computed for it.
            row: what came out.
            now: the clock, seconds.
        """
        request = item.request
        if row.error is not None:
            self._table.counters.corrupted_requests += row.error == NOT_FINITE
            self._table.finish(request, "error", None, error=row.error, error_param=row.error_param)
            return 0
        if item.samples and row.token_id is None:
            self._table.fail([request])
            return 0
        request.num_computed_tokens = item.start + item.num_tokens
        self._table.kv.commit(request)
        _keep_prompt_logprobs(item, row)
        if not request.prefilled and request.num_computed_tokens >= request.num_prompt_tokens:
            request.prefilled = True
            self._table.counters.count_prefill(request)
        if not item.samples:
            if request.num_computed_tokens == request.num_tokens:
                self._table.finish(request, "length", None)  # nothing was to be generated
            return 0
        assert row.token_id is not None
        token = _traced(request, row.token_id)
        first = request.num_output_tokens == 0
        request.times.last_token = now
        if first:
            request.times.first_token = now
        output = self._table.output_of(request)
        finish = _append(request, [token, *row.forced], output)
        if row.logprobs is not None:
            output.logprobs = [row.logprobs]
        if row.detail is not None:
            output.details = [row.detail]
        if request.sampling.sampling_mask:
            output.masks = [row.mask]
        if first:
            output.times = times_of(request)
            output.prompt_logprobs = prompt_logprobs_of(request)
        if finish:
            self._table.finish(request, *finish, output=output)
        else:
            self._table.emit(request, output)
        generated = len(output.new_token_ids)
        self._table.counters.jump_forward_tokens += generated - 1
        return generated


def _append(
    request: Request, tokens: list[int], output: EngineOutput
) -> tuple[FinishReason, int | None] | None:
    """Add tokens up to one that ends the request; why it ends, if it does."""
    for count, token in enumerate(tokens, 1):
        request.token_ids.append(token)
        if finish := check_finish(request):
            output.new_token_ids = tokens[:count]
            return finish
    output.new_token_ids = tokens
    return None


def _keep_prompt_logprobs(item: ScheduledRequest, row: RowResult) -> None:
    """Keep entries of positions start+1 ..; a recomputed chunk repeats some."""
    request = item.request
    if request.sampling.prompt_logprobs is None:
        return
    if not request.prompt_logprobs:
        request.prompt_logprobs.append(None)
    known = len(request.prompt_logprobs) - (item.start + 1)
    request.prompt_logprobs.extend(row.prompt_logprobs[max(0, known) :])


def _traced(request: Request, sampled: int) -> int:
    """The next token: that of the request's trace, while it lasts, else the sampled one."""
    trace = request.sampling.trace_decode_token_ids
    index = request.num_output_tokens
    return trace[index] if trace is not None and index < len(trace) else sampled
