"""Seconds that requests spend in steps, for traces (`--collect-detailed-traces`)."""

from ortloom.runtime.scheduler_output import SchedulerOutput


def note_step(plan: SchedulerOutput, forward: float, execute: float) -> None:
    """Add a step to the times of all requests in it; each waits for the whole step.

    Args:
        plan: the step.
        forward: seconds in the model's graph.
        execute: seconds of the step, inputs and sampling included.
    """
    for item in plan.scheduled:
        item.request.times.model_forward += forward
        item.request.times.model_execute += execute
