"""One line a step: the heartbeat of VT_ENGINE_STEP_LOG."""

import logging

from ortloom.runtime.scheduler import Scheduler
from ortloom.runtime.scheduler_output import SchedulerOutput

log = logging.getLogger("ortloom.engine")


def log_step(plan: SchedulerOutput, scheduler: Scheduler, seconds: float) -> None:
    """Log what a step computed.

    Args:
        plan: of the step.
        scheduler: as it is after the step.
        seconds: that the step took.
    """
    sampled = sum(item.samples for item in plan.scheduled)
    log.info(
        "step %d: %d requests, %d tokens, %d sampled, %d preempted, running %d, waiting %d, "
        "KV cache %.1f%%, %.2f ms",
        scheduler.counters.num_steps,
        len(plan.scheduled),
        plan.num_tokens,
        sampled,
        len(plan.preempted),
        len(scheduler.running),
        len(scheduler.waiting),
        100.0 * scheduler.kv.pool.usage,
        1000.0 * seconds,
    )
