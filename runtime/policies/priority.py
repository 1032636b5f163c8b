"""Lower priority value first, with ageing."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ortloom.runtime.request import Request

if TYPE_CHECKING:
    from ortloom.runtime.kv_cache_manager import KVCacheManager
    from ortloom.runtime.waiting_queue import WaitingQueue

SECONDS_PER_LEVEL = 60.0
"""One level of priority weighs as much as this much waiting."""


class PriorityPolicy:
    """Lower `priority` values first, equal ones in order of arrival.

    A request overtakes those of one level better that came SECONDS_PER_LEVEL later, so a steady
    flow of urgent requests cannot starve the rest. Ageing is part of a constant rank (arrival
    time plus a penalty by level): no queue is ever sorted again.
    """

    def rank(self, request: Request) -> tuple[float, ...]:
        """(arrival shifted by priority, priority, admission number)."""
        shifted = request.arrival_time + request.priority * SECONDS_PER_LEVEL
        return (shifted, request.priority, request.serial)

    def victim(self, running: Sequence[Request]) -> Request:
        """The one that would be served last."""
        return max(running, key=self.rank)

    def next_in_line(
        self, waiting: "WaitingQueue", kv: "KVCacheManager", clock: Callable[[], float]
    ) -> Request:
        """The best rank."""
        return waiting.peek()
