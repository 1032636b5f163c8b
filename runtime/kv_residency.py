"""How long KV blocks keep what they hold, measured on a sample of them (`--kv-cache-metrics`).

A block is followed from the moment it is handed out until its contents, by then a cached prefix,
are dropped to make room: how long that was, how long nobody had asked for it at the end, and the
gaps between the times somebody did.
"""

import random
from bisect import bisect_left
from collections.abc import Callable

from ortloom.runtime.messages import KV_RESIDENCY_BUCKETS, HistogramCounts


class _Followed:
    """Times of one block, in seconds of the clock."""

    __slots__ = ("gaps", "last", "taken")

    def __init__(self, now: float) -> None:
        self.taken = self.last = now
        self.gaps: list[float] = []


class KVResidency:
    """Follows a share of all blocks.

    Args:
        sample: the share, above 0 and at most 1.
        clock: monotonic seconds.
        draw: a number from 0 to 1 for each block handed out.
    """

    def __init__(
        self, sample: float, clock: Callable[[], float], draw: Callable[[], float] = random.random
    ) -> None:
        self._sample = sample
        self._clock = clock
        self._draw = draw
        self._followed: dict[int, _Followed] = {}
        size = len(KV_RESIDENCY_BUCKETS) + 1
        self._histograms = [HistogramCounts([0] * size) for _ in range(3)]

    def taken(self, block_id: int) -> None:
        """A block is handed out."""
        if self._draw() < self._sample:
            self._followed[block_id] = _Followed(self._clock())
        else:
            self._followed.pop(block_id, None)

    def used(self, block_id: int) -> None:
        """Somebody found the block's prefix."""
        block = self._followed.get(block_id)
        if block is not None:
            now = self._clock()
            block.gaps.append(now - block.last)
            block.last = now

    def dropped(self, block_id: int) -> None:
        """What the block holds is dropped to make room."""
        block = self._followed.pop(block_id, None)
        if block is None:
            return
        now = self._clock()
        lifetime, idle, gaps = self._histograms
        _observe(lifetime, now - block.taken)
        _observe(idle, now - block.last)
        for gap in block.gaps:
            _observe(gaps, gap)

    def reset(self) -> None:
        """All contents are forgotten at once, which says nothing about room."""
        self._followed.clear()

    def histograms(self) -> list[HistogramCounts]:
        """Lifetime, idle time before the end, gaps between uses."""
        return [HistogramCounts(list(h.counts), h.sum) for h in self._histograms]


def _observe(histogram: HistogramCounts, seconds: float) -> None:
    histogram.counts[bisect_left(KV_RESIDENCY_BUCKETS, seconds)] += 1
    histogram.sum += seconds
