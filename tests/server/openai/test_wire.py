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


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"max_tokens": "ten"}, BAD, "body.max_tokens"),
        ({"max_tokens": 1.5}, BAD, "body.max_tokens"),
        ({"max_tokens": 10**9}, REFUSED, "max_tokens"),
        ({"temperature": 2.5}, REFUSED, "temperature"),
        ({"temperature": "x"}, BAD, "body.temperature"),
        ({"top_p": 0}, REFUSED, "top_p"),
        ({"top_p": -0.1}, REFUSED, "top_p"),
        ({"top_k": -2}, REFUSED, None),
        ({"top_k": 1.5}, BAD, "body.top_k"),
        ({"min_p": 2}, REFUSED, None),
        ({"repetition_penalty": 0}, REFUSED, None),
        ({"presence_penalty": 2.5}, REFUSED, None),
        ({"frequency_penalty": -3}, REFUSED, None),
        ({"seed": 2**70}, BAD, "body.seed"),
        ({"seed": "x"}, BAD, "body.seed"),
        ({"stop": ""}, REFUSED, None),
        ({"stop": ["a", "b", "c", "d", "e"]}, BAD, "body.stop"),
        ({"stop": [5]}, BAD, "body.stop.0"),
        ({"min_tokens": 9}, REFUSED, None),
        ({"min_tokens": -1}, REFUSED, None),
        ({"n": 0}, REFUSED, None),
        ({"n": 2}, REFUSED, None),
        ({"n": "two"}, BAD, "body.n"),
        ({"n": 1.5}, BAD, "body.n"),
        ({"n": 3_000_000, "temperature": 1}, REFUSED, None),
        ({"logprobs": 21}, REFUSED, "logprobs"),
        ({"logprobs": -1}, REFUSED, "logprobs"),
        ({"prompt_logprobs": 21}, REFUSED, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, REFUSED, "prompt_logprobs"),
        ({"logprob_token_ids": [1]}, REFUSED, "logprob_token_ids"),
        ({"logit_bias": {"99999999": 1}}, REFUSED, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, REFUSED, "logit_bias"),
        ({"logit_bias": {"abc": 1}}, REFUSED, "logit_bias"),
        ({"logit_bias": {"--5": 1}}, REFUSED, "logit_bias"),
        ({"logit_bias": {"-": 1}}, REFUSED, "logit_bias"),
        ({"logit_bias": {"1_0": 1}}, REFUSED, "logit_bias"),
        ({"logit_bias": {"\u0665": 1}}, REFUSED, "logit_bias"),
        ({"logit_bias": {"5": "x"}}, BAD, "body.logit_bias"),
        ({"logit_bias": {"5": None}}, BAD, "body.logit_bias"),
        ({"logit_bias": [5]}, BAD, "body.logit_bias"),
        ({"allowed_token_ids": []}, REFUSED, None),
        ({"allowed_token_ids": [10**6]}, REFUSED, None),
        ({"stop_token_ids": [10**6]}, REFUSED, None),
        ({"bad_words": [""]}, REFUSED, "bad_words"),
        ({"bad_words": ["x" * 513]}, REFUSED, "bad_words"),
        ({"request_id": "x" * 257}, REFUSED, "request_id"),
        ({"bad_words": [5]}, BAD, "body.bad_words.0"),
        ({"bad_words": "x y"}, BAD, "body.bad_words"),
        ({"suffix": "y"}, REFUSED, "suffix"),
        ({"prompt_embeds": "AAAA"}, REFUSED, "prompt_embeds"),
        ({"thinking_token_budget": 5}, REFUSED, "thinking_token_budget"),
        ({"prompt": ""}, REFUSED, "prompt"),
        ({"prompt": [""]}, REFUSED, "prompt"),
        ({"prompt": []}, REFUSED, None),
        ({"prompt": [[]]}, REFUSED, None),
        ({"prompt": None}, REFUSED, "prompt"),
        ({"prompt": {}}, BAD, "body.prompt"),
        ({"prompt": [-1]}, BAD, "body.prompt.0"),
        ({"prompt": [1, "x"]}, BAD, "body.prompt.1"),
        ({"prompt": ["x", 1]}, BAD, "body.prompt.1"),
        ({"prompt": [1.5]}, BAD, "body.prompt.0"),
        ({"prompt": [True]}, BAD, "body.prompt.0"),
        ({"prompt": [[1], [2, 1.5]]}, BAD, "body.prompt.1.1"),
        ({"prompt": [1, 2, 999999999]}, REFUSED, "prompt"),
        ({"prompt": [1 << 40]}, REFUSED, "prompt"),
        ({"prompt": [[1], [2, 999999999]]}, REFUSED, "prompt"),
        ({"prompt": ["a"] * 1025}, REFUSED, None),
        ({"stream": "perhaps"}, BAD, "body.stream"),
        ({"stream_options": {"include_usage": True}}, REFUSED, "stream_options"),
        ({"stream": True, "stream_options": 5}, BAD, "body.stream_options"),
        (
            {"stream": True, "stream_options": {"include_usage": "maybe"}},
            BAD,
            "body.stream_options.include_usage",
        ),
        ({"stream_interval": 0}, BAD, "body.stream_interval"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, REFUSED, "structured_outputs"),
        ({"structured_outputs": {}}, REFUSED, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, REFUSED, "structured_outputs"),
        ({"structured_outputs": {"grammar": " "}}, REFUSED, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, REFUSED, "structured_outputs"),
        ({"response_format": {"type": "nope"}}, REFUSED, "response_format"),
        ({"response_format": {"type": "json_schema"}}, REFUSED, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            REFUSED,
            "response_format",
        ),
        (
            {
                "response_format": {"type": "json_object"},
                "structured_outputs": {"regex": "a"},
            },
            REFUSED,
            "structured_outputs",
        ),
        ({"truncate_prompt_tokens": "x"}, BAD, "body.truncate_prompt_tokens"),
        ({"model": 5}, BAD, "body.model"),
    ],
)
def test_completion_fields_out_of_shape(app, engine, fields, kind, param):
    error = error_of(app.post(COMPLETIONS, completion(**fields)))
    assert (error["type"], error["param"]) == (kind, param)
    assert not engine.requests


def test_an_error_names_the_field_even_without_param(app):
    for name, value in (("top_k", -2), ("min_p", 7), ("repetition_penalty", 0), ("n", 0)):
        assert name in error_of(app.post(COMPLETIONS, completion(**{name: value})))["message"]


def test_an_unknown_model_is_a_404(app):
    error = error_of(app.post(COMPLETIONS, completion(model="nope")), 404)
    assert (error["type"], error["param"]) == ("NotFoundError", "model")


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


def test_null_counts_as_not_given(app, engine, say):
    say("x")
    names = [
        "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty",
        "presence_penalty", "n", "seed", "stop", "stop_token_ids", "include_stop_str_in_output",
        "ignore_eos", "min_tokens", "echo", "logprobs", "skip_special_tokens",
        "spaces_between_special_tokens", "prompt_logprobs", "logit_bias", "allowed_token_ids",
        "bad_words", "truncate_prompt_tokens", "truncation_side", "add_special_tokens",
        "response_format", "structured_outputs", "stream", "stream_options", "stream_interval",
        "priority", "request_id", "session_id", "return_token_ids", "cache_salt",
        "kv_transfer_params", "vllm_xargs", "suffix",
    ]  # fmt: skip
    body = {"prompt": "The sea", "model": None, **dict.fromkeys(names)}
    assert app.post(COMPLETIONS, body).status_code == 200
    sampling = engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert sampling.skip_special_tokens is True


def test_removed_and_unknown_fields_are_ignored(app, say):
    say("x")
    fields = completion(best_of=3_000_000, guided_json={"a": 1}, x_vendor=1, user="u")
    reply = app.post(COMPLETIONS, fields)
    assert reply.status_code == 200
    assert len(reply.json()["choices"]) == 1


def test_samples_of_all_prompts_together_are_limited(serve, engine):
    with serve(front={"max_n": 4}) as app:
        fields = completion(prompt=["a", "b", "c"], n=2, temperature=1)
        error_of(app.post(COMPLETIONS, fields))
    assert not engine.requests


@pytest.mark.parametrize(
    ("fields", "kind", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", None),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": 1}}}},
            "json",
            {"a": 1},
        ),
        ({"structured_outputs": {"json": '{"a": 1}'}}, "json", {"a": 1}),
        ({"structured_outputs": {"json": True}}, "json", True),
        ({"structured_outputs": {"choice": ["é", "b"]}}, "choice", ["é", "b"]),
        ({"structured_outputs": {"json_object": True}}, "json_object", None),
    ],
)
def test_constraints_reach_the_engine(app, engine, say, fields, kind, value):
    say("x")
    assert app.post(CHAT, chat(**fields)).status_code == 200
    constraint = engine.requests[0].sampling.structured_output
    assert constraint.kind == kind
    assert (json.loads(constraint.value) if constraint.value else None) == value


def test_text_constraints_reach_the_engine_as_they_are(app, engine, say):
    say("x")
    for kind, value in (("regex", "[0-9]{3}"), ("grammar", 'root ::= "a"')):
        assert app.post(CHAT, chat(structured_outputs={kind: value})).status_code == 200
        constraint = engine.requests[-1].sampling.structured_output
        assert (constraint.kind, constraint.value) == (kind, value)
    assert app.post(CHAT, chat(response_format={"type": "text"})).status_code == 200
    assert engine.requests[-1].sampling.structured_output is None


def test_numbers_that_fit_no_machine_word_reach_the_engine_as_ones_that_do(app, engine):
    for number in (2**64, 10**40):
        reply = app.post(COMPLETIONS, completion(top_k=number, temperature=1))
        assert reply.status_code == 200
        assert engine.requests[-1].sampling.top_k < 2**31


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
