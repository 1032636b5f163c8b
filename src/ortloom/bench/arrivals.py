"""When the requests of a load are sent."""

from collections.abc import Iterator
from typing import Literal

import msgspec
import numpy as np


class RampUp(msgspec.Struct, frozen=True):
    """A request rate that grows from the first request to the last, in requests per second."""

    strategy: Literal["linear", "exponential"]
    start: float
    end: float

    def rate(self, progress: float) -> float:
        """The rate when a share `progress` (0 to 1) of the requests is sent."""
        if self.strategy == "linear":
            return self.start + (self.end - self.start) * progress
        return float(self.start * (self.end / self.start) ** progress)


def arrival_times(
    count: int,
    rate: float,
    burstiness: float = 1.0,
    seed: int = 0,
    ramp_up: RampUp | None = None,
) -> list[float]:
    """Seconds after the start at which each request is sent; the first is sent at once.

    The gaps are drawn from a gamma distribution of shape `burstiness` and mean 1 / rate: 1 gives a
    Poisson process, less gives bursts, more gives even gaps.

    Args:
        count: requests.
        rate: requests per second; inf = all at once.
        burstiness: above 0.
        seed: of the draw.
        ramp_up: replaces `rate`.
    """
    draw = np.random.default_rng(seed)
    times: list[float] = []
    now = 0.0
    for current in _rates(count, rate, ramp_up):
        times.append(now)
        if current != float("inf"):
            now += float(draw.gamma(burstiness, 1.0 / (current * burstiness)))
    return times


def _rates(count: int, rate: float, ramp_up: RampUp | None) -> Iterator[float]:
    for i in range(count):
        yield rate if ramp_up is None else ramp_up.rate(i / max(1, count - 1))
