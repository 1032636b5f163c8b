"""Long conversations are rendered beside the event loop, short ones on it."""

import threading

import pytest

from ortloom.server.openai import chat_prompt

PATH = "/tokenize"


@pytest.mark.parametrize(
    ("messages", "aside"),
    [
        ([{"role": "user", "content": "hi"}] * 3, False),
        ([{"role": "user", "content": "hi"}] * 2000, True),
        ([{"role": "user", "content": [{"type": "text", "text": "hi"}] * 2000}], True),
    ],
    ids=("short", "many messages", "many parts"),
)
def test_where_a_conversation_is_rendered(app, monkeypatch, messages, aside):
    real, threads = chat_prompt._render, []

    def render(*arguments):
        threads.append(threading.current_thread().name)
        return real(*arguments)

    monkeypatch.setattr(chat_prompt, "_render", render)
    reply = app.post(PATH, {"messages": messages})
    assert reply.status_code == 200
    assert reply.json()["count"] >= len(messages)
    assert [name.startswith("long-text") for name in threads] == [aside]
