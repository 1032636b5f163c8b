"""The exposition: names, values, sums over fronts, and counters that never fall."""

import asyncio
import math
import os
import re
import signal
import time
from contextlib import suppress

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import COMPLETIONS, Server, body, long_body, read_until, until

from ortloom.errors import EngineDead, QueueFull
from ortloom.runtime.messages import EngineOutput, EngineStats, RequestTimes, StepArrival
from ortloom.runtime.output_stream import OutputStream
from ortloom.server.metrics import FrontMetrics
from ortloom.server.metrics_buckets import one_two_five
from ortloom.server.metrics_snapshot import Family, Snapshot, SnapshotStore
from ortloom.server.metrics_text import families_of, render, series_name

GAUGES = """
num_requests_running num_requests_waiting num_requests_waiting_by_reason kv_cache_usage_perc
engine_sleep_state cache_config_info
"""
COUNTERS = """
prompt_tokens prompt_tokens_by_source prompt_tokens_cached generation_tokens request_success
num_preemptions prefix_cache_queries prefix_cache_hits external_prefix_cache_queries
external_prefix_cache_hits mm_cache_queries mm_cache_hits admission_rejections
"""
HISTOGRAMS = """
iteration_tokens_total time_to_first_token_seconds inter_token_latency_seconds
request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds
request_prefill_time_seconds request_decode_time_seconds request_inference_time_seconds
request_prompt_tokens request_generation_tokens request_prefill_kv_computed_tokens
request_max_num_generation_tokens request_params_max_tokens request_params_n
request_num_preemptions
"""


def test_every_series_is_there_before_traffic(bundle):
    with Server(bundle) as server:
        reply = server.client.get("/metrics")
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        types = dict(re.findall(r"^# TYPE (\S+) (\w+)$", reply.text, re.M))
        for names, kind, suffix in (
            (GAUGES, "gauge", ""),
            (COUNTERS, "counter", "_total"),
            (HISTOGRAMS, "histogram", ""),
        ):
            for name in names.split():
                assert types[f"vllm:{name}{suffix}"] == kind, name
        for reason in ("stop", "length", "abort", "error", "repetition"):
            assert f'finished_reason="{reason}",model_name="tiny"}} 0.0' in reply.text
        for name in ("python_info", "python_gc_collections_total", "process_cpu_seconds_total"):
            assert name in types
        assert 'le="2000.0"' in reply.text
        assert 'le="5000.0"' not in re.search(r"vllm:request_prompt_tokens_bucket.*", reply.text)[0]
        for family in text_string_to_metric_families(reply.text):
            for sample in family.samples:
                if sample.name.startswith("vllm:") and not sample.name.endswith("_config_info"):
                    assert sample.labels["model_name"] == "tiny"
                    parser = sample.name.startswith("vllm:tool_call_parser_invocations_")
                    assert sample.labels.get("engine") == (None if parser else "0")


def test_numbers_agree_with_usage(server):
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    before = server.metrics()
    reply = server.complete(prompt=[97, 98, 99, 100, 101, 102, 103], max_tokens=5, n=1)
    usage = reply.json()["usage"]
    after = server.metrics()

    def gain(name, **labels):
        picked = [k for k in after if k.partition("{")[0] == name]
        picked = [k for k in picked if all(f'{a}="{b}"' in k for a, b in labels.items())]
        return sum(after[k] - before.get(k, 0) for k in picked)

    assert [gain(n) for n in names] == [usage["prompt_tokens"], usage["completion_tokens"]]
    assert gain("vllm:request_success_total", finished_reason="length") == 1
    assert gain("vllm:request_success_total") == 1
    for name in HISTOGRAMS.split()[1:]:
        expected = 4 if name == "inter_token_latency_seconds" else 1
        assert gain(f"vllm:{name}_count") == expected, name
    assert gain("vllm:request_prompt_tokens_sum") == 7
    assert gain("vllm:request_generation_tokens_sum") == 5
    assert gain("http_requests_total", handler=COMPLETIONS, method="POST", status="2xx") == 1
    assert gain("http_requests_total", handler="/metrics") == 0


def test_refusals_count_as_http_only(server):
    server.idle()
    before = server.metric("vllm:request_success_total")
    errors = server.metric("http_requests_total", status="4xx")
    assert server.complete(temperature=-1).status_code == 400
    assert server.metric("vllm:request_success_total") == before
    assert server.metric("http_requests_total", status="4xx") == errors + 1


def check_histograms(samples):
    groups = {}
    for series, value in samples.items():
        if match := re.fullmatch(r'(\S+)_bucket\{(.*?)le="([^"]+)"(.*)\}', series):
            name = (match[1], match[2] + match[4])
            groups.setdefault(name, []).append((float(match[3]), value))
    assert len(groups) > 10
    for name, buckets in groups.items():
        buckets.sort()
        values = [value for _, value in buckets]
        assert values == sorted(values), name
        assert buckets[-1][0] == math.inf
        labels = name[1].strip(",").replace(",,", ",")
        count = f"{name[0]}_count" + (f"{{{labels}}}" if labels else "")
        assert values[-1] == samples[count], count


def cumulative(samples):
    return {
        k: v
        for k, v in samples.items()
        if re.search(r"_(total|bucket|count|sum)(\{|$)", k) and "_created" not in k
    }


def test_two_fronts_are_summed_and_a_dead_one_is_not_forgotten(guarded):
    """Requests spread over both fronts; each scrape gives the whole, also after a kill -9."""
    before = guarded.metric("vllm:request_success_total")
    for _ in range(12):
        with guarded.connect() as sock:  # a new connection each: either front may take it
            sock.sendall(guarded.request(body(), headers=["Connection: close"]))
            read_until(sock, b'"usage"')
    until(lambda: guarded.metric("vllm:request_success_total") == before + 12, 5)
    for _ in range(6):
        with guarded.connect() as sock:
            sock.sendall(
                guarded.request(
                    method="GET", path="/metrics", length=False, headers=["Connection: close"]
                )
            )
            text = b""
            while part := sock.recv(1 << 16):
                text += part
            found = re.findall(rb"^vllm:request_success_total.* (\S+)$", text, re.M)
            assert sum(map(float, found)) == before + 12
    samples = guarded.metrics()
    check_histograms(samples)
    old = guarded.front_pids
    os.kill(old[0], signal.SIGKILL)
    until(lambda: len(set(guarded.front_pids) - set(old)) == 1, 10)
    guarded.client.close()
    guarded.client = type(guarded.client)(base_url=guarded.url, headers=guarded.headers, timeout=30)
    for _ in range(10):
        now = cumulative(guarded.metrics())
        for series, value in cumulative(samples).items():
            assert now[series] >= value, series
        time.sleep(0.1)
    assert guarded.metric("vllm:request_success_total") == before + 12


def test_no_request_numbers_without_log_stats(bundle):
    from ortloom.config import LogConfig

    with Server(bundle, log=LogConfig(log_stats=False)) as server:
        assert server.complete().status_code == 200
        text = server.client.get("/metrics").text
        assert "vllm:" not in text
        assert 'http_requests_total{handler="/v1/completions"' in text


def test_gauges_show_what_runs(server):
    with server.connect() as sock:
        sock.sendall(server.request(long_body()))
        read_until(sock, b"data: {")
        assert server.metric("vllm:num_requests_running") == 1
        assert server.metric("vllm:kv_cache_usage_perc") > 0
    server.idle()


def test_one_two_five():
    assert one_two_five(1) == (1,)
    assert one_two_five(60) == (1, 2, 5, 10, 20, 50)
    assert one_two_five(2048)[-3:] == (500, 1000, 2000)
    assert one_two_five(100)[-1] == 100


def counter(name, value, created=5.0, merge="sum"):
    return Family(name, "", "counter", merge, {f"{name}_total": value, f"{name}_created": created})


def test_snapshots_add_up_and_the_dead_keep_their_counters():
    store = SnapshotStore()
    gauge = Family("g", "", "gauge", "live", {"g": 4.0})
    store.update(0, Snapshot([counter("c", 3.0, 9.0), gauge], EngineStats(num_steps=7)))
    store.update(1, Snapshot([counter("c", 4.0, 6.0), gauge], EngineStats(num_steps=5)))
    total = store.total()
    assert total.stats.num_steps == 7
    assert total.families[0].series == {"c_total": 7.0, "c_created": 6.0}
    assert total.families[1].series == {"g": 8.0}
    store.retire(0)
    store.update(0, Snapshot([counter("c", 1.0, 11.0)]))
    series = {f.name: f.series for f in store.total().families}
    assert series == {"c": {"c_total": 8.0, "c_created": 6.0}, "g": {"g": 4.0}}
    assert store.total().stats.num_steps == 7


def test_label_values_are_escaped():
    assert series_name("a", {"b": 'x"\\\n', "a": "1"}) == 'a{a="1",b="x\\"\\\\\\n"}'


def value_of(front, name):
    for family in families_of(front.registry):
        for series, value in family.series.items():
            if series.startswith(name):
                return value
    raise KeyError(name)


def out(request_id, tokens=1, reason=None, **fields):
    return EngineOutput(request_id, [1] * tokens, finish_reason=reason, **fields)


def test_merged_steps_are_measured_one_by_one():
    front = FrontMetrics("m", 64)
    stream = OutputStream()
    for index in range(4):
        stream.push(out("a", 2 if index == 2 else 1, "length" if index == 3 else None))
    merged = asyncio.run(stream.next())
    assert len(merged.new_token_ids) == sum(a.num_tokens for a in merged.arrivals) == 5
    times = [StepArrival(101.0 + i, a.num_tokens) for i, a in enumerate(merged.arrivals)]
    cut = msgspec.structs.replace(merged, new_token_ids=merged.new_token_ids[:3], arrivals=times)
    with front.request(prompt_tokens=1, max_tokens=9, n=1, arrival=100.0) as measured:
        measured.on_output(cut, 110.0)
    assert value_of(front, "vllm:time_to_first_token_seconds_sum") == 1.0
    assert value_of(front, "vllm:inter_token_latency_seconds_count") == 2
    assert value_of(front, "vllm:inter_token_latency_seconds_sum") == 2.0
    assert value_of(front, "vllm:request_generation_tokens_sum") == 3


def test_request_metrics_of_two_samples():
    front = FrontMetrics("m", 64)
    with front.request(prompt_tokens=10, max_tokens=7, n=2, arrival=100.0) as measured:
        measured.on_output(out("a", num_cached_tokens=4), 101.0)
        measured.on_output(out("a", 2), 102.0)
        times = RequestTimes(100.5, 100.75, 101.0, 103.0)
        measured.on_output(out("a", 1, "stop", times=times, num_preemptions=1), 103.0)
        measured.on_output(out("b"), 101.5)
        measured.finish("stop", "b")
        measured.on_output(out("b", 5, "length"), 104.0)  # what overshoots is not counted
    assert value_of(front, "vllm:request_generation_tokens_sum") == 5
    assert value_of(front, "vllm:request_max_num_generation_tokens_sum") == 4
    assert value_of(front, "vllm:time_to_first_token_seconds_sum") == 2.5
    assert value_of(front, "vllm:inter_token_latency_seconds_count") == 2
    assert value_of(front, "vllm:request_queue_time_seconds_sum") == 0.25
    assert value_of(front, "vllm:request_prefill_time_seconds_sum") == 0.25
    assert value_of(front, "vllm:request_inference_time_seconds_sum") == 2.25
    assert value_of(front, "vllm:request_decode_time_seconds_sum") == 2.0
    assert value_of(front, "vllm:request_prefill_kv_computed_tokens_sum") == 16
    assert front.success["stop"]._value.get() == 2


@pytest.mark.parametrize(
    ("error", "counted"),
    [(QueueFull("full"), {}), (EngineDead("gone"), {"error": 1}), (None, {"abort": 1})],
)
def test_requests_that_end_without_output(error, counted):
    front = FrontMetrics("m", 64)
    with suppress(QueueFull, EngineDead), front.request(prompt_tokens=1):
        if error:
            raise error
    values = {k: v._value.get() for k, v in front.success.items() if v._value.get()}
    assert values == counted


def test_ending_very_many_samples_takes_linear_time():
    """A client that leaves with n at its limit must not hold up the front."""
    front = FrontMetrics("m", 64)
    began = time.process_time()
    with front.request(prompt_tokens=3, n=16384) as measured:
        measured.on_output(EngineOutput("a", [5, 6]), 1.0)
    assert time.process_time() - began < 4
    assert value_of(front, "vllm:request_max_num_generation_tokens_count") == 1
    assert value_of(front, "vllm:request_max_num_generation_tokens_sum") == 2
    assert value_of(front, "vllm:e2e_request_latency_seconds_count") == 16384


def test_rendered_text_parses():
    front = FrontMetrics('we"ird\\name', 64)
    front.http("/x", "GET", 200, 0.2, 1, 2)
    families = list(text_string_to_metric_families(render(families_of(front.registry)).decode()))
    labels = {
        sample.labels["model_name"]
        for family in families
        if family.name == "vllm:request_success"
        for sample in family.samples
    }
    assert labels == {'we"ird\\name'}
