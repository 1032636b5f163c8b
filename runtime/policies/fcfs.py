"""First come, first served."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ortloom.runtime.request import Request

if TYPE_CHECKING:
    from ortloom.runtime.kv_cache_manager import KVCacheManager
    from ortloom.runtime.waiting_queue import WaitingQueue


class FcfsPolicy:
    """Order of arrival; the latest arrival is preempted first. `priority` is not looked at."""

    def rank(self, request: Request) -> tuple[float, ...]:
        """(arrival, admission number)."""
        return (request.arrival_time, request.serial)

    def victim(self, running: Sequence[Request]) -> Request:
        """The latest arrival."""
        return max(running, key=self.rank)

    def next_in_line(
        self, waiting: "WaitingQueue", kv: "KVCacheManager", clock: Callable[[], float]
    ) -> Request:
        """The best rank."""
        return waiting.peek()
