"""Requests of all kinds crowd a small cache, forced tokens jumped: each answers as if alone.

The oracle computes every token of every request by itself, with room for all of them.
"""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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

END_IDS = (28, 15, 82, 30)  # "</r>", one token a character


def schema(**properties):
    made = {"type": "object", "properties": properties, "required": list(properties)}
    made["additionalProperties"] = False
    return StructuredOutput("json", json.dumps(made), disable_any_whitespace=True)


CONSTRAINTS = [
    None,
    schema(first_name={"enum": ["ab", "ba", "true"]}, a_long_property_name={"type": "boolean"}),
    schema(fixed={"const": "nothing to choose here, and a long way to go"}),
    schema(many={"type": "array", "items": {"const": [1, 2]}, "minItems": 3, "maxItems": 9}),
    StructuredOutput("regex", "[ab]{2,20}-true-(12){3}(x|yz)?"),
    StructuredOutput("regex", "(the [cd]{3} and [xyz]{2}; ){5}"),
    StructuredOutput("choice", json.dumps(["abba and more", "abab and less", "b"])),
    StructuredOutput("regex", "(.|\\n){20,60}</r>(true ){9}"),
]
THOUGHTS = [
    None,
    None,
    Thinking(end="</r>", open=True, budget=3, closing=END_IDS),
    Thinking(end="</r>", start="<r>", open=True, budget=30, closing=END_IDS),
    Thinking(end="</r>", end_token=90, open=True, budget=5, closing=(*END_IDS, 90)),
    Thinking(end="</r>", start_token=7, open=False, budget=4, closing=END_IDS),
]
STOPS = [[], [], ["true"], ["12", "rmit"], ['name":', "e"], ["</r>"]]

JOBS = st.fixed_dictionaries(
    {
        "prompt": st.integers(0, 3),
        "structured_output": st.sampled_from(CONSTRAINTS),
        "thinking": st.sampled_from(THOUGHTS),
        "stop": st.sampled_from(STOPS),
        "stop_token_ids": st.sampled_from([[], [], [], [66, 84], [68]]),
        "temperature": st.sampled_from([0.0, 1.0, 1.0]),
        "seed": st.integers(0, 3),
        "n": st.sampled_from([1, 1, 2, 3]),
        "logprobs": st.sampled_from([None, None, None, 0, 2]),
        "max_tokens": st.sampled_from([1, 6, 60, 100]),
        "min_tokens": st.sampled_from([0, 0, 5]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "include_stop_str_in_output": st.booleans(),
    }
)
PROMPTS = [f"{i} asks for an answer in a form{' or two' * (3 * i)}" for i in range(4)]
"""The long ones share blocks with no other, the n samples of each all but the last."""


def job_of(drawn):
    fields = dict(drawn)
    prompt = PROMPTS[fields.pop("prompt")]
    fields["min_tokens"] = min(fields["min_tokens"], fields["max_tokens"])
    if fields["stop_token_ids"]:  # a grammar may leave no other token, and they are held back
        fields["min_tokens"] = 0
    if fields["temperature"] == 0.0:
        fields["n"] = 1
    if not fields["stop"]:
        fields["include_stop_str_in_output"] = False
    return prompt, SamplingParams(**fields)


def engine(bundle, jump, **limits):
    blocks = limits.pop("num_blocks", 256)
    return LLM.from_config(
        Config(
            model=ModelConfig(bundle=str(bundle)),
            cache=CacheConfig(num_blocks=blocks),
            scheduler=SchedulerConfig(**{"max_num_seqs": 16, **limits}),
            provider=ProviderConfig(threads=1),
            structured_outputs=StructuredOutputsConfig(jump_forward=jump),
        )
    )


def answer(result):
    return [
        (o.text, o.token_ids, o.finish_reason, o.stop_reason, o.logprobs) for o in result.outputs
    ]


@pytest.fixture(scope="module")
def alone(bundle):
    """The answer of a job in an engine that has nothing else to do."""
    known = {}
    with engine(bundle, False) as llm:

        def get(prompt, params):
            key = prompt, repr(params)
            if key not in known:
                known[key] = answer(llm.generate(prompt, params)[0])
            return known[key]

        yield get


@pytest.fixture(scope="module")
def crowded(bundle):
    with engine(bundle, True, num_blocks=15, max_num_seqs=8, max_num_batched_tokens=48) as llm:
        yield llm
        stats = llm._loop.run(llm._client.fetch_stats())
        assert (stats.num_requests_running, stats.kv_cache_usage) == (0, 0.0)


@pytest.fixture(scope="module")
def pressed():
    """Whether requests were crowded out and tokens were jumped, as seen after each example."""
    seen = set()
    yield seen
    assert (True, True) in seen


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=st.lists(JOBS, min_size=6, max_size=10))
def test_each_request_answers_as_if_alone(alone, crowded, pressed, drawn):
    jobs = [job_of(one) for one in drawn]
    results = crowded.generate([prompt for prompt, _ in jobs], [params for _, params in jobs])
    stats = crowded._loop.run(crowded._client.fetch_stats())
    pressed.add((stats.num_preemptions > 0, stats.jump_forward_tokens > 0))
    for (prompt, params), result in zip(jobs, results, strict=True):
        assert answer(result) == alone(prompt, params), (prompt, params)
