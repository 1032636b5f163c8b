"""The waiting requests in policy order."""

import heapq
from collections.abc import Iterator

from ortloom.runtime.policies import SchedulingPolicy
from ortloom.runtime.request import Request


class WaitingQueue:
    """A heap by `policy.rank`, with O(1) removal from the middle (removed entries are dropped when
    they come to the front). A preempted request has an early rank and so returns to the front."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[tuple[float, ...], Request]] = []
        self._members: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._members.values())

    def push(self, request: Request) -> None:
        """Add a request; ranks are unique, so requests themselves are never compared."""
        self._members[request.request_id] = request
        heapq.heappush(self._heap, (self._policy.rank(request), request))

    def peek(self) -> Request:
        """The request that is served next.

        Raises:
            IndexError: the queue is empty.
        """
        while self._members.get(self._heap[0][1].request_id) is not self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def pop(self) -> Request:
        """Take the request that is served next.

        Raises:
            IndexError: the queue is empty.
        """
        request = self.peek()
        heapq.heappop(self._heap)
        del self._members[request.request_id]
        return request

    def remove(self, request: Request) -> None:
        """Drop a request if it is here."""
        self._members.pop(request.request_id, None)
        if not self._members:
            self._heap.clear()
