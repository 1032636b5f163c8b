"""Which tokens of which requests are computed in the next step.

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
from collections.abc import Callable

from ortloom.runtime.block_pool import Block
from ortloom.runtime.kv_cache_manager import KVCacheManager
from ortloom.runtime.messages import EngineStats, EstimatedCosts
from ortloom.runtime.partial_prefills import PartialPrefills
from ortloom.runtime.policies import SchedulingPolicy
from ortloom.runtime.request import Request, RequestStatus
from ortloom.runtime.request_table import RequestTable
from ortloom.runtime.scheduler_output import ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from ortloom.runtime.step_costs import StepCosts
from ortloom.runtime.step_limits import StepLimits
from ortloom.runtime.step_results import StepResults

log = logging.getLogger("ortloom.engine")


class Scheduler(RequestTable):
    """Plans steps over the live requests, and ends what is done.

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
        super().__init__(policy, kv)
        self.limits = limits
        self.clock = clock
        self.costs: StepCosts | None = None
        self._results = StepResults(self)
        self._steps_since_admission = limits.admission_interval

    def reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        """Forget cached prefixes; False while any block is held.

        Args:
            reset_running_requests: preempt all running requests first (they recompute).
        """
        if reset_running_requests:
            for request in list(self.running):
                self._preempt(request)
        return self.kv.reset()

    def stats(self) -> EngineStats:
        """Gauges of now and counters since start."""
        stats = self.counters.snapshot(len(self.running), len(self.waiting), self.kv.pool.usage)
        if self.kv.pool.residency is not None:
            stats.kv_residency = self.kv.pool.residency.histograms()
        if self.costs is not None:
            costs = self.costs
            stats.costs = EstimatedCosts(costs.flops, costs.read_bytes, costs.write_bytes)
        return stats

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
                generated += self._results.apply(item, row, now)
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
