import pytest

MESSAGES = [{"role": "user", "content": "The sea"}]


def test_text_to_ids(app, tokenizer):
    reply = app.post("/tokenize", {"model": "tiny", "prompt": "The sea is"}).json()
    ids = tokenizer.encode("The sea is")
    assert reply == {"count": len(ids), "max_model_len": 64, "tokens": ids, "token_strs": None}


def test_token_strings_are_those_of_the_vocabulary(app):
    reply = app.post("/tokenize", {"prompt": "The sea", "return_token_strs": True}).json()
    assert "".join(reply["token_strs"]) == "TheĠsea"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"add_generation_prompt": False},
        {"add_generation_prompt": False, "continue_final_message": True},
        {"chat_template_kwargs": {"mood": "calm"}},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "high"},
        {"add_special_tokens": True},
    ],
)
def test_the_chat_form_gives_the_ids_chat_sends(app, engine, say, fields):
    say("x")
    tokens = app.post("/tokenize", {"messages": MESSAGES, **fields}).json()["tokens"]
    response = app.post("/v1/chat/completions", {"messages": MESSAGES, **fields})
    assert response.status_code == 200
    assert engine.requests[-1].prompt_token_ids == tokens


def test_a_refusing_template_is_a_400(app):
    response = app.post("/tokenize", {"messages": [{"role": "wizard", "content": "x"}]})
    assert response.status_code == 400
    assert "wizards are not allowed" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "body.prompt"),
        ({"prompt": 5}, 400, "body.prompt"),
        ({"messages": "x"}, 400, "body.messages"),
        ({"prompt": "x", "model": "nope"}, 404, "model"),
    ],
)
def test_bad_bodies_name_the_field(app, body, status, param):
    response = app.post("/tokenize", body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


def test_ids_to_text(app, tokenizer):
    ids = tokenizer.encode("The sea<|im_end|>")
    assert app.post("/detokenize", {"tokens": ids}).json() == {"prompt": "The sea<|im_end|>"}
    assert app.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize("ids", [[-1], [1 << 40], ["x"], [1.5], None, "abc", [[1]], [True]])
def test_bad_ids_are_refused(app, ids):
    response = app.post("/detokenize", {"tokens": ids})
    assert response.status_code == 400
    assert response.json()["error"]["message"]
