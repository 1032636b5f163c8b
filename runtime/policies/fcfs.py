"""First come, first served."""

from collections.abc import Sequence

from ortloom.runtime.request import Request


class FcfsPolicy:
    """Order of arrival; the latest arrival is preempted first. `priority` is not looked at."""

    def rank(self, request: Request) -> tuple[float, ...]:
        """(arrival, admission number)."""
        return (request.arrival_time, request.serial)

    def victim(self, running: Sequence[Request]) -> Request:
        """The latest arrival."""
        return max(running, key=self.rank)
