"""Figures of a load: arrivals, distributions, peaks, the table and the JSON."""

import numpy as np
import pytest

from ortloom.bench.arrivals import RampUp, arrival_times
from ortloom.bench.generation import Record
from ortloom.bench.serving_metrics import Distribution, measure, peak_concurrency, peak_tokens
from ortloom.bench.serving_report import Setup, file_name, result, table
from ortloom.bench.speculation import parse_counters

INF = float("inf")


def record(start=0.0, ttft=0.1, itls=(0.1, 0.1), tokens=3, prompt=10, error=""):
    return Record(
        prompt_tokens=prompt,
        output_tokens=tokens,
        start=start,
        ttft=ttft,
        latency=ttft + sum(itls),
        itls=list(itls),
        text="x",
        error=error,
    )


def test_arrivals():
    assert arrival_times(3, INF) == [0.0, 0.0, 0.0]
    poisson = np.diff(arrival_times(20_001, 50.0, seed=3))
    assert poisson.mean() == pytest.approx(1 / 50, rel=0.03)
    assert poisson.std() == pytest.approx(1 / 50, rel=0.05)
    even = np.diff(arrival_times(20_001, 50.0, burstiness=100.0, seed=3))
    assert even.mean() == pytest.approx(1 / 50, rel=0.01)
    assert even.std() == pytest.approx(1 / 500, rel=0.05)
    assert arrival_times(9, 5.0, seed=1) == arrival_times(9, 5.0, seed=1)
    assert arrival_times(9, 5.0, seed=1) != arrival_times(9, 5.0, seed=2)


@pytest.mark.parametrize(("strategy", "middle"), [("linear", 50.5), ("exponential", 10.0)])
def test_ramp_up(strategy, middle):
    ramp = RampUp(strategy, 1.0, 100.0)
    assert (ramp.rate(0), ramp.rate(0.5), ramp.rate(1)) == pytest.approx((1.0, middle, 100.0))
    gaps = np.diff(arrival_times(4001, INF, burstiness=1e6, ramp_up=ramp))
    assert gaps[0] == pytest.approx(1.0, rel=0.01)
    assert gaps[2000] == pytest.approx(1 / middle, rel=0.01)
    assert gaps[-1] == pytest.approx(1 / 100, rel=0.01)


def test_distribution_is_in_milliseconds():
    times = Distribution.of([0.1, 0.2, 0.3, 0.4], [50, 99.5])
    assert times.mean == pytest.approx(250)
    assert times.median == pytest.approx(250)
    assert times.std == pytest.approx(np.std([100, 200, 300, 400]))
    assert times.percentiles == ((50, pytest.approx(250)), (99.5, pytest.approx(398.5)))
    assert Distribution.of([], [99]) == Distribution(0.0, 0.0, 0.0, ((99, 0.0),))


def test_measure():
    records = [
        record(),
        record(start=1.0, ttft=0.3, itls=(), tokens=1, prompt=4),
        record(error="HTTP 500: no", tokens=None),
    ]
    metrics = measure(records, 2.0, [99], {"ttft": 200.0, "e2el": 500.0})
    assert (metrics.completed, metrics.failed) == (2, 1)
    assert (metrics.total_input, metrics.total_output) == (14, 4)
    assert metrics.request_throughput == 1.0
    assert metrics.output_throughput == 2.0
    assert metrics.total_throughput == 9.0
    assert metrics.request_goodput == 0.5  # the second is over its time to first token
    assert metrics.times["ttft"].mean == pytest.approx(200)
    assert metrics.times["tpot"].mean == pytest.approx(100)  # of the one with several tokens
    assert metrics.times["itl"].mean == pytest.approx(100)
    assert metrics.times["e2el"].mean == pytest.approx(300)
    assert measure(records, 2.0, [99]).request_goodput is None


def test_measure_with_nothing_done():
    metrics = measure([record(error="x", tokens=None)], 0.0, [99])
    assert (metrics.completed, metrics.failed, metrics.peak_concurrent) == (0, 1, 0)
    assert metrics.output_throughput == 0.0
    assert metrics.times["ttft"].mean == 0.0


def test_peaks():
    # tokens at 0.5, 1.5, 1.7 and at 1.2 (two of them in one piece)
    records = [
        record(start=5.0, ttft=0.5, itls=(1.0, 0.2)),
        record(start=6.0, ttft=0.2, itls=(), tokens=2),
    ]
    assert peak_tokens(records) == 4.0
    assert peak_concurrency(records) == 2
    after = [record(start=0.0, ttft=1.0, itls=()), record(start=1.0, ttft=1.0, itls=())]
    assert peak_concurrency(after) == 1


SETUP = Setup(
    date="20260102-030405",
    backend="openai",
    label="openai",
    model_id="org/some-model",
    tokenizer_id=None,
    num_prompts=2,
    metadata={"machine": "here"},
    request_rate=INF,
    burstiness=1.0,
    max_concurrency=None,
)
LIMITED = Setup(
    **{
        **{name: getattr(SETUP, name) for name in SETUP.__struct_fields__},
        "request_rate": 2.5,
        "max_concurrency": 4,
    }
)
METRICS = measure([record(), record(start=0.1)], 1.0, [99, 99.9], {"tpot": 500.0})


def test_table():
    lines = table(LIMITED, METRICS, ["ttft", "tpot"]).splitlines()
    assert lines == [
        "============ Serving Benchmark Result ============",
        "Successful requests:                     2         ",
        "Failed requests:                         0         ",
        "Maximum request concurrency:             4         ",
        "Request rate configured (RPS):           2.50      ",
        "Benchmark duration (s):                  1.00      ",
        "Total input tokens:                      20        ",
        "Total generated tokens:                  6         ",
        "Request throughput (req/s):              2.00      ",
        "Request goodput (req/s):                 2.00      ",
        "Output token throughput (tok/s):         6.00      ",
        "Peak output token throughput (tok/s):    6.00      ",
        "Peak concurrent requests:                2.00      ",
        "Total token throughput (tok/s):          26.00     ",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):                          100.00    ",
        "Median TTFT (ms):                        100.00    ",
        "P99 TTFT (ms):                           100.00    ",
        "P99.9 TTFT (ms):                         100.00    ",
        "-----Time per Output Token (excl. 1st token)------",
        "Mean TPOT (ms):                          100.00    ",
        "Median TPOT (ms):                        100.00    ",
        "P99 TPOT (ms):                           100.00    ",
        "P99.9 TPOT (ms):                         100.00    ",
        "==================================================",
    ]
    unlimited = table(SETUP, METRICS, [])
    assert "Maximum request concurrency" not in unlimited
    assert "Request rate" not in unlimited


def test_result():
    tree = result(SETUP, METRICS, ["ttft", "e2el"], details=[record(), record(error="no")])
    assert list(tree) == [
        *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts"),
        *("machine", "request_rate", "burstiness", "max_concurrency", "duration", "completed"),
        *("failed", "total_input_tokens", "total_output_tokens", "request_throughput"),
        *("request_goodput", "output_throughput", "total_token_throughput"),
        *("max_output_tokens_per_s", "max_concurrent_requests", "rtfx"),
        *("mean_ttft_ms", "median_ttft_ms", "std_ttft_ms", "p99_ttft_ms", "p99.9_ttft_ms"),
        *("mean_e2el_ms", "median_e2el_ms", "std_e2el_ms", "p99_e2el_ms", "p99.9_e2el_ms"),
        *("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts"),
        "errors",
    ]
    assert tree["request_rate"] == "inf"
    assert result(LIMITED, METRICS, [])["request_rate"] == 2.5
    assert tree["errors"] == ["", "no"]
    assert tree["itls"] == [[0.1, 0.1], [0.1, 0.1]]


def test_file_names():
    assert file_name(SETUP) == "openai-infqps-some-model-20260102-030405.json"
    assert file_name(LIMITED) == "openai-2.5qps-concurrency4-some-model-20260102-030405.json"
    ramp = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 9.5}
    fields = {name: getattr(SETUP, name) for name in SETUP.__struct_fields__}
    ramped = Setup(**{**fields, "ramp_up": ramp})
    expected = "openai-ramp-up-linear-1qps-9.5qps-some-model-20260102-030405.json"
    assert file_name(ramped) == expected


COUNTERS = """# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{engine="0"} 10.0
vllm:spec_decode_num_drafts_total{engine="1"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 40.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 30.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 20.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 10.0
vllm:num_requests_running{engine="0"} 3.0
"""


def test_speculation():
    before = parse_counters("")
    assert before.drafts == 0
    counters = parse_counters(COUNTERS).since(before)
    assert counters.acceptance_rate == 75.0
    assert counters.acceptance_length == 2.5
    assert counters.position_rates() == [1.0, 0.5]
    assert parse_counters(COUNTERS).since(counters).drafts == 0
    lines = table(SETUP, METRICS, [], counters).splitlines()
    at = lines.index("---------------Speculative Decoding---------------")
    assert [" ".join(line.split()) for line in lines[at + 1 : -1]] == [
        "Acceptance rate (%): 75.00",
        "Acceptance length: 2.50",
        "Drafts: 20",
        "Draft tokens: 40",
        "Accepted tokens: 30",
        "Per-position acceptance (%):",
        "Position 0: 100.00",
        "Position 1: 50.00",
    ]
    assert result(SETUP, METRICS, [], counters)["spec_decode_acceptance_rate"] == 75.0
