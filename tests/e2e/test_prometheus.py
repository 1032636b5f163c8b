"""The dashboard's queries asked of a real Prometheus that scrapes a real server with two fronts."""

import json
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from prometheus import Prometheus, tool

served = sys.modules["ortloom_test_served"]

pytestmark = pytest.mark.full

BOARD = json.loads(
    (Path(__file__).resolve().parents[2] / "docs" / "grafana-dashboard.json").read_text()
)
SCRAPES = 8
SEA = "The sea is a place of endless wonder and mystery. " * 8


def traffic(server):
    """Requests of many kinds, each over a connection of its own; (answered, refused, usages)."""
    plain = {"prompt": SEA, "max_tokens": 6, "temperature": 0}
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6}
    asked = [
        ("/v1/completions", plain),
        ("/v1/completions", plain),  # finds the prefix in the cache
        ("/v1/completions", {**plain, "n": 3, "temperature": 1}),
        ("/v1/completions", {**plain, "stream": True, "stream_options": {"include_usage": True}}),
        ("/v1/chat/completions", chat),
        ("/v1/completions", {**plain, "temperature": -1}),
        ("/v1/nowhere", {}),
    ]

    def ask(pair):
        path, body = pair
        reply = httpx.post(server.url + path, json=body, timeout=120)
        if reply.status_code != 200:
            return None
        if body.get("stream"):
            return json.loads(reply.text.split("\n\n")[-3].removeprefix("data: "))["usage"]
        return reply.json()["usage"]

    with ThreadPoolExecutor(4) as pool:
        usages = list(pool.map(ask, asked))
    assert usages.count(None) == 2
    return [usage for usage in usages if usage is not None]


@pytest.fixture(scope="module")
def server(demo_bundle_int4):
    flags = ["--api-server-count", "2", "--max-model-len", "512", "--served-model-name", "demo"]
    with served.Served(demo_bundle_int4, *flags) as running:
        yield running


@pytest.fixture(scope="module")
def scraped(server, tmp_path_factory):
    """(Prometheus, usages of all requests) once it has seen the server work for some seconds."""
    port = served.free_port()
    folder = tmp_path_factory.mktemp("prometheus")
    with Prometheus(f"127.0.0.1:{server.port}", port, folder) as prometheus:
        usages = []
        end = time.monotonic() + 240
        while prometheus.values("count_over_time(up[10m])") < [SCRAPES]:
            assert time.monotonic() < end
            usages += traffic(server)
        last = prometheus.values("count_over_time(up[10m])")[0]
        while prometheus.values("count_over_time(up[10m])")[0] < last + 2:
            time.sleep(0.2)  # what was done last has been scraped then
        yield prometheus, usages


def expressions():
    return [t["expr"] for panel in BOARD["panels"] for t in panel["targets"]]


@pytest.mark.parametrize("expression", expressions())
def test_the_dashboard_shows_a_number(scraped, expression):
    prometheus, _ = scraped
    filled = expression.replace("$model_name", ".*").replace("$__rate_interval", "5m")
    assert "$" not in filled
    values = prometheus.values(filled)
    assert values
    assert all(math.isfinite(value) and value >= 0 for value in values)
    if "histogram_quantile" in filled:
        assert max(values) > 0


def test_the_variables_of_the_dashboard_have_values(scraped):
    prometheus, _ = scraped
    (query,) = (v["query"]["query"] for v in BOARD["templating"]["list"] if v["type"] == "query")
    series, label = query.removeprefix("label_values(").removesuffix(")").split(", ")
    assert prometheus.api(f"label/{label}/values", **{"match[]": series}) == ["demo"]


def test_every_scrape_worked(scraped):
    prometheus, _ = scraped
    (target,) = prometheus.api("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    assert prometheus.values("min_over_time(up[10m])") == [1]
    assert prometheus.values("min_over_time(scrape_samples_scraped[10m])")[0] > 300
    assert "level=error" not in prometheus.log.read_text()
    types = prometheus.api("metadata", metric="vllm:iteration_tokens_total")
    assert [each["type"] for each in types["vllm:iteration_tokens_total"]] == ["histogram"]


def test_the_sums_over_both_fronts_are_what_was_done(scraped, server):
    prometheus, usages = scraped
    done = {
        "vllm:generation_tokens_total": sum(u["completion_tokens"] for u in usages),
        "vllm:request_generation_tokens_sum": sum(u["completion_tokens"] for u in usages),
        "vllm:request_success_total": len(usages) / 5 * 7,  # one request in five has three samples
        'http_requests_total{status="2xx",method="POST"}': len(usages),
        'http_requests_total{status="4xx",method="POST"}': len(usages) / 5 * 2,
        "vllm:request_params_n_count": len(usages) / 5 * 7,
        "vllm:num_requests_running": 0,
    }
    for name, value in done.items():
        assert prometheus.values(f"sum({name})") == [value], name
        assert sum(prometheus.values(f"min_over_time({name}[10m])")) <= value
    assert prometheus.values("sum(vllm:prefix_cache_hits_total)")[0] > 0
    for name in (
        "vllm:generation_tokens_total",
        "vllm:request_success_total",
        "http_requests_total",
    ):
        resets = prometheus.values(f"resets({name}[10m])")
        assert resets
        assert not any(resets), name


def test_the_format_is_what_promtool_reads(server):
    text = server.client.get("/metrics").content
    done = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=text, capture_output=True, timeout=120
    )
    # it is of another opinion about vLLM's names, but could read all
    assert done.returncode in (0, 3), done.stderr
    assert b"error while linting" not in done.stderr
