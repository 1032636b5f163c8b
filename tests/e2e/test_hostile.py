"""Requests made to hurt: each is answered, and the others are answered as before."""

import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

served = sys.modules["ortloom_test_served"]

ORDINARY = {"prompt": "The capital of France is", "max_tokens": 6, "temperature": 0}


def until(condition, limit=30.0):
    """Wait for a condition; returns its value."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("the condition did not come true in time")


@pytest.fixture(scope="module")
def server(demo_bundle):
    flags = ["--max-model-len", "512", "--num-gpu-blocks-override", "34", "--max-num-seqs", "16"]
    with served.Served(demo_bundle, *flags) as running:
        yield running


def tokens(server):
    body = {**ORDINARY, "return_token_ids": True}
    reply = server.client.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["token_ids"]


@pytest.fixture(scope="module")
def before(server):
    return tokens(server)


@pytest.fixture(autouse=True)
def unharmed(server, before):
    """After each test: the same tokens, nothing held, no fault of ours in the log."""
    yield
    assert tokens(server) == before

    def idle():
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        metrics = server.metrics()
        return not any(metrics[f"vllm:{name}"] for name in names)

    until(idle)
    for word in ("Traceback", " ERROR ", "RuntimeWarning"):
        assert word not in server.text()


def complete(server, **fields):
    body = {"prompt": "a", "max_tokens": 4, **fields}
    return server.client.post("/v1/completions", json=body)


def properties(count):
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(count)}}


WIDE_GRAMMAR = "start: x\nx: x x | x x x | x x x x | x x x x x | /./"


@pytest.mark.parametrize(
    ("constraint", "statuses"),
    [
        ({"json": properties(2000)}, {200}),
        ({"choice": [f"v{i}" for i in range(4096)]}, {200}),
        ({"grammar": WIDE_GRAMMAR}, {400}),
        ({"regex": "(.|..|...|....)*z{10}.{200}"}, {200, 400}),
        ({"json": {"type": "string", "pattern": "^(a|b|c|.*d.{50}){20}$"}}, {200, 400}),
    ],
    ids=["properties", "choices", "wide", "states", "pattern"],
)
def test_constraints_that_explode(server, constraint, statuses):
    reply = complete(server, structured_outputs=constraint)
    assert reply.status_code in statuses, reply.text


def test_others_go_on_while_a_constraint_never_ends(server):
    endless = {"grammar": 'start: %json {"type": "integer", "multipleOf": 99999989}'}
    answered = []

    def hurt():
        answered.append(complete(server, structured_outputs=endless))

    thread = threading.Thread(target=hurt)
    thread.start()
    others = 0
    while thread.is_alive():
        assert httpx.post(f"{server.url}/v1/completions", json=ORDINARY).status_code == 200
        others += 1
    assert answered[0].status_code == 400
    assert others > 2
    assert complete(server, structured_outputs={"choice": ["yes"]}).json()["choices"][0]["text"]


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed_token_ids": [2], "min_tokens": 3, "stop_token_ids": [2]},
        {"structured_outputs": {"choice": ["a"]}, "allowed_token_ids": [5]},
        {"structured_outputs": {"regex": "a"}, "bad_words": ["a"]},
        {"stop_token_ids": list(range(49152)), "min_tokens": 4},
    ],
    ids=range(4),
)
def test_constraints_that_leave_nothing_are_the_clients_error(server, fields):
    reply = complete(server, **fields)
    assert reply.status_code == 400, reply.text
    assert "no token is allowed" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 10**40},
        {"repetition_penalty": 5e-324, "temperature": 2},
        {"repetition_penalty": 1e308, "temperature": 0.01, "presence_penalty": -2},
        {"repetition_penalty": 1e-300, "temperature": 0},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1, "temperature": 2, "top_p": 1e-300, "min_p": 1},
        {"logit_bias": {str(i): 100 for i in range(49152)}},
        {"stop": ["x" * 1_000_000, "\U0001f600", "\0", "é"]},
        {"stop_token_ids": list(range(49152))},
        {"cache_salt": "é" * 128},
        {"logprobs": 20, "n": 4, "temperature": 1, "echo": True},
    ],
    ids=range(11),
)
def test_extremes_are_answered(server, fields):
    reply = complete(server, **fields)
    assert reply.status_code == 200, reply.text


def test_scoring_a_prompt_generates_no_token(server):
    before = server.metrics()["vllm:generation_tokens_total"]
    fields = {"prompt": ORDINARY["prompt"], "echo": True, "max_tokens": 0, "logprobs": 1}
    choice = complete(server, **fields).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (ORDINARY["prompt"], "length")
    assert len(choice["logprobs"]["token_logprobs"]) == 5
    complete(server, **fields, stream=True, n=1)
    assert server.metrics()["vllm:generation_tokens_total"] == before


def test_everything_at_once_in_a_pool_that_is_too_small(server):
    """Samples, prompt logprobs and grammars under preemption all come to their end."""
    long = {"prompt": "word " * 120, "max_tokens": 40, "temperature": 1, "seed": 1}
    array = {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 12}}
    bodies = [
        {**long, "n": 2, "ignore_eos": True},
        {**long, "prompt_logprobs": 5, "logprobs": 5, "ignore_eos": True},
        {**long, "structured_outputs": array},
        {**long, "priority": 5, "cache_salt": "x", "ignore_eos": True},
    ] * 2
    before = server.metrics()["vllm:num_preemptions_total"]
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda fields: complete(server, **fields), bodies))
    assert {reply.status_code for reply in replies} == {200}
    assert server.metrics()["vllm:num_preemptions_total"] > before
    scored = replies[1].json()["choices"][0]["prompt_logprobs"]
    assert scored[0] is None
    assert len(scored) == 121
    assert json.loads(json.dumps(scored)) == replies[5].json()["choices"][0]["prompt_logprobs"]


def test_a_stopped_engine_is_waited_for(server):
    engine = server.pid_of("ortloom.runtime.engine_process")
    with ThreadPoolExecutor(1) as pool:
        os.kill(engine, signal.SIGSTOP)
        try:
            waiting = pool.submit(complete, server)
            assert server.client.get("/metrics").status_code == 200
            assert not waiting.done()
        finally:
            os.kill(engine, signal.SIGCONT)
        assert waiting.result(30).status_code == 200


def test_the_grammar_process_ends_with_its_engine(demo_bundle):
    with served.Served(demo_bundle, "--max-model-len", "512") as server:
        assert complete(server, structured_outputs={"regex": "a+"}).status_code == 200
        engine = server.pid_of("ortloom.runtime.engine_process")
        tasks = Path(f"/proc/{engine}/task").iterdir()
        pids = [int(p) for t in tasks for p in (t / "children").read_text().split()]
        assert len(pids) == 1
        server.process.kill()
        server.process.wait()

        def gone(pid):
            stat = Path(f"/proc/{pid}/stat")
            try:
                return stat.read_text().rpartition(")")[2].split()[0] == "Z"
            except (FileNotFoundError, ProcessLookupError):
                return True

        until(lambda: all(map(gone, [engine, *pids])))
