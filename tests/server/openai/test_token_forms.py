"""Logprobs written as JSON at once are those that are built and encoded."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ortloom.runtime.messages import TokenLogprobs
from ortloom.server.openai.event_template import HOLE, event_template, to_json
from ortloom.server.openai.logprobs import ChatLogprobs, CompletionLogprobs, TokenNames

VALUES = st.sampled_from([0.0, -1.5, -math.inf, math.nan, -9999.0, -12345.0]) | st.floats(-50, 0)


@st.composite
def positions(draw):
    """The own token, then the likeliest ones, among which it may be again."""
    own = draw(st.integers(0, 339))
    others = draw(st.lists(st.integers(0, 339), unique=True, max_size=6))
    ids = [own, *others]
    values = draw(st.lists(VALUES, min_size=len(ids), max_size=len(ids)))
    return TokenLogprobs(ids, values, list(range(1, len(ids) + 1)))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    found=st.lists(positions(), max_size=3),
    top=st.integers(-1, 5),
    as_ids=st.booleans(),
    keep_all=st.booleans(),
)
def test_the_json_is_that_of_the_built_member(tokenizer, found, top, as_ids, keep_all):
    names = TokenNames(tokenizer, as_ids)
    chat = ChatLogprobs(names, top, keep_all)
    assert chat.json(found) == to_json(chat.build(found))
    text = CompletionLogprobs(names, top, keep_all)
    ids = [position.token_ids[0] for position in found]
    if found:
        assert text.json(ids, found, 7) == to_json(text.build(ids, found, 7))


def test_names_that_repeat_are_one_member(tokenizer):
    """Two parts of characters both read as U+FFFD."""
    broken = [t for t in range(340) if tokenizer.token_text(t) == "\ufffd"][:2]
    assert len(broken) == 2
    position = TokenLogprobs([broken[0], *broken, 40], [-1.0, -1.0, -2.0, -3.0], [1, 1, 2, 3])
    text = CompletionLogprobs(TokenNames(tokenizer, False), 5)
    ids = [broken[0]]
    assert text.json(ids, [position], 0) == to_json(text.build(ids, [position], 0))


@pytest.mark.parametrize("name", ["50 %", "%b", "%%s", 'a"b'])
def test_templates_keep_what_is_not_a_hole(name):
    event = {"model": name, "choices": [{"text": HOLE, "n": HOLE}]}
    made = event_template(event) % (to_json("x%y"), b"3")
    assert made == to_json({"model": name, "choices": [{"text": "x%y", "n": 3}]})
