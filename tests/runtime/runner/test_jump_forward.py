"""Jump-forward: tokens that a grammar forces need no decode step, and none of them differs."""

import json

import pytest

from ortloom.config import (
    CacheConfig,
    Config,
    ModelConfig,
    ProviderConfig,
    SchedulerConfig,
    StructuredOutputsConfig,
)
from ortloom.models.thinking import Thinking
from ortloom.runtime.llm import LLM
from ortloom.runtime.sampling_params import SamplingParams, StructuredOutput

PROMPTS = [
    f"{i} asks for an answer in a form, prompt {chr(97 + i) * (5 + 9 * i)}" for i in range(4)
]


def schema(**properties):
    made = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return StructuredOutput("json", json.dumps(made), disable_any_whitespace=True)


LETTER = {"type": "string", "pattern": "^[ab]$"}
CONSTRAINTS = [
    schema(first_name=LETTER, a_long_property_name={"type": "boolean"}),
    schema(kind={"enum": ["alpha", "alphabet", "beta"]}, n={"enum": [1, 12, 13]}),
    schema(fixed={"const": "nothing to choose here"}),
    schema(deep={"type": "array", "items": {"const": [1, 2]}, "minItems": 2, "maxItems": 3}),
    schema(either={"anyOf": [{"const": "trueish"}, {"const": "truth"}, {"type": "null"}]}),
    StructuredOutput("regex", "[ab]{2}-true-(12){3}(x|yz)?"),
    StructuredOutput("regex", "é[ab]日本語"),
    StructuredOutput("choice", json.dumps(["only this one"])),
    StructuredOutput("choice", json.dumps(["abba", "abab", "b"])),
    StructuredOutput("grammar", 'start: "true " pair{1,3} "."\npair: "ab" | "12 and more"'),
]


def sampling(constraint, **fields):
    base = {"temperature": 1.0, "seed": 5, "max_tokens": 120, "structured_output": constraint}
    return SamplingParams(**{**base, **fields})


END = "</r>"
END_IDS = (28, 15, 82, 30)  # one token a character


def thinking(**fields):
    return Thinking(**{"end": END, "open": True, "budget": 3, "closing": END_IDS, **fields})


VARIANTS = [
    {"thinking": thinking()},
    {"thinking": thinking(budget=0, start="<r>")},
    {"thinking": thinking(end_token=90, budget=6, closing=(90,)), "min_tokens": 9},
    {},
    {"temperature": 0.0},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
    {"min_tokens": 7},
    {"max_tokens": 9},
    {"stop_token_ids": [70]},
    {"bad_words_token_ids": [[66], [67, 70]]},
    {"logit_bias": {66: 3.0}},
    {"logprobs": 2},
    {"stop": ["propert", "12", "lph"]},
    {"n": 3},
]


@pytest.fixture(scope="module")
def start(bundle):
    def make(jump, **limits):
        cache = {k: limits.pop(k) for k in ("num_blocks", "enable_prefix_caching") if k in limits}
        return LLM.from_config(
            Config(
                model=ModelConfig(bundle=str(bundle)),
                cache=CacheConfig(**{"num_blocks": 256, **cache}),
                scheduler=SchedulerConfig(**{"max_num_seqs": 16, **limits}),
                provider=ProviderConfig(threads=1),
                structured_outputs=StructuredOutputsConfig(jump_forward=jump),
            )
        )

    return make


def jobs():
    """Half of all combinations, those with stop strings last: their overshoot is counted."""
    made = []
    for index, constraint in enumerate(CONSTRAINTS):
        for place, variant in enumerate(VARIANTS):
            prompt = PROMPTS[(index + place) % len(PROMPTS)]
            made.append((prompt, sampling(constraint, **variant)))
    return sorted(made[::2], key=lambda job: bool(job[1].stop))


def run(llm, work):
    """What each request answers; None for one whose constraints leave nothing to draw."""
    answers = []
    results = []
    for prompt, params in work:
        try:
            results.append(llm.generate(prompt, params)[0])
        except Exception as error:
            results.append(str(error))
    for result in results:
        if isinstance(result, str):
            answers.append(result)
            continue
        answers.append(
            [
                (o.text, o.token_ids, o.finish_reason, o.stop_reason, o.logprobs)
                for o in result.outputs
            ]
        )
    return answers


def numbers(llm):
    return llm._loop.run(llm._client.fetch_stats())


def run_all(llm):
    """The answers, and the engine's numbers before the jobs with stop strings."""
    work = jobs()
    counted = len([job for job in work if not job[1].stop])
    answers = run(llm, work[:counted])
    stats = numbers(llm)
    return answers + run(llm, work[counted:]), stats


@pytest.fixture(scope="module")
def stepwise(start):
    with start(False) as llm:
        answers, stats = run_all(llm)
    assert stats.jump_forward_tokens == 0
    return answers, stats


def test_tokens_are_those_of_single_steps(start, stepwise):
    answers, before = stepwise
    with start(True) as llm:
        found, after = run_all(llm)
    assert found == answers
    assert after.generation_tokens == before.generation_tokens
    assert after.jump_forward_tokens > before.generation_tokens / 3
    assert after.num_steps < before.num_steps / 3


def test_every_forced_token_is_a_step_less(start):
    steps = {}
    for jump in (False, True):
        with start(jump) as llm:
            llm.generate(PROMPTS[0], sampling(CONSTRAINTS[0]))
            steps[jump] = numbers(llm)
    assert steps[True].jump_forward_tokens > 20
    saved = steps[False].num_steps - steps[True].num_steps
    assert saved == steps[True].jump_forward_tokens


def test_tokens_are_jumped_after_reasoning_and_at_its_forced_end(start, tokenizer):
    assert tokenizer.encode(END, add_special_tokens=False).ids == list(END_IDS)
    found = {}
    for jump in (False, True):
        with start(jump) as llm:
            params = sampling(CONSTRAINTS[0], thinking=thinking())
            (result,) = llm.generate(PROMPTS[0], params)
            found[jump] = result.outputs[0], numbers(llm)
    (plain, slow), (jumped, fast) = found[False], found[True]
    assert jumped.token_ids == plain.token_ids
    assert plain.text[3:].startswith(END + '{"first_name":"')
    saved = slow.num_steps - fast.num_steps
    assert saved == fast.jump_forward_tokens > 20 + len(END_IDS)


def test_a_request_with_logprobs_computes_every_token(start):
    with start(True) as llm:
        params = sampling(CONSTRAINTS[2], logprobs=1)
        (result,) = llm.generate(PROMPTS[0], params)
        assert len(result.outputs[0].logprobs) == len(result.outputs[0].token_ids)
        assert numbers(llm).jump_forward_tokens == 0


@pytest.mark.parametrize(
    ("jump", "limits"),
    [
        (True, {"enable_prefix_caching": False}),
        (True, {"max_num_batched_tokens": 7, "max_num_seqs": 3}),
        (True, {"num_blocks": 12}),
        (True, {"max_num_seqs": 5}),
        (False, {"max_num_batched_tokens": 40}),
    ],
    ids=["no-cache", "chunked", "preempted", "few", "single-steps"],
)
def test_together_and_under_pressure(start, stepwise, jump, limits):
    answers, _ = stepwise
    work = [(job, answer) for job, answer in zip(jobs(), answers, strict=True)][::3]
    work = [(job, answer) for job, answer in work if not isinstance(answer, str)]
    if "num_blocks" in limits:  # the long ones together, so that they crowd each other out
        work = sorted(work, key=lambda item: -len(item[1][0][1])) * 2
    with start(jump, **limits) as llm:
        for _ in range(4):  # who crowds whom out depends on when requests arrive
            results = llm.generate([p for (p, _), _ in work], [s for (_, s), _ in work])
            if "num_blocks" not in limits or numbers(llm).num_preemptions > 0:
                break
        else:
            raise AssertionError("no request was preempted")
        assert (numbers(llm).jump_forward_tokens > 0) == jump
    for result, (_, answer) in zip(results, work, strict=True):
        found = [
            (o.text, o.token_ids, o.finish_reason, o.stop_reason, o.logprobs)
            for o in result.outputs
        ]
        assert found == answer
