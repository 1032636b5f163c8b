"""One test a rule of the compatibility notes that concerns the front; the number is the rule's."""

import pytest

from ortloom.models.generation_config import GenerationDefaults

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
LIMIT = 64


def completion(prompt="The sea is", **fields):
    return {"prompt": prompt, "temperature": 0, **fields}


def chat(content="hi", **fields):
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, **fields}


def refused(response, param=None, status=400):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param
    return error["message"]


def used(response):
    assert response.status_code == 200, response.text
    return response.json()["usage"]


@pytest.fixture
def endless(engine, tokenizer):
    ids = tokenizer.encode(" sea")
    engine.reply = lambda request: ids


# ---------------------------------------------------------------- 1: template variables


def test_semantics_1_1_server_defaults_then_kwargs_then_fields(serve, engine, endless, tokenizer):
    with serve(front={"default_chat_template_kwargs": {"mood": "calm"}}) as app:
        for kwargs, want in ((None, "calm"), ({"mood": "wild"}, "wild"), ({"mood": None}, "calm")):
            app.post(CHAT, chat(max_tokens=1, chat_template_kwargs=kwargs))
            assert want in tokenizer.decode(engine.requests[-1].prompt_token_ids)


def test_semantics_1_3_unset_variables_stay_undefined(app, engine, endless, tokenizer):
    seen = []
    for kwargs in (None, {"enable_thinking": False}, {"enable_thinking": True}):
        app.post(CHAT, chat(max_tokens=1, chat_template_kwargs=kwargs))
        seen.append(tokenizer.decode(engine.requests[-1].prompt_token_ids))
    assert "quick" not in seen[0]
    assert "think" not in seen[0]
    assert "quick" in seen[1]
    assert "think" in seen[2]


@pytest.mark.parametrize("name", ["messages", "tools", "chat_template", "tokenize"])
@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_semantics_1_4_reserved_names_are_refused(app, name, path):
    refused(app.post(path, chat(chat_template_kwargs={name: []})))


def test_semantics_1_6_unread_names_are_dropped(app, endless):
    kwargs = {"foo": 1, "range": 2, "lipsum": 3}
    assert app.post(CHAT, chat(max_tokens=1, chat_template_kwargs=kwargs)).status_code == 200


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_semantics_1_7_a_raising_template_is_a_400_with_its_text(app, path):
    body = {"messages": [{"role": "wizard", "content": "x"}]}
    assert "wizards are not allowed" in refused(app.post(path, body))


def test_semantics_1_9_reasoning_effort_sets_enable_thinking(app, engine, endless, tokenizer):
    for effort, kwargs, want in (
        ("none", None, "quick"),
        ("low", None, "think"),
        ("low", {"enable_thinking": False}, "quick"),
    ):
        app.post(CHAT, chat(max_tokens=1, reasoning_effort=effort, chat_template_kwargs=kwargs))
        assert want in tokenizer.decode(engine.requests[-1].prompt_token_ids)


@pytest.mark.parametrize(("form", "want"), [("string", "a\nb"), ("openai", "[a][b]")])
def test_semantics_1_11_the_content_format_can_be_forced(
    serve, engine, endless, tokenizer, form, want
):
    template = (
        "{% set c = messages[0]['content'] %}{% if c is string %}{{ c }}"
        "{% else %}{% for p in c %}[{{ p.text }}]{% endfor %}{% endif %}"
    )
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    with serve(front={"chat_template_content_format": form}, template=template) as app:
        app.post(CHAT, chat(parts, max_tokens=1))
    assert tokenizer.decode(engine.requests[-1].prompt_token_ids) == want


# ---------------------------------------------------------------- 2: lengths


def test_semantics_2_1_without_a_limit_completions_make_16_and_chat_fills_the_context(app, endless):
    for unset in ({}, {"max_tokens": None}):
        assert used(app.post(COMPLETIONS, completion(**unset)))["completion_tokens"] == 16
        assert used(app.post(CHAT, chat(**unset)))["total_tokens"] == LIMIT


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 30}, {"max_tokens": -1}])
def test_semantics_2_1_max_new_tokens_of_the_generation_config_is_a_cap(serve, endless, fields):
    with serve(defaults=GenerationDefaults(max_new_tokens=5)) as app:
        assert used(app.post(COMPLETIONS, completion(**fields)))["completion_tokens"] == 5
        assert used(app.post(CHAT, chat(**fields)))["completion_tokens"] == 5


@pytest.mark.parametrize("limit", [0, -1, -7])
def test_semantics_2_2_a_limit_of_zero_or_less_means_none(app, endless, limit):
    assert used(app.post(COMPLETIONS, completion(max_tokens=limit)))["total_tokens"] == LIMIT
    assert used(app.post(CHAT, chat(max_tokens=limit)))["total_tokens"] == LIMIT
    assert used(app.post(CHAT, chat(max_completion_tokens=limit)))["total_tokens"] == LIMIT


def test_semantics_2_2_echo_and_zero_is_the_prompt_alone(app, endless):
    reply = app.post(COMPLETIONS, completion(max_tokens=0, echo=True)).json()
    assert reply["choices"][0]["text"] == "The sea is"
    assert reply["usage"]["completion_tokens"] == 0
    events = app.events(COMPLETIONS, completion(max_tokens=0, echo=True))
    assert "".join(e["choices"][0]["text"] for e in events) == "The sea is"
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_semantics_2_2_the_server_has_a_ceiling_of_its_own(serve, endless):
    with serve(front={"max_new_tokens": 3}) as app:
        for fields in ({}, {"max_tokens": -1}, {"max_tokens": 20}):
            assert used(app.post(COMPLETIONS, completion(**fields)))["completion_tokens"] == 3
        assert used(app.post(COMPLETIONS, completion(max_tokens=2)))["completion_tokens"] == 2


def test_semantics_2_2_max_completion_tokens_wins(app, endless):
    response = app.post(CHAT, chat(max_tokens=9, max_completion_tokens=2))
    assert used(response)["completion_tokens"] == 2


@pytest.mark.parametrize("length", [LIMIT, LIMIT + 1])
@pytest.mark.parametrize("fields", [{}, {"max_tokens": 1}, {"max_tokens": -1}, {"stream": True}])
def test_semantics_2_3_a_prompt_without_room_names_both_lengths(app, engine, length, fields):
    message = refused(app.post(COMPLETIONS, completion([5] * length, **fields)), "input_tokens")
    assert str(LIMIT) in message
    assert str(length) in message
    assert not engine.requests


def test_semantics_2_3_one_token_of_room_is_enough(app, endless):
    assert used(app.post(COMPLETIONS, completion([5] * (LIMIT - 1))))["completion_tokens"] == 1


def test_semantics_2_4_output_is_clamped_to_what_is_left(app, endless):
    response = app.post(COMPLETIONS, completion([5] * 8, max_tokens=LIMIT))
    assert used(response)["completion_tokens"] == LIMIT - 8
    assert response.json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(("path", "make"), [(COMPLETIONS, completion), (CHAT, chat)])
def test_semantics_2_4_a_limit_above_the_context_is_refused(app, path, make):
    assert str(LIMIT) in refused(app.post(path, make(max_tokens=LIMIT + 1)), "max_tokens")


def test_semantics_2_5_an_empty_prompt_is_refused(app):
    refused(app.post(COMPLETIONS, completion("")), "prompt")


def test_semantics_2_6_truncation_keeps_the_right_end(app, engine, endless):
    ids = list(range(10, 50))
    for fields, want in (
        ({"truncate_prompt_tokens": 5}, ids[-5:]),
        ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, ids[:5]),
        ({"truncate_prompt_tokens": 60}, ids),
    ):
        response = app.post(COMPLETIONS, completion(ids, max_tokens=1, **fields))
        assert used(response)["prompt_tokens"] == len(want)
        assert engine.requests[-1].prompt_token_ids == want


def test_semantics_2_6_minus_one_leaves_room_for_the_output(app, endless):
    long = [5] * 200
    for fields, want in (({"max_tokens": 10}, 54), ({}, 48), ({"max_tokens": -1}, 63)):
        response = app.post(COMPLETIONS, completion(long, truncate_prompt_tokens=-1, **fields))
        assert used(response)["prompt_tokens"] == want


@pytest.mark.parametrize("keep", [0, -7, LIMIT + 1, 10**9])
def test_semantics_2_6_other_values_are_refused(app, keep):
    response = app.post(COMPLETIONS, completion([5] * 40, truncate_prompt_tokens=keep))
    refused(response, "truncate_prompt_tokens")


def test_semantics_2_6_the_echo_of_a_cut_prompt_is_what_was_kept(app, endless, tokenizer):
    ids = tokenizer.encode("The sea is")
    fields = {"truncate_prompt_tokens": 1, "echo": True, "max_tokens": 0}
    reply = app.post(COMPLETIONS, completion(**fields)).json()
    assert reply["choices"][0]["text"] == tokenizer.decode(ids[-1:])


def test_semantics_2_7_min_tokens_above_max_tokens_is_refused(app):
    refused(app.post(COMPLETIONS, completion(max_tokens=3, min_tokens=4)))


def test_semantics_2_7_stop_strings_are_not_looked_at_before_min_tokens(app, engine, tokenizer):
    ids = tokenizer.encode("sea") * 9
    engine.reply = lambda request: ids
    ends = [n for n in range(1, 20) if tokenizer.decode(ids[:n]).endswith("sea")]
    for minimum in (0, 6):
        want = next(n for n in ends if n > minimum)
        response = app.post(COMPLETIONS, completion(max_tokens=20, min_tokens=minimum, stop="sea"))
        assert used(response)["completion_tokens"] == want
        assert response.json()["choices"][0]["finish_reason"] == "stop"


def test_semantics_2_7_the_engine_masks_ends_before_min_tokens(app, engine, endless):
    app.post(COMPLETIONS, completion(min_tokens=5))
    assert engine.requests[-1].sampling.min_tokens == 5


# ---------------------------------------------------------------- 3: stopping


def test_semantics_3_1_ids_of_both_files_reach_the_engine(serve, engine, endless, tokenizer):
    with serve(defaults=GenerationDefaults(secondary_eos_token_ids=(7, 9))) as app:
        app.post(COMPLETIONS, completion(stop_token_ids=[11]))
    sampling = engine.requests[-1].sampling
    assert sampling.eos_token_ids == [tokenizer.eos_token_id]
    assert sampling.secondary_eos_token_ids == [7, 9]
    assert sampling.stop_token_ids == [11]


def test_semantics_3_3_ignore_eos_leaves_the_users_own_stops(app, engine, tokenizer):
    ids = tokenizer.encode("x")
    engine.reply = lambda request: [tokenizer.eos_token_id, *ids]
    whole = app.post(COMPLETIONS, completion(max_tokens=6, ignore_eos=True))
    assert used(whole)["completion_tokens"] == 6
    own = app.post(COMPLETIONS, completion(max_tokens=6, ignore_eos=True, stop="x"))
    assert used(own)["completion_tokens"] == 1 + len(ids)
    byid = app.post(COMPLETIONS, completion(max_tokens=6, ignore_eos=True, stop_token_ids=ids))
    assert used(byid)["completion_tokens"] == 2


def test_semantics_3_4_stop_reasons(serve, engine, tokenizer):
    ids = tokenizer.encode("abc")
    secondary = tokenizer.encode("z")[0]
    engine.reply = lambda request: [*ids, secondary]
    with serve(defaults=GenerationDefaults(secondary_eos_token_ids=(secondary,))) as app:
        for fields, reason in (
            ({}, secondary),
            ({"stop_token_ids": [ids[1]]}, ids[1]),
            ({"stop": "b"}, "b"),
        ):
            choice = app.post(COMPLETIONS, completion(max_tokens=9, **fields)).json()["choices"][0]
            assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", reason)
        engine.reply = lambda request: [*ids, tokenizer.eos_token_id]
        choice = app.post(COMPLETIONS, completion(max_tokens=9)).json()["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)


def test_semantics_3_5_the_stop_string_that_completes_first_wins(app, say, engine):
    say("abcdef")
    engine.step = 6
    choice = app.post(COMPLETIONS, completion(stop=["cdef", "bc"])).json()["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == ("a", "bc")


def test_semantics_3_6_the_stop_token_has_no_text_but_is_listed(app, say, tokenizer):
    ids = say("The sea")
    choice = app.post(COMPLETIONS, completion(return_token_ids=True)).json()["choices"][0]
    assert choice["text"] == "The sea"
    assert choice["token_ids"] == ids
    assert ids[-1] == tokenizer.eos_token_id


def test_semantics_3_6_special_tokens_are_shown_when_asked_for(app, engine, tokenizer):
    special = tokenizer.encode("<|im_start|>")[0]
    engine.reply = lambda request: [special]
    for skip, want in ((True, ""), (False, "<|im_start|>" * 3)):
        reply = app.post(
            COMPLETIONS,
            completion(max_tokens=3, skip_special_tokens=skip, spaces_between_special_tokens=False),
        ).json()
        assert reply["choices"][0]["text"] == want
        assert reply["usage"]["completion_tokens"] == 3


# ---------------------------------------------------------------- 4: sampling, the front's part


def test_semantics_4_1_defaults_fill_only_what_is_omitted(serve, engine, endless):
    defaults = GenerationDefaults(
        temperature=0.6, top_k=20, top_p=0.9, min_p=0.1, repetition_penalty=1.2
    )
    with serve(defaults=defaults) as app:
        app.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1})
        given = {"temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1}
        app.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1, **given})
    first, second = (r.sampling for r in engine.requests)
    assert (first.temperature, first.top_k, first.top_p) == (0.6, 20, 0.9)
    assert (first.min_p, first.repetition_penalty) == (0.1, 1.2)
    assert (second.temperature, second.top_k, second.top_p) == (1.5, 0, 1.0)
    assert (second.min_p, second.repetition_penalty) == (0.0, 1.0)


def test_semantics_4_2_greedy_and_tiny_temperatures(app, engine, endless):
    app.post(COMPLETIONS, completion(top_k=5, top_p=0.1, min_p=0.5))
    sampling = engine.requests[-1].sampling
    assert (sampling.top_k, sampling.top_p, sampling.min_p) == (0, 1.0, 0.0)
    app.post(COMPLETIONS, {**completion(), "temperature": 0.001})
    assert engine.requests[-1].sampling.temperature == 0.01
    refused(app.post(COMPLETIONS, completion(n=2)))


def test_semantics_4_4_samples_have_the_seed_and_their_own_index(app, engine, endless):
    app.post(COMPLETIONS, {**completion(n=3, seed=5), "temperature": 1})
    assert [r.sampling.seed for r in engine.requests] == [5, 5, 5]
    assert [r.sampling.sample_index for r in engine.requests] == [0, 1, 2]
    app.post(COMPLETIONS, {**completion(seed=-1), "temperature": 1})
    assert engine.requests[-1].sampling.seed is None


def test_semantics_4_6_bad_words_are_banned_with_and_without_a_blank_before(app, engine, endless):
    app.post(COMPLETIONS, completion(bad_words=["sea boats", " home", "home"]))
    assert engine.requests[-1].sampling.bad_words == ["sea boats", "home"]


def test_semantics_4_8_cut_tokens_are_minus_9999(app, endless):
    choice = app.post(COMPLETIONS, completion(logprobs=2, max_tokens=1)).json()["choices"][0]
    assert -9999.0 in choice["logprobs"]["top_logprobs"][0].values()


def test_semantics_4_9_the_cap_of_logprobs(serve, endless):
    with serve(model={"max_logprobs": 2}) as app:
        assert app.post(COMPLETIONS, completion(logprobs=2)).status_code == 200
        message = refused(app.post(COMPLETIONS, completion(logprobs=3)), "logprobs")
        assert "2" in message
        assert "3" in message
        refused(app.post(COMPLETIONS, completion(prompt_logprobs=3)), "prompt_logprobs")
    with serve(model={"max_logprobs": -1}) as app:
        assert app.post(COMPLETIONS, completion(logprobs=-1)).status_code == 200


def test_semantics_4_11_the_first_prompt_logprob_is_null_and_streams_have_none(app, endless):
    reply = app.post(COMPLETIONS, completion(prompt_logprobs=1)).json()
    assert reply["choices"][0]["prompt_logprobs"][0] is None
    for path, make in ((COMPLETIONS, completion), (CHAT, chat)):
        refused(app.post(path, make(prompt_logprobs=1, stream=True)), "prompt_logprobs")


def test_semantics_4_12_tokens_as_ids_by_flag(serve, endless):
    with serve(front={"return_tokens_as_token_ids": True}) as app:
        reply = app.post(CHAT, chat(logprobs=True, max_tokens=1)).json()
        assert reply["choices"][0]["logprobs"]["content"][0]["token"].startswith("token_id:")
        fields = completion(logprobs=0, max_tokens=1, return_tokens_as_token_ids=False)
        lp = app.post(COMPLETIONS, fields).json()["choices"][0]["logprobs"]
        assert not lp["tokens"][0].startswith("token_id:")


# ---------------------------------------------------------------- 5, 6, 7: the front's part


def test_semantics_5_2_the_salt_goes_with_the_request(app, engine, endless):
    app.post(CHAT, chat(max_tokens=1, cache_salt="tenant"))
    app.post(CHAT, chat(max_tokens=1))
    assert [r.cache_salt for r in engine.requests] == ["tenant", None]


def test_semantics_5_4_cached_tokens_need_the_flag(serve, app, engine, endless):
    engine.cached = 3
    assert used(app.post(CHAT, chat(max_tokens=1)))["prompt_tokens_details"] is None
    with serve(front={"enable_prompt_tokens_details": True}) as detailed:
        usage = used(detailed.post(CHAT, chat(max_tokens=1)))
        assert usage["prompt_tokens_details"]["cached_tokens"] == 3


def test_semantics_6_1_the_context_is_the_one_the_engine_fitted(app, engine, endless):
    engine.ready.max_model_len = 32
    assert used(app.post(CHAT, chat()))["total_tokens"] == 32
    assert app.post("/tokenize", {"prompt": "x"}).json()["max_model_len"] == 32


def test_semantics_7_9_every_served_name_is_taken_and_the_first_is_echoed(app, endless):
    for name in ("tiny", "other"):
        assert app.post(COMPLETIONS, completion(model=name)).json()["model"] == "tiny"
    refused(app.post(COMPLETIONS, completion(model="third")), "model", 404)


@pytest.mark.parametrize("name", [None, ""])
def test_semantics_7_10_no_model_means_the_base_model(app, endless, name):
    assert app.post(COMPLETIONS, completion(model=name)).status_code == 200
    assert app.post(CHAT, chat(model=name, max_tokens=1)).status_code == 200


def test_a_request_before_the_engine_is_ready_may_be_repeated(app, engine):
    engine.ready = None
    response = app.post(COMPLETIONS, completion())
    assert response.status_code == 503
    assert "retry-after" in response.headers
    engine.dead = "killed"
    assert app.post(COMPLETIONS, completion()).status_code == 503
