"""Reasoning before a constraint, and budgets, in the sampler; tokens are single characters."""

import numpy as np
import pytest

from ortloom.models.thinking import Thinking
from ortloom.runtime.request import Request
from ortloom.runtime.sampler import Sampler
from ortloom.runtime.sampling_params import SamplingParams, StructuredOutput
from ortloom.runtime.structured_output import GrammarCompiler

VOCAB, EOS = 264, 0
YES = StructuredOutput("choice", '["yes"]')


@pytest.fixture(scope="module")
def compiler(tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("tok") / "tokenizer.json"
    tokenizer.save(str(path))
    return GrammarCompiler(path, VOCAB, [EOS])


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def run(compiler, tokenizer, wish, limit, native, prompt=(1,), **params):
    """Sample greedily while the logits wish for a text, character by character, then for its last
    one; returns the output's text."""
    sampler = Sampler(VOCAB, "raw_logprobs", compiler, native)
    made = SamplingParams(eos_token_ids=[EOS], temperature=0.0, **params)
    request = Request("r", list(prompt), made, 1000)
    wished = ids_of(tokenizer, wish)
    while request.num_output_tokens < limit:
        row = np.zeros((1, VOCAB), np.float32)
        row[0, wished[min(request.num_output_tokens, len(wished) - 1)]] = 9
        result = sampler.sample(row, [request])[0]
        assert result.error is None
        request.token_ids.append(result.token_id)
        if result.token_id == EOS:
            break
        if request.num_output_tokens == 3:  # a state that was lost is made again from the tokens
            sampler.remove("r")
    return tokenizer.decode(request.output_token_ids, skip_special_tokens=True)


@pytest.fixture(params=[False, None], ids=["numpy", "default"])
def native(request):
    return request.param


def test_the_constraint_begins_after_the_reasoning(compiler, tokenizer, native):
    thinking = Thinking(end="</r>", open=True)
    text = run(
        compiler, tokenizer, "no, no</r>no", 40, native, structured_output=YES, thinking=thinking
    )
    assert text == "no, no</r>yes"


def test_it_begins_at_once_where_nothing_is_reasoning(compiler, tokenizer, native):
    thinking = Thinking(start="<r>", end="</r>", open=False)
    text = run(
        compiler, tokenizer, "<r>no</r>", 40, native, structured_output=YES, thinking=thinking
    )
    assert text == "yes"


def test_a_start_token_may_come_before_the_constraint(compiler, tokenizer, native):
    (start,) = ids_of(tokenizer, "#")
    thinking = Thinking(start="#", end="</r>", start_token=start, open=False)
    kwargs = {"structured_output": YES, "thinking": thinking}
    assert run(compiler, tokenizer, "#no</r>no", 40, native, **kwargs) == "#no</r>yes"
    assert run(compiler, tokenizer, "yes", 40, native, **kwargs) == "yes"
    assert run(compiler, tokenizer, "y#s", 40, native, **kwargs) == "yes"


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_a_budget_ends_the_reasoning(compiler, tokenizer, native, budget):
    closing = tuple(ids_of(tokenizer, "stop</r>"))
    thinking = Thinking(end="</r>", open=True, budget=budget, closing=closing)
    text = run(compiler, tokenizer, "a", 20, native, thinking=thinking)
    assert text == "a" * budget + "stop</r>" + "a" * (12 - budget)


def test_a_budget_then_the_constraint(compiler, tokenizer, native):
    closing = tuple(ids_of(tokenizer, "</r>"))
    thinking = Thinking(end="</r>", open=True, budget=3, closing=closing)
    text = run(compiler, tokenizer, "a", 40, native, structured_output=YES, thinking=thinking)
    assert text == "aaa</r>yes"


def test_a_budget_lets_a_marker_that_is_begun_be_completed(compiler, tokenizer, native):
    closing = tuple(ids_of(tokenizer, "</r>"))
    thinking = Thinking(end="</r>", open=True, budget=4, closing=closing)
    assert run(compiler, tokenizer, "aa</r>b", 8, native, thinking=thinking) == "aa</r>bb"
    assert run(compiler, tokenizer, "aa</b", 10, native, thinking=thinking) == "aa</b</r>b"


def test_reasoning_within_the_budget_is_left_alone(compiler, tokenizer, native):
    closing = tuple(ids_of(tokenizer, "</r>"))
    thinking = Thinking(end="</r>", open=True, budget=9, closing=closing)
    assert run(compiler, tokenizer, "ac</r>c", 9, native, thinking=thinking) == "ac</r>ccc"


def test_the_prompt_tells_whether_reasoning_is_open(compiler, tokenizer, native):
    closing = tuple(ids_of(tokenizer, "</r>"))
    thinking = Thinking(start="<r>", end="</r>", budget=2, closing=closing)
    opened = [1, *ids_of(tokenizer, "x<r>ab")]
    closed = [*opened, *closing]
    text = run(compiler, tokenizer, "a", 8, native, prompt=opened, thinking=thinking)
    assert text == "aa</r>aa"
    assert run(compiler, tokenizer, "a", 8, native, prompt=closed, thinking=thinking) == "a" * 8
