"""The engine's numbers as metric families. They are cumulative and counted once, however many
fronts there are."""

from collections.abc import Sequence
from itertools import accumulate

from ortloom.runtime.messages import (
    ITERATION_TOKENS_BUCKETS,
    KV_RESIDENCY_BUCKETS,
    EngineReady,
    EngineStats,
    EstimatedCosts,
)
from ortloom.server.metrics_snapshot import Family
from ortloom.server.metrics_text import series_name

_COUNTERS = (
    ("prompt_tokens", "Prompt tokens processed in prefill, cached ones included."),
    ("prompt_tokens_cached", "Prompt tokens that needed no compute."),
    ("generation_tokens", "Generated tokens."),
    ("num_preemptions", "Preempted requests."),
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    ("admission_rejections", "Requests refused by an admission limit."),
)
_RESIDENCY = (
    ("kv_block_lifetime_seconds", "From a KV block's allocation to its eviction; a sample."),
    ("kv_block_idle_before_evict_seconds", "From a KV block's last use to its eviction; a sample."),
    ("kv_block_reuse_gap_seconds", "Between two uses of a KV block; a sample."),
)
_ALWAYS_ZERO = (
    ("external_prefix_cache_queries", "Prompt tokens looked up through a KV connector."),
    ("external_prefix_cache_hits", "Prompt tokens found through a KV connector."),
    ("mm_cache_queries", "Media items looked up in the processor cache."),
    ("mm_cache_hits", "Media items found in the processor cache."),
)


class EngineFamilies:
    """Builds the engine's families for one exposition.

    Args:
        model_name: the first served name.
        created: unix seconds since which the counters count.
    """

    def __init__(self, model_name: str, created: float) -> None:
        self._labels = {"model_name": model_name, "engine": "0"}
        self._created = created

    def corrupted(self, stats: EngineStats) -> Family:
        """Requests whose logits were not finite; exposed where it was asked for."""
        text = "Requests that ended because the model's logits were not finite."
        return self._counter("corrupted_requests", text, {None: stats.corrupted_requests})

    def build(self, stats: EngineStats, ready: EngineReady | None) -> list[Family]:
        """All families; `ready` None leaves out what is only known after start-up."""
        families = [*self._gauges(stats), *self._counters(stats), self._iteration(stats)]
        families += [*self._residency(stats), *self._costs(stats)]
        if ready is not None:
            families.append(self._cache_config(ready))
        return families

    def _gauge(self, name: str, text: str, values: dict[tuple[str, str] | None, float]) -> Family:
        full = f"vllm:{name}"
        series = {
            series_name(full, self._labels | (dict([extra]) if extra else {})): value
            for extra, value in values.items()
        }
        return Family(full, text, "gauge", "live", series)

    def _gauges(self, stats: EngineStats) -> list[Family]:
        deferred = stats.num_waiting_deferred
        waiting = stats.num_requests_waiting
        return [
            self._gauge(
                "num_requests_running",
                "Requests in the running batch.",
                {None: stats.num_requests_running},
            ),
            self._gauge("num_requests_waiting", "Queued requests.", {None: waiting}),
            self._gauge(
                "num_requests_waiting_by_reason",
                "Queued requests by reason.",
                {
                    ("reason", "capacity"): waiting - deferred,
                    ("reason", "deferred"): deferred,
                },
            ),
            self._gauge(
                "kv_cache_usage_perc",
                "Share of KV blocks in use, 0 to 1.",
                {None: stats.kv_cache_usage},
            ),
            self._gauge(
                "engine_sleep_state",
                "1 for the state the engine is in.",
                {
                    ("sleep_state", "awake"): int(stats.sleep_level == 0),
                    ("sleep_state", "weights_offloaded"): int(stats.sleep_level == 1),
                    ("sleep_state", "discard_all"): int(stats.sleep_level == 2),
                },
            ),
        ]

    def _counter(
        self,
        name: str,
        text: str,
        values: dict[tuple[str, str] | None, float],
        namespace: str = "vllm",
    ) -> Family:
        full = f"{namespace}:{name}"
        series: dict[str, float] = {}
        for suffix in ("_total", "_created"):
            for extra, value in values.items():
                labels = self._labels | (dict([extra]) if extra else {})
                series[series_name(full + suffix, labels)] = (
                    value if suffix == "_total" else self._created
                )
        return Family(full, text, "counter", "sum", series)

    def _counters(self, stats: EngineStats) -> list[Family]:
        families = [
            self._counter(name, text, {None: getattr(stats, name)}) for name, text in _COUNTERS
        ]
        families += [self._counter(name, text, {None: 0}) for name, text in _ALWAYS_ZERO]
        families.append(
            self._counter(
                "jump_forward_tokens",
                "Tokens a grammar forced, which needed no decode step of their own.",
                {None: stats.jump_forward_tokens},
                namespace="ortloom",
            )
        )
        cached = stats.prompt_tokens_cached
        families.append(
            self._counter(
                "prompt_tokens_by_source",
                "Prompt tokens by origin.",
                {
                    ("source", "local_compute"): stats.prompt_tokens - cached,
                    ("source", "local_cache_hit"): cached,
                    ("source", "external_kv_transfer"): 0,
                },
            )
        )
        families.append(
            self._counter(
                "prompt_tokens_cached_by_source",
                "Prompt tokens that needed no compute, by origin.",
                {
                    ("source", "local_cache_hit"): cached,
                    ("source", "external_kv_transfer"): 0,
                },
            )
        )
        return families

    def _iteration(self, stats: EngineStats) -> Family:
        counts = list(stats.iteration_tokens) or [0] * (len(ITERATION_TOKENS_BUCKETS) + 1)
        return self._histogram(
            "iteration_tokens_total",
            "Tokens computed in one step.",
            ITERATION_TOKENS_BUCKETS,
            counts,
            stats.iteration_tokens_sum,
        )

    def _residency(self, stats: EngineStats) -> list[Family]:
        return [
            self._histogram(name, text, KV_RESIDENCY_BUCKETS, found.counts, found.sum)
            for (name, text), found in zip(_RESIDENCY, stats.kv_residency, strict=False)
        ]

    def _costs(self, stats: EngineStats) -> list[Family]:
        costs = stats.costs or EstimatedCosts()  # the series are there without the flag too
        return [
            self._counter("estimated_flops_per_gpu", "Operations, estimated.", {None: costs.flops}),
            self._counter(
                "estimated_read_bytes_per_gpu", "Bytes read, estimated.", {None: costs.read_bytes}
            ),
            self._counter(
                "estimated_write_bytes_per_gpu",
                "Bytes written, estimated.",
                {None: costs.write_bytes},
            ),
        ]

    def _histogram(
        self, name: str, text: str, bounds: Sequence[float], counts: Sequence[int], total: float
    ) -> Family:
        full = f"vllm:{name}"
        series: dict[str, float] = {}
        count = 0
        texts = [*(str(float(bound)) for bound in bounds), "+Inf"]
        for bound, count in zip(texts, accumulate(counts), strict=True):
            series[series_name(f"{full}_bucket", self._labels | {"le": bound})] = count
        series[series_name(f"{full}_count", self._labels)] = count
        series[series_name(f"{full}_sum", self._labels)] = total
        series[series_name(f"{full}_created", self._labels)] = self._created
        return Family(full, text, "histogram", "sum", series)

    def _cache_config(self, ready: EngineReady) -> Family:
        labels = {"engine": "0", **ready.cache_config}
        labels.setdefault("block_size", str(ready.block_size))
        labels.setdefault("num_gpu_blocks", str(ready.num_blocks))
        labels.setdefault("enable_prefix_caching", str(ready.enable_prefix_caching))
        full = "vllm:cache_config_info"
        return Family(
            full, "The cache configuration.", "gauge", "live", {series_name(full, labels): 1}
        )
