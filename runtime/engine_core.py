"""The engine's loop: messages in, steps, messages out. No sockets, no text, no model details."""

import logging
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ortloom.config import Config, KVEventsConfig
from ortloom.errors import EngineDead, RequestError
from ortloom.runtime import invariants
from ortloom.runtime.admission import Admission
from ortloom.runtime.block_pool import BlockPool
from ortloom.runtime.engine_profile import EngineProfile
from ortloom.runtime.engine_protocols import Inbox, Outbox, Runner
from ortloom.runtime.entrance import Entrance
from ortloom.runtime.external_ids import belonging_to
from ortloom.runtime.heartbeat import log_step
from ortloom.runtime.idle_work import IdleWork
from ortloom.runtime.kv_cache_manager import KVCacheManager
from ortloom.runtime.kv_events import KVEventLog
from ortloom.runtime.kv_residency import KVResidency
from ortloom.runtime.lifecycle import METHODS, Lifecycle
from ortloom.runtime.messages import (
    ClientMessage,
    EngineAbort,
    EngineControl,
    EngineOutput,
    EngineReady,
    EngineReply,
    EngineRequest,
)
from ortloom.runtime.outbound import STATS_INTERVAL, Outbound
from ortloom.runtime.policies import load_policy
from ortloom.runtime.scheduler_class import load_scheduler
from ortloom.runtime.scheduler_output import ModelRunnerOutput, SchedulerOutput
from ortloom.runtime.stats_log import StatsLog
from ortloom.runtime.step_costs import step_costs
from ortloom.runtime.step_limits import StepLimits
from ortloom.runtime.step_log import StepLog
from ortloom.runtime.step_overlap import StepOverlap
from ortloom.runtime.step_times import note_step
from ortloom.runtime.step_watchdog import StepWatchdog

if TYPE_CHECKING:
    from ortloom.runtime.kv_publisher import KVPublisher

log = logging.getLogger("ortloom.engine")

DEVICE_VARIANTS = ("cuda", "tensorrt")
"""Graph variants that leave this process's processors free while they run."""

VALIDATION_POLL = 0.002
STALL_POLL = 0.01


class EngineCore:
    """One engine over one runner.

    Args:
        config: the tree.
        runner: loaded and warm.
        clock: monotonic seconds.

    Raises:
        ConfigError: limits that contradict each other or the model.
    """

    def __init__(
        self, config: Config, runner: Runner, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.runner = runner
        self.clock = clock
        sched = config.scheduler
        limits = StepLimits(sched, runner.max_model_len)
        self._events: KVEventLog | None = None
        self._publisher: KVPublisher | None = None
        if config.cache.kv_events is not None:
            self._events = KVEventLog(runner.block_size)
            self._publisher = _publisher(config.cache.kv_events)
        self.pool = BlockPool(runner.num_blocks, self._events)
        caching = config.cache.enable_prefix_caching
        algorithm = config.cache.prefix_caching_hash_algo
        kv = KVCacheManager(self.pool, runner.block_size, caching, algorithm)
        scheduler = load_scheduler(sched.scheduler_cls)
        self.scheduler = scheduler(limits, load_policy(sched.policy), kv, clock)
        if config.metrics.kv_residency:
            self.pool.residency = KVResidency(config.metrics.kv_residency_sample, clock)
        if config.metrics.costs:
            per_token = runner.kv_cache_bytes / (runner.num_blocks * runner.block_size)
            variant = runner.provider_report.graph_variant
            self.scheduler.costs = step_costs(Path(config.model.bundle), variant, per_token)
        stats_log: StatsLog | None = None
        if config.log.log_stats:
            stats_log = StatsLog(config.log.stats_interval, clock())
        self._outbound = Outbound(self.scheduler, clock, stats_log)
        admission = Admission(
            self.scheduler,
            max_model_len=runner.max_model_len,
            vocab_size=runner.vocab_size,
            max_logprobs=config.model.max_logprobs,
            max_num_queued_reqs=sched.max_num_queued_reqs,
            max_num_queued_tokens=sched.max_num_queued_tokens,
            seed=config.model.seed,
            trace_replay=config.model.enable_trace_replay,
        )
        self._entrance = Entrance(self.scheduler, admission, runner, self._outbound)
        self.ready = EngineReady(
            max_model_len=runner.max_model_len,
            vocab_size=runner.vocab_size,
            block_size=runner.block_size,
            num_blocks=runner.num_blocks,
            kv_cache_bytes=runner.kv_cache_bytes,
            max_num_seqs=sched.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            enable_prefix_caching=caching,
            provider=runner.provider_report,
            cache_config={**runner.cache_config, "prefix_caching_hash_algo": algorithm},
            notices=list(runner.notices),
            engine_pid=os.getpid(),
        )
        self.on_stuck: Callable[[str], None] = log.critical
        self.idle_work: IdleWork | None = None
        self._step_timeout = sched.step_timeout
        self._heartbeat = sched.step_log
        # A CPU computes with all its cores: there a second thread would only take turns with them.
        on_device = runner.provider_report.graph_variant in DEVICE_VARIANTS
        self._async = on_device if sched.async_scheduling is None else sched.async_scheduling
        self._overlap: StepOverlap | None = None
        self._watchdog: StepWatchdog | None = None
        self._debug = config.log.debug_invariants
        self._step_log = StepLog() if config.log.iteration_details else None
        self._times_steps = config.traces is not None and (
            config.traces.model or config.traces.worker
        )
        self._stopping = False
        self._lifecycle = Lifecycle(
            self.scheduler,
            runner,
            lambda ids: self._abort(EngineAbort(ids)),
            self._outbound.post,
            self._live_ids,
        )
        self._profile: EngineProfile | None = None
        if config.profiler.folder is not None:
            self._profile = EngineProfile(Path(config.profiler.folder))
        self._was_busy = False

    # ---- the loop

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """Serve until `stop`; then end all requests.

        Raises:
            EngineDead: the runner cannot compute any more.
        """
        if self._async:
            self._overlap = StepOverlap(self, inbox, outbox)
        if self._step_timeout != 0:
            self._watchdog = StepWatchdog(self._step_timeout, lambda text: self.on_stuck(text))
            self._watchdog.start()
        try:
            while not self._stopping:
                asked = False
                for client_id, message in inbox.drain(self._patience()):
                    asked = True
                    self.apply(client_id, message)
                self.step()
                if self.idle_work is not None:
                    self.idle_work.note(asked or self.scheduler.has_work or self._entrance.busy)
                # With overlap the next step sends what this one made.
                if self._overlap is None or not self._was_busy or not self.scheduler.has_work:
                    self.flush(outbox)
            self.scheduler.abort(list(self.scheduler.requests))
        finally:
            if self._watchdog is not None:
                self._watchdog.stop()
            if self._publisher is not None:
                self._publisher.close()
            self.scheduler.fail(list(self.scheduler.requests.values()))
            self.flush(outbox)
            self._entrance.close()

    def stop(self) -> None:
        """Leave the loop after the step in progress.

        Safe from signal handlers and other threads; wake the inbox afterwards.
        """
        self._stopping = True

    def _patience(self) -> float | None:
        """Seconds the inbox may wait."""
        if self._stopping or self._outbound.waiting:
            return 0.0
        if self._lifecycle.busy:
            return 0.0
        if self._entrance.busy:
            return 0.0 if self._was_busy else VALIDATION_POLL
        if self._lifecycle.frozen:
            return STATS_INTERVAL if self.scheduler.has_work or self._outbound.owes else None
        if self.scheduler.has_work:
            return 0.0 if self._was_busy else STALL_POLL
        if self._outbound.owes:
            return STATS_INTERVAL
        return None if self.idle_work is None else self.idle_work.patience

    # ---- messages

    def apply(self, client_id: bytes, message: ClientMessage) -> None:
        """Take one message; answers wait for `flush`."""
        self._outbound.hear(client_id)
        match message:
            case EngineRequest():
                if not self._lifecycle.hold(client_id, message):
                    self._entrance.take(client_id, message)
            case EngineAbort():
                self._abort(message)
            case EngineControl():
                self._control(client_id, message)

    def lose_client(self, client_id: bytes, *, connected: bool = False) -> None:
        """A client is gone or does not read: end its requests and give their blocks back.

        Args:
            client_id: whose.
            connected: it is there but stopped reading; it is told once it reads again.
        """
        self._outbound.forget(client_id)
        self._lifecycle.lose_client(client_id)
        lost = [r.request_id for r in self.scheduler.requests.values() if r.client_id == client_id]
        lost += self._entrance.ids_of(client_id)
        if lost:
            log.info("client %s is gone: %d requests end", client_id.hex()[:8], len(lost))
            self._abort(EngineAbort(lost))
            self._outbound.announce = True
            if connected:
                self._outbound.tell_later(client_id, lost)

    def _abort(self, message: EngineAbort) -> None:
        ids = message.request_ids
        for client_id, request in [*self._entrance.drop(ids), *self._lifecycle.drop_held(ids)]:
            output = EngineOutput(request.request_id, finish_reason=message.finish_reason)
            self._outbound.post_end(client_id, output)
        self.scheduler.abort(ids, message.finish_reason)

    def _live_ids(self) -> set[str]:
        return {*self.scheduler.requests, *self._entrance.ids()}

    def _abort_external(self, names: list[str]) -> int:
        """Abort requests by the ids clients know, or all; how many were asked for."""
        known = [*self._live_ids(), *self._lifecycle.held_ids()]
        self._abort(EngineAbort(belonging_to(names, known) if names else known))
        return len(names) if names else len(known)

    def _run_profile(self, start: bool) -> None:
        if self._profile is None:
            raise RequestError("The engine has no profiler.")
        if start:
            self._profile.start()
        else:
            log.info("profile written to %s", self._profile.stop())

    def _control(self, client_id: bytes, message: EngineControl) -> None:
        if message.method in METHODS:
            self._lifecycle.ask(client_id, message)
            return
        reply = EngineReply(message.call_id)
        match message.method:
            case "hello":
                self._outbound.hear(client_id, wants_stats=True)
                self._outbound.post(client_id, self.ready)
            case "reset_prefix_cache":
                reply.success = self.scheduler.reset_prefix_cache(message.reset_running_requests)
            case "stats":
                reply.stats = self.scheduler.stats()
            case "server_info":
                reply.info = _info(self.ready)
            case "abort":
                reply.info = {"aborted": str(self._abort_external(message.request_ids))}
            case "start_profile" | "stop_profile":
                try:
                    self._run_profile(message.method == "start_profile")
                except (OSError, ValueError, RequestError) as error:
                    reply.success, reply.error = False, str(error)
        self._outbound.post(client_id, reply)

    # ---- steps

    def step(self) -> None:
        """Run one step if there is anything to compute.

        Raises:
            EngineDead: the step failed and so did a trial step after it.
        """
        # First, so that an id that is used again is not mistaken for its ended predecessor.
        self._forget_finished()
        self._entrance.settle()
        self._lifecycle.settle()
        for client_id, held in self._lifecycle.take_held():
            self._entrance.take(client_id, held)
        plan = None if self._lifecycle.frozen else self.scheduler.schedule()
        self._was_busy = plan is not None
        if plan is not None:
            begin = self.clock()
            try:
                result = self._execute(plan)
                if self._times_steps:
                    note_step(plan, result.forward_seconds, self.clock() - begin)
                self.scheduler.update(plan, result)
                if self._step_log is not None:
                    self._step_log.note(plan, self.clock() - begin)
            except Exception:
                log.exception("a step failed: its %d requests end", len(plan.scheduled))
                self.scheduler.fail([item.request for item in plan.scheduled])
                self._try_runner()
            if self._heartbeat:
                log_step(plan, self.scheduler, self.clock() - begin)
        if self._overlap is not None:
            self._overlap.settle()
        self._forget_finished()
        if self._debug and not self.scheduler.running:
            invariants.check(self.pool, self.scheduler)

    def _execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        with nullcontext() if self._watchdog is None else self._watchdog.step():
            if self._overlap is None:
                return self.runner.execute(plan)
            return self.runner.execute(plan, self._overlap)

    def _forget_finished(self) -> None:
        for request_id in self.scheduler.take_finished_ids():
            self.runner.remove(request_id)

    def _try_runner(self) -> None:
        """Find out whether the requests or the runner failed: a dead engine must not look alive.

        What the caches hold after a failed step is not known, so all of it is dropped and requests
        that live recompute. The trial step then touches nobody's data.
        """
        self.scheduler.reset_prefix_cache(reset_running_requests=True)
        try:
            self.runner.warm_up()
        except Exception as error:
            log.exception("the trial step after a failed step failed too")
            raise EngineDead("the model can no longer be run") from error

    def flush(self, outbox: Outbox) -> None:
        """Send answers and outputs. A client that cannot take its own loses its requests."""
        if self._events is not None and self._publisher is not None:
            events = self._events.take()
            if events:
                self._publisher.publish(events)
        for client, result in self._outbound.flush(outbox).items():
            self.lose_client(client, connected=result == "full")


def _publisher(config: KVEventsConfig) -> "KVPublisher":
    from ortloom.runtime.kv_publisher import KVPublisher  # an engine without events needs no zmq

    return KVPublisher(config)


def _info(ready: EngineReady) -> dict[str, str]:
    return {
        "engine_pid": str(ready.engine_pid),
        "provider": ready.provider.name,
        "graph_variant": ready.provider.graph_variant,
        "provider_detail": ready.provider.detail,
        "max_model_len": str(ready.max_model_len),
        "num_blocks": str(ready.num_blocks),
        "block_size": str(ready.block_size),
        "kv_cache_bytes": str(ready.kv_cache_bytes),
        **{f"losing.{name}": reason for name, reason in ready.provider.losing.items()},
    }
