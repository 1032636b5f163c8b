"""Tokens in, tokens out: POST /inference/v1/generate."""

import base64

import numpy as np
import pytest

from ortloom.config import RouteConfig

PATH = "/inference/v1/generate"
BAD = "Bad Request"
REFUSED = "BadRequestError"
PROMPT = [5, 6, 7]


def body(sampling=None, **fields):
    params = {"max_tokens": 3, "temperature": 0, **(sampling or {})}
    return {"model": "tiny", "token_ids": PROMPT, "sampling_params": params, **fields}


@pytest.fixture(scope="module")
def shared_scale_out(start):
    with start(front={"routes": RouteConfig(scale_out=True)}) as running:
        yield running


@pytest.fixture
def scale_out(shared_scale_out, engine):
    engine.reply = lambda request: [20, 21, 22]
    return shared_scale_out


@pytest.fixture(scope="module")
def shared_mask_server(start):
    model = {"return_sampling_mask": True, "logprobs_mode": "processed_logprobs"}
    with start(front={"routes": RouteConfig(scale_out=True)}, model=model) as running:
        yield running


@pytest.fixture
def mask_server(shared_mask_server, engine):
    return shared_mask_server


def test_without_the_flag_the_route_is_forbidden(app, engine):
    response = app.post(PATH, body())
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (403, 403)
    assert (error["type"], error["param"]) == ("PermissionDeniedError", None)
    assert "--enable-scale-out" in error["message"]
    assert app.post(PATH, {"anything": 1}).status_code == 403
    assert not engine.requests


def test_a_whole_reply(scale_out):
    reply = scale_out.post(PATH, body()).json()
    created = reply.pop("created")
    assert reply.pop("request_id").startswith("generate-tokens-")
    usage = reply.pop("usage")
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 3)
    assert created > 1_700_000_000
    assert reply == {
        "model": "tiny",
        "prompt_logprobs": None,
        "prompt_token_id_logprobs": None,
        "prompt_token_ids": None,
        "mm_placeholders": None,
        "metrics": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "output_mode": "tokens",
        "choices": [
            {
                "index": 0,
                "finish_reason": "length",
                "stop_reason": None,
                "token_ids": [20, 21, 22],
                "routed_experts": None,
                "sampling_mask": None,
                "weight_versions": [{"version": "default", "start": 0, "end": 3}],
                "logprobs": None,
            }
        ],
    }


def test_a_stream_has_one_chunk_a_token(scale_out):
    events = scale_out.events(PATH, body({"logprobs": 2}, return_token_ids=True))
    assert [e["choices"][0]["token_ids"] for e in events] == [[20], [21], [22]]
    assert len({e["request_id"] for e in events}) == 1
    assert all(e["usage"] is None and e["output_mode"] == "tokens" for e in events)
    assert events[0]["prompt_token_ids"] == PROMPT
    assert all("prompt_token_ids" not in e for e in events[1:])
    ends = [(e["choices"][0]["finish_reason"], e["choices"][0]["weight_versions"]) for e in events]
    last = [{"version": "default", "start": 0, "end": 3}]
    assert ends == [(None, None), (None, None), ("length", last)]
    assert events[1]["choices"][0]["logprobs"] == {
        "content": [
            {
                "token_id": 21,
                "logprob": -1.5,
                "rank": 7,
                "top_logprobs": [
                    {"token_id": 21, "logprob": -1.5, "rank": 7},
                    {"token_id": 10, "logprob": -0.5, "rank": 1},
                    {"token_id": 11, "logprob": -9999.0, "rank": 2},
                ],
            }
        ]
    }


def test_the_usage_chunk_comes_last(scale_out):
    options = {"include_usage": True}
    events = scale_out.events(PATH, body(stream_options=options))
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 3
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = scale_out.events(PATH, body(stream_options=options))
    assert [e["usage"]["completion_tokens"] for e in events] == [1, 2, 3, 3]


def test_text_mode_adds_the_text(scale_out, say):
    say("The sea is", end=False)
    asked = body({"max_tokens": 2, "logprobs": 0}, output_mode="text")
    reply = scale_out.post(PATH, asked).json()
    (choice,) = reply["choices"]
    assert reply["output_mode"] == "text"
    assert choice["text"]
    assert "The sea is".startswith(choice["text"])
    entries = choice["logprobs"]["content"]
    assert "".join(e["token"] for e in entries) == choice["text"]
    assert bytes(b for e in entries for b in e["bytes"]).decode() == choice["text"]
    events = scale_out.events(PATH, asked)
    assert "".join(e["choices"][0]["text"] for e in events) == choice["text"]


def test_n_samples_are_n_choices(scale_out, engine):
    reply = scale_out.post(PATH, body({"n": 2, "temperature": 1})).json()
    assert [c["index"] for c in reply["choices"]] == [0, 1]
    assert [r.sampling.sample_index for r in engine.requests] == [0, 1]
    assert reply["usage"]["completion_tokens"] == 6


def test_no_max_tokens_fills_the_context(scale_out, engine):
    params = {"token_ids": PROMPT, "sampling_params": {}}
    assert scale_out.post(PATH, params).status_code == 200
    assert engine.requests[-1].sampling.max_tokens == 64 - len(PROMPT)
    assert engine.requests[-1].sampling.temperature == 1.0


def test_prompt_logprobs_and_ids(scale_out):
    asked = body({"prompt_logprobs": 1}, return_token_ids=True)
    reply = scale_out.post(PATH, asked).json()
    assert reply["prompt_token_ids"] == PROMPT
    assert reply["prompt_logprobs"][0] is None
    assert set(reply["prompt_logprobs"][1]["6"]) == {"logprob", "rank", "decoded_token"}


def test_flat_and_packed_logprobs(scale_out):
    reply = scale_out.post(PATH, body(return_token_logprobs=True)).json()
    assert reply["choices"][0]["logprobs"] == {"content": None, "sampled": [-1.5] * 3}
    both = body({"logprobs": 2}, return_token_logprobs=True, return_top_k_logprobs=True)
    logprobs = scale_out.post(PATH, both).json()["choices"][0]["logprobs"]
    packed = logprobs["top_k"]
    assert (packed["num_positions"], packed["k"]) == (3, 2)
    ids = np.frombuffer(base64.b64decode(packed["token_ids"]), "<i4").reshape(3, 2)
    values = np.frombuffer(base64.b64decode(packed["logprobs"]), "<f4").reshape(3, 2)
    assert ids.tolist() == [[10, 11]] * 3
    assert values.tolist() == [[-0.5, -np.inf]] * 3
    assert logprobs["content"] is None
    assert logprobs["sampled"] == [-1.5] * 3


def test_the_request_id_is_the_one_given(scale_out):
    reply = scale_out.post(PATH, body(request_id="mine")).json()
    assert reply["request_id"] == "generate-tokens-mine"
    headers = {"x-request-id": "theirs"}
    reply = scale_out.post(PATH, body(request_id="mine"), headers=headers).json()
    assert reply["request_id"] == "generate-tokens-theirs"


@pytest.mark.parametrize(
    ("sampling", "fields"),
    [
        ({"stop": ["x"], "detokenize": False}, {}),
        ({"detokenize": False}, {"output_mode": "text"}),
        ({}, {"return_token_logprobs": True, "stream": True}),
        ({}, {"return_token_logprobs": True, "output_mode": "text"}),
        ({"logprobs": 1}, {"return_top_k_logprobs": True, "output_mode": "text"}),
        ({"logprobs": 0}, {"return_top_k_logprobs": True}),
        ({"prompt_logprobs": 1}, {"stream": True}),
    ],
)
def test_fields_that_do_not_go_together(scale_out, sampling, fields):
    response = scale_out.post(PATH, body(sampling, **fields))
    assert response.status_code == 400
    assert response.json()["error"]["type"] == REFUSED


def test_stop_strings_end_the_tokens(scale_out, say):
    ids = say("The sea is a place", end=False)
    reply = scale_out.post(PATH, body({"stop": ["sea"], "max_tokens": 9})).json()
    (choice,) = reply["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "sea")
    assert choice["token_ids"] == ids[: len(choice["token_ids"])]
    assert len(choice["token_ids"]) < 9


def test_masks_are_printed_for_every_token(mask_server, engine):
    asked = body({"temperature": 1, "top_k": 2})
    choice = mask_server.post(PATH, asked).json()["choices"][0]
    assert choice["sampling_mask"] == [[1, 2]] * 3
    assert engine.requests[-1].sampling.sampling_mask
    events = mask_server.events(PATH, asked)
    assert [e["choices"][0]["sampling_mask"] for e in events] == [[[1, 2]]] * 3
    engine.mask = None
    choice = mask_server.post(PATH, asked).json()["choices"][0]
    assert choice["sampling_mask"][0] == list(range(engine.vocab_size))


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"temperature": 0, "top_k": 5}, "temperature"),
        ({"temperature": 1, "top_k": 0}, "top_k"),
        ({"temperature": 1, "top_k": -1}, "top_k"),
        ({"temperature": 1}, "top_k"),
    ],
)
def test_a_mask_server_wants_a_draw_from_a_finite_set(mask_server, sampling, param):
    """On every route, since any of them may be replayed."""
    messages = [{"role": "user", "content": "hi"}]
    given = {"token_ids": PROMPT, "sampling_params": sampling}
    for path, asked in (
        (PATH, given),
        ("/v1/completions", {"prompt": PROMPT, **sampling}),
        ("/v1/chat/completions", {"messages": messages, **sampling}),
    ):
        response = mask_server.post(path, asked)
        error = response.json()["error"]
        assert (response.status_code, error["type"]) == (400, REFUSED), path
        assert param in error["message"]


def test_tokens_only_serves_nothing_else(serve):
    routes = RouteConfig(scale_out=True, tokens_only=True)
    with serve(front={"routes": routes}, model={"skip_tokenizer_init": True}) as app:
        app.context.tokenizer = None
        assert app.post(PATH, body()).status_code == 200
        assert app.post(PATH, body({"stop": ["x"]})).status_code == 400
        assert app.post(PATH, body(output_mode="text")).status_code == 400
        assert app.client.get("/health").status_code == 200
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
            assert app.post(path, {}).status_code == 404


DETAIL = {"raw_logprob": -1.5, "processed_logprob": -0.25, "rank": 7}


def test_detail_is_absent_unless_asked_for(app, scale_out):
    text = app.post("/v1/completions", {"prompt": "The", "logprobs": 1, "max_tokens": 2}).text
    assert "token_logprobs" in text
    assert "raw_logprob" not in text
    assert "sampling_mask" not in text
    text = scale_out.post(PATH, body({"logprobs": 1})).text
    assert "top_logprobs" in text
    assert "raw_logprob" not in text


def test_detail_on_every_route(app, scale_out, engine):
    choice = scale_out.post(PATH, body(logprobs_detail=True)).json()["choices"][0]
    assert choice["sampling_mask"] == [[1, 2]] * 3
    assert all(DETAIL.items() <= e.items() for e in choice["logprobs"]["content"])
    for event in scale_out.events(PATH, body(logprobs_detail=True)):
        (choice,) = event["choices"]
        assert choice["sampling_mask"] == [[1, 2]]
        assert DETAIL.items() <= choice["logprobs"]["content"][0].items()

    asked = {"prompt": PROMPT, "max_tokens": 2, "logprobs_detail": True}
    choice = app.post("/v1/completions", asked).json()["choices"][0]
    assert choice["sampling_mask"] == [[1, 2]] * 2
    for name, value in DETAIL.items():
        assert choice["logprobs"][name] == [value] * 2
    echoed = app.post("/v1/completions", {**asked, "echo": True}).json()["choices"][0]
    assert echoed["logprobs"]["rank"] == [None] * 3 + [7] * 2
    events = app.events("/v1/completions", {**asked, "echo": True})
    ranks = [r for e in events for r in e["choices"][0]["logprobs"]["rank"]]
    assert ranks == [None] * 3 + [7] * 2

    asked = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    asked |= {"logprobs_detail": True}
    choice = app.post("/v1/chat/completions", asked).json()["choices"][0]
    assert choice["sampling_mask"] == [[1, 2]] * 2
    assert all(DETAIL.items() <= e.items() for e in choice["logprobs"]["content"])
    events = [e["choices"][0] for e in app.events("/v1/chat/completions", asked)]
    assert [c["sampling_mask"] for c in events if "sampling_mask" in c] == [[[1, 2]]] * 2
    entries = [entry for c in events for entry in (c["logprobs"] or {}).get("content", ())]
    assert len(entries) == 2
    assert all(DETAIL.items() <= e.items() for e in entries)


def test_detail_follows_joined_and_cut_tokens(scale_out, say):
    say("The sea is a place", end=False)
    params = {"max_tokens": 5}
    asked = body(params, logprobs_detail=True, stream_interval=2)
    sizes = []
    for event in scale_out.events(PATH, asked):
        (choice,) = event["choices"]
        content = choice["logprobs"]["content"]
        assert all(DETAIL.items() <= e.items() for e in content)
        assert len(content) == len(choice["token_ids"]) == len(choice["sampling_mask"])
        sizes.append(len(content))
    assert sum(sizes) == 5
    assert max(sizes) == 2
    asked = body({"stop": ["sea"], "max_tokens": 9}, logprobs_detail=True)
    (choice,) = scale_out.post(PATH, asked).json()["choices"]
    count = len(choice["token_ids"])
    assert choice["stop_reason"] == "sea"
    assert len(choice["logprobs"]["content"]) == count == len(choice["sampling_mask"])


def test_stop_strings_cut_detail_inside_one_output(scale_out, engine, say):
    """Tokens beyond the stop string came with the same engine output."""
    say("The sea is a place", end=False)
    engine.step = 8
    asked = body({"stop": ["sea"], "max_tokens": 9}, logprobs_detail=True)
    (choice,) = scale_out.post(PATH, asked).json()["choices"]
    count = len(choice["token_ids"])
    assert count < 8
    assert len(choice["logprobs"]["content"]) == count == len(choice["sampling_mask"])
