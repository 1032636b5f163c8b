"""Histogram bounds of vLLM's exporter; times in seconds."""

_TO_80 = (10.0, 20.0, 40.0, 80.0)

TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(*_TO_80, 160.0, 640.0, 2560.0),
)
TOKEN_GAP = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *_TO_80,
)
LATENCY = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
HTTP_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5),
    *(5.0, 7.5, 10.0, 30.0, 60.0),
)
HTTP_SECONDS_BY_HANDLER = (0.1, 0.5, 1.0)
SMALL_COUNTS = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


def one_two_five(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, … up to the largest value not above `largest` (at least 1)."""
    bounds = [1.0]
    scale = 1
    while scale <= largest:
        bounds.extend(float(m * scale) for m in (1, 2, 5) if 1 < m * scale <= largest)
        scale *= 10
    return tuple(bounds)
