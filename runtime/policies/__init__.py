"""Scheduling policies, one file each: the order of waiting requests and the preemption victim."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ortloom.errors import ConfigError
from ortloom.runtime.policies.fcfs import FcfsPolicy
from ortloom.runtime.policies.lpm import LpmPolicy
from ortloom.runtime.policies.priority import PriorityPolicy
from ortloom.runtime.request import Request

if TYPE_CHECKING:
    from ortloom.runtime.kv_cache_manager import KVCacheManager
    from ortloom.runtime.waiting_queue import WaitingQueue


class SchedulingPolicy(Protocol):
    """A total, constant order of requests.

    `rank` must not change while a request lives, and two requests never have equal ranks. Then the
    best-ranked request is never preempted for another one, so it always advances.
    """

    def rank(self, request: Request) -> tuple[float, ...]:
        """Sort key; the lowest is served first."""

    def victim(self, running: Sequence[Request]) -> Request:
        """The running request that gives its blocks up first."""

    def next_in_line(
        self, waiting: "WaitingQueue", kv: "KVCacheManager", clock: Callable[[], float]
    ) -> Request:
        """The waiting request that is admitted next; it is not taken out. The queue is not empty.

        May look at what the cache holds now, but must give every request its turn in the end.
        """


def load_policy(name: str) -> SchedulingPolicy:
    """The policy of a name.

    Raises:
        ConfigError: unknown name; the text lists the known ones.
    """
    known: dict[str, SchedulingPolicy] = {
        "fcfs": FcfsPolicy(),
        "lpm": LpmPolicy(),
        "priority": PriorityPolicy(),
    }
    if name not in known:
        raise ConfigError(f"unknown scheduling policy '{name}' (known: {', '.join(sorted(known))})")
    return known[name]
