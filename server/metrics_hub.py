"""Where a front gets the numbers of all fronts from."""

from typing import Protocol

from ortloom.server.metrics_snapshot import Snapshot


class MetricsHub(Protocol):
    """The sum over all fronts, this one's newest snapshot included."""

    async def total(self, own: Snapshot) -> Snapshot:
        """Hand in the own snapshot and get the sum."""


class LocalMetricsHub:
    """A front on its own."""

    async def total(self, own: Snapshot) -> Snapshot:
        """The own snapshot is all there is."""
        return own
