import pytest

from ortloom.models.thinking import Thinking, ThinkingTracker, opened_by

WORDS = {
    1: b"<think>",
    2: b"</think>",
    3: b"a",
    4: b" b",
    5: b"</",
    6: b"think",
    7: b">",
    8: b">\n",
    9: b"\n",
    10: b"<",
    11: b"{",
    12: b"<tool_call>",
    13: "é".encode()[:1],
    14: "é".encode()[1:],
    15: b"> {",
}
TOKENS = Thinking(start="<think>", end="</think>", start_token=1, end_token=2, open=True)
TEXT = Thinking(start="<think>", end="</think>", open=True)


def follow(thinking, tokens, prompt=()):
    tracker = ThinkingTracker(thinking, WORDS.__getitem__, prompt)
    for token in tokens:
        tracker.push(token)
    return tracker.phase, tracker.count, tracker.ended


@pytest.mark.parametrize("thinking", [TOKENS, TEXT])
@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], ("inside", 0, False)),
        ([3, 4], ("inside", 2, False)),
        ([3, 4, 2, 11, 3], ("after", 2, True)),
        ([1, 3, 2], ("after", 1, True)),
        ([9, 1, 3, 2], ("after", 1, True)),
        ([3, 1, 3, 2], ("after", 3, True)),  # in the middle the start marker is text
        ([2], ("after", 0, True)),
        ([1, 2], ("after", 0, True)),
        ([13, 14, 2], ("after", 2, True)),
    ],
)
def test_inside_from_the_beginning(thinking, tokens, expected):
    assert follow(thinking, tokens) == expected


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([3, 5, 6, 7, 11], ("after", 1, True)),
        ([3, 5, 6, 8], ("after", 1, True)),
        ([10, 6, 7, 3, 5, 6, 15], ("after", 1, True)),
        ([3, 5, 6, 3, 5, 6, 7], ("after", 4, True)),
        ([3, 5, 6], ("inside", 3, False)),
        ([3] * 20 + [10, 6, 7, 5, 6, 7], ("after", 23, True)),
    ],
)
def test_markers_of_several_tokens(tokens, expected):
    assert follow(TEXT, tokens) == expected


def test_a_marker_that_may_be_coming_is_told():
    tracker = ThinkingTracker(TEXT, WORDS.__getitem__)
    told = []
    for token in [3, 5, 6, 3, 10, 3]:
        tracker.push(token)
        told.append(tracker.in_marker)
    assert told == [False, True, True, False, True, False]


@pytest.mark.parametrize("marked", [TOKENS, TEXT])
def test_reasoning_that_only_a_start_marker_opens(marked):
    thinking = Thinking(
        start=marked.start,
        end=marked.end,
        start_token=marked.start_token,
        end_token=marked.end_token,
        open=False,
    )
    assert follow(thinking, []) == ("before", 0, False)
    assert follow(thinking, [9]) == ("before", 0, False)
    assert follow(thinking, [3]) == ("after", 0, False)
    assert follow(thinking, [9, 1, 3, 4]) == ("inside", 2, False)
    assert follow(thinking, [1, 3, 2, 3]) == ("after", 1, True)
    assert follow(thinking, [11, 1, 3]) == ("after", 0, False)


def test_without_a_start_marker_nothing_can_begin():
    assert follow(Thinking(end="</think>", open=False), [3])[0] == "after"


def test_a_call_ends_reasoning_where_it_may():
    calls = Thinking(
        start="<think>",
        end="</think>",
        start_token=1,
        end_token=2,
        other_ends=("<tool_call>",),
        open=True,
    )
    assert follow(calls, [3, 12, 3]) == ("after", 1, True)
    assert follow(TOKENS, [3, 12, 3]) == ("inside", 3, False)


@pytest.mark.parametrize("marked", [TOKENS, TEXT])
@pytest.mark.parametrize(
    ("prompt", "opened"),
    [([], False), ([3], False), ([3, 1], True), ([1, 2, 4], False), ([1, 2, 1, 3], True)],
)
def test_the_prompt_tells_where_nothing_else_does(marked, prompt, opened):
    thinking = Thinking(
        start="<think>", end="</think>", start_token=marked.start_token, end_token=marked.end_token
    )
    assert opened_by(thinking, prompt, WORDS.__getitem__) is opened
    phase = follow(thinking, [], prompt)[0]
    assert phase == ("inside" if opened else "before")
