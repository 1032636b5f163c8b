"""Events of the KV cache, read as a subscriber reads them."""

import asyncio

import msgspec
import pytest
import zmq
from engines import collect, run, thread_client
from fakes import FakeModelRunner, Harness, make_request, solo_tokens

from ortloom.commands.serve import make_plan
from ortloom.config import KVEventsConfig
from ortloom.environment import read_environment
from ortloom.errors import ConfigError
from ortloom.flags import flag_table
from ortloom.runtime.kv_events import KVEventLog
from ortloom.runtime.kv_publisher import KVPublisher
from ortloom.runtime.messages import EngineControl

PROMPT = solo_tokens([9], 64)


def logged(engine):
    """What an engine would publish: kind and fields of each event."""
    return [msgspec.to_builtins(event) for event in engine.core._events.take()]


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr("ortloom.runtime.kv_publisher.KVPublisher", lambda config: None)
    return Harness(FakeModelRunner(num_blocks=6), kv_events=KVEventsConfig())


def test_blocks_that_follow_each_other_are_one_event(engine):
    engine.add("a", PROMPT[:40], 2)
    engine.run()
    ((kind, hashes, parent, tokens, size, lora, medium),) = logged(engine)
    assert (kind, len(hashes), parent, tokens) == ("BlockStored", 2, None, PROMPT[:32])
    assert (size, lora, medium) == (16, None, "GPU")
    assert all(0 <= value < 2**64 for value in hashes)
    engine.add("b", [*PROMPT[:32], *range(8, 25)], 1)
    engine.run()
    ((kind, more, parent, tokens, *_),) = logged(engine)
    assert (kind, len(more), parent) == ("BlockStored", 1, hashes[-1])
    assert tokens == list(range(8, 24))


def test_blocks_that_are_taken_again_are_removed_and_a_reset_clears_all(engine):
    engine.add("a", PROMPT[:64], 2)
    engine.run()
    stored = logged(engine)[0][1]
    engine.add("b", [60] * 60, 2)
    engine.run()
    removed = [h for event in logged(engine) if event[0] == "BlockRemoved" for h in event[1]]
    assert removed
    assert set(removed) <= set(stored)
    engine.send(EngineControl(1, "reset_prefix_cache"))
    assert logged(engine) == [["AllBlocksCleared"]]


def test_subscribers_get_numbered_batches_and_can_ask_again(tmp_path):
    events = KVEventsConfig(
        endpoint=f"ipc://{tmp_path}/events", replay_endpoint=f"ipc://{tmp_path}/replay", topic="kv"
    )
    context = zmq.Context()
    subscriber = context.socket(zmq.SUB)
    replay = context.socket(zmq.DEALER)
    subscriber.setsockopt(zmq.SUBSCRIBE, b"kv")

    async def main():
        async with thread_client(None, kv_events=events) as client:
            subscriber.connect(events.endpoint)
            replay.connect(events.replay_endpoint)
            seen = []
            for turn in range(100):  # what is sent before the subscription arrived is lost to it
                prompt = [8 + turn % 40, *PROMPT[:33]]
                await collect(client, make_request(f"r{turn}", prompt, 2))
                if await asyncio.to_thread(subscriber.poll, 100):
                    seen.append(subscriber.recv_multipart())
                if len(seen) == 2:
                    break
            replay.send_multipart([b"", (0).to_bytes(8, "big")])
            again = []
            while not again or again[-1][1] != (-1).to_bytes(8, "big", signed=True):
                assert await asyncio.to_thread(replay.poll, 10_000)
                again.append(replay.recv_multipart())
            return seen, again

    try:
        seen, again = run(main())
    finally:
        subscriber.close(0)
        replay.close(0)
        context.term()
    topic, number, payload = seen[0]
    stamp, found, *_ = msgspec.msgpack.decode(payload)
    assert topic == b"kv"
    assert found[0][0] == "BlockStored"
    assert stamp > 1.7e9
    numbers = [int.from_bytes(frames[1], "big", signed=True) for frames in again]
    assert numbers == [*range(len(again) - 1), -1]
    assert again[int.from_bytes(number, "big")][2] == payload


def test_an_endpoint_that_cannot_be_used_is_an_error_at_start():
    with pytest.raises(ConfigError, match="--kv-events-config: cannot use 'ipc:///no/such/x'"):
        KVPublisher(KVEventsConfig(endpoint="ipc:///no/such/x"))


def test_a_log_that_is_taken_starts_anew():
    log = KVEventLog(16)
    log.cleared()
    assert len(log.take()) == 1
    assert log.take() == []


# ---- the flags


def plan(*tokens):
    return make_plan(["m", *tokens], read_environment({}), flag_table())[1]


def test_the_flag_becomes_a_configuration():
    given = plan(
        "--kv-events-config.enable_kv_cache_events=true",
        "--kv-events-config.endpoint=tcp://*:9",
        "--kv-events-config.buffer_steps=5",
    )
    assert given.config.cache.kv_events == KVEventsConfig(endpoint="tcp://*:9", buffer_steps=5)
    off = plan('--kv-events-config={"enable_kv_cache_events": true, "publisher": "null"}')
    assert off.config.cache.kv_events is None
    assert plan('--kv-events-config={"publisher": "zmq"}').config.cache.kv_events is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('{"topics": "x"}', "topics"),
        ('{"publisher": "kafka"}', "must be one of zmq, null"),
        ('{"enable_kv_cache_events": "yes"}', "must be true or false"),
        ('{"hwm": 0}', "at least 1"),
        ("[]", "must be a JSON object"),
    ],
)
def test_wrong_members_are_refused(value, text):
    with pytest.raises(ConfigError, match=text) as caught:
        plan(f"--kv-events-config={value}")
    assert caught.value.exit_code == 2


def test_scales_are_computed_where_there_are_any():
    with pytest.raises(ConfigError, match="a KV cache of floats has no scales"):
        plan("--calculate-kv-scales")
    (line,) = plan("--calculate-kv-scales", "--kv-cache-dtype", "int8").notices
    assert "with this flag and without" in line
