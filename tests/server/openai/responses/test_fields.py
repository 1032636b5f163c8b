"""Every field of the request: what it does, and what is refused with which type and param."""

import pytest

PATH = "/v1/responses"
BAD = "Bad Request"
REFUSED = "BadRequestError"
RULE = "invalid_request_error"
FUNCTION = {"type": "function", "name": "get_w", "parameters": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def body(**fields):
    return {"model": "tiny", "input": "Say hi", "temperature": 0, **fields}


def error_of(response, status=400):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert (error["code"], bool(error["message"])) == (status, True)
    return error


def test_what_is_not_there_is_404(app, engine):
    error = error_of(app.post(PATH, body(model="nope")), 404)
    assert (error["type"], error["param"]) == ("NotFoundError", "model")
    error = error_of(app.post(PATH, body(previous_response_id="resp_nope")), 404)
    assert (error["type"], error["param"]) == (RULE, "response_id")
    reference = [{"type": "item_reference", "id": "msg_nope"}]
    error = error_of(app.post(PATH, body(input=reference)), 404)
    assert (error["type"], error["param"]) == (RULE, "input")
    assert not engine.requests


@pytest.mark.parametrize("text", ["", "[]", "{", '{"input": "x"', '{"model": "tiny"}'])
def test_bodies_that_are_none(app, text):
    headers = {"content-type": "application/json"}
    response = app.client.post(PATH, content=text.encode(), headers=headers)
    assert error_of(response)["type"] == BAD


def test_a_schema_is_echoed_whole(app, say):
    say("sea")
    given = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    reply = app.post(PATH, body(text={"format": given})).json()
    assert reply["text"]["format"] == {**given, "description": None}


def test_priority_and_salt(app, engine, say):
    say("sea")
    app.post(PATH, body(priority=3, cache_salt="s"))
    app.post(PATH, body(priority=3), headers={"X-Vllm-Priority": "-2"})
    first, second = engine.requests
    assert (first.priority, first.cache_salt, second.priority) == (3, "s", -2)


def test_truncation_cuts_at_the_left(app, engine, say):
    say("sea")
    long = "sea " * 200 + "end"
    response = app.post(PATH, body(input=long, truncation="auto", max_output_tokens=10))
    assert response.status_code == 200, response.text
    assert len(engine.requests[0].prompt_token_ids) == 64 - 10


def test_ignored_fields_are_accepted(app, say):
    say("sea")
    fields = {
        "session_id": "s",
        "prompt_cache_key": "k",
        "include": ["reasoning.encrypted_content"],
        "include_reasoning": False,
        "store": True,
        "vllm_xargs": {"a": 1},
        "kv_transfer_params": {},
        "ec_transfer_params": {},
        "stream_options": {"include_obfuscation": False},
        "guided_json": {},
    }
    assert app.post(PATH, body(**fields)).status_code == 200
