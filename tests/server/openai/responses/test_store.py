"""The store's bounds and an event log's followers."""

import asyncio

import msgspec
import pytest

from ortloom.server.openai.responses.store import (
    Conversation,
    EventLog,
    ResponseStore,
    StoredResponse,
)


def stored(number, size=30, status="completed", **fields):
    body = msgspec.json.encode({"output": [{"id": f"msg_{number}"}]}).ljust(size)
    return StoredResponse(f"resp_{number}", status, body, [f"msg_{number}"], **fields)


def kept(store, numbers=range(10)):
    return [n for n in numbers if f"resp_{n}" in store._responses]


def test_the_least_recently_used_one_goes():
    store = ResponseStore(max_responses=3)
    for number in range(3):
        store.put(stored(number))
    assert store.get("resp_0") is not None
    store.put(stored(3))
    assert kept(store) == [0, 2, 3]
    assert store.item("msg_1") is None
    assert store.item("msg_0") == {"id": "msg_0"}
    assert (len(store), store.size) == (3, 90)


def test_bytes_are_bounded_with_conversation_and_events():
    store = ResponseStore(max_bytes=1000)
    store.put(stored(0, 400))
    store.put(stored(1, 200, conversation=Conversation((), 300)))
    assert (kept(store), store.size) == ([0, 1], 900)
    log = EventLog()
    growing = stored(2, 50, events=log, status="in_progress")
    store.put(growing)
    assert kept(store) == [0, 1, 2]
    log.append([b"y" * 500])
    store.grown(growing)
    assert (kept(store), store.size) == ([2], 550)


def test_what_is_being_generated_is_never_dropped():
    store = ResponseStore(max_responses=2, max_bytes=50)
    for number in range(4):
        store.put(stored(number, 30, "in_progress"))
    assert kept(store) == [0, 1, 2, 3]
    store.get("resp_1").status = "completed"
    store.put(stored(9))
    assert kept(store) == [0, 2, 3, 9]


def test_it_is_full_of_what_is_being_generated():
    by_number, by_bytes = ResponseStore(max_unfinished=2), ResponseStore(max_bytes=80)
    for store, most in ((by_number, 2), (by_bytes, 3)):
        store.put(stored(9))  # finished: makes room
        for number in range(most):
            assert not store.full
            store.put(stored(number, 30, "queued"))
        assert store.full
        store.get("resp_0").status = "cancelled"
        assert not store.full


def test_the_newest_one_stays_however_large():
    store = ResponseStore(max_bytes=50)
    store.put(stored(0))
    store.put(stored(1, 500))
    assert (kept(store), store.size) == ([1], 500)
    store.put(stored(2))
    assert (kept(store), store.size) == ([2], 30)


def test_another_response_of_the_same_id_replaces_it():
    store = ResponseStore()
    store.put(stored(0))
    other = StoredResponse("resp_0", "completed", b"x" * 7, ["msg_new"])
    store.put(other)
    assert store.get("resp_0") is other
    assert (len(store), store.size, store.item("msg_0")) == (1, 7, None)


@pytest.mark.parametrize("start", [0, 1, 3, 50])
def test_followers_see_the_same_from_where_they_begin(start):
    async def collect(log):
        return [frame async for frame in log.follow(start)]

    async def run():
        log = EventLog()
        log.append([b"0"])
        early = asyncio.create_task(collect(log))
        await asyncio.sleep(0)
        for number in (b"1", b"2", b"3"):
            log.append([number])
            await asyncio.sleep(0)
        log.append([b"4", b"5"])
        log.close()
        late = await collect(log)
        assert b"".join(await early) == b"".join(late) == b"012345"[start:]
        assert log.size == 6

    asyncio.run(asyncio.wait_for(run(), 10))
