"""Longest cached prefix first, with an age bound."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from ortloom.runtime.request import Request

if TYPE_CHECKING:
    from ortloom.runtime.kv_cache_manager import KVCacheManager
    from ortloom.runtime.waiting_queue import WaitingQueue

AGE_BOUND = 5.0
"""Seconds after which a waiting request is no longer overtaken."""

LOOK_AT = 128
"""Waiting requests that are compared; looking up more would cost more than a good choice gains."""


class LpmPolicy:
    """The waiting request whose prompt has most in the prefix cache goes first, equal ones in
    order of arrival.

    Requests that share a prefix then run one after the other, while it is still cached. The one
    that waits longest goes first in any case once it has waited AGE_BOUND seconds, so nothing
    starves behind a steady flow of hits. Running requests keep the order of arrival: what advances
    and what is preempted does not depend on the cache.
    """

    def rank(self, request: Request) -> tuple[float, ...]:
        """(arrival, admission number)."""
        return (request.arrival_time, request.serial)

    def victim(self, running: Sequence[Request]) -> Request:
        """The latest arrival."""
        return max(running, key=self.rank)

    def next_in_line(
        self, waiting: "WaitingQueue", kv: "KVCacheManager", clock: Callable[[], float]
    ) -> Request:
        """The oldest if it is past the age bound, else the one with the longest cached prefix."""
        oldest = waiting.peek()
        if len(waiting) == 1 or clock() - oldest.arrival_time >= AGE_BOUND:
            return oldest
        found = [oldest, *islice(waiting, LOOK_AT)]
        return max(found, key=lambda r: (len(kv.find_cached_prefix(r)), -r.arrival_time, -r.serial))
