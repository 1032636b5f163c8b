"""Between prometheus_client's collectors, snapshots and the text exposition format 0.0.4."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.utils import floatToGoString

from ortloom.server.metrics_snapshot import Family, Merge

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LEAST = frozenset({"python_info", "process_start_time_seconds", "process_max_fds"})


def series_name(name: str, labels: Mapping[str, str]) -> str:
    """`name{a="b"}` with labels in alphabetical order and values escaped."""
    if not labels:
        return name
    inner = ",".join(f'{key}="{_escape(labels[key])}"' for key in sorted(labels))
    return f"{name}{{{inner}}}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def families_of(registry: CollectorRegistry) -> list[Family]:
    """Everything a registry holds."""
    families = []
    for metric in registry.collect():
        series = {
            series_name(sample.name, sample.labels): sample.value for sample in metric.samples
        }
        family = Family(
            metric.name, metric.documentation, metric.type, _merge(metric.name, metric.type), series
        )
        families.append(family)
    return families


def _merge(name: str, kind: str) -> Merge:
    if kind != "gauge":
        return "sum"
    return "min" if name in _LEAST else "live"


def render(families: Iterable[Family]) -> bytes:
    """The exposition text."""
    lines: list[str] = []
    for family in families:
        created = {k: v for k, v in family.series.items() if family.is_created(k)}
        name = family.name + ("_total" if family.type == "counter" else "")
        lines += _block(name, family.help, family.type, family.series, created)
        if created:
            lines += _block(f"{family.name}_created", family.help, "gauge", created, {})
    lines.append("")
    return "\n".join(lines).encode()


def _block(
    name: str, text: str, kind: str, series: dict[str, float], without: dict[str, float]
) -> list[str]:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    head = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    return head + [f"{key} {_number(value)}" for key, value in series.items() if key not in without]


def _number(value: float) -> str:
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text
