"""Series under names that vLLM gave up, for dashboards that still ask for them
(`--show-hidden-metrics-for-version`)."""

from collections.abc import Iterable

from ortloom.server.metrics_snapshot import Family

OLD_NAMES = (
    ("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc", (0, 11)),
    ("vllm:gpu_prefix_cache_queries", "vllm:prefix_cache_queries", (0, 11)),
    ("vllm:gpu_prefix_cache_hits", "vllm:prefix_cache_hits", (0, 11)),
    ("vllm:time_per_output_token_seconds", "vllm:inter_token_latency_seconds", (0, 12)),
)
"""Old name, name, and the version since which the old one is hidden."""


def old_families(families: Iterable[Family], since: str | None) -> list[Family]:
    """Copies under the names that were hidden in version `since` (X.Y) or later; None = none."""
    if since is None:
        return []
    version = tuple(map(int, since.removeprefix("v").split(".")[:2]))
    known = {family.name: family for family in families}
    return [
        _renamed(known[name], old)
        for old, name, hidden in OLD_NAMES
        if hidden >= version and name in known
    ]


def _renamed(family: Family, name: str) -> Family:
    series = {name + text.removeprefix(family.name): value for text, value in family.series.items()}
    text = f"Deprecated: {family.name} under its old name."
    return Family(name, text, family.type, family.merge, series)
