"""Repetition detection: which outputs end by it, and how the engine says so."""

import pytest
from fakes import Harness
from hypothesis import given
from hypothesis import strategies as st

from ortloom.errors import InvalidRequest
from ortloom.runtime.finish_rules import repeats
from ortloom.runtime.request import Request
from ortloom.runtime.sampling_params import RepetitionDetection, SamplingParams


def ends_repeating(output, rule):
    """By the words of the rule."""
    for size in range(max(1, rule.min_pattern_size), rule.max_pattern_size + 1):
        pattern = output[-size:]
        if len(output) >= size * rule.min_count and output[-size * rule.min_count :] == (
            pattern * rule.min_count
        ):
            return True
    return False


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=24),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(2, 4),
)
def test_finds_what_the_rule_says(output, least, more, count):
    rule = RepetitionDetection(least + more, least, count)
    request = Request("r", [0, 1], SamplingParams(), 100)
    request.token_ids += output
    assert repeats(request, rule) == ends_repeating(output, rule)


def test_the_prompt_does_not_count():
    request = Request("r", [5, 5, 5], SamplingParams(), 100)
    request.token_ids += [5]
    assert not repeats(request, RepetitionDetection(1, 1, 2))


def test_the_engine_ends_the_request():
    harness = Harness()
    harness.runner.forced = {"r": [9, 10, 11, 10, 11, 10, 11, 12]}
    rule = RepetitionDetection(max_pattern_size=3, min_pattern_size=2, min_count=3)
    harness.add("r", [20, 21], max_tokens=20, repetition_detection=rule)
    harness.run()
    assert harness.tokens("r") == [9, 10, 11, 10, 11, 10, 11]
    assert harness.last("r").finish_reason == "repetition"
    harness.assert_idle()


def test_min_tokens_holds_it_back():
    harness = Harness()
    harness.runner.forced = {"r": [9] * 20}
    rule = RepetitionDetection(1, 1, 2)
    harness.add("r", [20], max_tokens=20, min_tokens=6, repetition_detection=rule)
    harness.run()
    assert len(harness.tokens("r")) == 6


@pytest.mark.parametrize("fields", [(-1, -1, 2), (2, 3, 2), (2, -1, 2), (2, 1, 1), (9999, 1, 2)])
def test_sizes_that_do_not_fit_are_refused(fields):
    with pytest.raises(InvalidRequest) as raised:
        SamplingParams(repetition_detection=RepetitionDetection(*fields)).validated()
    assert raised.value.param == "repetition_detection"
