"""What a server exposes against what dashboards ask for: ours by its queries, vLLM's by buckets."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

BOARD = Path(__file__).resolve().parents[2] / "docs" / "grafana-dashboard.json"
WORDS = frozenset(
    ["sum", "max", "min", "avg", "by", "le", "rate", "histogram_quantile", "label_values"]
)

TO_80 = "10 20 40 80"
GAP = f".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 {TO_80}"
LATENCY = ".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
TOKENS = "1 2 5 10 20 50 100 200 500 1000 2000"  # up to the context of 4096
BUCKETS = {
    "iteration_tokens_total": "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384",
    "time_to_first_token_seconds": (
        f".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 {TO_80} 160 640 2560"
    ),
    "inter_token_latency_seconds": GAP,
    "request_time_per_output_token_seconds": GAP,
    "e2e_request_latency_seconds": LATENCY,
    "request_queue_time_seconds": LATENCY,
    "request_prefill_time_seconds": LATENCY,
    "request_decode_time_seconds": LATENCY,
    "request_inference_time_seconds": LATENCY,
    "request_prompt_tokens": TOKENS,
    "request_generation_tokens": TOKENS,
    "request_prefill_kv_computed_tokens": TOKENS,
    "request_max_num_generation_tokens": TOKENS,
    "request_params_max_tokens": TOKENS,
    "request_params_n": "1 2 5 10 20",
}


@pytest.fixture(scope="module")
def exposed(server):
    """Label names of every sample name, after a request of each kind."""
    assert server.complete().status_code == 200
    found = {}
    for family in text_string_to_metric_families(server.client.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def test_buckets_are_those_of_vllm(exposed):
    for name, bounds in BUCKETS.items():
        labels = exposed[f"vllm:{name}_bucket"]
        assert [float(each["le"]) for each in labels] == [
            *map(float, bounds.split()),
            float("inf"),
        ], name


def test_known_values_of_labels_are_there_from_the_start(exposed):
    calls = exposed["vllm:tool_call_parser_invocations_total"]
    assert len(calls) == 12
    assert {c["mode"] for c in calls} == {"streaming", "non_streaming"}
    assert {c["outcome"] for c in calls} == {"tool_call", "no_tool_call"}
    assert {c["request_type"] for c in calls} == {"chat_completions", "responses", "other"}
    sources = [each["source"] for each in exposed["vllm:prompt_tokens_by_source_total"]]
    assert sources == ["local_compute", "local_cache_hit", "external_kv_transfer"]
    states = [each["sleep_state"] for each in exposed["vllm:engine_sleep_state"]]
    assert states == ["awake", "weights_offloaded", "discard_all"]


def queries():
    board = json.loads(BOARD.read_text())
    found = [t["expr"] for panel in board["panels"] for t in panel["targets"]]
    found += [v["query"]["query"] for v in board["templating"]["list"] if v["type"] == "query"]
    return found


@pytest.mark.parametrize("query", queries())
def test_every_query_of_the_dashboard_has_series(exposed, query):
    text = query.replace("$__rate_interval", "5m")
    selectors = re.findall(r"([a-z_:][a-z0-9_:]+)(\{[^}]*\})?(\[5m\])?", _without_by(text))
    names = [s for s in selectors if s[0] not in WORDS and (":" in s[0] or "_" in s[0])]
    names = [s for s in names if s[0] != "model_name"]
    assert names, query
    for name, matchers, window in names:
        assert name in exposed, f"{name} is not exposed"
        labels = set(exposed[name][0])
        for label in re.findall(r"(\w+)=~?\"", matchers):
            assert label in labels, f"{name} has no label {label}"
        cumulative = name.endswith(("_total", "_bucket", "_sum", "_count"))
        assert bool(window) == cumulative, f"{name}: a rate is for counters, and they need one"
        for label in re.findall(r"by \(([^)]*)\)", text):
            missing = {part.strip() for part in label.split(",")} - labels
            assert not missing, f"{name} has no label {missing}"


def _without_by(text):
    """A query without its groupings and label values, which are no names of series."""
    return re.sub(r"by \([^)]*\)", "", text)


def test_panels_do_not_overlap():
    seen = set()
    for panel in json.loads(BOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & seen
        seen |= cells
