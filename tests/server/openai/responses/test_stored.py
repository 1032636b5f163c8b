"""Stored and background responses: GET, cancel, the next turn, the front's end."""

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from ortloom.errors import InvalidRequest, QueueFull, RequestFailed
from ortloom.server.openai.chat_prompt import chat_prompt
from ortloom.server.openai.responses import prepare

PATH = "/v1/responses"
RULE = "invalid_request_error"


def body(**fields):
    return {"input": "Say hi", "temperature": 0, **fields}


def get(app, response_id, **params):
    return app.client.get(f"{PATH}/{response_id}", params=params)


def made(response):
    assert response.status_code == 200, response.text
    return response.json()


def finished(app, response_id):
    """The response once its task has ended."""
    record = app.context.responses.get(response_id)
    done = threading.Event()
    app.run_on_loop(
        lambda: (
            done.set()
            if record.task is None
            else record.task.add_done_callback(lambda _: done.set())
        )
    )
    assert done.wait(10)
    return made(get(app, response_id))


def until(what):
    end = time.monotonic() + 10
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


def rule_of(response, status=400):
    assert response.status_code == status, response.text
    assert response.json()["error"]["type"] == RULE
    return response.json()["error"]["param"]


@pytest.fixture
def held(engine, say):
    """The engine gives one token and then waits for `held.go()`, or for ever."""
    say("The sea is")
    engine.hold = gate = asyncio.Event()

    class Held:
        def go(self, app):
            app.run_on_loop(gate.set)

    return Held()


def test_a_reply_and_a_stream_are_stored_as_they_were(storing, say, events_of):
    say("The sea")
    reply = made(storing.post(PATH, body()))
    assert made(get(storing, reply["id"])) == reply
    last = events_of(storing.post(PATH, body(stream=True)))[-1]["response"]
    assert made(get(storing, last["id"])) == last
    assert rule_of(get(storing, last["id"], stream="true")) == "response_id"
    assert rule_of(storing.post(f"{PATH}/{last['id']}/cancel", {})) == "response_id"


def test_what_is_not_to_be_stored_is_not(storing, app, say):
    say("sea")
    for server, fields in ((storing, {"store": False}), (app, {}), (app, {"store": True})):
        reply = made(server.post(PATH, body(**fields)))
        assert rule_of(get(server, reply["id"]), 404) == "response_id"


@pytest.mark.parametrize("path", ["resp_nope", "resp_nope/cancel"])
def test_unknown_ids(storing, path):
    request = storing.client.post if path.endswith("cancel") else storing.client.get
    assert rule_of(request(f"{PATH}/{path}"), 404) == "response_id"
    assert rule_of(request(f"{PATH}/{path.removeprefix('resp_')}"), 400) == "response_id"


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"stream": "perhaps"}, "query.stream"),
        ({"starting_after": "x"}, "query.starting_after"),
        ({"starting_after": "-1"}, "query.starting_after"),
        ({"starting_after": "9" * 30}, "query.starting_after"),
    ],
)
def test_queries_that_do_not_fit(storing, say, params, param):
    say("sea")
    reply = made(storing.post(PATH, body()))
    response = get(storing, reply["id"], **params)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "Bad Request", param)


def test_conversations_go_on_without_old_instructions(storing, say, engine, tokenizer):
    say("sea")
    first = made(storing.post(PATH, body(input="One", instructions="Old")))
    say("land")
    second = made(
        storing.post(PATH, body(input="Two", instructions="New", previous_response_id=first["id"]))
    )
    assert second["previous_response_id"] == first["id"]
    prompt = tokenizer.decode(engine.requests[-1].prompt_token_ids, False)
    turns = [("system", "New"), ("user", "One"), ("assistant", "sea"), ("user", "Two")]
    assert prompt == "".join(f"<|im_start|>{r}\n{t}<|im_end|>\n" for r, t in turns) + (
        "<|im_start|>assistant\n"
    )
    given = [{"role": "user", "content": "One"}, {"role": "assistant", "content": "sea"}]
    fields = body(input="Two", instructions="New", previous_input_messages=given)
    made(storing.post(PATH, fields))
    assert engine.requests[-1].prompt_token_ids == engine.requests[-2].prompt_token_ids
    # a branch: the first one is as it was
    made(storing.post(PATH, body(input="Two", previous_response_id=first["id"])))
    assert len(engine.requests[-1].prompt_token_ids) < len(engine.requests[-2].prompt_token_ids)


def test_an_unfinished_message_is_continued(storing, say, engine, tokenizer):
    part = {"type": "output_text", "text": "The "}
    given = {"type": "message", "role": "assistant", "content": [part], "status": "incomplete"}
    say("sea")
    first = made(storing.post(PATH, body(input=[{"role": "user", "content": "x"}, given])))
    prompt = tokenizer.decode(engine.requests[-1].prompt_token_ids, False)
    assert prompt.endswith("<|im_start|>assistant\nThe ")
    made(storing.post(PATH, body(input="y", previous_response_id=first["id"])))
    prompt = tokenizer.decode(engine.requests[-1].prompt_token_ids, False)
    assert "<|im_start|>assistant\nThe sea<|im_end|>" in prompt


def test_of_two_with_one_id_at_the_same_time_one_is_refused(storing, held, monkeypatch):
    """Both find the id free; making a prompt ready may take long, and others run meanwhile."""

    async def slow(*args, **options):
        await asyncio.sleep(0.3)
        return await chat_prompt(*args, **options)

    monkeypatch.setattr(prepare, "chat_prompt", slow)
    fields = body(background=True, request_id="twin")
    with ThreadPoolExecutor(2) as pool:
        replies = list(pool.map(lambda _: storing.post(PATH, fields), range(2)))
    refused, taken = sorted(replies, key=lambda reply: -reply.status_code)
    assert made(taken)["id"] == "resp_twin"
    assert rule_of(refused) == "request_id"
    held.go(storing)
    assert finished(storing, "resp_twin")["status"] == "completed"


def test_a_background_response_is_queued_then_runs_then_is_done(storing, held, engine):
    reply = made(storing.post(PATH, body(background=True)))
    assert (reply["status"], reply["output"], reply["usage"]) == ("queued", [], None)
    assert reply["background"] is True
    until(lambda: engine.open)
    running = made(get(storing, reply["id"]))
    assert running["status"] in ("queued", "in_progress")
    fields = body(previous_response_id=reply["id"])
    assert rule_of(storing.post(PATH, fields)) == "previous_response_id"
    assert rule_of(storing.post(PATH, body(request_id=reply["id"]))) == "request_id"
    held.go(storing)
    done = finished(storing, reply["id"])
    assert done["status"] == "completed"
    assert done["output"][0]["content"][0]["text"] == "The sea is"
    assert done["usage"]["output_tokens"] == 4
    assert done["created_at"] == reply["created_at"]


def test_a_background_stream_can_be_read_again_from_any_event(storing, say, events_of):
    say("The sea is")
    events = events_of(storing.post(PATH, body(background=True, stream=True)))
    assert [events[0]["type"], events[-1]["type"]] == ["response.created", "response.completed"]
    assert events[0]["response"]["status"] == "in_progress"
    response_id = events[0]["response"]["id"]
    for after in (None, 0, 4, len(events) - 2):
        first = 0 if after is None else after + 1
        params = {} if after is None else {"starting_after": after}
        again = get(storing, response_id, stream="true", **params)
        assert events_of(again, first) == events[first:]
    for beyond in (len(events) - 1, 999):
        response = get(storing, response_id, stream=True, starting_after=beyond)
        assert (response.status_code, events_of(response)) == (200, [])
    assert made(get(storing, response_id, stream="false")) == events[-1]["response"]


def test_a_background_stream_outlives_its_client(storing, held, engine, events_of):
    with storing.client.stream("POST", PATH, json=body(background=True, stream=True)) as response:
        lines = response.iter_lines()
        assert next(lines) == "event: response.created"
        response_id = json.loads(next(lines)[6:])["response"]["id"]
    assert engine.open
    held.go(storing)
    assert finished(storing, response_id)["status"] == "completed"
    events = events_of(get(storing, response_id, stream="true"))
    assert events[-1]["type"] == "response.completed"


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_response_keeps_what_it_has(storing, held, engine, stream, events_of):
    if stream:
        lines = []
        fields = body(background=True, stream=True, request_id="gone")
        reader = threading.Thread(
            target=lambda: lines.append(storing.post(PATH, fields)), daemon=True
        )
        reader.start()
    else:
        made(storing.post(PATH, body(background=True, request_id="gone")))
    until(lambda: engine.open)
    record = storing.context.responses.get("resp_gone")
    until(lambda: record.status == "in_progress")
    cancelled = made(storing.client.post(f"{PATH}/resp_gone/cancel"))
    assert (cancelled["status"], cancelled["incomplete_details"]) == ("cancelled", None)
    assert made(get(storing, "resp_gone")) == cancelled
    assert engine.all_closed.wait(10)
    assert rule_of(storing.client.post(f"{PATH}/resp_gone/cancel")) == "response_id"
    if stream:
        reader.join(10)
        events = events_of(lines[0])
        assert events[-1]["type"] == "response.incomplete"
        assert events[-1]["response"] == cancelled
        assert cancelled["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize(
    ("refusal", "failure", "code"),
    [
        (QueueFull("full"), None, "rate_limit_exceeded"),
        (InvalidRequest("no such grammar"), None, "invalid_prompt"),
        (None, (2, RequestFailed("broken")), "server_error"),
        (None, (2, ZeroDivisionError("secret")), "server_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_background_response_that_fails_says_so(
    storing, say, engine, events_of, refusal, failure, code, stream
):
    say("The sea is")
    engine.refusal, engine.failure = refusal, failure
    response = storing.post(PATH, body(background=True, stream=stream))
    if stream:
        events = events_of(response)
        assert events[-1]["type"] == "response.failed"
        done = made(get(storing, events[0]["response"]["id"]))
        assert events[-1]["response"] == done
    else:
        done = finished(storing, made(response)["id"])
    assert (done["status"], done["error"]["code"]) == ("failed", code)
    assert "secret" not in done["error"]["message"]
    assert len(done["output"]) == (failure is not None)


def test_too_many_in_the_background_are_turned_away(storing, held, engine, monkeypatch):
    monkeypatch.setattr(storing.context.responses, "_max_unfinished", 1)
    first = made(storing.post(PATH, body(background=True)))
    response = storing.post(PATH, body(background=True))
    assert response.status_code == 503
    assert response.headers["retry-after"]
    made(storing.client.post(f"{PATH}/{first['id']}/cancel"))
    made(storing.post(PATH, body(background=True, request_id="next")))
    held.go(storing)
    assert finished(storing, "resp_next")["status"] == "completed"


@pytest.mark.parametrize(("patience", "status"), [(20.0, "completed"), (0.0, "failed")])
def test_a_front_that_ends_waits_for_the_background(serve, held, engine, patience, status):
    front = {"enable_responses_store": True, "shutdown_timeout": patience}
    with serve(front=front) as app:
        made(app.post(PATH, body(background=True, request_id="last")))
        until(lambda: engine.open)
        record = app.context.responses.get("resp_last")
        if patience:
            timer = threading.Timer(0.3, lambda: held.go(app))
            timer.start()
    assert record.status == status
    assert engine.all_closed.wait(10)
    assert (b"shutting down" in record.body) is (status == "failed")


def test_a_background_response_has_the_requests_deadline(serve, held):
    with serve(front={"enable_responses_store": True, "request_deadline": 0.3}) as app:
        made(app.post(PATH, body(background=True, request_id="slow")))
        done = finished(app, "resp_slow")
    assert (done["status"], done["error"]["code"]) == ("failed", "server_error")


def test_load_counts_background_work(serve, held, engine):
    front = {"enable_responses_store": True, "enable_server_load_tracking": True}
    with serve(front=front) as app:
        made(app.post(PATH, body(background=True, request_id="busy")))
        assert app.client.get("/load").json() == {"server_load": 1}
        held.go(app)
        finished(app, "resp_busy")
        assert app.client.get("/load").json() == {"server_load": 0}


def test_the_openai_client_stores_polls_streams_and_cancels(storing, say, engine):
    say("The sea is")
    client = openai.OpenAI(base_url=f"{storing.url}/v1", api_key="x", max_retries=0)
    with client:
        first = client.responses.create(model="tiny", input="One", temperature=0)
        assert first.output_text == "The sea is"
        assert client.responses.retrieve(first.id).output_text == "The sea is"
        second = client.responses.create(
            model="tiny", input="Two", previous_response_id=first.id, stream=True, background=True
        )
        events = list(second)
        assert events[-1].response.output_text == "The sea is"
        again = client.responses.retrieve(
            events[-1].response.id, stream=True, starting_after=events[3].sequence_number
        )
        assert [e.to_dict() for e in again] == [e.to_dict() for e in events[4:]]
        engine.hold = asyncio.Event()
        queued = client.responses.create(model="tiny", input="Three", background=True)
        assert queued.status == "queued"
        assert client.responses.cancel(queued.id).status == "cancelled"
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve("resp_nope")
        with pytest.raises(openai.BadRequestError):
            client.responses.cancel(first.id)


def test_a_response_the_engine_has_not_begun_is_queued(storing, engine, say, monkeypatch):
    say("sea")
    gate = asyncio.Event()
    generate = engine.generate

    async def late(request, taker=None):
        await gate.wait()
        async for output in generate(request, taker):
            yield output

    monkeypatch.setattr(engine, "generate", late)
    made(storing.post(PATH, body(background=True, request_id="waits")))
    made(storing.post(PATH, body(background=True, request_id="given_up")))
    assert made(get(storing, "resp_waits"))["status"] == "queued"
    cancelled = made(storing.client.post(f"{PATH}/resp_given_up/cancel"))
    assert (cancelled["status"], cancelled["output"]) == ("cancelled", [])
    storing.run_on_loop(gate.set)
    assert finished(storing, "resp_waits")["status"] == "completed"
    assert len(engine.requests) == 1
