"""Render, generate, derender: the three together give what the whole request gives."""

import pytest

from ortloom.config import RouteConfig

GENERATE = "/inference/v1/generate"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def shared_scale_out(start):
    with start(front={"routes": RouteConfig(scale_out=True)}) as running:
        yield running


@pytest.fixture
def scale_out(shared_scale_out, engine):
    return shared_scale_out


@pytest.mark.parametrize("half", ["render", "derender"])
@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_without_the_flag_they_are_forbidden(app, route, half):
    response = app.post(f"{route}/{half}", {"prompt": "x", "messages": HI})
    assert (response.status_code, response.json()["error"]["type"]) == (
        403,
        "PermissionDeniedError",
    )


def test_a_chat_request_as_a_generate_request(scale_out, engine):
    rendered = scale_out.post(
        "/v1/chat/completions/render", {"messages": HI, "max_tokens": 1, "model": "tiny"}
    ).json()
    assert rendered.pop("request_id").startswith("chatcmpl-")
    ids = rendered.pop("token_ids")
    assert ids == scale_out.post("/tokenize", {"messages": HI}).json()["tokens"]
    assert rendered == {
        "token_offsets": None,
        "features": None,
        "content_parts": None,
        "sampling_params": {
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "temperature": 1.0,
            "top_p": 1.0,
            "min_p": 0.0,
            "stop": [],
            "stop_token_ids": [],
            "max_tokens": 1,
            "output_kind": 2,
            "skip_clone": True,
            "bad_words": [],
            "skip_reading_prefix_cache": False,
        },
        "model": "tiny",
        "reasoning_ended": None,
        "reasoning_parser_kwargs": None,
        "return_token_ids": None,
        "output_mode": "tokens",
        "stream": False,
        "stream_options": None,
        "cache_salt": None,
        "priority": 0,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
    }
    assert not engine.requests


def test_completions_render_to_one_request_a_prompt(scale_out, tokenizer):
    asked = {"prompt": ["The sea", "home"], "cache_salt": "s", "priority": 3, "stream": True}
    first, second = scale_out.post("/v1/completions/render", asked).json()
    assert first["token_ids"] == tokenizer.encode("The sea")
    assert second["token_ids"] == tokenizer.encode("home")
    assert first["sampling_params"]["max_tokens"] == 16
    assert first["sampling_params"]["output_kind"] == 1
    assert (first["cache_salt"], first["priority"], first["stream"]) == ("s", 3, True)


def test_rendering_refuses_what_the_request_would(scale_out):
    for path in ("/v1/completions/render", "/v1/chat/completions/render"):
        response = scale_out.post(path, {"prompt": "x", "messages": HI, "temperature": 9})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "temperature")


def test_beams_have_no_generate_request(scale_out):
    for path in ("/v1/completions/render", "/v1/chat/completions/render"):
        body = {"prompt": "x", "messages": HI, "use_beam_search": True}
        response = scale_out.post(path, body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "use_beam_search"


def test_fields_for_extensions_go_on_as_they_came(scale_out):
    asked = {"prompt": "x", "vllm_xargs": {"a": [1, "b"]}}
    (rendered,) = scale_out.post("/v1/completions/render", asked).json()
    assert rendered["sampling_params"]["vllm_xargs"] == {"a": [1, "b"]}


@pytest.mark.parametrize("route", ["completions", "chat/completions"])
@pytest.mark.parametrize("kind", ["json", "structural_tag"])
def test_a_constraint_that_is_no_json_is_refused(scale_out, route, kind):
    body = {"prompt": "x", "messages": HI, "structured_outputs": {kind: "{"}}
    refused = scale_out.post(f"/v1/{route}/render", body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "structured_outputs"


def same(ours, theirs):
    """Equal but for ids, times and what an engine alone knows."""
    for reply in (ours, theirs):
        for name in ("id", "created", "system_fingerprint"):
            reply.pop(name, None)
    assert ours == theirs


CHAT_CASES = [
    {},
    {"logprobs": True, "top_logprobs": 2},
    {"n": 2, "temperature": 1},
    {"stop": ["place"]},
    {"max_tokens": 2},
    {"echo": True},
    {"return_token_ids": True},
    {"logprobs_detail": True},
]


@pytest.mark.parametrize("fields", CHAT_CASES)
def test_chat_comes_back(scale_out, say, fields):
    say("The sea is a place é👍🏽")
    asked = {"messages": HI, **fields}
    whole = scale_out.post("/v1/chat/completions", asked).json()
    rendered = scale_out.post("/v1/chat/completions/render", asked).json()
    generated = scale_out.post(GENERATE, rendered).json()
    reply = scale_out.post(
        "/v1/chat/completions/derender",
        {
            "generate_response": generated,
            "chat_request": asked,
            "prompt_tokens": len(rendered["token_ids"]),
            "prompt_token_ids": rendered["token_ids"],
        },
    )
    assert reply.status_code == 200, reply.text
    same(reply.json(), whole)
    assert generated["request_id"] == "generate-tokens-" + rendered["request_id"]


COMPLETION_CASES = [
    {},
    {"logprobs": 2},
    {"logprobs": 0},
    {"n": 2, "temperature": 1},
    {"stop": ["place"]},
    {"return_token_ids": True},
    {"logprobs_detail": True},
]


@pytest.mark.parametrize("fields", COMPLETION_CASES)
def test_completions_come_back(scale_out, say, fields):
    say("The sea is a place é👍🏽")
    asked = {"prompt": ["The sea", "home"], **fields}
    whole = scale_out.post("/v1/completions", asked).json()
    rendered = scale_out.post("/v1/completions/render", asked).json()
    generated = [scale_out.post(GENERATE, r).json() for r in rendered]
    reply = scale_out.post(
        "/v1/completions/derender",
        {
            "generate_responses": generated,
            "completion_request": asked,
            "prompt_tokens": [len(r["token_ids"]) for r in rendered],
        },
    )
    assert reply.status_code == 200, reply.text
    same(reply.json(), whole)


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_without_the_request_text_and_finish_come_back(scale_out, say, route):
    say("The sea is a place")
    generated = scale_out.post(GENERATE, {"token_ids": [5], "sampling_params": {}}).json()
    one = {"generate_response": generated, "generate_responses": [generated]}
    reply = scale_out.post(f"{route}/derender", one).json()
    (choice,) = reply["choices"]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert text == "The sea is a place"
    assert choice["finish_reason"] == "stop"
    assert reply["usage"]["prompt_tokens"] == 1


def derendered_stream(app, route, asked, chunks, **more):
    state, found = None, []
    for chunk in chunks:
        response = app.post(
            f"{route}/derender",
            {"stream": True, "generate_chunk": chunk, "stream_state": state, **more},
        )
        assert response.status_code == 200, response.text
        found.append(response.json()["chunk"])
        state = response.json()["stream_state"]
    return found


@pytest.mark.parametrize("logprobs", [False, True])
def test_a_chat_stream_comes_back_chunk_by_chunk(scale_out, say, logprobs):
    say("The sea is a place é👍🏽")
    options = {"include_usage": True}
    asked = {"messages": HI, "stream": True, "stream_options": options, "logprobs": logprobs}
    direct = scale_out.events("/v1/chat/completions", asked)
    rendered = scale_out.post("/v1/chat/completions/render", asked).json()
    chunks = scale_out.events(GENERATE, rendered)
    ids = rendered["token_ids"]
    found = derendered_stream(
        scale_out, "/v1/chat/completions", asked, chunks, chat_request=asked, prompt_token_ids=ids
    )
    assert found[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [c["object"] for c in found] == ["chat.completion.chunk"] * len(found)

    def content(events):
        return [c["delta"].get("content", "") for e in events for c in e["choices"]]

    assert "".join(content(found)) == "".join(content(direct)) == "The sea is a place é👍🏽"
    assert content(found) == content(direct)[1:]  # the role comes with the first text
    assert found[-1]["usage"] == direct[-1]["usage"]
    assert found[-2]["choices"][0]["finish_reason"] == "stop"
    assert [e["choices"][0]["logprobs"] for e in found[1:-1]] == [
        e["choices"][0]["logprobs"] for e in direct[2:-1]
    ]


def test_a_completion_stream_comes_back_chunk_by_chunk(scale_out, say):
    say("The sea is a place é👍🏽")
    asked = {"prompt": "home", "stream": True, "logprobs": 1}
    direct = scale_out.events("/v1/completions", asked)
    (rendered,) = scale_out.post("/v1/completions/render", asked).json()
    chunks = scale_out.events(GENERATE, rendered)
    found = derendered_stream(scale_out, "/v1/completions", asked, chunks, completion_request=asked)
    for ours, theirs in zip(found, direct, strict=True):
        same(ours, theirs)


GOOD_CHUNK = {"choices": [{"index": 0, "token_ids": [5], "finish_reason": None}]}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", {}, "body.generate_response"),
        ("completions", {}, "body.generate_responses"),
        ("completions", {"generate_responses": []}, "generate_responses"),
        ("chat/completions", {"generate_response": {"choices": []}}, "choices"),
        ("chat/completions", {"generate_response": {}}, "body.generate_response.choices"),
        (
            "chat/completions",
            {"generate_response": {**GOOD_CHUNK, "output_mode": "text"}},
            "output_mode",
        ),
        (
            "chat/completions",
            {"generate_response": {"choices": [{"index": 0, "token_ids": [10**6]}]}},
            "prompt",
        ),
        (
            "chat/completions",
            {"generate_response": {"choices": [{"index": 0, "logprobs": {"content": [
                {"token_id": 1, "logprob": -1}]}}]}},
            "logprobs",
        ),
        (
            "completions",
            {"generate_responses": [GOOD_CHUNK], "prompt_tokens": [1, 2]},
            "prompt_tokens",
        ),
        (
            "completions",
            {"generate_responses": [GOOD_CHUNK], "prompt_token_ids": [[1], [2]]},
            "prompt_token_ids",
        ),
        (
            "completions",
            {"generate_responses": [GOOD_CHUNK], "completion_request": {"prompt": ["a", "b"]}},
            "generate_responses",
        ),
        ("chat/completions", {"stream": True}, "body.generate_chunk"),
        (
            "chat/completions",
            {
                "stream": True,
                "generate_chunk": GOOD_CHUNK,
                "stream_state": {"output_token_ids": [1], "output_chunk_lens": [2]},
            },
            "stream_state",
        ),
        (
            "completions",
            {
                "stream": True,
                "generate_chunk": GOOD_CHUNK,
                "stream_state": {"output_token_ids": [1] * 64, "output_chunk_lens": [64]},
            },
            "stream_state",
        ),
    ],
)  # fmt: skip
def test_what_derendering_refuses(scale_out, path, body, param):
    response = scale_out.post(f"/v1/{path}/derender", body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_a_derendered_model_must_be_served(scale_out):
    for route in ("chat/completions", "completions"):
        body = {"model": "nope", "generate_response": GOOD_CHUNK}
        assert scale_out.post(f"/v1/{route}/derender", body).status_code == 404
