"""The flags about metrics: what they refuse, and what a server with all of them shows."""

import json
import re

import pytest
from metric_rows import CACHE_LABELS, MISSING, MISSING_FAMILIES, OWN, ROWS
from prometheus_client.parser import text_string_to_metric_families
from serving import Server, body, events, until

from ortloom.commands.serve import make_plan
from ortloom.config import MetricsConfig
from ortloom.environment import read_environment
from ortloom.errors import ConfigError
from ortloom.flags import flag_table
from ortloom.server.hidden_metrics import OLD_NAMES, old_families
from ortloom.server.metrics_snapshot import Family

TIMES = [
    "time_to_first_token_ms",
    "generation_time_ms",
    "queue_time_ms",
    "mean_itl_ms",
    "tokens_per_second",
]


def plan(*tokens, **env):
    return make_plan(["m", *tokens], read_environment(env), flag_table())[1].config.metrics


def test_flags_reach_the_configuration():
    assert plan() == MetricsConfig()
    made = plan(
        *("--kv-cache-metrics", "--kv-cache-metrics-sample", "0.5", "--enable-mfu-metrics"),
        *("--enable-per-request-metrics", "--show-hidden-metrics-for-version", "0.11"),
    )
    assert made == MetricsConfig(
        hidden_since="0.11",
        per_request=True,
        kv_residency=True,
        kv_residency_sample=0.5,
        costs=True,
    )
    assert not plan("--disable-metrics").serve
    assert plan(VLLM_COMPUTE_NANS_IN_LOGITS="1").corrupted


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ("--kv-cache-metrics --kv-cache-metrics-sample 0", "above 0 and at most 1"),
        ("--kv-cache-metrics --kv-cache-metrics-sample 1.5", "above 0 and at most 1"),
        ("--kv-cache-metrics-sample 0.5", "needs --kv-cache-metrics"),
        ("--kv-cache-metrics --disable-log-stats", "contradicts --disable-log-stats"),
        ("--enable-mfu-metrics --disable-metrics", "contradicts --disable-metrics"),
        ("--show-hidden-metrics-for-version next", "must be a version X.Y"),
        ("--enable-per-request-metrics --disable-log-stats", "contradicts"),
    ],
)
def test_what_cannot_be_is_refused(tokens, words):
    with pytest.raises(ConfigError, match=words):
        plan(*tokens.split())


def test_old_names_by_version():
    families = [
        Family(
            "vllm:kv_cache_usage_perc", "", "gauge", "live", {'vllm:kv_cache_usage_perc{a="b"}': 1}
        ),
        Family(
            "vllm:prefix_cache_hits", "", "counter", "sum", {"vllm:prefix_cache_hits_total{}": 2}
        ),
        Family(
            "vllm:inter_token_latency_seconds",
            "",
            "histogram",
            "sum",
            {'vllm:inter_token_latency_seconds_bucket{le="1"}': 3},
        ),
    ]

    def series(version):
        return [name for family in old_families(families, version) for name in family.series]

    assert series(None) == []
    assert series("0.13") == []
    assert series("0.12.3") == ['vllm:time_per_output_token_seconds_bucket{le="1"}']
    assert series("0.11")[:2] == [
        'vllm:gpu_cache_usage_perc{a="b"}',
        "vllm:gpu_prefix_cache_hits_total{}",
    ]


@pytest.fixture(scope="module")
def measured(bundle):
    settings = MetricsConfig(
        hidden_since="0.11",
        per_request=True,
        kv_residency=True,
        kv_residency_sample=1.0,
        costs=True,
        corrupted=True,
    )
    with Server(bundle, metrics=settings, num_fronts=2) as running:
        yield running


def test_costs_and_blocks_are_counted_once_for_all_fronts(measured):
    names = ("flops", "read_bytes", "write_bytes")
    before = {n: measured.metric(f"vllm:estimated_{n}_per_gpu_total") for n in names}
    evicted = measured.metric("vllm:kv_block_lifetime_seconds_count")
    # 512 blocks of 16: ten prompts of 1024 tokens push each other out
    for number in range(10):
        reply = measured.complete(prompt=[97 + number] * 1024, max_tokens=1)
        assert reply.status_code == 200
    tokens = 10 * 1024
    after = {n: measured.metric(f"vllm:estimated_{n}_per_gpu_total") for n in names}
    pairs = 10 * (1024 * 1025 // 2)
    assert after["flops"] - before["flops"] == 2 * pairs * 1 * 16 + 10 * 2 * 256 * 8
    per_token = (after["write_bytes"] - before["write_bytes"]) / tokens
    assert per_token > 0
    assert after["read_bytes"] - before["read_bytes"] == per_token * tokens
    gone = measured.metric("vllm:kv_block_lifetime_seconds_count") - evicted
    assert 10 * 64 - 512 - 64 <= gone <= 10 * 64
    assert measured.metric("vllm:kv_block_idle_before_evict_seconds_count") == gone + evicted


def test_old_names_have_the_numbers_of_the_new_ones(measured):
    measured.complete(max_tokens=3)
    text = measured.client.get("/metrics").text
    for old, new in (
        ("gpu_prefix_cache_queries_total", "prefix_cache_queries_total"),
        ("time_per_output_token_seconds_count", "inter_token_latency_seconds_count"),
    ):
        (one,) = re.findall(rf"^vllm:{old}\{{.*\}} (\S+)$", text, re.M)
        (other,) = re.findall(rf"^vllm:{new}\{{.*\}} (\S+)$", text, re.M)
        assert one == other
        assert float(one) > 0


def test_corrupted_requests_are_counted(measured):
    before = measured.metric("vllm:corrupted_requests_total")
    assert measured.complete(prompt=[255]).status_code == 500  # the fake model's logits break
    assert measured.complete().status_code == 200
    assert measured.metric("vllm:corrupted_requests_total") == before + 1


def test_replies_tell_their_times(measured):
    reply = measured.complete(max_tokens=8)
    times = reply.json()["metrics"]
    assert sorted(times) == sorted(TIMES)
    assert all(value is not None and value >= 0 for value in times.values())
    assert times["mean_itl_ms"] == pytest.approx(times["generation_time_ms"] / 7)
    assert measured.complete(max_tokens=1).json()["metrics"]["mean_itl_ms"] is None
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
    reply = measured.client.post("/v1/chat/completions", json=chat)
    assert reply.json()["metrics"]["tokens_per_second"] > 0
    for path, fields in (("/v1/completions", body()), ("/v1/chat/completions", chat)):
        asked = {**fields, "stream": True, "stream_options": {"include_usage": True}}
        *chunks, last, done = events(measured.client.post(path, json=asked).text)
        assert done == "[DONE]"
        assert sorted(json.loads(last)["metrics"]) == sorted(TIMES)
        assert not any("metrics" in json.loads(chunk) for chunk in chunks)


def test_without_the_flag_there_is_none(server):
    assert server.complete().json()["metrics"] is None
    text = server.client.get("/metrics").text
    for name in (
        "corrupted_requests",
        "kv_block_lifetime",
        "gpu_cache_usage",
        "time_per_output_token_s",
    ):
        assert name not in text.replace("request_time_per_output_token_seconds", "")
    assert server.metric("vllm:estimated_flops_per_gpu_total") == 0


def exposed(server):
    """(type, labels of each sample by the sample's name) of each metric."""
    assert server.complete().status_code == 200
    found = {}
    for family in text_string_to_metric_families(server.client.get("/metrics").text):
        samples = {}
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample.labels)
        found[family.name] = (family.type, samples)
    return found


SUFFIXES = {
    "gauge": ("",),
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_is_there_with_type_labels_and_buckets(shown_with_flags, row):
    kind, samples = shown_with_flags[row.name]
    assert kind == row.kind
    assert set(samples) == {row.name + suffix for suffix in SUFFIXES[kind]}
    for name, found in samples.items():
        own = {"le"} if name.endswith("_bucket") else set()
        assert all(set(labels) == row.all_labels | own for labels in found), name
    if row.values:
        (series,) = samples.values()
        values = {labels[label] for labels in series for label in row.extra.split()}
        assert values == set(row.values.split())
    if row.buckets:
        labels = samples[f"{row.name}_bucket"]
        bounds = [*map(float, row.buckets.split()), float("inf")]
        assert [float(each["le"]) for each in labels[: len(bounds)]] == bounds
        assert len(labels) % len(bounds) == 0
    if kind in ("counter", "histogram", "summary") and not row.name.startswith(("p",)):
        assert shown_with_flags[f"{row.name}_created"][0] == "gauge"


@pytest.fixture(scope="module")
def shown_with_flags(measured):
    return exposed(measured)


def test_nothing_is_there_but_the_rows(shown_with_flags, server):
    rows = {row.name for row in ROWS}
    old = {name for name, _, _ in OLD_NAMES}
    shown = {name.removesuffix("_created") for name in shown_with_flags}
    assert shown == rows | old | OWN
    assert not shown & set(MISSING)
    assert not any(name.startswith(MISSING_FAMILIES) for name in shown)
    plain = {name.removesuffix("_created") for name in exposed(server)}
    assert plain == {row.name for row in ROWS if not row.asked} | OWN
    kind, samples = shown_with_flags["vllm:cache_config_info"]
    ((labels,),) = samples.values()
    assert kind == "gauge"
    assert set(labels) >= CACHE_LABELS


def test_the_load_header(server):
    def load(form, **fields):
        asked = {"endpoint-load-metrics-format": form}
        reply = server.client.post("/v1/completions", json=body(**fields), headers=asked)
        return reply.headers.get("endpoint-load-metrics")

    assert re.fullmatch(
        r"TEXT named_metrics\.kv_cache_usage_perc=[\d.e-]+, "
        r"named_metrics\.num_requests_waiting=\d+",
        load("text"),
    )
    kind, _, data = load("JSON").partition(" ")
    assert kind == "JSON"
    named = json.loads(data)["named_metrics"]
    assert sorted(named) == ["kv_cache_usage_perc", "num_requests_waiting"]
    assert load("xml") is None
    assert load("text", stream=True) is None
    assert load("text", temperature=-1) is None
    assert until(lambda: "unknown endpoint-load-metrics-format" in server.text())
    assert "endpoint-load-metrics" not in server.complete().headers


def test_metrics_can_be_switched_off(bundle):
    with Server(bundle, metrics=MetricsConfig(serve=False)) as server:
        assert server.client.get("/metrics").status_code == 404
        assert server.complete().status_code == 200
