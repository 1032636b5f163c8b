"""A log line for each step, for servers started with `--enable-logging-iteration-details`."""

import logging

from ortloom.runtime.scheduler_output import SchedulerOutput

log = logging.getLogger("ortloom.engine")


class StepLog:
    """Counts steps and says what each did."""

    def __init__(self) -> None:
        self._number = 0

    def note(self, plan: SchedulerOutput, seconds: float) -> None:
        """One step that is done.

        Args:
            plan: what it computed. Requests whose prompt was not yet computed at its beginning
                count as context, the others as generation.
            seconds: that it took, outputs included.
        """
        context = [item for item in plan.scheduled if item.start < item.request.num_prompt_tokens]
        tokens = sum(item.num_tokens for item in context)
        log.info(
            "Iteration(%d): %d context requests, %d context tokens, %d generation requests, "
            "%d generation tokens, iteration elapsed time: %.2f ms",
            self._number,
            len(context),
            tokens,
            len(plan.scheduled) - len(context),
            plan.num_tokens - tokens,
            1000 * seconds,
        )
        self._number += 1
