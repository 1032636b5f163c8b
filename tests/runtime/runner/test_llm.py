"""`LLM` on the tiny real bundle: the whole engine in process, text in and out."""

import subprocess
import sys
import threading

import numpy as np
import pytest

import ortloom
from ortloom.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    ManifestError,
    ProviderUnavailable,
)
from ortloom.models.tokenizer import Tokenizer
from ortloom.runtime import engine_protocols
from ortloom.runtime.llm import LLM
from ortloom.runtime.sampling_params import SamplingParams, StructuredOutput

PROMPTS = [f"{i} is the number of this prompt, which ends in {chr(97 + i) * 3}" for i in range(8)]
PRINTABLE = list(range(1, 95))


def greedy(**fields):
    # The penalty keeps the random model from saying one token for ever.
    defaults = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True, "repetition_penalty": 1.5}
    return SamplingParams(**{**defaults, **fields})


@pytest.fixture(scope="module")
def llm(bundle):
    with LLM(bundle, num_blocks=256, threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def solo(llm):
    """Tokens of each prompt generated alone, without prefix hits."""
    tokens = []
    for prompt in PROMPTS:
        llm.reset_prefix_cache()
        tokens.append(llm.generate(prompt, greedy())[0].outputs[0].token_ids)
    return tokens


def tokens_of(results):
    return [result.outputs[0].token_ids for result in results]


def test_a_batch_equals_solo_runs_in_order(llm, solo):
    llm.reset_prefix_cache()
    results = llm.generate(PROMPTS, greedy())
    assert tokens_of(results) == solo
    assert [r.prompt for r in results] == PROMPTS
    assert len({r.request_id for r in results}) == len(PROMPTS)
    assert all(r.finished for r in results)
    assert len({tuple(t) for t in solo}) == len(PROMPTS)


def test_prefix_hits_do_not_change_tokens(llm, solo):
    llm.generate(PROMPTS, greedy())
    results = llm.generate(PROMPTS, greedy())
    assert tokens_of(results) == solo
    assert all(r.num_cached_tokens >= 16 for r in results)


@pytest.mark.parametrize(
    "options",
    [
        {"enable_prefix_caching": False},
        {"max_num_batched_tokens": 16},
        {"max_num_batched_tokens": 7, "max_num_seqs": 3},
        {"max_num_seqs": 1},
        {"provider": "plain"},
    ],
)
def test_limits_do_not_change_tokens(bundle, solo, options):
    with LLM(bundle, **{"num_blocks": 256, "threads": 1, **options}) as llm:
        assert tokens_of(llm.generate(PROMPTS, greedy())) == solo


def test_preemption_does_not_change_tokens(bundle, solo):
    with LLM(bundle, num_blocks=9, threads=1, max_model_len=96) as llm:
        results = llm.generate(PROMPTS, greedy())
    assert sum(r.metrics.num_preemptions for r in results) > 0
    assert tokens_of(results) == solo


def test_seeded_draws_are_the_same_alone_and_preempted(bundle, llm):
    params = [greedy(temperature=1.0, seed=i) for i in range(len(PROMPTS))]
    alone = [
        llm.generate(p, s)[0].outputs[0].token_ids for p, s in zip(PROMPTS, params, strict=True)
    ]
    with LLM(bundle, num_blocks=9, threads=1, max_model_len=96) as small:
        results = small.generate(PROMPTS, params)
    assert sum(r.metrics.num_preemptions for r in results) > 0
    assert tokens_of(results) == alone
    assert alone != tokens_of(llm.generate(PROMPTS, greedy()))


def test_n_samples_have_draws_of_their_own_and_repeat(llm):
    params = SamplingParams(n=4, seed=5, max_tokens=12, ignore_eos=True)
    first, again = (llm.generate("abc", params)[0] for _ in range(2))
    assert [o.index for o in first.outputs] == [0, 1, 2, 3]
    ids = [tuple(o.token_ids) for o in first.outputs]
    assert len(set(ids)) == 4
    assert [tuple(o.token_ids) for o in again.outputs] == ids


def test_text_is_the_decoded_tokens(llm, bundle):
    tokenizer = Tokenizer.load(bundle)
    for result in llm.generate(PROMPTS, greedy()):
        assert result.outputs[0].text == tokenizer.decode(result.outputs[0].token_ids)
        assert tokenizer.encode(result.prompt) == result.prompt_token_ids


def test_token_ids_in_and_logprobs_out(llm):
    prompt = [5, 9, 33, 70]
    result = llm.generate(prompt, greedy(logprobs=3, prompt_logprobs=2, max_tokens=5))[0]
    assert (result.prompt, result.prompt_token_ids) == (None, prompt)
    (done,) = result.outputs
    assert len(done.logprobs) == 5
    for token, position in zip(done.token_ids, done.logprobs, strict=True):
        assert next(iter(position)) == token
        assert position[token].rank == 1  # greedy
        assert 3 <= len(position) <= 4
        assert all(entry.logprob <= 0.0 for entry in position.values())
        assert isinstance(position[token].decoded_token, str)
    total = sum(p[t].logprob for t, p in zip(done.token_ids, done.logprobs, strict=True))
    assert done.cumulative_logprob == pytest.approx(total)
    assert result.prompt_logprobs[0] is None
    assert [next(iter(p)) for p in result.prompt_logprobs[1:]] == prompt[1:]
    assert result.num_cached_tokens == 0


def test_prompt_logprobs_are_the_same_in_chunks_and_preempted(bundle, llm):
    params = greedy(prompt_logprobs=1, max_tokens=45)
    whole = [r.prompt_logprobs for r in llm.generate(PROMPTS, params)]
    options = {"num_blocks": 11, "max_model_len": 96, "max_num_batched_tokens": 30}
    with LLM(bundle, threads=1, **options) as small:
        results = small.generate(PROMPTS, params)
    assert sum(r.metrics.num_preemptions for r in results) > 0
    for expected, result in zip(whole, results, strict=True):
        assert len(result.prompt_logprobs) == len(result.prompt_token_ids)
        for one, two in zip(expected[1:], result.prompt_logprobs[1:], strict=True):
            assert list(one) == list(two)
            values = [[e.logprob for e in p.values()] for p in (one, two)]
            np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-5)


def test_max_tokens_zero_only_scores(llm):
    result = llm.generate("abcdef", greedy(max_tokens=0, prompt_logprobs=0))[0]
    (done,) = result.outputs
    assert (done.token_ids, done.text, done.finish_reason) == ([], "", "length")
    assert len(result.prompt_logprobs) == len(result.prompt_token_ids)


def test_a_stop_string_cuts_text_and_tokens(llm, bundle):
    params = greedy(allowed_token_ids=PRINTABLE)
    full = llm.generate(PROMPTS[0], params)[0].outputs[0]
    tokenizer = Tokenizer.load(bundle)
    stop = tokenizer.decode(full.token_ids[5:8])
    assert len(stop) == 3
    where = full.text.index(stop)
    for include in (False, True):
        params = greedy(
            allowed_token_ids=PRINTABLE, stop=[stop], include_stop_str_in_output=include
        )
        done = llm.generate(PROMPTS[0], params)[0].outputs[0]
        assert (done.finish_reason, done.stop_reason) == ("stop", stop)
        assert done.text == full.text[: where + len(stop) * include]
        assert done.token_ids == full.token_ids[: where + len(stop)]


def test_a_stop_token_ends_with_its_id_and_without_its_text(llm, bundle):
    full = llm.generate(PROMPTS[0], greedy())[0].outputs[0]
    token = full.token_ids[4]
    done = llm.generate(PROMPTS[0], greedy(stop_token_ids=[token]))[0].outputs[0]
    assert (done.finish_reason, done.stop_reason) == ("stop", token)
    assert done.token_ids[-1] == token
    assert done.text == Tokenizer.load(bundle).decode(done.token_ids[:-1])


def test_structured_output(llm):
    constraint = StructuredOutput("choice", '["true", "ab12"]')
    params = SamplingParams(structured_output=constraint, max_tokens=20, seed=1)
    done = llm.generate("x", params)[0].outputs[0]
    assert done.text in ("true", "ab12")
    assert done.finish_reason == "stop"
    bad = StructuredOutput("json", "{")
    with pytest.raises(InvalidRequest):
        llm.generate("x", SamplingParams(structured_output=bad, max_tokens=4))


@pytest.mark.parametrize(
    ("prompt", "fields", "kind"),
    [
        ([], {}, InvalidRequest),
        ([5, 10**6], {}, InvalidRequest),
        ([-1, 5], {}, InvalidRequest),
        ([5] * 600, {}, ContextLengthExceeded),
        ("x", {"top_p": 0.0}, InvalidRequest),
        ("x", {"logprobs": 21}, InvalidRequest),
        ("x", {"n": 2}, InvalidRequest),
    ],
)
def test_bad_input_is_refused_before_anything_runs(llm, prompt, fields, kind):
    with pytest.raises(kind):
        llm.generate(["fine", prompt], greedy(**fields))
    assert llm.generate("still here", greedy())[0].finished


def test_as_many_parameters_as_prompts(llm):
    with pytest.raises(InvalidRequest, match="2 prompts and 3"):
        llm.generate(["a", "b"], [greedy()] * 3)
    assert llm.generate([], greedy()) == []


def test_chat_renders_the_template_it_is_given(llm):
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    conversation = [{"role": "user", "content": "hi"}]
    one = llm.chat(conversation, greedy(), chat_template=template)
    many = llm.chat([conversation, conversation], greedy(), chat_template=template)
    assert len(one) == 1
    assert [r.outputs[0].token_ids for r in many] == [one[0].outputs[0].token_ids] * 2
    assert llm.tokenizer.decode(one[0].prompt_token_ids) == "[user] hi\n"


def test_chat_without_a_template_is_refused(llm):
    with pytest.raises(InvalidRequest, match="template"):
        llm.chat([{"role": "user", "content": "hi"}], greedy())


def test_metrics_are_in_order(llm):
    metrics = llm.generate(PROMPTS, greedy())[3].metrics
    times = (
        metrics.arrival_time,
        metrics.first_scheduled_time,
        metrics.first_token_time,
        metrics.last_token_time,
    )
    assert 0.0 < times[0] <= times[1] <= times[2] < times[3]


def test_default_parameters_are_used_when_none_are_given(llm):
    assert llm.get_default_sampling_params().max_tokens == 16
    assert len(llm.generate("abc")[0].outputs[0].token_ids) <= 16


def test_calls_from_several_threads_share_the_engine(llm, solo):
    llm.reset_prefix_cache()
    found = {}

    def work(index):
        found[index] = tokens_of(llm.generate(PROMPTS[index], greedy()))[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(len(PROMPTS))] == solo


def test_a_step_fault_raises_and_the_next_call_works(bundle, solo, monkeypatch):
    from ortloom.runtime.model_runner import ModelRunner

    execute = ModelRunner.execute
    faults = [3]

    def failing(self, plan):
        if faults and plan.scheduled[0].request.num_output_tokens == faults[0]:
            faults.pop()
            raise MemoryError("injected")
        return execute(self, plan)

    monkeypatch.setattr(ModelRunner, "execute", failing)
    with LLM(bundle, num_blocks=64, threads=1) as llm:
        with pytest.raises(ortloom.OrtloomError, match="failed inside the engine"):
            llm.generate(PROMPTS[:2], greedy())
        assert tokens_of(llm.generate(PROMPTS[:2], greedy())) == solo[:2]


def test_what_cannot_start_says_why_with_its_own_error(bundle, tmp_path):
    with pytest.raises(ManifestError, match="nowhere"):
        LLM(tmp_path / "nowhere")
    with pytest.raises(ProviderUnavailable):
        LLM(bundle, provider="cuda")
    with pytest.raises(ortloom.OrtloomError, match="--max-num-batched-tokens"):
        LLM(bundle, num_blocks=64, enable_chunked_prefill=False, max_num_batched_tokens=16)


def test_a_closed_engine_refuses(bundle):
    llm = LLM(bundle, num_blocks=16, threads=1)
    llm.close()
    llm.close()
    with pytest.raises(RuntimeError):
        llm.generate("x", greedy())


def test_the_interpreter_ends_without_close(bundle):
    code = (
        "import sys; from ortloom import LLM, SamplingParams\n"
        "llm = LLM(sys.argv[1], num_blocks=16, threads=1)\n"
        "print(len(llm.generate('x', SamplingParams(max_tokens=3, ignore_eos=True))))\n"
    )
    command = [sys.executable, "-c", code, str(bundle)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "1\n", "")


def test_the_runner_fits_the_loops_protocol(runner):
    wanted = [name for name in vars(engine_protocols.Runner) if not name.startswith("_")]
    assert len(wanted) > 8
    assert [name for name in wanted if not hasattr(runner, name)] == []
