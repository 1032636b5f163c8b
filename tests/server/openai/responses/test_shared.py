"""Stored responses of two fronts: whichever is asked, it answers as one front alone would."""

import asyncio
import os
import threading
import time

import pytest

from ortloom.errors import RequestFailed
from ortloom.server.control import frame
from ortloom.server.openai.responses import peers
from ortloom.server.openai.responses.owners import Owners
from ortloom.server.openai.responses.peer_messages import Frames, read_question
from ortloom.server.openai.responses.store import ResponseStore, StoredResponse

PATH = "/v1/responses"


def body(**fields):
    return {"input": "Say hi", "temperature": 0, **fields}


def made(response):
    assert response.status_code == 200, response.text
    return response.json()


def get(app, response_id, **params):
    return app.client.get(f"{PATH}/{response_id}", params=params)


def until(what, seconds=20):
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


@pytest.fixture(scope="module")
def pair(start, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fronts")
    first, second = (start(front={"enable_responses_store": True}) for _ in range(2))
    first.context.share_responses(folder, 0)
    second.context.share_responses(folder, 1)
    with first, second:
        yield first, second


@pytest.fixture
def fronts(pair, engine):
    """Two fronts of one server; the engine behind them is as new for every test."""
    return pair


@pytest.fixture
def held(engine, say):
    """Generation stops after one token; the gate belongs to the event loop that waits at it."""
    say("The sea is")
    engine.hold = asyncio.Event()
    return engine.hold


def test_either_front_has_it_and_goes_on_with_it(fronts, say):
    one, other = fronts
    say("a")
    first = made(one.post(PATH, body(input="b")))
    assert made(get(other, first["id"])) == first
    second = made(other.post(PATH, body(input="b", previous_response_id=first["id"])))
    whole = [{"role": "user", "content": "b"}, {"role": "assistant", "content": "a"}]
    alone = made(one.post(PATH, body(input=[*whole, whole[0]])))
    assert second["usage"] == alone["usage"]
    third = made(one.post(PATH, body(input="b", previous_response_id=second["id"])))
    assert third["usage"]["input_tokens"] > second["usage"]["total_tokens"]


def test_items_are_found_on_either(fronts, engine, say):
    one, other = fronts
    say("The sea")
    item = made(one.post(PATH, body()))["output"][0]
    for app in fronts:
        engine.requests.clear()
        asked = [{"type": "item_reference", "id": item["id"]}, {"role": "user", "content": "On"}]
        made(app.post(PATH, body(input=asked)))
        prompts = [request.prompt_token_ids for request in engine.requests]
        assert len(prompts) == 1
        assert "The sea" in app.context.tokenizer.decode(prompts[0])
    missing = other.post(PATH, body(input=[{"id": "msg_nowhere"}]))
    assert missing.status_code == 404


def test_unknown_ids_stay_unknown(fronts):
    for app in fronts:
        assert get(app, "resp_nowhere").status_code == 404
        assert app.post(f"{PATH}/resp_nowhere/cancel", {}).status_code == 404
        asked = body(previous_response_id="resp_nowhere")
        assert app.post(PATH, asked).status_code == 404


def test_a_response_in_the_background_is_cancelled_by_the_other_front(fronts, held, engine):
    one, other = fronts
    response_id = made(one.post(PATH, body(background=True, request_id="far")))["id"]
    until(lambda: made(get(other, response_id))["status"] == "in_progress")
    going_on = other.post(PATH, body(previous_response_id=response_id))
    assert (going_on.status_code, going_on.json()["error"]["param"]) == (
        400,
        "previous_response_id",
    )
    again = other.post(PATH, body(request_id="far"))  # its id cannot be taken from it
    assert (again.status_code, again.json()["error"]["param"]) == (400, "request_id")
    ended = made(other.post(f"{PATH}/{response_id}/cancel", {}))
    assert ended["status"] == "cancelled"
    assert made(get(one, response_id)) == ended
    assert engine.all_closed.wait(10)
    late = other.post(f"{PATH}/{response_id}/cancel", {})
    assert late.status_code == 400


def test_events_are_followed_from_the_other_front(fronts, held, events_of):
    one, other = fronts
    got = {}

    def make():
        got["own"] = one.post(PATH, body(background=True, stream=True, request_id="log"))

    writing = threading.Thread(target=make)
    writing.start()
    until(lambda: get(other, "resp_log").status_code == 200)
    until(lambda: made(get(other, "resp_log"))["status"] == "in_progress")

    def follow(name, **params):
        got[name] = get(other, "resp_log", stream="true", **params)

    readers = [
        threading.Thread(target=follow, args=("all",)),
        threading.Thread(target=follow, args=("rest",), kwargs={"starting_after": 2}),
    ]
    for reader in readers:
        reader.start()
    time.sleep(0.1)
    one.run_on_loop(held.set)
    for thread in (writing, *readers):
        thread.join(20)
    own = events_of(got["own"])
    assert own[-1]["type"] == "response.completed"
    assert events_of(got["all"]) == own
    assert events_of(got["rest"], first=3) == own[3:]
    assert events_of(get(other, "resp_log", stream="true", starting_after=0), first=1) == own[1:]


def test_a_reader_that_leaves_ends_nothing(fronts, held):
    one, other = fronts
    response_id = made(one.post(PATH, body(background=True, request_id="left")))["id"]
    stream_id = "resp_stays"
    with one.client.stream(
        "POST", PATH, json=body(background=True, stream=True, request_id="stays")
    ) as first:
        next(first.iter_raw())
        with other.client.stream("GET", f"{PATH}/{stream_id}", params={"stream": "true"}) as more:
            next(more.iter_raw())
    until(lambda: not one.context.peers._server._tasks)  # nobody waits for them any more
    one.run_on_loop(held.set)
    for each in (response_id, stream_id):
        until(lambda each=each: made(get(other, each))["status"] == "completed")


def test_a_new_response_takes_the_place_of_the_others_old_one(fronts, say):
    one, other = fronts
    say("The sea")
    made(one.post(PATH, body(request_id="same")))
    say("Small boats")
    new = made(other.post(PATH, body(request_id="same")))
    assert new["id"] == "resp_same"
    assert made(get(one, "resp_same")) == made(get(other, "resp_same")) == new
    assert one.context.responses.get("resp_same") is None


def test_a_front_that_is_gone_has_lost_what_it_kept(start, engine, say, tmp_path):
    folder = tmp_path
    stays, goes = (start(front={"enable_responses_store": True}) for _ in range(2))
    stays.context.share_responses(folder, 0)
    goes.context.share_responses(folder, 1)
    say("The sea")
    with stays:
        with goes:
            lost = made(goes.post(PATH, body(request_id="lost")))
            assert made(get(stays, "resp_lost")) == lost
        assert get(stays, "resp_lost").status_code == 404
        new = made(stays.post(PATH, body(request_id="lost")))
        assert made(get(stays, "resp_lost")) == new
        stale = Owners(folder / "responses", 1)
        stale.claim("resp_other")
        again = start(front={"enable_responses_store": True})
        again.context.share_responses(folder, 1)
        with again:  # in the place of the one that went
            assert stale.owner("resp_other") is None
            assert made(get(again, "resp_lost")) == new


def test_a_front_that_hangs_is_busy_and_not_empty(fronts, say, monkeypatch):
    one, other = fronts
    say("The sea")
    response_id = made(one.post(PATH, body()))["id"]
    monkeypatch.setattr(peers, "PATIENCE", 0.2)
    go = threading.Event()
    stuck = threading.Thread(target=one.run_on_loop, args=(lambda: go.wait(10),))
    stuck.start()
    try:
        reply = get(other, response_id)
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    finally:
        go.set()
        stuck.join(20)
    assert get(other, response_id).status_code == 200

    def refuse(*_, **__):
        raise OSError(107, "Transport endpoint is not connected")  # its queue is full

    monkeypatch.setattr(peers.asyncio, "open_unix_connection", refuse)
    assert get(other, response_id).status_code == 503


def test_a_stream_of_a_front_that_dies_ends_with_an_error(tmp_path):
    owners = Owners(tmp_path / "links", 0)
    asking = peers.ResponsePeers(tmp_path, 0, ResponseStore(owners=owners), owners)

    async def dying(reader, writer):
        await read_question(reader)
        writer.write(frame(Frames(b"event")))
        writer.close()

    async def first_two():
        async with await asyncio.start_unix_server(dying, str(tmp_path / "front-1")):
            events = asking.follow(1, "resp_a", 0)
            assert await anext(events) == b"event"
            await anext(events)

    async def of_nobody():
        await anext(asking.follow(2, "resp_a", 0))

    for what in (first_two, of_nobody):
        with pytest.raises(RequestFailed, match="is gone"):
            asyncio.run(what())


def response(name, status="completed", items=()):
    return StoredResponse(f"resp_{name}", status, b"x", list(items))


def test_an_id_belongs_to_one_front_at_a_time(tmp_path):
    first, second = Owners(tmp_path, 0), Owners(tmp_path, 1)
    assert first.owner("a") is None
    assert first.claim("a")
    assert first.claim("a")  # again
    assert not second.claim("a")
    second.release("a")  # not its own
    assert second.owner("a") == 0
    first.release("a")
    assert second.claim("a")
    first.evict("a", 0)  # not any more
    assert first.owner("a") == 1
    first.evict("a", 1)
    assert first.owner("a") is None
    for key in ("", "../x", "a" * 9000, "ü\ud800", "resp_\0"):
        assert first.claim(key)
        assert second.owner(key) == 0
    second.claim("b")
    first.forget_own()
    assert [second.owner(key) for key in ("", "../x", "b")] == [None, None, 1]


def test_what_is_dropped_belongs_to_nobody(tmp_path):
    owners = Owners(tmp_path, 3)
    store = ResponseStore(max_responses=2, owners=owners)
    store.put(response("a", items=["msg_a"]))
    assert (owners.owner("resp_a"), owners.owner("msg_a")) == (3, 3)
    store.put(response("b"))
    store.put(response("c"))
    assert (owners.owner("resp_a"), owners.owner("msg_a")) == (None, None)
    assert len(os.listdir(tmp_path)) == 2
    store.put(response("d", "in_progress"))
    assert not store.give_up("resp_d")
    assert store.give_up("resp_c")
    assert store.give_up("resp_unknown")
    assert sorted(os.listdir(tmp_path)) == sorted(
        os.path.basename(owners._path(key)) for key in ("resp_d",)
    )


def test_no_link_can_be_made(tmp_path, monkeypatch, caplog):
    owners = Owners(tmp_path, 0)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "symlink", full)
    store = ResponseStore(owners=owners)
    store.put(response("a"))
    assert store.get("resp_a").body == b"x"
    assert "No space left on device" in caplog.text
