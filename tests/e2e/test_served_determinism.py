"""A served request gives the same tokens alone and among others, with one thread and with two."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

served = sys.modules["ortloom_test_served"]

TOKENS = 10
LONG = "The river rose for three days, and on the fourth the miller counted his sacks. " * 8
REQUESTS = [
    {"prompt": "The capital of Portugal is", "temperature": 0},
    {"prompt": "Once upon a time", "temperature": 1.0, "seed": 7},
    {"prompt": LONG, "temperature": 0},
    {"prompt": LONG, "temperature": 1.3, "seed": 2**40 + 1, "top_p": 0.9, "top_k": 200},
    {"prompt": "def add(a, b):", "temperature": 0, "repetition_penalty": 1.2},
    {"prompt": "A list of three birds:", "temperature": 0.9, "seed": 3, "min_p": 0.02, "n": 2},
]
BUNDLES = ["demo_bundle_int4", pytest.param("demo_bundle", marks=pytest.mark.full)]


def tokens(server, request):
    """Token ids of each sample."""
    body = {"max_tokens": TOKENS, "ignore_eos": True, "return_token_ids": True, **request}
    reply = server.client.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    choices = sorted(reply.json()["choices"], key=lambda choice: choice["index"])
    return [choice["token_ids"] for choice in choices]


def alone(server):
    return [tokens(server, request) for request in REQUESTS]


def together(server):
    """All at once, in a step with each other: fewer steps than tokens show it."""
    before = server.metrics()["vllm:iteration_tokens_total_count"]
    with ThreadPoolExecutor(len(REQUESTS)) as threads:
        got = list(threads.map(lambda request: tokens(server, request), REQUESTS))
    steps = server.metrics()["vllm:iteration_tokens_total_count"] - before
    assert steps < TOKENS * len(REQUESTS) / 2
    return got


def configured_threads(server):
    info = server.client.get("/server_info", params={"config_format": "json"}).json()
    return info["vllm_config"]["provider"]["threads"]


@pytest.mark.parametrize("bundle", BUNDLES)
def test_tokens_depend_on_the_request_only(request, bundle):
    folder = request.getfixturevalue(bundle)
    seen = {}
    for threads in (1, 2):
        flags = ["--threads", str(threads), "--no-enable-prefix-caching"]
        with served.Served(folder, *flags, "--num-gpu-blocks-override", "256") as server:
            assert configured_threads(server) == threads
            seen[threads, "alone"] = alone(server)
            seen[threads, "together"] = together(server)
    wanted = seen[1, "alone"]
    assert [[len(ids) for ids in samples] for samples in wanted] == [
        [TOKENS] * request.get("n", 1) for request in REQUESTS
    ]
    assert len({tuple(ids) for samples in wanted for ids in samples}) == 1 + len(REQUESTS)
    for how, got in seen.items():
        assert got == wanted, how
