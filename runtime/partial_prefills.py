"""Which prompts may be computed in parts side by side (--max-num-partial-prefills)."""

from collections.abc import Iterable

from ortloom.runtime.request import Request
from ortloom.runtime.scheduler_output import SchedulerOutput
from ortloom.runtime.step_limits import StepLimits


class PartialPrefills:
    """Counts, while a step is planned, the requests whose known tokens it does not finish.

    Without a limit (`limits.max_partial` 0) nothing is counted and everything is allowed.

    Args:
        limits: of one step.
        running: requests that run already.
        plan: what they got of the step.
    """

    def __init__(
        self, limits: StepLimits, running: Iterable[Request], plan: SchedulerOutput
    ) -> None:
        self._limits = limits
        self._total = 0
        self._long = 0
        if not limits.max_partial:
            return
        reached = {item.request.request_id: item.start + item.num_tokens for item in plan.scheduled}
        for request in running:
            done = reached.get(request.request_id, request.num_computed_tokens)
            self.count(request, done)

    def count(self, request: Request, reached: int) -> None:
        """Note a running request that has `reached` computed tokens after the step."""
        if reached < request.num_tokens:
            self._total += 1
            self._long += self._limits.is_long(request.num_tokens)

    def may_start(self, request: Request, reached: int) -> bool:
        """Whether a waiting request may start if the step brings it to `reached` tokens."""
        limit = self._limits.max_partial
        return not limit or reached >= request.num_tokens or self._total < limit

    def must_pass(self, request: Request) -> bool:
        """Whether a long request has to let shorter ones go first."""
        limits = self._limits
        full = self._long >= limits.max_long_partial
        return bool(limits.max_partial) and full and limits.is_long(request.num_tokens)
