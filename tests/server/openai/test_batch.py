"""Batch form of chat, /invocations and the tokenizer routes."""

import pytest

from ortloom.config import RouteConfig

BATCH = "/v1/chat/completions/batch"
HI = [{"role": "user", "content": "hi"}]
SEA = [{"role": "user", "content": "The sea"}]


def test_each_conversation_is_a_choice(app, engine, tokenizer):
    engine.reply = lambda request: [len(request.prompt_token_ids), tokenizer.eos_token_id]
    alone = [
        app.post("/v1/chat/completions", {"messages": m, "temperature": 0}).json()
        for m in (HI, SEA)
    ]
    asked = {"messages": [HI, SEA], "temperature": 0, "return_token_ids": True}
    reply = app.post(BATCH, asked).json()
    assert reply["object"] == "chat.completion"
    assert [c["index"] for c in reply["choices"]] == [0, 1]
    texts = [c["message"]["content"] for c in reply["choices"]]
    assert texts == [a["choices"][0]["message"]["content"] for a in alone]
    prompts = [c["prompt_token_ids"] for c in reply["choices"]]
    assert [len(p) for p in prompts] == [a["usage"]["prompt_tokens"] for a in alone]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert reply["usage"][name] == sum(a["usage"][name] for a in alone)
    assert reply["prompt_token_ids"] is None


def test_one_failure_ends_the_batch(app, engine):
    engine.failure = (1, RuntimeError("broken"))
    assert app.post(BATCH, {"messages": [HI, SEA], "max_tokens": 3}).status_code == 500
    assert engine.all_closed.wait(10)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"messages": HI, "prompt": "x", "input": "x"}, "chat.completion"),
        ({"prompt": "x", "input": "x"}, "text_completion"),
        ({"prompt": [5, 6]}, "text_completion"),
        ({"messages": "no", "prompt": "x"}, "text_completion"),
    ],
)
def test_invocations_take_the_first_form_that_fits(app, say, body, kind):
    say("x")
    response = app.post("/invocations", {"max_tokens": 1, **body})
    assert response.json()["object"] == kind


def test_invocations_stream(app, say):
    say("The sea")
    events = app.events("/invocations", {"messages": HI})
    assert events[0]["object"] == "chat.completion.chunk"


def test_invocations_name_what_they_take(app):
    response = app.post("/invocations", {"input": "x"})
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert "messages" in message
    assert "prompt" in message
    response = app.client.post(
        "/invocations", content=b"{", headers={"content-type": "application/json"}
    )
    assert response.json()["error"]["type"] == "Bad Request"
    assert app.post("/invocations", {"messages": HI, "model": "nope"}).status_code == 404


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_ping_is_health(app, method):
    assert app.client.request(method, "/ping").status_code == 200


def test_tokenizer_info_needs_its_flag(app, serve, tokenizer):
    assert app.client.get("/tokenizer_info").status_code == 404
    assert app.client.get("/get_tokenizer_info").status_code == 404
    with serve(front={"routes": RouteConfig(tokenizer_info=True)}) as other:
        info = other.client.get("/tokenizer_info").json()
        assert other.client.get("/get_tokenizer_info").json() == info
    assert info["eos_token"] == "<|im_end|>"
    assert info["chat_template"] == tokenizer.config["chat_template"]
    assert info["tokenizer_class"]


def test_token_objects_become_strings():
    from ortloom.server.routes.tokenizer_info import plain

    token = {"content": "<s>", "lstrip": False, "rstrip": False, "normalized": True}
    config = {"bos_token": token, "extra": [token, 5], "map": {"1": token, "content": "kept"}}
    found = {"bos_token": "<s>", "extra": ["<s>", 5], "map": {"1": "<s>", "content": "kept"}}
    assert plain(config) == found
