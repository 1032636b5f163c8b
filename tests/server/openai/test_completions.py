import pytest

from ortloom.errors import EngineDead, InvalidRequest, QueueFull, RequestFailed

PATH = "/v1/completions"
SEA = " a place of endless wonder"


def body(prompt="The sea is", **fields):
    return {"model": "tiny", "prompt": prompt, "temperature": 0, **fields}


def test_a_reply_has_every_member(app, say, tokenizer):
    say(SEA)
    response = app.post(PATH, body(max_tokens=40))
    assert response.status_code == 200
    reply = response.json()
    assert reply["id"].startswith("cmpl-")
    assert reply["object"] == "text_completion"
    assert reply["model"] == "tiny"
    assert reply["choices"] == [
        {
            "index": 0,
            "text": SEA,
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "routed_experts": None,
        }
    ]
    prompt, output = len(tokenizer.encode("The sea is")), len(tokenizer.encode(SEA)) + 1
    assert reply["usage"] == {
        "prompt_tokens": prompt,
        "total_tokens": prompt + output,
        "completion_tokens": output,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
    for name in ("service_tier", "kv_transfer_params", "ec_transfer_params", "metrics"):
        assert name in reply
        assert reply[name] is None


def test_several_prompts_and_samples_are_indexed_prompt_major(app, engine, tokenizer):
    words = {0: tokenizer.encode(" home"), 1: tokenizer.encode(" boats")}
    engine.reply = lambda request: words[request.sampling.sample_index]
    reply = app.post(
        PATH, body(["One", "Two"], n=2, temperature=1.0, max_tokens=len(words[0]))
    ).json()
    assert [c["index"] for c in reply["choices"]] == [0, 1, 2, 3]
    texts = [c["text"] for c in reply["choices"]]
    assert texts[0] == texts[2] == " home"
    assert texts[1] == texts[3] != " home"
    prompts = [tuple(r.prompt_token_ids) for r in engine.requests]
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]
    assert reply["usage"]["prompt_tokens"] == len(prompts[0]) + len(prompts[2])
    assert len({r.request_id for r in engine.requests}) == 4


def test_token_ids_are_returned_when_asked_for(app, say, tokenizer):
    ids = say(SEA)
    choice = app.post(PATH, body(max_tokens=40, return_token_ids=True)).json()["choices"][0]
    assert choice["token_ids"] == ids
    assert choice["prompt_token_ids"] == tokenizer.encode("The sea is")


def test_logprobs_list_the_sampled_token_first_and_nothing_infinite(app, say, tokenizer):
    ids = say(SEA, end=False)
    choice = app.post(PATH, body(max_tokens=2, logprobs=3)).json()["choices"][0]
    lp = choice["logprobs"]
    names = [tokenizer.token_text(i) for i in ids[:2]]
    assert lp["tokens"] == names
    assert lp["token_logprobs"] == [-1.5, -1.5]
    assert lp["text_offset"] == [0, len(names[0])]
    top = lp["top_logprobs"][0]
    assert next(iter(top)) == names[0]
    assert len(top) == 4
    assert min(top.values()) == -9999.0


def test_logprobs_zero_lists_the_sampled_token_alone(app, say):
    say(SEA, end=False)
    lp = app.post(PATH, body(max_tokens=2, logprobs=0)).json()["choices"][0]["logprobs"]
    assert [list(top.values()) for top in lp["top_logprobs"]] == [[-1.5], [-1.5]]


def test_tokens_are_written_as_ids_when_asked_for(app, say):
    ids = say(SEA, end=False)
    lp = app.post(PATH, body(max_tokens=2, logprobs=1, return_tokens_as_token_ids=True)).json()[
        "choices"
    ][0]["logprobs"]
    assert lp["tokens"] == [f"token_id:{i}" for i in ids[:2]]
    assert "token_id:10" in lp["top_logprobs"][0]


def test_echo_with_logprobs_scores_prompt_and_output(app, say, tokenizer):
    say(SEA, end=False)
    choice = app.post(PATH, body(max_tokens=1, echo=True, logprobs=1)).json()["choices"][0]
    first = tokenizer.decode(tokenizer.encode(SEA)[:1])
    assert choice["text"] == "The sea is" + first
    lp = choice["logprobs"]
    assert "".join(lp["tokens"]) == "The sea is" + first
    assert lp["token_logprobs"][0] is None
    assert lp["top_logprobs"][0] is None
    assert None not in lp["token_logprobs"][1:]
    assert choice["prompt_logprobs"][0] is None


@pytest.mark.parametrize("as_ids", [False, True])
def test_scoring_a_prompt_generates_nothing(app, say, engine, tokenizer, as_ids):
    say(SEA)
    ids = tokenizer.encode("The sea is")
    prompt = ids if as_ids else "The sea is"
    reply = app.post(PATH, body(prompt, max_tokens=0, echo=True, logprobs=1)).json()
    choice = reply["choices"][0]
    assert choice["text"] == "The sea is"
    assert choice["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 0
    assert {len(v) for v in choice["logprobs"].values()} == {len(ids)}
    assert engine.produced == 0
    assert engine.requests[-1].sampling.max_tokens == 0


def test_a_scored_prompt_that_ends_inside_a_character_is_not_repeated(app, say, tokenizer):
    say(SEA)
    ids = [*tokenizer.encode("The sea"), *tokenizer.encode("\U0001f30a")[:1]]
    reply = app.post(PATH, body(ids, max_tokens=0, echo=True)).json()
    assert reply["choices"][0]["text"] == tokenizer.decode(ids)


def test_prompt_logprobs_are_objects_by_token_id(app, say, tokenizer):
    say(SEA)
    ids = tokenizer.encode("The sea is")
    listed = app.post(PATH, body(max_tokens=1, prompt_logprobs=1)).json()["choices"][0][
        "prompt_logprobs"
    ]
    assert len(listed) == len(ids)
    assert listed[0] is None
    own = listed[1][str(ids[1])]
    assert own == {"logprob": -1.5, "rank": 7, "decoded_token": tokenizer.token_text(ids[1])}
    assert listed[1]["10"]["logprob"] == -9999.0


def test_a_stream_has_one_chunk_per_output_and_ends_the_choice_once(app, say, tokenizer):
    ids = say(SEA)
    events = app.events(PATH, body(max_tokens=40))
    assert len(events) == len(ids)
    assert "".join(e["choices"][0]["text"] for e in events) == SEA
    assert [e["choices"][0]["finish_reason"] for e in events] == [None] * (len(ids) - 1) + ["stop"]
    assert {e["id"] for e in events} == {events[0]["id"]}
    assert set(events[0]["choices"][0]) == {
        "index",
        "text",
        "logprobs",
        "finish_reason",
        "stop_reason",
        "prompt_token_ids",
        "token_ids",
    }
    assert all("usage" not in e for e in events)


def test_usage_comes_last_and_alone(app, say):
    say(SEA)
    plain = app.post(PATH, body(max_tokens=5)).json()["usage"]
    events = app.events(PATH, body(max_tokens=5, stream_options={"include_usage": True}))
    assert all("usage" not in e for e in events[:-1])
    assert events[-1]["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert events[-1]["usage"][name] == plain[name]


@pytest.mark.parametrize("options", [{}, {"include_usage": None}, {"include_usage": False}, None])
def test_usage_is_absent_when_not_asked_for(app, say, options):
    say(SEA)
    events = app.events(PATH, body(max_tokens=3, stream_options=options))
    assert all(e.get("usage") is None and e["choices"] for e in events)


def test_continuous_usage_counts_up(app, say):
    say(SEA)
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = app.events(PATH, body(max_tokens=3, stream_options=options))
    assert [e["usage"]["completion_tokens"] for e in events] == [1, 2, 3, 3]


def test_usage_can_be_forced_by_the_server(serve, say):
    say(SEA)
    with serve(front={"enable_force_include_usage": True}) as app:
        assert app.events(PATH, body(max_tokens=3))[-1]["choices"] == []


def test_cached_tokens_are_reported_when_enabled(serve, engine, say):
    say(SEA)
    engine.cached = 2
    with serve(front={"enable_prompt_tokens_details": True}) as app:
        usage = app.post(PATH, body(max_tokens=2)).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 2
        events = app.events(PATH, body(max_tokens=2, stream_options={"include_usage": True}))
        assert events[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


def test_streamed_echo_starts_with_the_prompt_and_its_ids(app, say, tokenizer):
    say(SEA)
    events = app.events(PATH, body(max_tokens=2, echo=True, logprobs=1))
    assert events[0]["choices"][0]["text"].startswith("The sea is")
    assert events[0]["choices"][0]["prompt_token_ids"] == tokenizer.encode("The sea is")
    assert events[0]["choices"][0]["logprobs"]["token_logprobs"][0] is None
    assert events[1]["choices"][0]["prompt_token_ids"] is None
    sent = len(events[0]["choices"][0]["text"])
    assert events[1]["choices"][0]["logprobs"]["text_offset"] == [sent]


def test_token_ids_of_a_stream_are_deltas(app, say, tokenizer):
    ids = say(SEA)
    events = app.events(PATH, body(max_tokens=40, return_token_ids=True))
    assert [t for e in events for t in e["choices"][0]["token_ids"]] == ids
    assert events[0]["choices"][0]["prompt_token_ids"] == tokenizer.encode("The sea is")
    assert all(e["choices"][0]["prompt_token_ids"] is None for e in events[1:])


def test_samples_of_a_stream_interleave_by_index(app, say):
    say(SEA)
    events = app.events(PATH, body(max_tokens=3, n=3, temperature=1.0))
    texts, ends = {}, {}
    for event in events:
        choice = event["choices"][0]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        ends[choice["index"]] = ends.get(choice["index"], 0) + (choice["finish_reason"] is not None)
    assert set(texts) == {0, 1, 2}
    assert len(set(texts.values())) == 1
    assert set(ends.values()) == {1}


def test_stream_interval_puts_tokens_together(app, say):
    say(SEA, end=False)
    events = app.events(
        PATH, body(max_tokens=8, stream_interval=3, return_token_ids=True, ignore_eos=True)
    )
    assert [len(e["choices"][0]["token_ids"]) for e in events] == [1, 3, 3, 1]


@pytest.mark.parametrize("step", [1, 3, 50])
def test_characters_are_never_cut(app, engine, say, step):
    text = "a👍🏽b 日本語 é 한국어 🇳🇴 c"
    say(text)
    engine.step = step
    engine.ready.max_model_len = 200
    plain = app.post(PATH, body(max_tokens=150)).json()["choices"][0]["text"]
    pieces = [e["choices"][0]["text"] for e in app.events(PATH, body(max_tokens=150))]
    assert plain == "".join(pieces) == text
    assert all("\ufffd" not in p for p in pieces)


@pytest.mark.parametrize("step", [1, 4, 50])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("include", [False, True])
def test_overshoot_past_a_stop_string_is_dropped(
    app, engine, say, tokenizer, step, streamed, include
):
    ids = say("Small boats drift home\nGuest: more")
    engine.step = step
    fields = body(
        max_tokens=50,
        stop=["\nGuest:"],
        include_stop_str_in_output=include,
        return_token_ids=True,
        logprobs=0,
    )
    if streamed:
        events = app.events(PATH, {**fields, "stream_options": {"include_usage": True}})
        choices = [e["choices"][0] for e in events[:-1]]
        text = "".join(c["text"] for c in choices)
        used = [t for c in choices for t in c["token_ids"]]
        usage, last = events[-1]["usage"], choices[-1]
        scored = sum(len(c["logprobs"]["tokens"]) for c in choices)
        if not include:
            assert all("\n" not in c["text"] for c in choices)
    else:
        reply = app.post(PATH, fields).json()
        last = reply["choices"][0]
        text, used, usage = last["text"], last["token_ids"], reply["usage"]
        scored = len(last["logprobs"]["tokens"])
    assert text == "Small boats drift home" + ("\nGuest:" if include else "")
    assert last["finish_reason"] == "stop"
    assert last["stop_reason"] == "\nGuest:"
    assert usage["completion_tokens"] == len(used) == scored
    until = next(n for n in range(len(ids)) if "\nGuest:" in tokenizer.decode(ids[: n + 1]))
    assert used == ids[: until + 1]
    if step < 50:
        assert engine.stopped[-1] == (engine.requests[-1].request_id, "stop")
        assert not engine.open


def test_a_stop_id_ends_with_its_id_and_without_its_text(app, say, tokenizer):
    ids = say("Count: 1, 2, 3", end=False)
    comma = tokenizer.encode(",")[0]
    assert comma in ids
    choice = app.post(PATH, body(max_tokens=50, stop_token_ids=[comma])).json()["choices"][0]
    assert choice["text"] == "Count: 1"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", comma)


def test_ids_of_the_reply_follow_header_then_body(app, say):
    say(SEA)
    named = app.post(PATH, body(max_tokens=1, request_id="mine"))
    assert named.json()["id"] == "cmpl-mine"
    both = app.post(PATH, body(max_tokens=1, request_id="mine"), headers={"X-Request-Id": "h1"})
    assert both.json()["id"] == "cmpl-h1"


def test_the_same_id_twice_is_two_engine_requests(app, engine, say):
    say(SEA)
    for _ in range(2):
        assert app.post(PATH, body(max_tokens=1, request_id="same")).status_code == 200
    assert engine.requests[0].request_id != engine.requests[1].request_id


def test_the_priority_header_wins_when_it_is_a_number(app, engine, say):
    say(SEA)
    for header, want in (("7", 7), ("x", 3)):
        app.post(PATH, body(max_tokens=1, priority=3), headers={"X-Vllm-Priority": header})
        assert engine.requests[-1].priority == want


def test_cache_salt_reaches_the_engine(app, engine, say):
    say(SEA)
    app.post(PATH, body(max_tokens=1, cache_salt="tenant"))
    assert engine.requests[-1].cache_salt == "tenant"
    for salt in ("", "a@b", "a/b", "a\x00b", "x" * 129):
        response = app.post(PATH, body(cache_salt=salt))
        assert (response.status_code, response.json()["error"]["param"]) == (400, "cache_salt")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequest("bad grammar", "structured_outputs"), 400),
        (QueueFull("full"), 503),
        (EngineDead("gone"), 503),
        (RequestFailed("no"), 500),
    ],
)
def test_errors_before_the_first_token_keep_their_status(app, engine, streamed, error, status):
    engine.refusal = error
    response = app.post(PATH, body(stream=streamed))
    assert response.status_code == status
    assert response.headers["content-type"].startswith("application/json")
    assert response.json()["error"]["code"] == status
    if status == 503:
        assert "retry-after" in response.headers


def test_a_failure_in_mid_stream_is_an_event_before_done(app, engine, say):
    say(SEA)
    engine.failure = (2, EngineDead("the engine is gone"))
    events = app.events(PATH, body(max_tokens=10))
    assert [e["choices"][0]["text"] != "" for e in events[:2]] == [True, True]
    assert events[2]["error"]["code"] == 503
    assert len(events) == 3


@pytest.mark.parametrize("n", [1, 4])
def test_a_failure_without_a_stream_is_its_status(app, engine, say, n):
    say(SEA)
    engine.failure = (2, RequestFailed("it broke"))
    response = app.post(PATH, body(max_tokens=10, n=n, temperature=1.0))
    assert response.status_code == 500
    assert engine.all_closed.wait(5)


@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_ends_its_engine_requests(app, engine, say, n):
    import asyncio

    say(SEA, end=False)
    app.run_on_loop(lambda: setattr(engine, "hold", asyncio.Event()))
    fields = body(max_tokens=40, n=n, temperature=1.0, stream=True)
    with app.client.stream("POST", PATH, json=fields) as response:
        assert response.status_code == 200
        reading = response.iter_raw()  # dropping the iterator would hang up already
        next(reading)
        assert len(engine.open) == n
    assert engine.all_closed.wait(10)
    assert engine.produced < 40 * n
