import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortloom.models.stop_strings import StopChecker


def run(checker, deltas):
    shown = ""
    for number, delta in enumerate(deltas, 1):
        shown += checker.push(delta, number)
    return shown + checker.finish()


def oracle(text, stops, include):
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


@settings(max_examples=500, deadline=None)
@given(
    text=st.text("abc", max_size=14),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    sizes=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    include=st.booleans(),
)
def test_any_split_gives_the_earliest_match(text, stops, sizes, include):
    checker = StopChecker(stops, include)
    want, matched = oracle(text, stops, include)
    shown, start, turn = "", 0, 0
    while start < len(text):
        size = sizes[turn % len(sizes)] or (turn % 2)
        shown += checker.push(text[start : start + size], turn + 1)
        assert want.startswith(shown)
        start, turn = start + size, turn + 1
    assert shown + checker.finish() == want
    assert checker.matched == matched


def test_the_earliest_completing_one_wins_and_ties_go_by_order():
    assert run(checker := StopChecker(["cde", "b"]), ["abcde"]) == "a"
    assert checker.matched == "b"
    assert run(checker := StopChecker(["c", "bc"]), ["abcd"]) == "ab"
    assert checker.matched == "c"
    assert run(checker := StopChecker(["bc", "c"]), ["abcd"]) == "a"
    assert checker.matched == "bc"


def test_the_beginning_of_a_stop_string_never_leaks():
    checker = StopChecker(["\nGuest:"])
    shown = [checker.push(c, i) for i, c in enumerate("home\nGuest: more")]
    assert "".join(shown) == "home"
    assert checker.matched == "\nGuest:"


def test_at_most_longest_minus_one_characters_wait():
    checker = StopChecker(["abc", "xy"])
    shown = checker.push("hello", 1)
    assert shown == "hel"
    assert checker.finish() == "lo"


def test_nothing_waits_when_the_stop_string_is_shown():
    checker = StopChecker(["abc"], include_in_output=True)
    assert checker.push("hello ab", 1) == "hello ab"
    assert checker.push("cd", 2) == "c"


def test_before_min_tokens_nothing_is_looked_at():
    checker = StopChecker(["x"], min_tokens=2)
    assert run(checker, ["x", "x", "yx", "z"]) == "xxy"
    assert checker.matched == "x"


def test_a_stop_string_may_begin_before_min_tokens_and_end_after():
    checker = StopChecker(["ab"], min_tokens=1)
    assert run(checker, ["xa", "b!"]) == "x"


@pytest.mark.parametrize("stops", [[], ["zzz"]])
def test_without_a_match_all_text_comes(stops):
    assert run(StopChecker(stops), ["ab", "", "cz"]) == "abcz"
