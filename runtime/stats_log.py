"""The engine's periodic line: throughput, queue, cache. Silent while idle."""

import logging

from ortloom.runtime.messages import EngineStats

log = logging.getLogger("ortloom.engine")


def _rate(part: int, whole: int) -> str:
    return f"{100.0 * part / whole:.1f}%" if whole else "-"


class StatsLog:
    """Logs one line an interval in which something was computed.

    Args:
        interval: seconds.
        start: time of the engine's start, `time.monotonic()`.
    """

    def __init__(self, interval: float, start: float) -> None:
        self._interval = interval
        self._time = start
        self._last = EngineStats()

    def note(self, stats: EngineStats, now: float) -> None:
        """Look at the newest numbers; logs if the interval is over and there were steps in it."""
        seconds = now - self._time
        if seconds < self._interval:
            return
        last, self._last, self._time = self._last, stats, now
        if stats.num_steps == last.num_steps:
            return
        hits = stats.prefix_cache_hits - last.prefix_cache_hits
        queries = stats.prefix_cache_queries - last.prefix_cache_queries
        log.info(
            "prompt %.1f tokens/s, generation %.1f tokens/s, running %d, waiting %d, "
            "preemptions %d, KV cache %.1f%%, prefix cache hits %s",
            (stats.prompt_tokens - last.prompt_tokens) / seconds,
            (stats.generation_tokens - last.generation_tokens) / seconds,
            stats.num_requests_running,
            stats.num_requests_waiting,
            stats.num_preemptions - last.num_preemptions,
            100.0 * stats.kv_cache_usage,
            _rate(hits, queries),
        )
