"""The runner on a tiny real graph, with the op library and with the op's body."""

import json
import os
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

from ortloom.errors import ConfigError, InvalidRequest, ManifestError
from ortloom.runtime import model_runner
from ortloom.runtime.messages import EngineRequest
from ortloom.runtime.model_runner import ModelRunner
from ortloom.runtime.sampling_params import SamplingParams, StructuredOutput
from ortloom.runtime.session import OrtSession

PROMPT = [(7 * i * i + 3) % 250 + 1 for i in range(45)]


def Driver(runner, driver):
    """A driver of the same kind over another runner."""
    return type(driver)(runner)


def same(rows_a, rows_b):
    """Bitwise equal results: ids, logprobs and ranks."""
    return [r for r in rows_a if r.token_id is not None] == [
        r for r in rows_b if r.token_id is not None
    ]


@pytest.mark.parametrize("chunks", [[45], [16, 16, 13], [7, 1, 30, 7], [1] * 45])
def test_chunking_does_not_change_a_bit(driver, chunks):
    whole = driver.generate(driver.request(PROMPT, "whole", logprobs=20), 12)
    parts = driver.generate(driver.request(PROMPT, "parts", logprobs=20), 12, chunks)
    assert same(whole, parts)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_do_not_change_a_bit(driver, make_config, threads):
    other = Driver(ModelRunner.load(make_config(threads=threads)), driver)
    a = driver.generate(driver.request(PROMPT, "a", logprobs=20), 8)
    b = other.generate(other.request(PROMPT, "b", logprobs=20), 8, [20, 25])
    assert same(a, b)


def test_batched_requests_equal_single_ones(driver):
    alone = {
        n: driver.generate(
            driver.request(PROMPT[:n], f"alone{n}", logprobs=20, temperature=0.9, seed=n), 10
        )
        for n in (1, 15, 16, 17, 45)
    }
    requests = {
        n: driver.request(PROMPT[:n], f"batch{n}", logprobs=20, temperature=0.9, seed=n)
        for n in alone
    }
    rows = {n: [] for n in alone}
    done = driver.step(*[driver.chunk(r, r.num_tokens) for r in requests.values()])
    for _ in range(10):
        for n, row in zip(requests, done, strict=True):
            rows[n].append(row)
        done = driver.step(*[driver.chunk(r, 1) for r in requests.values()])
    for n, request in requests.items():
        assert rows[n] == alone[n]
        driver.free(request)


def test_the_op_body_gives_the_same_tokens(driver, make_config):
    plain_runner = ModelRunner.load(make_config("plain"))
    assert plain_runner.provider_report.name == "plain"
    assert any("slower" in notice for notice in plain_runner.notices)
    plain_runner.warm_up()
    plain = Driver(plain_runner, driver)
    a = driver.generate(driver.request(PROMPT, "a", logprobs=5), 12)
    b = plain.generate(plain.request(PROMPT, "b", logprobs=5), 12, [20, 25])
    tokens_a = [r.token_id for r in a if r.token_id is not None]
    tokens_b = [r.token_id for r in b if r.token_id is not None]
    assert tokens_a == tokens_b
    last_a, last_b = a[-1].logprobs, b[-1].logprobs
    assert last_a.token_ids == last_b.token_ids
    assert last_a.logprobs == pytest.approx(last_b.logprobs, abs=1e-4)


def test_a_preempted_request_continues_with_the_same_tokens(driver):
    straight = driver.request(PROMPT, "straight", temperature=1.1, seed=5, frequency_penalty=0.5)
    driver.generate(straight, 12)
    cut = driver.request(PROMPT, "cut", temperature=1.1, seed=5, frequency_penalty=0.5)
    driver.step(driver.chunk(cut, 45))
    for _ in range(5):
        driver.step(driver.chunk(cut, 1))
    cut.block_ids, cut.num_computed_tokens = [], 0
    cut.num_preemptions += 1
    driver.step(driver.chunk(cut, 30))
    driver.step(driver.chunk(cut, cut.num_tokens - 30))
    while cut.num_output_tokens < 12:
        driver.step(driver.chunk(cut, 1))
    assert cut.output_token_ids == straight.output_token_ids
    driver.free(cut)


def test_a_shared_prefix_block_is_read_not_written(driver):
    first = driver.request(PROMPT, "first", logprobs=20)
    rows = driver.step(driver.chunk(first, 45))
    second = driver.request(PROMPT, "second", logprobs=20)
    second.block_ids = first.block_ids[:2]
    second.num_computed_tokens = 32
    again = driver.step(driver.chunk(second, 13))
    assert same(rows, again)
    assert same(driver.step(driver.chunk(first, 1)), driver.step(driver.chunk(second, 1)))


# ---- prompt logprobs and the limit of rows


def prompt_entries(rows):
    return [entry for row in rows for entry in row.prompt_logprobs]


@pytest.mark.parametrize("chunks", [[45], [16, 29], [1] * 45, [44, 1]])
def test_prompt_logprobs_have_an_entry_for_every_token_but_the_first(driver, chunks):
    request = driver.request(PROMPT, "p", prompt_logprobs=3)
    entries = prompt_entries(driver.generate(request, 1, chunks))
    assert [e.token_ids[0] for e in entries] == PROMPT[1:]
    assert all(len(e.token_ids) == 4 for e in entries)


def test_prompt_logprobs_equal_the_logprobs_of_decoding(driver):
    """Teacher forcing: a prompt of generated tokens scores them as generation did."""
    made = driver.request(PROMPT[:10], "made", logprobs=2)
    steps = [r.logprobs for r in driver.generate(made, 6)]
    scored = driver.request(made.token_ids, "scored", prompt_logprobs=2)
    entries = prompt_entries(driver.generate(scored, 1))[9:]
    assert entries == steps


def test_more_rows_than_one_call_computes(driver):
    prompt = [(5 * i) % 250 + 1 for i in range(480)]
    long = driver.request(prompt, "long", prompt_logprobs=1)
    short = driver.request(PROMPT, "short", prompt_logprobs=1)
    rows = driver.step(driver.chunk(long, 480), driver.chunk(short, 45))
    assert [e.token_ids[0] for e in rows[0].prompt_logprobs] == prompt[1:]
    assert [e.token_ids[0] for e in rows[1].prompt_logprobs] == PROMPT[1:]
    alone = driver.request(prompt, "alone", prompt_logprobs=1)
    pieces = []
    for count in (100, 250, 130):
        pieces += driver.step(driver.chunk(alone, count))
    assert prompt_entries(pieces) == rows[0].prompt_logprobs
    assert pieces[-1].token_id == rows[0].token_id
    for request in (long, short, alone):
        driver.free(request)


def test_a_recompute_after_the_first_output_delivers_no_prompt_logprobs_again(driver):
    request = driver.request(PROMPT, "r", prompt_logprobs=1)
    driver.step(driver.chunk(request, 45))
    request.num_computed_tokens, request.block_ids = 0, []
    request.num_preemptions += 1
    assert prompt_entries(driver.step(driver.chunk(request, 46))) == []


# ---- loading, sizing, validation


def test_attributes(driver):
    runner = driver.runner
    assert (runner.num_blocks, runner.block_size, runner.vocab_size) == (64, 16, 264)
    assert runner.max_model_len == 512
    assert runner.kv_cache_bytes == 65 * 16 * 2 * 2 * 2 * 64 * 4
    assert runner.cache_config["num_gpu_blocks"] == "64"
    assert set(runner.provider_report.losing) == {"tensorrt", "tensorrt_ep", "cuda", "plain"}


def test_warm_up_leaves_no_state(make_config):
    runner = ModelRunner.load(make_config())
    runner.warm_up()
    assert runner._sampler._states == {}
    runner.close()


def test_activations_are_measured_after_a_first_step(make_config, monkeypatch):
    """The first step maps the weights, which a step of more tokens does not map again."""
    runs, seen = [], []
    run, measure = OrtSession.run, model_runner.activation_bytes

    def counted(self, inputs, meanwhile=None):
        runs.append(len(inputs.input_ids))
        return run(self, inputs, meanwhile)

    def measured(run_prompt, step_tokens):
        seen.append(list(runs))
        return measure(run_prompt, step_tokens)

    monkeypatch.setattr(OrtSession, "run", counted)
    monkeypatch.setattr(model_runner, "activation_bytes", measured)
    ModelRunner.load(make_config(num_blocks=None)).close()
    assert seen == [[1]]


def test_sizes_that_do_not_fit_are_refused_with_sizes(make_config):
    with pytest.raises(ConfigError, match=r"--max-model-len 512 needs 32 KV blocks"):
        ModelRunner.load(make_config(num_blocks=31, max_model_len=512))
    fitted = ModelRunner.load(make_config(num_blocks=3))
    assert fitted.max_model_len == 48
    assert "fitted down from 512 to 48" in fitted.notices[0]
    with pytest.raises(ConfigError, match="--block-size"):
        ModelRunner.load(make_config(block_size=20))


def test_default_pool_is_bounded_by_sequences_times_context(make_config):
    runner = ModelRunner.load(make_config(num_blocks=None))
    assert runner.num_blocks == 16 * 32


def test_changed_weights_are_found_when_asked(bundle, make_config, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    with (copy / "weights/model.bin").open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        file.write(b"\x01")
    config = make_config(verify=True)
    changed = type(config.model)(bundle=str(copy), verify=True)
    with pytest.raises(ManifestError, match="sha256"):
        ModelRunner.load(type(config)(model=changed, cache=config.cache))


def test_validate(driver):
    def check(prompt=(1, 2), **params):
        request = EngineRequest("v", list(prompt), SamplingParams(**params))
        driver.runner.validate(request)

    check(logit_bias={5: 1.0}, structured_output=StructuredOutput("regex", "a+"))
    for bad, param in (
        ({"prompt": []}, "prompt"),
        ({"prompt": [264]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"logit_bias": {264: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": [300]}, "allowed_token_ids"),
        ({"logprobs": 21}, "logprobs"),
        ({"structured_output": StructuredOutput("regex", "(")}, "structured_outputs"),
    ):
        with pytest.raises(InvalidRequest) as raised:
            check(**bad)
        assert raised.value.param == param


def test_structured_output_through_the_graph(driver, tokenizer):
    schema = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}
    constraint = StructuredOutput("json", json.dumps(schema), disable_any_whitespace=True)
    request = driver.request(
        PROMPT, "json", structured_output=constraint, eos_token_ids=[0], logit_bias={}
    )
    driver.step(driver.chunk(request, 45))
    while request.token_ids[-1] != 0 and request.num_output_tokens < 80:
        driver.step(driver.chunk(request, 1))
    text = tokenizer.decode(request.output_token_ids, skip_special_tokens=True)
    driver.free(request)
    assert text.startswith('{"x":')
    if request.token_ids[-1] == 0:
        assert isinstance(json.loads(text)["x"], bool)


def test_pools_are_updated_in_place(driver):
    runner = driver.runner
    before = [pool.numpy().copy() for pool in runner._session._pools]
    request = driver.request(PROMPT[20:40], "inplace")
    driver.step(driver.chunk(request, 20))
    for old, pool in zip(before, runner._session._pools, strict=True):
        changed = {int(b) for b in np.flatnonzero((old != pool.numpy()).any(axis=(1, 2, 3)))}
        assert changed <= set(request.block_ids)
        assert changed
    driver.free(request)


def test_serving_imports_no_grammar_engine_before_the_first_constraint(bundle):
    script = (
        "import sys\n"
        "from ortloom.config import CacheConfig, Config, ModelConfig\n"
        "from ortloom.runtime.model_runner import ModelRunner\n"
        "model, cache = ModelConfig(bundle=sys.argv[1]), CacheConfig(num_blocks=8)\n"
        "ModelRunner.load(Config(model=model, cache=cache)).warm_up()\n"
        "print([m for m in ('llguidance', 'torch', 'onnx', 'sanic') if m in sys.modules])\n"
    )
    command = [sys.executable, "-c", script, str(bundle)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_work_beside_the_graph_changes_no_result(driver):
    """`meanwhile` is called once a step, in the caller's thread, whatever the number of calls."""
    plain = driver.generate(driver.request(PROMPT, "plain", logprobs=20), 3)
    request = driver.request(PROMPT, "beside", logprobs=20)
    calls = []
    execute = driver.runner.execute
    driver.runner.execute = lambda plan: execute(
        plan, lambda: calls.append(threading.current_thread())
    )
    try:
        beside = driver.generate(request, 3)
    finally:
        del driver.runner.execute
    assert same(plain, beside)
    assert set(calls) == {threading.current_thread()}
    assert len(calls) == len(beside)
