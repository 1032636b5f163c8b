"""Greedy token ids of the fp32 bundle equal transformers' over HTTP, whatever the engine does.

The reference is transformers' own GGUF reader (golden_reference.py); ids are compared, never text.
 Each test first shows from /metrics that the event it is about took place.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

served = sys.modules["ortloom_test_served"]

HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
PREEMPTIONS = "vllm:num_preemptions_total"
ITERATION = "vllm:iteration_tokens_total"

NO_LIBRARY = {"ORTLOOM_NO_OPS": "1"}
PORTABLE = {"ORTLOOM_CPU_ISA": "portable"}
AVX2 = {"ORTLOOM_CPU_ISA": "avx2"}

ENVIRONMENTS = {"best": {}, "no_library": NO_LIBRARY, "portable": PORTABLE, "avx2": AVX2}


def tiers(*quick):
    """Every tier; those not named here run with `make test-full`."""
    return [
        pytest.param(env, id=name, marks=() if name in quick else pytest.mark.full)
        for name, env in ENVIRONMENTS.items()
    ]


def chat(server, row, **extra):
    body = {
        "messages": [{"role": "user", "content": row["question"]}],
        "temperature": 0,
        "max_tokens": 64,
        "return_token_ids": True,
        **extra,
    }
    reply = server.client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def check(row, answer):
    assert answer["prompt_token_ids"] == row["prompt_ids"]
    choice = answer["choices"][0]
    assert choice["token_ids"] == row["output_ids"]
    assert choice["finish_reason"] == ("length" if len(row["output_ids"]) == 64 else "stop")


def alone(server, rows):
    for row in rows:
        check(row, chat(server, row))


def in_flight(server, rows):
    with ThreadPoolExecutor(len(rows)) as threads:
        for row, answer in zip(rows, threads.map(lambda r: chat(server, r), rows), strict=True):
            check(row, answer)


def tier_shown(server, env):
    """The server really runs what the environment asks for."""
    info = server.client.get("/server_info", params={"config_format": "json"}).json()
    provider = info["engine"]["provider"]
    if "ORTLOOM_NO_OPS" in env:
        assert provider["name"] == "plain"
        assert "ORTLOOM_NO_OPS" in provider["losing"]["cpu"]
    else:
        assert provider["name"] == "cpu"
        assert f"ops on {env.get('ORTLOOM_CPU_ISA', '')}" in provider["detail"]


@pytest.mark.parametrize("env", tiers("best"))
def test_prefix_cache_on(demo_bundle, golden, env):
    with served.Served(demo_bundle, env=env) as server:
        tier_shown(server, env)
        alone(server, golden)
        hits = server.metrics()[HITS]
        assert hits > 0
        in_flight(server, golden)
        assert server.metrics()[HITS] > hits


@pytest.mark.parametrize("env", tiers("best"))
def test_prefix_cache_off(demo_bundle, golden, env):
    with served.Served(demo_bundle, "--no-enable-prefix-caching", env=env) as server:
        tier_shown(server, env)
        in_flight(server, golden)
        alone(server, golden)
        assert server.metrics()[HITS] == 0


@pytest.mark.parametrize("env", tiers("best"))
def test_chunked_prefill_budget_16(demo_bundle, golden, env):
    flags = ["--max-num-batched-tokens", "16", "--max-num-seqs", "16"]
    with served.Served(demo_bundle, *flags, env=env) as server:
        tier_shown(server, env)
        in_flight(server, golden)
        alone(server, golden)
        metrics = server.metrics()
        # a step computes at most 16 tokens and draws at most 16, and every prompt is longer than
        # both together: all were prefilled in chunks
        assert min(len(row["prompt_ids"]) for row in golden) > 32
        assert served.bucket(metrics, ITERATION, "32.0") == metrics[ITERATION + "_count"] > 0


@pytest.mark.parametrize("env", tiers("best"))
def test_chunked_prefill_budget_512(demo_bundle, golden, env):
    flags = ["--max-num-batched-tokens", "512", "--no-enable-prefix-caching"]
    long_prompt = [1000 + i % 40000 for i in range(1500)]
    with served.Served(demo_bundle, *flags, env=env) as server, ThreadPoolExecutor(1) as side:
        tier_shown(server, env)
        body = {"prompt": long_prompt, "max_tokens": 4, "temperature": 0}
        filler = side.submit(server.client.post, "/v1/completions", json=body)
        in_flight(server, golden)
        alone(server, golden[:3])
        assert filler.result().json()["usage"]["prompt_tokens"] == len(long_prompt)
        metrics = server.metrics()
        # a prompt of 1500 tokens and no step over 1024 (512 computed and the tokens drawn)
        assert served.bucket(metrics, ITERATION, "1024.0") == metrics[ITERATION + "_count"]
        assert served.bucket(metrics, ITERATION, "256.0") < metrics[ITERATION + "_count"]


@pytest.mark.parametrize("env", tiers("best", "no_library"))
@pytest.mark.parametrize("caching", ["--enable-prefix-caching", "--no-enable-prefix-caching"])
def test_pool_so_small_that_requests_are_preempted(demo_bundle, golden, env, caching):
    flags = ["--num-gpu-blocks-override", "24", "--max-model-len", "256", caching]
    with served.Served(demo_bundle, *flags, env=env) as server:
        tier_shown(server, env)
        in_flight(server, golden)
        metrics = server.metrics()
        assert metrics[PREEMPTIONS] > 0
        assert metrics["vllm:num_requests_running"] == metrics["vllm:num_requests_waiting"] == 0
        assert metrics["vllm:kv_cache_usage_perc"] == 0
