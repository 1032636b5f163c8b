"""Turns to chat messages: calls, thoughts, and system messages in the middle."""

import msgspec
import pytest

from ortloom.models.chat_template import ChatTemplate
from ortloom.server.anthropic.blocks import chat_messages
from ortloom.server.anthropic.system_turns import after_results, placed
from ortloom.server.anthropic.wire import InputMessage

MARKED = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
REFUSING = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('system must be first') }}{% endif %}<{{ m.role }}>{{ m.content }}"
    "{% endfor %}"
)
MOVING = (
    "{% for m in messages if m.role == 'system' %}<system>{{ m.content }}{% endfor %}"
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
AS_USER = "{% for m in messages %}<turn>{{ m.content }}{% endfor %}"
FOLDING = [REFUSING, MOVING, AS_USER, None]


def turns(*pairs):
    return msgspec.convert([{"role": r, "content": c} for r, c in pairs], list[InputMessage])


def call(identity="c1", **given):
    return {"type": "tool_use", "id": identity, "name": "get_w", "input": given}


def result(identity="c1", content="ok"):
    return {"type": "tool_result", "tool_use_id": identity, "content": content}


def shown(messages):
    return [(m.role, m.content) for m in messages]


def arranged(source, system, *pairs):
    template = None if source is None else ChatTemplate({"default": source}, {})
    return shown(placed(system, chat_messages(after_results(turns(*pairs))), template))


def test_a_call_with_thoughts_and_words():
    blocks = [
        {"type": "thinking", "thinking": "hm "},
        {"type": "thinking", "thinking": "so"},
        {"type": "text", "text": "Let me look."},
        call("c1", city="Oslo"),
        call("c2"),
    ]
    (message,) = chat_messages(turns(("assistant", blocks)))
    assert message.content == "Let me look."
    assert message.reasoning == "hm so"
    assert message.tool_calls == [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "get_w", "arguments": {"city": "Oslo"}},
        },
        {"id": "c2", "type": "function", "function": {"name": "get_w", "arguments": {}}},
    ]


def test_a_call_alone_has_no_words():
    (message,) = chat_messages(turns(("assistant", [call()])))
    assert message.content is None
    assert message.tool_calls is not None
    assert message.reasoning is None


def test_results_carry_the_id_of_their_call():
    messages = chat_messages(turns(("user", [result("c7", "a"), result("c8", None)])))
    assert [(m.role, m.tool_call_id, m.content) for m in messages] == [
        ("tool", "c7", "a"),
        ("tool", "c8", ""),
    ]


def test_items_of_a_result_that_are_no_text_are_told_as_json():
    found = {"type": "search_result", "title": "é", "content": []}
    (message,) = chat_messages(turns(("user", [result(content=[found])])))
    assert msgspec.json.decode(message.content) == found
    assert "é" in message.content


def test_a_result_in_a_turn_of_the_model_is_text():
    (message,) = chat_messages(turns(("assistant", [result(content="5")])))
    assert message.content == "Tool result: 5"


@pytest.mark.parametrize("source", [MARKED, *FOLDING])
def test_nothing_to_place(source):
    assert arranged(source, "S", ("user", "a")) == [("system", "S"), ("user", "a")]
    assert arranged(source, "", ("user", "a")) == [("user", "a")]
    assert arranged(source, "", ("system", "S"), ("system", ""), ("user", "a")) == [
        ("system", "S"),
        ("user", "a"),
    ]


def test_kept_where_the_template_marks_it():
    given = [("user", "a"), ("system", "N"), ("assistant", "b"), ("user", "c"), ("system", "M")]
    assert arranged(MARKED, "S", *given) == [("system", "S"), *given]


@pytest.mark.parametrize("source", FOLDING)
def test_folded_where_it_does_not(source):
    given = [("user", "a"), ("system", "N"), ("assistant", "b"), ("system", "M"), ("user", "c")]
    assert arranged(source, "S", *given) == [
        ("system", "S"),
        ("user", "a\n\nN"),
        ("assistant", "b"),
        ("user", "M\n\nc"),
    ]


def test_folded_without_a_system_prompt():
    assert arranged(MARKED, "", ("user", "a"), ("system", "N")) == [("user", "a\n\nN")]


def test_folded_at_the_end_and_between_turns_of_the_model():
    given = [("user", "a"), ("assistant", "b"), ("system", "N")]
    assert arranged(None, "", *given)[2:] == [("user", "N")]
    given = [("user", "a"), ("assistant", "b"), ("system", "N"), ("assistant", "c")]
    assert arranged(None, "", *given)[2:] == [("user", "N"), ("assistant", "c")]


@pytest.mark.parametrize(("source", "system"), [(MARKED, "S"), (None, "")])
def test_never_between_a_call_and_its_results(source, system):
    given = [("user", "a"), ("assistant", [call()]), ("system", "N"), ("user", [result()])]
    found = arranged(source, system, *given)
    found = found[1:] if system else found
    assert found[2:] == ([("tool", "ok"), ("system", "N")] if system else [("tool", "ok\n\nN")])


def test_words_of_several_parts_are_extended_in_the_nearest():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = arranged(None, "", ("user", parts), ("system", "N"))
    assert found == [("user", [parts[0], {"type": "text", "text": "b\n\nN"}])]
    found = arranged(None, "", ("user", "x"), ("assistant", "y"), ("system", "N"), ("user", parts))
    assert found[2] == ("user", [{"type": "text", "text": "N\n\na"}, parts[1]])
