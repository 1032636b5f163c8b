"""The figures of a load, from the records of its requests."""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from ortloom.bench.generation import Record

METRICS = ("ttft", "tpot", "itl", "e2el")
"""Time to first token, time per output token after the first, inter-token latency, end-to-end
latency."""

GOALS = ("ttft", "tpot", "e2el")
"""Metrics a goodput goal may name."""


class Distribution(msgspec.Struct, frozen=True):
    """Milliseconds; all zero where there is no value. `percentiles` are (percent, value)."""

    mean: float
    median: float
    std: float
    percentiles: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, seconds: Sequence[float], percentiles: Sequence[float]) -> "Distribution":
        """The distribution of times given in seconds."""
        values = np.asarray(seconds if len(seconds) else [0.0], dtype=np.float64) * 1000.0
        return cls(
            mean=float(values.mean()),
            median=float(np.median(values)),
            std=float(values.std()),
            percentiles=tuple((p, float(np.percentile(values, p))) for p in percentiles),
        )


class ServingMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts, rates per second, and the distribution of each of `METRICS`.

    `peak_output_throughput` is the most tokens of any whole second counted from the first request;
    `peak_concurrent` the most requests in flight at a moment. Only requests that succeeded count,
    but for `failed`. `request_goodput` is None without goals.
    """

    completed: int
    failed: int
    duration: float
    total_input: int
    total_output: int
    request_throughput: float
    request_goodput: float | None
    output_throughput: float
    total_throughput: float
    peak_output_throughput: float
    peak_concurrent: int
    times: Mapping[str, Distribution]


def tpot(record: Record) -> float:
    """Seconds per output token after the first; 0 for a single token."""
    tokens = record.output_tokens or 0
    return (record.latency - record.ttft) / (tokens - 1) if tokens > 1 else 0.0


_VALUE: dict[str, Callable[[Record], float]] = {
    "ttft": lambda record: record.ttft,
    "tpot": tpot,
    "e2el": lambda record: record.latency,
}


def measure(
    records: Sequence[Record],
    duration: float,
    percentiles: Sequence[float],
    goals: Mapping[str, float] | None = None,
) -> ServingMetrics:
    """Compute all figures.

    Args:
        records: one a request; `output_tokens` is known where it succeeded.
        duration: seconds from the first request to the last answer.
        percentiles: percents, 0 to 100.
        goals: milliseconds that a request must keep to count for the goodput, by metric.
    """
    good = [record for record in records if record.success]
    output = sum(record.output_tokens or 0 for record in good)
    total_input = sum(record.prompt_tokens for record in good)
    seconds = max(duration, 1e-9)
    gaps = [gap for record in good for gap in record.itls]
    several = [tpot(record) for record in good if (record.output_tokens or 0) > 1]
    kept = [
        record
        for record in good
        if all(_VALUE[name](record) * 1000 <= limit for name, limit in (goals or {}).items())
    ]
    return ServingMetrics(
        completed=len(good),
        failed=len(records) - len(good),
        duration=duration,
        total_input=total_input,
        total_output=output,
        request_throughput=len(good) / seconds,
        request_goodput=len(kept) / seconds if goals else None,
        output_throughput=output / seconds,
        total_throughput=(total_input + output) / seconds,
        peak_output_throughput=peak_tokens(good),
        peak_concurrent=peak_concurrency(good),
        times={
            "ttft": Distribution.of([record.ttft for record in good], percentiles),
            "tpot": Distribution.of(several, percentiles),
            "itl": Distribution.of(gaps, percentiles),
            "e2el": Distribution.of([record.latency for record in good], percentiles),
        },
    )


def peak_tokens(records: Sequence[Record]) -> float:
    """The most output tokens of a second; a request's tokens are spread evenly over its pieces."""
    if not records:
        return 0.0
    begin = min(record.start for record in records)
    seconds: dict[int, float] = {}
    for record in records:
        at = record.start + record.ttft - begin
        weight = (record.output_tokens or 0) / (len(record.itls) + 1)
        for gap in (0.0, *record.itls):
            at += gap
            seconds[int(at)] = seconds.get(int(at), 0.0) + weight
    return max(seconds.values())


def peak_concurrency(records: Sequence[Record]) -> int:
    """The most requests in flight at a moment; one that ends as another starts does not overlap."""
    changes = [(record.start, 1) for record in records]
    changes += [(record.start + record.latency, -1) for record in records]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most
