"""Every route: headers of its answers, the bodies of its errors, and the order of its stream."""

import json
import re

import pytest

from ortloom.config import RouteConfig

HI = [{"role": "user", "content": "hi"}]
GENERATED = {"choices": [{"index": 0, "token_ids": [5], "finish_reason": "length"}]}
JSON, EMPTY, HTML = "application/json", None, "text/html; charset=utf-8"
MESSAGE = {"model": "tiny", "messages": HI, "max_tokens": 3}
TOKENS = {"token_ids": [5], "sampling_params": {"max_tokens": 3}}
COMPLETION = {"prompt": "The sea", "max_tokens": 3}
CHAT = {"messages": HI, "max_tokens": 3}
RESPONSE = {"input": "hi", "max_output_tokens": 3}

WITH_BODY = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions/batch": {"messages": [HI], "max_tokens": 3},
    "/v1/responses": RESPONSE,
    "/v1/messages": MESSAGE,
    "/v1/messages/count_tokens": {"model": "tiny", "messages": HI},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [5]},
    "/invocations": CHAT,
    "/inference/v1/generate": TOKENS,
    "/v1/completions/render": COMPLETION,
    "/v1/chat/completions/render": CHAT,
    "/v1/messages/render": MESSAGE,
    "/v1/responses/render": RESPONSE,
    "/v1/completions/derender": {"generate_responses": [GENERATED]},
    "/v1/chat/completions/derender": {"generate_response": GENERATED},
}
"""Routes that read a JSON body, with a good one."""

OPTIONAL_BODY = {"/abort_requests": {"request_ids": ["x"]}, "/collective_rpc": {"method": "f"}}
"""Control routes with a body: one may be left out, the other is refused whatever it says."""

PLAIN = {
    ("GET", "/health"): EMPTY,
    ("GET", "/ping"): EMPTY,
    ("POST", "/ping"): EMPTY,
    ("GET", "/version"): JSON,
    ("GET", "/load"): JSON,
    ("GET", "/metrics"): "text/plain; version=0.0.4; charset=utf-8",
    ("GET", "/metrics/{below}"): "text/plain; version=0.0.4; charset=utf-8",
    ("GET", "/v1/models"): JSON,
    ("GET", "/v1/models/{name}"): JSON,
    ("GET", "/server_info"): JSON,
    ("POST", "/reset_prefix_cache"): JSON,
    ("GET", "/tokenizer_info"): JSON,
    ("GET", "/get_tokenizer_info"): JSON,
    ("GET", "/docs"): HTML,
    ("GET", "/redoc"): HTML,
    ("GET", "/openapi.json"): JSON,
    ("POST", "/pause"): JSON,
    ("POST", "/resume"): JSON,
    ("GET", "/is_paused"): JSON,
    ("GET", "/is_sleeping"): JSON,
    ("POST", "/sleep"): EMPTY,
    ("POST", "/wake_up"): EMPTY,
    ("POST", "/release_kv_cache_memory"): EMPTY,
    ("POST", "/reset_mm_cache"): EMPTY,
    ("POST", "/reset_encoder_cache"): EMPTY,
    ("GET", "/get_world_size"): JSON,
    ("POST", "/start_profile"): EMPTY,
    ("POST", "/stop_profile"): EMPTY,
}
"""Routes without a body and the content type of their answer; EMPTY = it has no content."""

REFUSED = {
    ("POST", "/init_weight_transfer_engine"): (501, "NotImplementedError"),
    ("POST", "/start_weight_update"): (501, "NotImplementedError"),
    ("POST", "/start_draft_weight_update"): (501, "NotImplementedError"),
    ("POST", "/update_weights"): (501, "NotImplementedError"),
    ("POST", "/finish_weight_update"): (501, "NotImplementedError"),
    ("POST", "/update_weight_version"): (501, "NotImplementedError"),
    ("GET", "/weight_info"): (501, "NotImplementedError"),
    ("POST", "/collective_rpc"): (501, "NotImplementedError"),
    ("GET", "/v1/responses/{response_id}"): (400, "invalid_request_error"),
    ("POST", "/v1/responses/{response_id}/cancel"): (400, "invalid_request_error"),
}
"""Routes whose answer here is an error."""

ABSENT = """
    /nope /v1 /v1/nope /v1/embeddings /v2/embed /pooling /classify /score /v1/score /rerank
    /v1/rerank /v2/rerank /generative_scoring /v1/audio/transcriptions /v1/audio/translations
    /v1/audio/speech /v1/realtime /v1/videos /v1/videos/sync /v1/load_lora_adapter
    /v1/unload_lora_adapter /scale_elastic_ep /is_scaling_elastic_ep /fault_tolerance/apply
    /fault_tolerance/status /cohere/v2/chat
"""
"""Paths of components that are not attached."""

STREAMS = {
    path: WITH_BODY[path]
    for path in (
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/invocations",
        "/inference/v1/generate",
    )
}


@pytest.fixture(scope="module")
def whole(start):
    routes = RouteConfig(scale_out=True, dev_mode=True, profiler=True, tokenizer_info=True)
    front = {
        "routes": routes,
        "enable_request_id_headers": True,
        "request_max_size": 4096,
    }
    with start(front=front, model={"enable_sleep_mode": True}) as running:
        yield running


@pytest.fixture(autouse=True)
def words(say):
    say("The sea is a place of endless wonder", end=False)


def is_anthropic(path):
    return path.startswith("/v1/messages")


def error_of(response, status, path):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == JSON
    body = response.json()
    assert set(body) == ({"type", "error"} if is_anthropic(path) else {"error"})
    return body["error"]


def filled(path):
    return re.sub(r"{\w+}", "tiny", path)


def test_every_route_is_in_a_table(whole):
    from ortloom.server.app import create_app

    registered = {
        (method, re.sub(r"<([^:>]+)(:[^>]+)?>", r"{\1}", f"/{route.path}"))
        for route in create_app(whole.context).router.routes
        for method in route.methods - {"HEAD", "OPTIONS"}
    }
    bodies = {("POST", path) for path in (*WITH_BODY, *OPTIONAL_BODY)}
    assert registered == bodies | set(PLAIN) | set(REFUSED)


@pytest.mark.parametrize("path", WITH_BODY)
def test_an_answer_is_json_with_the_request_id(whole, app, path):
    answer = whole.post(path, WITH_BODY[path], headers={"x-request-id": "abc"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, JSON), answer.text
    assert answer.headers["x-request-id"] == "abc"
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert re.fullmatch("[0-9a-f]{32}", whole.post(path, {}).headers["x-request-id"])
    plain = app.post(path, WITH_BODY[path], headers={"x-request-id": "abc"})
    assert "x-request-id" not in plain.headers


@pytest.mark.parametrize(("method", "path"), PLAIN)
def test_an_answer_without_a_body(whole, method, path):
    answer = whole.client.request(method, filled(path), headers={"x-request-id": "abc"})
    assert answer.status_code == 200, answer.text
    wanted = PLAIN[method, path]
    if wanted is EMPTY:
        assert answer.content == b""
    else:
        assert answer.headers["content-type"] == wanted
        assert answer.content
    assert answer.headers["x-request-id"] == "abc"


@pytest.mark.parametrize(("method", "path"), REFUSED)
def test_an_answer_that_is_an_error(whole, method, path):
    given = {"json": OPTIONAL_BODY[path]} if path in OPTIONAL_BODY else {}
    answer = whole.client.request(method, filled(path), **given)
    error = error_of(answer, REFUSED[method, path][0], path)
    assert (error["type"], error["code"]) == (REFUSED[method, path][1], answer.status_code)
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "path"),
    [*(("POST", path) for path in (*WITH_BODY, *OPTIONAL_BODY)), *PLAIN, *REFUSED],
)
def test_another_method_is_a_405(whole, method, path):
    for other in {"DELETE", "PUT", "PATCH"} - {method}:
        answer = whole.client.request(other, filled(path), headers={"x-request-id": "abc"})
        assert answer.status_code == 405
        assert answer.headers["content-type"] == JSON
        assert answer.json() == {"detail": "Method Not Allowed"}
        assert method in answer.headers["allow"].split(", ")
        assert answer.headers["x-request-id"] == "abc"


@pytest.mark.parametrize("path", ABSENT.split())
def test_an_unknown_path_is_a_404(whole, path):
    for method in ("GET", "POST"):
        answer = whole.client.request(method, path)
        assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})
        assert answer.headers["content-type"] == JSON
        assert answer.headers["x-request-id"]


@pytest.mark.parametrize("path", [*WITH_BODY, *OPTIONAL_BODY])
class TestBodies:
    """What no JSON object is; every route with a body says so alike."""

    def refused(self, whole, path, content, kind="application/json"):
        answer = whole.client.post(path, content=content, headers={"content-type": kind})
        error = error_of(answer, 400, path)
        assert (error["type"], error["code"]) == ("Bad Request", 400)
        assert answer.headers["x-request-id"]
        return error

    def test_malformed(self, whole, path):
        assert self.refused(whole, path, b"{")["param"] == "body.1"
        assert self.refused(whole, path, b'{"a": 1} x')["param"]
        assert self.refused(whole, path, b"{'a': 1}")["param"] == "body.1"

    def test_not_an_object(self, whole, path):
        for content in (b"[]", b"5", b'"x"', b"null"):
            assert self.refused(whole, path, content)["param"] == "body"

    def test_not_utf8(self, whole, path):
        assert self.refused(whole, path, b'{"model": "\xff"}')["message"]

    def test_another_content_type(self, whole, path):
        if path == "/abort_requests":
            return  # it reads whatever bytes there are
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            error = self.refused(whole, path, json.dumps({}).encode(), kind)
            assert error["param"] is None
            assert "application/json" in error["message"]

    def test_too_large(self, whole, path):
        content = json.dumps({"x": "y" * 5000}).encode()
        answer = whole.client.post(
            path, content=content, headers={"content-type": "application/json"}
        )
        error = error_of(answer, 413, path)
        known = "request_too_large" if is_anthropic(path) else "RequestEntityTooLarge"
        assert error["type"] == known
        assert "4096" in error["message"]


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_has_the_headers_of_one(whole, path):
    body = {**STREAMS[path], "stream": True}
    answer = whole.post(path, body, headers={"x-request-id": "abc"})
    assert answer.status_code == 200
    headers = answer.headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert headers["transfer-encoding"] == "chunked"
    assert headers["x-request-id"] == "abc"
    assert "content-length" not in headers
    named = path in ("/v1/responses", "/v1/messages")
    assert ("event: " in answer.text) == named
    assert answer.text.endswith("data: [DONE]\n\n") != named


@pytest.mark.parametrize("path", STREAMS)
def test_an_error_before_a_stream_is_a_plain_answer(whole, path):
    name = "sampling_params" if path == "/inference/v1/generate" else "temperature"
    value = {"temperature": 9} if name == "sampling_params" else 9
    answer = whole.post(path, {**STREAMS[path], "stream": True, name: value})
    assert error_of(answer, 400, path)["message"]


# ---- order


def shapes(choices):
    """An event by what its choices show."""
    if not choices:
        return "usage"
    (choice,) = choices
    delta = choice.get("delta", {})
    if choice.get("finish_reason"):
        return (choice["index"], "end")
    if delta.get("role"):
        return (choice["index"], "role")
    return (choice["index"], "text")


def order(events, n):
    """All shapes, and the checks that hold for every stream of choices."""
    found = [shapes(event["choices"]) for event in events]
    assert found[-1] == "usage"
    assert found.count("usage") == 1
    assert (
        len({json.dumps([e.get(k) for k in ("id", "created", "request_id")]) for e in events}) == 1
    )
    for index in range(n):
        own = [shape for shape in found[:-1] if shape[0] == index]
        assert own[-1] == (index, "end")
        assert own.count((index, "end")) == 1
    return found


OPTIONS = {"stream_options": {"include_usage": True}}


def test_completions_have_no_role_and_usage_last(app):
    body = {**COMPLETION, **OPTIONS, "n": 2, "echo": True, "return_token_ids": True}
    events = app.events("/v1/completions", body)
    found = order(events, 2)
    assert not [shape for shape in found if "role" in shape]
    for index in range(2):
        own = [e["choices"][0] for e in events[:-1] if e["choices"][0]["index"] == index]
        assert own[0]["text"].startswith("The sea")
        assert [c["prompt_token_ids"] is not None for c in own] == [True, False, False]
        assert [len(c["token_ids"]) for c in own] == [1, 1, 1]


def test_chat_opens_every_choice_with_its_role(app):
    body = {
        "messages": [*HI, {"role": "assistant", "content": "The"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
        "max_tokens": 3,
        "n": 2,
        "echo": True,
        "return_token_ids": True,
        "return_prompt_text": True,
        **OPTIONS,
    }
    events = app.events("/v1/chat/completions", body)
    found = order(events, 2)
    assert found[:4] == [(0, "role"), (1, "role"), (0, "text"), (1, "text")]
    assert [s for s in found if "role" in s] == [(0, "role"), (1, "role")]
    for event in events[:2]:
        assert event["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert event["choices"][0]["logprobs"] is None
        assert event["prompt_token_ids"]
        assert event["prompt_text"]
    assert [e["choices"][0]["delta"]["content"] for e in events[2:4]] == ["The", "The"]
    assert not [e for e in events[2:] if "prompt_token_ids" in e or "prompt_text" in e]


def test_generated_tokens_end_with_usage(whole):
    body = {**TOKENS, **OPTIONS, "sampling_params": {"max_tokens": 3, "n": 2}}
    body["return_token_ids"] = True
    events = whole.events("/inference/v1/generate", body)
    assert not [s for s in order(events, 2) if "role" in s]
    assert ["prompt_token_ids" in e for e in events] == [True, *[False] * (len(events) - 1)]


def names_of(text):
    return [line.removeprefix("event: ") for line in text.splitlines() if "event: " in line[:7]]


def test_a_response_opens_and_closes_what_it_holds(app):
    names = names_of(app.post("/v1/responses", {**RESPONSE, "stream": True}).text)
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]


def test_a_message_opens_and_closes_its_blocks(app):
    names = names_of(app.post("/v1/messages", {**MESSAGE, "stream": True}).text)
    assert names == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
