"""A load's figures as the printed table and as the JSON result."""

from collections.abc import Mapping, Sequence

import msgspec

from ortloom.bench.generation import Record
from ortloom.bench.serving_metrics import ServingMetrics
from ortloom.bench.speculation import SpecCounters

WIDTH = 50
_TITLES = {
    "ttft": ("Time to First Token", "TTFT"),
    "tpot": ("Time per Output Token (excl. 1st token)", "TPOT"),
    "itl": ("Inter-token Latency", "ITL"),
    "e2el": ("End-to-end Latency", "E2EL"),
}


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What was run, as the report names it. `request_rate` inf = all at once."""

    date: str
    backend: str
    label: str
    model_id: str
    tokenizer_id: str | None
    num_prompts: int
    metadata: Mapping[str, str]
    request_rate: float
    burstiness: float
    max_concurrency: int | None
    ramp_up: Mapping[str, object] = {}


def table(
    setup: Setup,
    metrics: ServingMetrics,
    shown: Sequence[str],
    speculation: SpecCounters | None = None,
) -> str:
    """The table.

    Args:
        setup: what was run.
        metrics: its figures.
        shown: names of the time metrics to print.
        speculation: what speculative decoding did, or None.
    """
    lines = [_ruled(" Serving Benchmark Result ", "=")]
    lines.append(_row("Successful requests:", metrics.completed))
    lines.append(_row("Failed requests:", metrics.failed))
    if setup.max_concurrency is not None:
        lines.append(_row("Maximum request concurrency:", setup.max_concurrency))
    if setup.request_rate != float("inf"):
        lines.append(_row("Request rate configured (RPS):", setup.request_rate))
    lines.append(_row("Benchmark duration (s):", metrics.duration))
    lines.append(_row("Total input tokens:", metrics.total_input))
    lines.append(_row("Total generated tokens:", metrics.total_output))
    lines.append(_row("Request throughput (req/s):", metrics.request_throughput))
    if metrics.request_goodput is not None:
        lines.append(_row("Request goodput (req/s):", metrics.request_goodput))
    lines.append(_row("Output token throughput (tok/s):", metrics.output_throughput))
    lines.append(_row("Peak output token throughput (tok/s):", metrics.peak_output_throughput))
    lines.append(_row("Peak concurrent requests:", float(metrics.peak_concurrent)))
    lines.append(_row("Total token throughput (tok/s):", metrics.total_throughput))
    for name in shown:
        title, short = _TITLES[name]
        times = metrics.times[name]
        lines.append(_ruled(title, "-"))
        lines.append(_row(f"Mean {short} (ms):", times.mean))
        lines.append(_row(f"Median {short} (ms):", times.median))
        for percent, value in times.percentiles:
            lines.append(_row(f"P{percent:g} {short} (ms):", value))
    if speculation is not None:
        lines += _speculation_rows(speculation)
    return "\n".join([*lines, "=" * WIDTH])


def _speculation_rows(counters: SpecCounters) -> list[str]:
    rows = [
        _ruled("Speculative Decoding", "-"),
        _row("Acceptance rate (%):", counters.acceptance_rate),
        _row("Acceptance length:", counters.acceptance_length),
        _row("Drafts:", int(counters.drafts)),
        _row("Draft tokens:", int(counters.draft_tokens)),
        _row("Accepted tokens:", int(counters.accepted)),
    ]
    rates = counters.position_rates()
    if rates:
        rows.append("Per-position acceptance (%):")
        rows += [_row(f"  Position {i}:", 100.0 * rate) for i, rate in enumerate(rates)]
    return rows


def _ruled(title: str, rule: str) -> str:
    return f"{title:{rule}^{WIDTH}}"


def _row(label: str, value: float) -> str:
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{label:<40} {text:<10}"


def result(
    setup: Setup,
    metrics: ServingMetrics,
    shown: Sequence[str],
    speculation: SpecCounters | None = None,
    details: Sequence[Record] | None = None,
) -> dict[str, object]:
    """The JSON result.

    Args:
        setup: what was run.
        metrics: its figures.
        shown: names of the time metrics to write.
        speculation: what speculative decoding did, or None.
        details: records to write one by one, or None.
    """
    unlimited = setup.request_rate == float("inf")
    tree: dict[str, object] = {
        "date": setup.date,
        "endpoint_type": setup.backend,
        "backend": setup.backend,
        "label": setup.label,
        "model_id": setup.model_id,
        "tokenizer_id": setup.tokenizer_id,
        "num_prompts": setup.num_prompts,
        **setup.metadata,
        "request_rate": "inf" if unlimited else setup.request_rate,
        "burstiness": setup.burstiness,
        "max_concurrency": setup.max_concurrency,
        **setup.ramp_up,
        "duration": metrics.duration,
        "completed": metrics.completed,
        "failed": metrics.failed,
        "total_input_tokens": metrics.total_input,
        "total_output_tokens": metrics.total_output,
        "request_throughput": metrics.request_throughput,
        "request_goodput": metrics.request_goodput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_throughput,
        "max_output_tokens_per_s": metrics.peak_output_throughput,
        "max_concurrent_requests": metrics.peak_concurrent,
        "rtfx": 0.0,
    }
    for name in shown:
        times = metrics.times[name]
        tree |= {f"mean_{name}_ms": times.mean, f"median_{name}_ms": times.median}
        tree[f"std_{name}_ms"] = times.std
        tree |= {f"p{percent:g}_{name}_ms": value for percent, value in times.percentiles}
    if speculation is not None:
        tree |= {
            "spec_decode_acceptance_rate": speculation.acceptance_rate,
            "spec_decode_acceptance_length": speculation.acceptance_length,
            "spec_decode_num_drafts": int(speculation.drafts),
            "spec_decode_draft_tokens": int(speculation.draft_tokens),
            "spec_decode_accepted_tokens": int(speculation.accepted),
            "spec_decode_per_position_acceptance_rates": speculation.position_rates(),
        }
    return tree if details is None else tree | _details(details)


def _details(records: Sequence[Record]) -> dict[str, object]:
    return {
        "input_lens": [record.prompt_tokens for record in records],
        "output_lens": [record.output_tokens or 0 for record in records],
        "ttfts": [record.ttft for record in records],
        "itls": [record.itls for record in records],
        "start_times": [record.start for record in records],
        "generated_texts": [record.text for record in records],
        "errors": [record.error for record in records],
    }


def file_name(setup: Setup) -> str:
    """The name of the result file where the user gave none."""
    model = setup.model_id.rstrip("/").rpartition("/")[2]
    if setup.ramp_up:
        strategy = setup.ramp_up["ramp_up_strategy"]
        start, end = setup.ramp_up["ramp_up_start_rps"], setup.ramp_up["ramp_up_end_rps"]
        rate = f"ramp-up-{strategy}-{_plain(start)}qps-{_plain(end)}qps"
    else:
        rate = f"{_plain(setup.request_rate)}qps"
    limit = "" if setup.max_concurrency is None else f"-concurrency{setup.max_concurrency}"
    return f"{setup.label}-{rate}{limit}-{model}-{setup.date}.json".replace("/", "-")


def _plain(rate: object) -> str:
    return f"{rate:g}" if isinstance(rate, float) else str(rate)
