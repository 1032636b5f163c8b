"""Which tokens of which requests are computed in the next step, and what a step's result means.

There are no phases. A request knows how many tokens it has and how many are computed; a step hands
out a budget of tokens, first to running requests, then to waiting ones. Prefill, chunked prefill,
prefix hits, decode and the recompute after a preemption are all "compute the next n known tokens".

Requests are served in the policy's rank order. If a running request needs a block and none is
free, the worst-ranked running request gives all of its blocks up and waits again with the tokens
it has. Since the rank is total and constant, the best-ranked request always advances.

This module does not know model inputs, sampling arithmetic or sockets.
"""

import logging
import time
from collections.abc import Callable, Iterable
from copy import copy

from ortloom.runtime.block_pool import Block
from ortloom.runtime.engine_counters import EngineCounters
from ortloom.runtime.finish_rules import STATUS_OF, check_finish
from ortloom.runtime.kv_cache_manager import KVCacheManager
from ortloom.runtime.messages import (
    EngineOutput,
    EngineStats,
    EstimatedCosts,
    FinishReason,
    RequestTimes,
    TokenLogprobs,
)
from ortloom.runtime.partial_prefills import PartialPrefills
from ortloom.runtime.policies import SchedulingPolicy
from ortloom.runtime.request import Request, RequestStatus
from ortloom.runtime.sampling_state import NOT_FINITE
from ortloom.runtime.scheduler_output import (
    ModelRunnerOutput,
    RowResult,
    ScheduledRequest,
    SchedulerOutput,
)
from ortloom.runtime.step_costs import StepCosts
from ortloom.runtime.step_limits import StepLimits
from ortloom.runtime.waiting_queue import WaitingQueue

log = logging.getLogger("ortloom.engine")

REQUEST_FAILED = "The request failed inside the engine."


class Scheduler:
    """Owns all live requests and their blocks.

    Args:
        limits: of one step.
        policy: order and preemption victim.
        kv: block tables.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        limits: StepLimits,
        policy: SchedulingPolicy,
        kv: KVCacheManager,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.policy = policy
        self.kv = kv
        self.clock = clock
        self.counters = EngineCounters()
        self.costs: StepCosts | None = None
        self.requests: dict[str, Request] = {}
        self.waiting = WaitingQueue(policy)
        self.running: list[Request] = []
        self._outputs: dict[bytes, list[EngineOutput]] = {}
        self._finished_ids: list[str] = []
        self._steps_since_admission = limits.admission_interval

    # ---- what comes in

    def add(self, request: Request) -> None:
        """Queue an admitted request; its id is not in use."""
        self.requests[request.request_id] = request
        self.waiting.push(request)

    def abort(self, request_ids: Iterable[str], reason: FinishReason = "abort") -> None:
        """End requests now and give their blocks back; unknown ids are ignored."""
        for request_id in request_ids:
            request = self.requests.get(request_id)
            if request is not None:
                self._finish(request, reason, None)

    def fail(self, requests: Iterable[Request], error: str = REQUEST_FAILED) -> None:
        """End requests with an internal error; those that are finished already stay as they are."""
        for request in requests:
            if not request.finished:
                self._finish(request, "error", None, error=error)

    def reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        """Forget cached prefixes; False while any block is held.

        Args:
            reset_running_requests: preempt all running requests first (they recompute).
        """
        if reset_running_requests:
            for request in list(self.running):
                self._preempt(request)
        return self.kv.reset()

    # ---- what the engine asks

    @property
    def has_work(self) -> bool:
        """True while any request lives."""
        return bool(self.requests)

    @property
    def num_pending_prefill_tokens(self) -> int:
        """Prompt tokens of live requests that are not computed yet."""
        return sum(
            max(0, r.num_prompt_tokens - r.num_computed_tokens)
            for r in self.requests.values()
            if not r.prefilled
        )

    def stats(self) -> EngineStats:
        """Gauges of now and counters since start."""
        stats = self.counters.snapshot(len(self.running), len(self.waiting), self.kv.pool.usage)
        if self.kv.pool.residency is not None:
            stats.kv_residency = self.kv.pool.residency.histograms()
        if self.costs is not None:
            costs = self.costs
            stats.costs = EstimatedCosts(costs.flops, costs.read_bytes, costs.write_bytes)
        return stats

    def take_outputs(self) -> dict[bytes, list[EngineOutput]]:
        """Outputs since the last call, by client."""
        outputs, self._outputs = self._outputs, {}
        return outputs

    def take_finished_ids(self) -> list[str]:
        """Requests that ended since the last call."""
        ids, self._finished_ids = self._finished_ids, []
        return ids

    # ---- one step

    def schedule(self) -> SchedulerOutput | None:
        """The next step, or None if nothing can be computed.

        A request whose allocation raises ends with an error; the others go on.
        """
        plan = SchedulerOutput([])
        sharers = self._prefills() if self.limits.adaptive else 1
        budget = self._schedule_running(plan, self.limits.max_num_batched_tokens, sharers)
        if not plan.preempted and self._may_admit():
            self._schedule_waiting(plan, budget, sharers)
        if plan.scheduled:
            self._steps_since_admission += 1
        return plan if plan.scheduled else None

    def update(self, plan: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """Apply a step's result: publish full blocks, append tokens, end what is done."""
        now = self.clock()
        generated = 0
        for item, row in zip(plan.scheduled, result.rows, strict=True):
            if not item.request.finished:
                generated += self._apply(item, row, now)
        self.counters.count_step(plan, generated)
        if self.costs is not None:
            self.costs.note(plan)

    # ---- parts of schedule()

    def _prefills(self) -> int:
        """Requests that want more than one token and have or could get a seat."""
        seats = self.limits.max_num_seqs - len(self.running)
        unfinished = sum(r.num_tokens - r.num_computed_tokens > 1 for r in self.running)
        return unfinished + min(len(self.waiting), max(0, seats))

    def _may_admit(self) -> bool:
        """Whether enough steps went by since the last admission; an empty engine never waits."""
        interval = self.limits.admission_interval
        return not self.running or self._steps_since_admission >= interval

    def _schedule_running(self, plan: SchedulerOutput, budget: int, sharers: int) -> int:
        # Best rank first, so a victim (the worst rank) is never in the plan already.
        self.running.sort(key=self.policy.rank)
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            lacking = request.num_tokens - request.num_computed_tokens
            count = self.limits.chunk(lacking, budget, sharers)
            if count == 0:
                break
            if not self._grow(request, request.num_computed_tokens + count, plan):
                continue  # it left `running`, so index points at the next one
            self._plan(plan, request, count)
            budget -= count
            index += 1
        return budget

    def _grow(self, request: Request, num_tokens: int, plan: SchedulerOutput) -> bool:
        """Blocks for `num_tokens`, preempting from the worst rank up; False if `request` itself
        had to go."""
        while True:
            try:
                if self.kv.allocate(request, num_tokens, []):
                    return True
            except Exception:
                log.exception("block allocation failed for request %s", request.request_id)
                self.fail([request])
                return False
            victim = self.policy.victim(self.running)
            self._preempt(victim)
            plan.preempted.append(victim)
            if victim is request:
                return False

    def _schedule_waiting(self, plan: SchedulerOutput, budget: int, sharers: int) -> None:
        if not len(self.waiting):
            return
        promised = sum(self._still_needed(r) for r in self.running)
        partial = PartialPrefills(self.limits, self.running, plan)
        passed: list[Request] = []
        while budget > 0 and len(self.waiting) and len(self.running) < self.limits.max_num_seqs:
            request = self.policy.next_in_line(self.waiting, self.kv, self.clock)
            if partial.must_pass(request):
                self.waiting.remove(request)
                passed.append(request)
                continue
            try:
                count = self._admit(request, budget, promised, sharers, partial)
            except Exception:
                log.exception("block allocation failed for request %s", request.request_id)
                self.fail([request])
                continue
            if count == 0:
                break  # nobody overtakes the first in line
            self.waiting.remove(request)
            request.status = RequestStatus.RUNNING
            self.running.append(request)
            self._plan(plan, request, count)
            partial.count(request, request.num_computed_tokens + count)
            self._steps_since_admission = 0
            budget -= count
            promised += self._still_needed(request)
        for request in passed:
            self.waiting.push(request)

    def _admit(
        self, request: Request, budget: int, promised: int, sharers: int, partial: PartialPrefills
    ) -> int:
        """Give a waiting request its first blocks; the tokens to compute, 0 = no room."""
        hits = self.kv.find_cached_prefix(request)
        start = len(hits) * self.kv.block_size
        count = self.limits.chunk(request.num_tokens - start, budget, sharers)
        if count == 0 or not partial.may_start(request, start + count):
            return 0
        reserved = request.num_tokens if self.limits.reserve_full_prompt else start + count
        if not self._has_room(reserved, hits, promised):
            return 0
        if not self.kv.allocate(request, start + count, hits):
            return 0
        request.num_computed_tokens = start
        if request.times.first_scheduled == 0.0:
            request.times.first_scheduled = self.clock()
            request.num_cached_tokens = min(start, request.num_prompt_tokens)
            if self.kv.reads_cache(request):
                self.counters.count_lookup(request, request.num_cached_tokens)
        return count

    def _has_room(self, num_tokens: int, hits: list[Block], promised: int) -> bool:
        """Whether so many tokens of a waiting request fit beside what running ones were promised,
        with one block of growth for each of them, and the watermark. Admitting less leads to
        preempting in circles. A request alone needs no more than its own blocks."""
        wanted = self.kv.blocks_for(num_tokens) - len(hits)
        kept = int(self.limits.watermark * self.kv.pool.num_blocks)
        return not self.running or wanted + promised + kept <= self.kv.num_available(hits)

    def _still_needed(self, request: Request) -> int:
        """Blocks a running request lacks for its known tokens, plus one to grow; the one alone
        where prompts are not reserved in full."""
        if not self.limits.reserve_full_prompt:
            return 1
        return max(0, self.kv.blocks_for(request.num_tokens) - len(request.block_ids)) + 1

    def _plan(self, plan: SchedulerOutput, request: Request, count: int) -> None:
        start = request.num_computed_tokens
        complete = start + count == request.num_tokens
        if not complete:
            self.counters.num_partial_prefills += 1
        samples = complete and request.num_tokens < request.max_total_tokens
        plan.scheduled.append(ScheduledRequest(request, start, count, samples, request.block_ids))

    def _preempt(self, request: Request) -> None:
        self.kv.free(request)
        self.running.remove(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.counters.num_preemptions += 1
        self.waiting.push(request)

    # ---- parts of update()

    def _apply(self, item: ScheduledRequest, row: RowResult, now: float) -> int:
        """One request's share of a step; the number of tokens it generated."""
        request = item.request
        if row.error is not None:
            self.counters.corrupted_requests += row.error == NOT_FINITE
            self._finish(request, "error", None, error=row.error, error_param=row.error_param)
            return 0
        if item.samples and row.token_id is None:
            self.fail([request])
            return 0
        request.num_computed_tokens = item.start + item.num_tokens
        self.kv.commit(request)
        self._keep_prompt_logprobs(item, row)
        if not request.prefilled and request.num_computed_tokens >= request.num_prompt_tokens:
            request.prefilled = True
            self.counters.count_prefill(request)
        if not item.samples:
            if request.num_computed_tokens == request.num_tokens:
                self._finish(request, "length", None)  # nothing was to be generated
            return 0
        assert row.token_id is not None
        token = _traced(request, row.token_id)
        first = request.num_output_tokens == 0
        request.times.last_token = now
        if first:
            request.times.first_token = now
        output = self._output(request)
        finish = self._append(request, [token, *row.forced], output)
        if row.logprobs is not None:
            output.logprobs = [row.logprobs]
        if row.detail is not None:
            output.details = [row.detail]
        if request.sampling.sampling_mask:
            output.masks = [row.mask]
        if first:
            output.times = _copy(request.times)
            output.prompt_logprobs = _prompt_logprobs(request)
        if finish:
            self._finish(request, *finish, output=output)
        else:
            self._emit(request, output)
        generated = len(output.new_token_ids)
        self.counters.jump_forward_tokens += generated - 1
        return generated

    def _append(
        self, request: Request, tokens: list[int], output: EngineOutput
    ) -> tuple[FinishReason, int | None] | None:
        """Add tokens up to one that ends the request; why it ends, if it does."""
        for count, token in enumerate(tokens, 1):
            request.token_ids.append(token)
            if finish := check_finish(request):
                output.new_token_ids = tokens[:count]
                return finish
        output.new_token_ids = tokens
        return None

    def _keep_prompt_logprobs(self, item: ScheduledRequest, row: RowResult) -> None:
        """Keep entries of positions start+1 ..; a recomputed chunk repeats some."""
        request = item.request
        if request.sampling.prompt_logprobs is None:
            return
        if not request.prompt_logprobs:
            request.prompt_logprobs.append(None)
        known = len(request.prompt_logprobs) - (item.start + 1)
        request.prompt_logprobs.extend(row.prompt_logprobs[max(0, known) :])

    # ---- endings and outputs

    def _finish(
        self,
        request: Request,
        reason: FinishReason,
        stop_reason: int | None,
        *,
        error: str | None = None,
        error_param: str | None = None,
        output: EngineOutput | None = None,
    ) -> None:
        request.finish_reason = reason
        request.stop_reason = stop_reason
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        request.status = STATUS_OF[reason]
        self.kv.free(request)
        del self.requests[request.request_id]
        self._finished_ids.append(request.request_id)
        self.counters.finished[reason] = self.counters.finished.get(reason, 0) + 1
        output = output or self._output(request)
        if request.num_output_tokens == 0 and reason == "length":
            output.prompt_logprobs = _prompt_logprobs(request)
        output.finish_reason = reason
        output.stop_reason = stop_reason
        output.times = _copy(request.times)
        if error is not None:
            output.error = error
            output.error_kind = "internal" if error_param is None else "invalid"
            output.error_param = error_param
        self._emit(request, output)

    def _output(self, request: Request) -> EngineOutput:
        return EngineOutput(
            request.request_id,
            num_cached_tokens=request.num_cached_tokens,
            num_preemptions=request.num_preemptions,
        )

    def _emit(self, request: Request, output: EngineOutput) -> None:
        self._outputs.setdefault(request.client_id, []).append(output)


def _traced(request: Request, sampled: int) -> int:
    """The next token: that of the request's trace, while it lasts, else the sampled one."""
    trace = request.sampling.trace_decode_token_ids
    index = request.num_output_tokens
    return trace[index] if trace is not None and index < len(trace) else sampled


def _copy(times: RequestTimes) -> RequestTimes:
    return copy(times)


def _prompt_logprobs(request: Request) -> list[TokenLogprobs | None] | None:
    return None if request.sampling.prompt_logprobs is None else list(request.prompt_logprobs)
