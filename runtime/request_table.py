"""The requests that are alive, and what their clients are to be told.

This module does not plan steps, and knows neither model inputs nor sockets.
"""

from collections.abc import Iterable
from copy import copy

from ortloom.runtime.engine_counters import EngineCounters
from ortloom.runtime.finish_rules import STATUS_OF
from ortloom.runtime.kv_cache_manager import KVCacheManager
from ortloom.runtime.messages import EngineOutput, FinishReason, RequestTimes, TokenLogprobs
from ortloom.runtime.policies import SchedulingPolicy
from ortloom.runtime.request import Request, RequestStatus
from ortloom.runtime.waiting_queue import WaitingQueue

REQUEST_FAILED = "The request failed inside the engine."


class RequestTable:
    """Owns all live requests and their blocks.

    Args:
        policy: order of those that wait.
        kv: block tables.

    Attributes:
        requests: all of them by id.
        waiting: those without blocks.
        running: those with blocks, in the order they were admitted.
        counters: since start.
    """

    def __init__(self, policy: SchedulingPolicy, kv: KVCacheManager) -> None:
        self.policy = policy
        self.kv = kv
        self.counters = EngineCounters()
        self.requests: dict[str, Request] = {}
        self.waiting = WaitingQueue(policy)
        self.running: list[Request] = []
        self._outputs: dict[bytes, list[EngineOutput]] = {}
        self._finished_ids: list[str] = []

    def add(self, request: Request) -> None:
        """Queue an admitted request; its id is not in use."""
        self.requests[request.request_id] = request
        self.waiting.push(request)

    def abort(self, request_ids: Iterable[str], reason: FinishReason = "abort") -> None:
        """End requests now and give their blocks back; unknown ids are ignored."""
        for request_id in request_ids:
            request = self.requests.get(request_id)
            if request is not None:
                self.finish(request, reason, None)

    def fail(self, requests: Iterable[Request], error: str = REQUEST_FAILED) -> None:
        """End requests with an internal error; those that are finished already stay as they are."""
        for request in requests:
            if not request.finished:
                self.finish(request, "error", None, error=error)

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

    def take_outputs(self) -> dict[bytes, list[EngineOutput]]:
        """Outputs since the last call, by client."""
        outputs, self._outputs = self._outputs, {}
        return outputs

    def take_finished_ids(self) -> list[str]:
        """Requests that ended since the last call."""
        ids, self._finished_ids = self._finished_ids, []
        return ids

    def output_of(self, request: Request) -> EngineOutput:
        """An output of a request with nothing new in it."""
        return EngineOutput(
            request.request_id,
            num_cached_tokens=request.num_cached_tokens,
            num_preemptions=request.num_preemptions,
        )

    def emit(self, request: Request, output: EngineOutput) -> None:
        """Keep an output for `take_outputs`."""
        self._outputs.setdefault(request.client_id, []).append(output)

    def finish(
        self,
        request: Request,
        reason: FinishReason,
        stop_reason: int | None,
        *,
        error: str | None = None,
        error_param: str | None = None,
        output: EngineOutput | None = None,
    ) -> None:
        """End a request and give its blocks back.

        Args:
            request: a live one.
            reason: why.
            stop_reason: the stop token, if one ended it.
            error: text for the client, where it failed.
            error_param: the field to blame; None = an internal error.
            output: with its last tokens; default: none.
        """
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
        output = output or self.output_of(request)
        if request.num_output_tokens == 0 and reason == "length":
            output.prompt_logprobs = prompt_logprobs_of(request)
        output.finish_reason = reason
        output.stop_reason = stop_reason
        output.times = times_of(request)
        if error is not None:
            output.error = error
            output.error_kind = "internal" if error_param is None else "invalid"
            output.error_param = error_param
        self.emit(request, output)


def times_of(request: Request) -> RequestTimes:
    """Its times until now."""
    return copy(request.times)


def prompt_logprobs_of(request: Request) -> list[TokenLogprobs | None] | None:
    """An entry for each prompt token, the first None; None where they were not asked for."""
    return None if request.sampling.prompt_logprobs is None else list(request.prompt_logprobs)
