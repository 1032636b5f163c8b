"""--skip-tokenizer-init: token ids in, token ids out; whatever needs text is refused."""

import pytest


@pytest.fixture
def bare(app):
    """The shared server as if it had been started without a tokenizer."""
    context = app.context
    before = context.tokenizer, context.chat_template
    context.tokenizer = context.chat_template = None
    yield app
    context.tokenizer, context.chat_template = before


def test_token_ids_in_give_token_ids_out(bare, engine):
    engine.reply = lambda request: [5, 6, 7]
    fields = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 3, "return_token_ids": True}
    choice = bare.post("/v1/completions", fields).json()["choices"][0]
    assert (choice["text"], choice["token_ids"]) == ("", [5, 6, 7])
    scored = bare.post("/v1/completions", {**fields, "logprobs": 0}).json()["choices"][0]
    assert scored["logprobs"]["tokens"] == ["token_id:5", "token_id:6", "token_id:7"]
    events = bare.events("/v1/completions", fields)
    assert [t for e in events for t in e["choices"][0]["token_ids"]] == [5, 6, 7]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "text"}),
        ("/v1/completions", {"prompt": [1, 2], "stop": ["x"]}),
        ("/v1/completions", {"prompt": [1, 2], "bad_words": ["x"]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/tokenize", {"prompt": "text"}),
        ("/detokenize", {"tokens": [1]}),
    ],
)
def test_what_needs_text_is_refused(bare, path, fields):
    reply = bare.post(path, {"model": "tiny", **fields})
    assert reply.status_code == 400, reply.text
    message = reply.json()["error"]["message"]
    assert "tokeniz" in message
