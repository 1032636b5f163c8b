"""Bodies that do not fit: status, type and param as recorded, and nothing breaks."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
BAD = "Bad Request"
REFUSED = "BadRequestError"


def completion(**fields):
    return {"model": "tiny", "prompt": "The sea", "temperature": 0, "max_tokens": 4, **fields}


def chat(**fields):
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **fields}


def error_of(response, status=400):
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    error = response.json()["error"]
    assert error["code"] == status
    assert error["message"]
    return error


def test_an_error_names_the_field_even_without_param(app):
    for name, value in (("top_k", -2), ("min_p", 7), ("repetition_penalty", 0), ("n", 0)):
        assert name in error_of(app.post(COMPLETIONS, completion(**{name: value})))["message"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"", "body.0"),
        (b"{", "body.1"),
        (b"[]", "body"),
        (b"null", "body"),
        (b"5", "body"),
        (b'"text"', "body"),
        (b"\xff\xfe", None),
        (b'{"model":"a\xff"}', None),
        (b"model=a", None),
        (b'{"model":"m","prompt":"a"} trailing', None),
        (b'{"model":"tiny","prompt":"a","temperature":NaN}', None),
        (b'{"model":"tiny","prompt":"a","temperature":1e999}', None),
        (b"[" * 100_000 + b"]" * 100_000, None),
    ],
)
def test_bodies_that_are_no_json_object(app, path, raw, param):
    response = app.client.post(path, content=raw, headers={"content-type": "application/json"})
    error = error_of(response)
    assert error["type"] == BAD
    if param is not None:
        assert error["param"] == param


def test_another_content_type_is_refused(app):
    response = app.client.post(CHAT, content=b"{}", headers={"content-type": "text/plain"})
    error = error_of(response)
    assert (error["type"], error["param"]) == (BAD, None)


def test_depth_in_an_ignored_or_a_known_field_breaks_nothing(app, say):
    say("x")
    deep = "[" * 100_000 + "]" * 100_000
    head = json.dumps(chat())[:-1]
    response = app.client.post(
        CHAT,
        content=f'{head},"x":{deep}}}'.encode(),
        headers={"content-type": "application/json"},
    )
    assert response.status_code in (200, 400)
    schema = "{}"
    for _ in range(900):
        schema = f'{{"type":"object","properties":{{"a":{schema}}}}}'
    tool = f'[{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}]'
    response = app.client.post(
        CHAT,
        content=f'{head},"tool_choice":"none","tools":{tool}}}'.encode(),
        headers={"content-type": "application/json"},
    )
    assert response.status_code in (200, 400)
    response = app.client.post(
        COMPLETIONS,
        content=f'{{"prompt":"a","structured_outputs":{{"json":{schema}}}}}'.encode(),
        headers={"content-type": "application/json"},
    )
    assert response.status_code in (200, 400)
    assert app.post(CHAT, chat()).status_code == 200


def test_of_a_key_given_twice_the_last_value_counts(app, say):
    say("The sea is a place", end=False)
    raw = b'{"prompt":"a","max_tokens":40,"max_tokens":2,"temperature":0}'
    response = app.client.post(
        COMPLETIONS, content=raw, headers={"content-type": "application/json"}
    )
    assert response.json()["usage"]["completion_tokens"] == 2


def test_samples_of_all_prompts_together_are_limited(serve, engine):
    with serve(front={"max_n": 4}) as app:
        fields = completion(prompt=["a", "b", "c"], n=2, temperature=1)
        error_of(app.post(COMPLETIONS, fields))
    assert not engine.requests


def test_a_text_no_context_can_hold_is_refused_before_it_is_encoded(app, tokenizer, monkeypatch):
    def never(self, *args):
        raise AssertionError("it was encoded")

    text = "sea " * 200_000
    monkeypatch.setattr(type(tokenizer), "encode", never)
    assert error_of(app.post(COMPLETIONS, completion(prompt=text)))["param"] == "input_tokens"
    message = {"role": "user", "content": text}
    assert error_of(app.post(CHAT, chat(messages=[message])))["param"] == "input_tokens"


def test_long_texts_are_encoded_one_at_a_time(app, tokenizer, monkeypatch):
    """Tokens take many times the memory of their text."""
    real, lock, together = type(tokenizer).encode, threading.Lock(), []

    def watched(self, *args):
        together.append(not lock.acquire(blocking=False))
        try:
            return real(self, *args)
        finally:
            if lock.locked() and not together[-1]:
                lock.release()

    monkeypatch.setattr(type(tokenizer), "encode", watched)
    bodies = [{"prompt": "sea boat " * 20_000} for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda body: app.post("/tokenize", body), bodies))
    assert {reply.status_code for reply in replies} == {200}
    assert together == [False] * 6
