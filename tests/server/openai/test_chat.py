import openai
import pytest

from ortloom.errors import EngineDead, QueueFull

PATH = "/v1/chat/completions"


def body(content="Say hi", **fields):
    messages = [{"role": "user", "content": content}]
    return {"model": "tiny", "messages": messages, "temperature": 0, **fields}


TOOL = {
    "type": "function",
    "function": {"name": "get_w", "parameters": {"type": "object", "properties": {}}},
}


def test_a_reply_has_every_member(app, say, engine, tokenizer):
    say("The sea")
    reply = app.post(PATH, body()).json()
    assert reply["id"].startswith("chatcmpl-")
    assert reply["object"] == "chat.completion"
    assert reply["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "The sea",
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": None,
            "routed_experts": None,
        }
    ]
    for name in ("prompt_logprobs", "prompt_token_ids", "prompt_text", "metrics", "service_tier"):
        assert name in reply
        assert reply[name] is None
    rendered = "<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\n"
    assert engine.requests[0].prompt_token_ids == tokenizer.encode(rendered)


def test_a_stream_opens_with_the_role_and_ends_once(app, say, tokenizer):
    ids = say("The sea is a place")
    events = app.events(PATH, body())
    first = events[0]
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert first["prompt_token_ids"] is None
    assert first["prompt_text"] is None
    assert len(events) == 1 + len(ids)
    rest = [e["choices"][0] for e in events[1:]]
    assert "".join(c["delta"]["content"] for c in rest) == "The sea is a place"
    assert [c["finish_reason"] for c in rest] == [None] * (len(ids) - 1) + ["stop"]
    assert set(rest[0]) == {"index", "delta", "logprobs", "finish_reason", "token_ids"}
    assert rest[-1]["stop_reason"] is None
    assert "system_fingerprint" in events[-1]
    assert all("usage" not in e for e in events)


def test_every_choice_gets_its_role(app, say):
    say("sea")
    events = app.events(PATH, body(n=3, temperature=1.0))
    roles = [e["choices"][0]["index"] for e in events if "role" in e["choices"][0]["delta"]]
    assert roles == [0, 1, 2]


def test_usage_of_a_stream_equals_that_of_a_reply(app, say):
    say("The sea is")
    plain = app.post(PATH, body()).json()["usage"]
    last = app.events(PATH, body(stream_options={"include_usage": True}))[-1]
    assert last["choices"] == []
    assert all(last["usage"][k] == plain[k] for k in last["usage"])


def test_continuous_usage_starts_at_the_role(app, say):
    say("The sea is", end=False)
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = app.events(PATH, body(max_tokens=2, stream_options=options))
    assert [e["usage"]["completion_tokens"] for e in events] == [0, 1, 2, 2]


def test_logprobs_have_text_bytes_and_top_entries(app, say, tokenizer):
    ids = say("The sea", end=False)
    reply = app.post(PATH, body(max_tokens=2, logprobs=True, top_logprobs=3)).json()
    content = reply["choices"][0]["logprobs"]["content"]
    own = tokenizer.token_text(ids[0])
    assert content[0]["token"] == own
    assert content[0]["bytes"] == list(own.encode())
    assert content[0]["logprob"] == -1.5
    assert len(content[0]["top_logprobs"]) == 3
    assert content[0]["top_logprobs"][0]["token"] == own
    assert all(e["logprob"] >= -9999.0 for e in content[0]["top_logprobs"])


def test_bytes_of_a_part_of_a_character_are_the_true_ones(app, engine, tokenizer):
    part = next(t for t in range(tokenizer.vocab_size) if tokenizer.token_bytes(t) == b"\xf0")
    engine.reply = lambda request: [part]
    reply = app.post(PATH, body(max_tokens=1, logprobs=True)).json()
    assert reply["choices"][0]["logprobs"]["content"][0]["bytes"] == [0xF0]


def test_top_logprobs_zero_false_and_null(app, say):
    say("The sea", end=False)
    for top in (0, None):
        reply = app.post(PATH, body(max_tokens=2, logprobs=True, top_logprobs=top)).json()
        content = reply["choices"][0]["logprobs"]["content"]
        assert [e["top_logprobs"] for e in content] == [[], []]
    assert app.post(PATH, body(logprobs=False)).json()["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "logprobs"),
    ],
)
def test_top_logprobs_out_of_range(app, fields, param):
    response = app.post(PATH, body(**fields))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_each_chunk_has_the_logprobs_of_its_tokens(app, engine, say):
    say("The sea is a place", end=False)
    engine.step = 2
    events = app.events(PATH, body(max_tokens=4, logprobs=True, return_token_ids=True))
    for event in events[1:]:
        choice = event["choices"][0]
        assert len(choice["logprobs"]["content"]) == len(choice["token_ids"]) == 2


def test_ids_and_text_of_the_prompt_are_returned_when_asked_for(app, engine, say):
    ids = say("sea")
    fields = body(return_token_ids=True, return_prompt_text=True)
    reply = app.post(PATH, fields).json()
    assert reply["prompt_token_ids"] == engine.requests[0].prompt_token_ids
    assert reply["prompt_text"].endswith("<|im_start|>assistant\n")
    assert reply["choices"][0]["token_ids"] == ids
    events = app.events(PATH, fields)
    assert events[0]["prompt_token_ids"] == reply["prompt_token_ids"]
    assert events[0]["prompt_text"] == reply["prompt_text"]


def test_prompt_logprobs_stand_beside_the_choices(app, say, engine):
    say("sea")
    reply = app.post(PATH, body(prompt_logprobs=1, max_tokens=1)).json()
    assert reply["prompt_logprobs"][0] is None
    assert len(reply["prompt_logprobs"]) == len(engine.requests[0].prompt_token_ids)


def test_echo_repeats_the_message_that_is_continued(app, say, engine, tokenizer):
    say(" sea")
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "The"}]
    fields = {
        "messages": messages,
        "add_generation_prompt": False,
        "continue_final_message": True,
        "echo": True,
        "temperature": 0,
    }
    assert app.post(PATH, fields).json()["choices"][0]["message"]["content"] == "The sea"
    text = tokenizer.decode(engine.requests[0].prompt_token_ids, False)
    assert text.endswith("<|im_start|>assistant\nThe")
    events = app.events(PATH, fields)
    assert events[1]["choices"][0]["delta"] == {"content": "The"}


@pytest.mark.parametrize("streamed", [False, True])
def test_a_stop_string_ends_the_message(app, engine, say, streamed):
    say("Small boats drift home\nGuest: more")
    engine.step = 7
    fields = body(stop="\nGuest:", max_tokens=50)
    if streamed:
        choices = [e["choices"][0] for e in app.events(PATH, fields)]
        text = "".join(c["delta"]["content"] for c in choices)
        last = choices[-1]
        assert all("\n" not in c["delta"]["content"] for c in choices)
    else:
        last = app.post(PATH, fields).json()["choices"][0]
        text = last["message"]["content"]
    assert text == "Small boats drift home"
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "\nGuest:")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"temperature": -1}, 400, "temperature"),
        ({"model": "nope"}, 404, "model"),
        ({"response_format": {"type": "json_schema"}}, 400, "response_format"),
        ({"messages": [{"role": "user", "content": "long " * 200}]}, 400, "input_tokens"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, 400, None),
        ({"messages": []}, 400, "messages"),
    ],
)
def test_errors_come_before_the_stream(app, streamed, fields, status, param):
    response = app.post(PATH, body(**{"stream": streamed, **fields}))
    assert response.status_code == status
    assert response.headers["content-type"].startswith("application/json")
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (status, param)
    assert error["message"]


@pytest.mark.parametrize(("error", "status"), [(QueueFull("full"), 503), (EngineDead("x"), 503)])
def test_a_refusing_engine_keeps_its_status_in_a_stream(app, engine, error, status):
    engine.refusal = error
    response = app.post(PATH, body(stream=True))
    assert response.status_code == status
    assert response.headers["content-type"].startswith("application/json")


def test_a_failure_in_mid_stream_is_an_event_before_done(app, engine, say):
    say("The sea is", end=False)
    engine.failure = (1, EngineDead("gone"))
    events = app.events(PATH, body(max_tokens=9))
    assert events[-1]["error"]["type"] == "ServiceUnavailableError"
    assert len(events) == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": []}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [TOOL]}, None),
        ({"tools": [TOOL], "tool_choice": "auto"}, None),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
        ({"tools": [{"type": "function", "function": {"name": 5}}]}, "body.tools.0.function.name"),
    ],
)
def test_tool_fields_that_cannot_be_honoured(app, fields, param):
    response = app.post(PATH, body(**fields))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_tools_reach_the_template_when_no_call_is_wanted(serve, say, engine, tokenizer):
    say("sea")
    template = "{{ messages[0]['content'] }}{{ tools | tojson }}"
    engine.ready.max_model_len = 400
    with serve(template=template) as app:
        assert app.post(PATH, body("x", tools=[TOOL], tool_choice="none")).status_code == 200
    seen = tokenizer.decode(engine.requests[0].prompt_token_ids)
    assert '"name": "get_w", "description": null' in seen


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False, "metadata": {"a": "b"}, "service_tier": "auto", "user": "u"},
        {"parallel_tool_calls": True, "x_vendor": {"k": [1]}},
        {"modalities": ["audio"], "audio": {"voice": "x"}},
        {"messages": [{"role": "user", "content": "hi", "uid": "m1", "name": 5}]},
        {"tool_choice": "none"},
        {"model": None},
        {"model": ""},
        {"model": "other"},
    ],
)
def test_fields_without_a_meaning_here_are_ignored(app, say, fields):
    say("sea")
    response = app.post(PATH, body(**fields))
    assert response.status_code == 200
    assert response.json()["model"] == "tiny"


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "nope", "x": 1}],
        5,
        [5],
        {"type": "text"},
        [{"type": "text"}],
        [{"type": "text", "text": 5}],
        [{"text": "no type"}],
        [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
        [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}],
    ],
)
def test_content_that_does_not_fit_is_refused(app, content):
    response = app.post(PATH, body(content))
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_text_parts_are_joined_by_newlines(app, engine, say):
    say("sea")
    for content in ("Say\nhi", [{"type": "text", "text": "Say"}, {"type": "text", "text": "hi"}]):
        app.post(PATH, body(content))
    assert engine.requests[0].prompt_token_ids == engine.requests[1].prompt_token_ids


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": 7, "content": "x"}, "body.messages.0.role"),
        ({"role": None, "content": "x"}, "body.messages.0.role"),
        ({"content": "x"}, "body.messages.0.role"),
        ({"role": "user", "content": 5}, "body.messages.0.content"),
    ],
)
def test_malformed_messages_name_the_place(app, message, param):
    error = app.post(PATH, body(messages=[message])).json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("Bad Request", param, 400)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ('{"city":"Oslo"}', 200),
        ("", 200),
        ("null", 200),
        (None, 200),
        ({"city": "Oslo"}, 200),
        ("{broken", 400),
    ],
)
def test_arguments_in_the_history_become_objects(serve, say, engine, tokenizer, arguments, status):
    say("sea")
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ]
    template = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.arguments is mapping }}{{ c.function.arguments.get('city') }}"
        "{% endfor %}{{ m.tool_call_id }}{% endfor %}"
    )
    with serve(template=template) as app:
        response = app.post(PATH, body(messages=messages))
    assert response.status_code == status
    if status == 200:
        city = "Oslo" if arguments and "Oslo" in str(arguments) else "None"
        seen = tokenizer.decode(engine.requests[0].prompt_token_ids)
        assert seen == f"True{city}5c1"


def test_a_model_without_a_template_says_so(serve):
    with serve(no_template=True) as app:
        response = app.post(PATH, body())
    assert response.status_code == 400
    assert "chat template" in response.json()["error"]["message"]


def test_request_templates_need_trust(app):
    response = app.post(PATH, body(chat_template="{{ 1 }}"))
    assert (response.status_code, response.json()["error"]["param"]) == (400, None)


def test_a_trusted_request_template_is_rendered(serve, say, engine, tokenizer):
    say("sea")
    with serve(front={"trust_request_chat_template": True}) as app:
        own = "{% for p in messages[0].content %}{{ p.text }}!{% endfor %}{{ mood }}"
        fields = body("x", chat_template=own, chat_template_kwargs={"mood": "calm"})
        assert app.post(PATH, fields).status_code == 200
    assert tokenizer.decode(engine.requests[0].prompt_token_ids) == "x!calm"


@pytest.mark.parametrize(
    "hostile",
    [
        "{{ ().__class__.__base__.__subclasses__() }}",
        "{{ 'a' * 99999999999 }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ raise_exception('no') }}",
        "{% if %}",
    ],
)
def test_a_hostile_request_template_is_refused_and_harms_nobody(serve, hostile):
    with serve(front={"trust_request_chat_template": True}) as app:
        response = app.post(PATH, body(chat_template=hostile))
        assert response.status_code == 400
        assert "<class" not in response.text
        assert app.client.get("/health").status_code == 200


def test_the_openai_package_reads_replies_and_streams(app, say):
    say("The sea")
    messages = [{"role": "user", "content": "hi"}]
    with openai.OpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0) as client:
        reply = client.chat.completions.create(
            model="tiny", messages=messages, temperature=0, logprobs=True, top_logprobs=2
        )
        assert reply.choices[0].message.content == "The sea"
        assert reply.choices[0].logprobs.content[0].top_logprobs[0].logprob == -1.5
        chunks = list(
            client.chat.completions.create(
                model="tiny",
                messages=messages,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == "The sea"
        assert chunks[-1].usage.completion_tokens == reply.usage.completion_tokens
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="nope", messages=messages)
        assert missing.value.param == "model"
        completion = client.completions.create(model="tiny", prompt="x", temperature=0, logprobs=1)
        assert completion.choices[0].text == "The sea"
