"""What no text may do to a parser: raise, depend on the cuts, break JSON, or cost more than a line.

Work is counted in characters that states look at: how long the buffer is at each push. It must stay
short, so that a push costs what it brings and no more.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortloom.models.reasoning_parsers.registry import reasoning_parser, reasoning_parser_names
from ortloom.models.tool_parsers.registry import tool_parser, tool_parser_names
from ortloom.models.tool_parsers.tool_parser import (
    ArgumentsDelta,
    CallStart,
    ContentDelta,
    ToolSpec,
)

TOOLS = [
    ToolSpec(
        "f",
        {
            "properties": {
                "s": {"type": "string"},
                "i": {"type": "integer"},
                "o": {"type": "object"},
            }
        },
    ),
]

# one name of each class
TOOL_NAMES = sorted({tool_parser(n): n for n in tool_parser_names() if "plugged" not in n}.values())
REASONING_NAMES = sorted(
    {reasoning_parser(n): n for n in reasoning_parser_names() if "plugged" not in n}.values()
)


def markers(parser):
    """Every string that a parser's class compares text with."""
    found = set()
    for owner in parser.__mro__:
        for value in vars(owner).values():
            strings = getattr(value, "strings", value if isinstance(value, tuple) else ())
            found |= {s for s in strings if isinstance(s, str)}
    return sorted(found)


GLUE = [
    '{"name": "f", "arguments": {"s": "x"}}',
    '{"name": "f"',
    ', "arguments": {"i": ',
    '{"f": {}}',
    "f(s='x', i=2)",
    "f",
    "call:f{s:",
    'name="f">',
    'key="s" type="string"',
    " to=functions.f ",
    " to=f",
    "s",
    "i>",
    "1",
    '"',
    "'",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    ",",
    ":",
    "=",
    "<",
    ">",
    "|",
    "\\",
    "\n",
    " ",
    "é🌍",
    "\ud800",
    "null",
]


def texts(strings):
    pieces = st.one_of(
        st.sampled_from([*strings, *GLUE]),
        st.sampled_from(strings or GLUE).map(lambda s: s[: max(1, len(s) // 2)]),
        st.text(max_size=3),
    )
    return st.lists(pieces, max_size=14).map("".join)


def follow(parser, pieces):
    events = [event for piece in pieces for event in parser.push(piece)]
    events += parser.finish()
    content = "".join(event.text for event in events if isinstance(event, ContentDelta))
    calls = [[e.name, ""] for e in events if isinstance(e, CallStart)]
    for event in events:
        if isinstance(event, ArgumentsDelta):
            calls[event.index][1] += event.fragment
    return content, calls


def split(text, cuts):
    places = sorted({cut % (len(text) + 1) for cut in cuts})
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("name", TOOL_NAMES)
def test_any_text_and_any_cut(name):
    kind = tool_parser(name)

    @settings(max_examples=25, deadline=None)
    @given(text=texts(markers(kind)), cuts=st.lists(st.integers(0, 400), max_size=6))
    def check(text, cuts):
        whole = follow(kind(TOOLS), [text])
        assert follow(kind(TOOLS), list(text)) == whole
        assert follow(kind(TOOLS), split(text, cuts)) == whole
        parsed = kind(TOOLS).parse(text)
        assert parsed.content is None or isinstance(parsed.content, str)
        for call in parsed.calls:
            assert call.name
            call.name.encode()
            call.arguments.encode()
            json.loads(call.arguments)
        if not parsed.calls:
            assert parsed.content is not None

    check()


@pytest.mark.parametrize("name", REASONING_NAMES)
def test_any_text_and_any_cut_of_reasoning(name):
    kind = reasoning_parser(name)

    @settings(max_examples=20, deadline=None)
    @given(
        text=texts(markers(kind)),
        cuts=st.lists(st.integers(0, 400), max_size=6),
        thinking=st.sampled_from([{}, {"thinking": True}, {"reasoning_effort": "high"}]),
    )
    def check(text, cuts, thinking):
        def run(pieces):
            parser = kind(thinking)
            splits = [parser.push(piece) for piece in pieces] + [parser.finish()]
            return "".join(s.reasoning for s in splits), "".join(s.content for s in splits)

        whole = run([text])
        assert run(list(text)) == whole
        assert run(split(text, cuts)) == whole
        kind(thinking).parse(text)

    check()


LENGTH = 20_000

FLOODS = [
    "x",
    " ",
    "\n",
    "<",
    "[",
    "{",
    '"',
    "\\",
    "<|",
    "</",
    "a=",
    "a ",
    "a,",
    "-",
    '{"a":',
    "f(",
    "1,",
    "to=",
]


def held(parser):
    """Characters a parser holds unsearched, or would join again at the next push."""
    return len(parser._text) - getattr(parser, "_at", 0)


@pytest.mark.parametrize("name", TOOL_NAMES)
def test_work_is_linear(name):
    """After every beginning that the corpus's markers give, a flood of one thing."""
    kind = tool_parser(name)
    heads = ["", *markers(kind)]
    heads += [f"{head}f" for head in heads] + [
        f'{head}{{"name": "f", "arguments": ' for head in heads
    ]
    for number, head in enumerate(heads):
        flood = FLOODS[number % len(FLOODS)]
        parser = kind(TOOLS)
        parser.push(head)
        most = 0
        for _ in range(200):
            parser.push(flood)
            most = max(most, held(parser))
        assert most <= 700, (head, flood)
        parser.push(flood * (LENGTH // len(flood)))
        assert held(parser) <= 700, (head, flood)
        parser.finish()


@pytest.mark.parametrize("name", REASONING_NAMES)
def test_work_on_reasoning_is_linear(name):
    kind = reasoning_parser(name)
    for head in ["", *markers(kind)]:
        for flood in FLOODS:
            parser = kind({"thinking": True, "reasoning_effort": "high"})
            parser.push(head)
            parser.push(flood * 2000)
            assert held(parser) <= 1500, (head, flood)
            parser.finish()
