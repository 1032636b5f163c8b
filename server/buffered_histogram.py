"""A histogram for what is observed with every token: values are put by, and counted together."""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import chain

from prometheus_client import Histogram
from prometheus_client.samples import Sample

_MOST = 4096
"""Values that wait at most."""


class BufferedHistogram(Histogram):
    """As Histogram; belongs to one thread, and knows no exemplars."""

    def _metric_init(self) -> None:
        super()._metric_init()
        self._waiting: list[float] = []

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Record a value; it is counted when the numbers are read, if not before."""
        waiting = self._waiting
        waiting.append(amount)
        if len(waiting) >= _MOST:
            self._count()

    def _count(self) -> None:
        waiting, self._waiting = self._waiting, []
        counts: dict[int, int] = {}
        for amount in waiting:
            place = bisect_left(self._upper_bounds, amount)
            counts[place] = counts.get(place, 0) + 1
        self._sum.inc(sum(waiting))
        for place, count in counts.items():
            self._buckets[place].inc(count)

    def _child_samples(self) -> Iterable[Sample]:
        self._count()
        return chain(super()._child_samples())
