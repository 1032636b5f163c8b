"""Items to chat messages."""

import pytest

from ortloom.errors import InvalidRequest, ResponseNotFound, SchemaViolation
from ortloom.server.openai.responses.items import MessageBuilder, continues_last, extended
from ortloom.server.openai.responses.store import Conversation
from ortloom.server.openai.wire_chat import ChatMessage

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
MADE = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def text(value, kind="output_text"):
    return {"type": kind, "text": value}


def thought(value):
    return {"type": "reasoning", "summary": [], "content": [text(value, "reasoning_text")]}


def said(value):
    return {"type": "message", "role": "assistant", "content": [text(value)]}


def built(*items):
    builder = MessageBuilder()
    builder.add_input(list(items))
    return builder.messages


def test_messages_of_every_role_and_form():
    roles = ("user", "system", "developer", "assistant")
    forms = ("x", ["x"], [text("x", "input_text")], [{"type": "refusal", "refusal": "x"}])
    for role in roles:
        for content in forms:
            assert built({"role": role, "content": content}) == [
                ChatMessage(role=role, content="x")
            ]
    several = {"role": "user", "content": [text("a", "input_text"), text("b", "text")]}
    assert built(several)[0].content == [text("a", "text"), text("b", "text")]
    assert built({"role": "user", "content": []})[0].content == []


def test_items_of_one_turn_become_one_message():
    turn = [thought("r"), said("t"), CALL, {**CALL, "call_id": "d"}]
    (message,) = built(*turn)
    second = {**MADE, "id": "d"}
    want = ChatMessage(role="assistant", content="t", reasoning="r", tool_calls=[MADE, second])
    assert message == want
    assert [m.reasoning for m in built(thought("a"), thought("b"))] == ["a", "b"]
    assert built(CALL, said("t"))[0] == ChatMessage(
        role="assistant", content="t", tool_calls=[MADE]
    )


def test_another_turn_begins_another_message():
    found = built(said("a"), said("b"), thought("r"), said("c"))
    assert [(m.content, m.reasoning) for m in found] == [("a", None), ("b", None), ("c", "r")]
    result = {"type": "function_call_output", "call_id": "c", "output": "o"}
    found = built(CALL, result, CALL)
    assert [m.role for m in found] == ["assistant", "tool", "assistant"]
    assert found[1] == ChatMessage(role="tool", content="o", tool_call_id="c")


def test_a_summary_stands_in_for_reasoning():
    item = {"type": "reasoning", "summary": [text("a", "summary_text"), text("b", "summary_text")]}
    assert built(item)[0].reasoning == "a\nb"


def test_earlier_messages_are_not_changed():
    earlier = [ChatMessage(role="assistant", reasoning="r")]
    builder = MessageBuilder(earlier)
    builder.add(said("t"), "x")
    builder.add(CALL, "x")
    assert earlier == [ChatMessage(role="assistant", reasoning="r")]
    assert builder.messages[1:] == [ChatMessage(role="assistant", content="t", tool_calls=[MADE])]


def test_references_are_looked_up():
    builder = MessageBuilder(find={"msg_1": said("t")}.get)
    builder.add_input([{"type": "item_reference", "id": "msg_1"}, {"id": "msg_1", "type": None}])
    assert [m.content for m in builder.messages] == ["t", "t"]
    with pytest.raises(ResponseNotFound, match="msg_2"):
        builder.add_input([{"id": "msg_2"}])


@pytest.mark.parametrize(
    ("item", "error", "param"),
    [
        ({"type": 5}, InvalidRequest, "input"),
        ({"type": "reasoning", "encrypted_content": "x"}, InvalidRequest, "input"),
        ({"type": "reasoning", "content": [{"type": "x"}]}, InvalidRequest, "type"),
        ({"type": "reasoning", "content": "x"}, SchemaViolation, "body.input.0.content"),
        ({**CALL, "arguments": {}}, SchemaViolation, "body.input.0.arguments"),
        ({**CALL, "status": "late"}, SchemaViolation, "body.input.0.status"),
        ({"type": "item_reference"}, SchemaViolation, "body.input.0.id"),
        ({"type": "function_call_output", "output": "x"}, SchemaViolation, "body.input.0.call_id"),
        (
            {"type": "function_call_output", "call_id": "c", "output": [text(5)]},
            SchemaViolation,
            "body.input.0.output.0.text",
        ),
        ({"role": "user", "content": [5]}, SchemaViolation, "body.input.0.content.0"),
        (
            {"role": "user", "content": [{"type": "input_file", "file_id": "f"}]},
            InvalidRequest,
            None,
        ),
    ],
)
def test_items_that_do_not_fit(item, error, param):
    with pytest.raises(error) as caught:
        built(item)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("x", False),
        ([], False),
        ([said("x")], False),
        ([{**said("x"), "status": "completed"}], False),
        ([{**said("x"), "status": "incomplete"}], True),
        ([{**thought("x"), "status": "in_progress"}], True),
        ([{"role": "assistant", "content": "x", "status": "in_progress"}], True),
        ([{"role": "user", "content": "x", "status": "in_progress"}], False),
        ([{**CALL, "status": "in_progress"}], False),
        ([{**said("x"), "status": "incomplete"}, {"role": "user", "content": "x"}], False),
        ([5], False),
    ],
)
def test_what_is_continued(given, want):
    assert continues_last(given) is want


def test_a_conversation_grows_by_input_and_output():
    before = Conversation((ChatMessage(role="user", content="a"),), 10)
    messages = [*before.messages, ChatMessage(role="user", content="b")]
    cut = {**CALL, "arguments": '{"a', "status": "incomplete"}
    after = extended(before, messages, [thought("r"), said("t"), cut], continued=False)
    assert after.messages == (
        *messages,
        ChatMessage(role="assistant", content="t", reasoning="r"),
    )
    assert after.size > 10
    assert len(before.messages) == 1


def test_a_continued_message_becomes_whole():
    messages = [ChatMessage(role="assistant", content="The ")]
    after = extended(Conversation(), messages, [said("sea")], continued=True)
    assert after.messages == (ChatMessage(role="assistant", content="The sea"),)
    assert messages[0].content == "The "


def test_calls_join_their_message_without_copying_it():
    """Else many items of one turn would take time with the square of their number."""
    builder = MessageBuilder()
    builder.add_input([CALL])
    (message,) = builder.messages
    calls = message.tool_calls
    builder.add_input([CALL, CALL])
    assert builder.messages == [message]
    assert builder.messages[0].tool_calls is calls
    assert len(calls) == 3
