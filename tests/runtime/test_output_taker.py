"""Outputs that a taker is offered, and the socket they come from."""

import asyncio
import logging

import pytest
import zmq

from ortloom.runtime.messages import (
    EngineAbort,
    EngineOutput,
    EngineOutputs,
    EngineRequest,
)
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.runtime.streaming_client import StreamingClient
from ortloom.runtime.zmq_frames import MOST_AT_ONCE, ZmqFrames


class Posting(StreamingClient):
    """A client whose engine is the test."""

    def __init__(self):
        super().__init__()
        self.posted = []

    async def start(self):
        pass

    async def close(self):
        pass

    def _post(self, message):
        self.posted.append(message)

    def give(self, *tokens, reason=None):
        self._receive(EngineOutputs([EngineOutput("r", list(tokens), finish_reason=reason)]))


def run(work):
    asyncio.run(asyncio.wait_for(work, 20))


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


def reading(client, taker):
    """A task that lists what the iterator gives."""
    found = []

    async def read():
        request = EngineRequest("r", [1], SamplingParams())
        async for output in client.generate(request, taker):
            found.append(output.new_token_ids)

    return asyncio.create_task(read()), found


def test_what_is_taken_does_not_come_and_the_rest_does():
    async def body():
        client, taken = Posting(), []

        def taker(output):
            if output.finish_reason is not None or output.new_token_ids == [3]:
                return False
            taken.append(output.new_token_ids)
            return True

        task, found = reading(client, taker)
        await turns()
        for token in (1, 2, 3, 4):
            client.give(token)
            await turns()
        client.give(5, reason="length")
        await task
        assert taken == [[1], [2], [4]]
        assert found == [[3], [5]]

    run(body())


def test_what_arrives_together_is_offered_as_one():
    async def body():
        client, taken = Posting(), []
        task, found = reading(client, lambda o: not o.finish_reason and not taken.append(o))
        await turns()
        for token in (1, 2, 3):
            client.give(token)
        await turns()
        assert [output.new_token_ids for output in taken] == [[1, 2, 3]]
        assert [arrival.num_tokens for arrival in taken[0].arrivals] == [1, 1, 1]
        client.give(4)
        client.give(5, reason="length")  # before anybody had its turn: they end the request as one
        await task
        assert found == [[4, 5]]

    run(body())


def test_nothing_is_offered_while_the_reader_is_busy():
    async def body():
        client, taken, found = Posting(), [], []
        busy = asyncio.Event()

        async def read():
            request = EngineRequest("r", [1], SamplingParams())
            async for output in client.generate(request, lambda o: taken.append(o) or False):
                found.append(output.new_token_ids)
                await busy.wait()

        task = asyncio.create_task(read())
        await turns()
        client.give(1)
        await turns()
        assert len(taken) == 1  # it was offered and refused, so the reader has it
        client.give(2)
        client.give(3)
        await turns()
        assert len(taken) == 1
        busy.set()
        await turns()
        assert found == [[1], [2, 3]]
        client.give(4, reason="length")
        await task

    run(body())


def test_what_the_taker_raises_the_reader_gets_and_the_request_ends():
    async def body():
        client = Posting()

        def taker(output):
            raise ZeroDivisionError

        task, found = reading(client, taker)
        await turns()
        client.give(1)
        with pytest.raises(ZeroDivisionError):
            await task
        await turns()
        assert found == []
        assert [m.request_ids for m in client.posted if isinstance(m, EngineAbort)] == [["r"]]

    run(body())


@pytest.fixture
def pair():
    """Two connected sockets, the first with next to no room."""
    context = zmq.Context()
    sockets = [context.socket(zmq.PAIR) for _ in range(2)]
    for socket in sockets:
        socket.setsockopt(zmq.SNDHWM, 2)
        socket.setsockopt(zmq.RCVHWM, 2)
        socket.setsockopt(zmq.LINGER, 0)
    sockets[0].bind("inproc://pair")
    sockets[1].connect("inproc://pair")
    yield sockets
    for socket in sockets:
        socket.close()
    context.term()


async def until(what):
    while not what():
        await asyncio.sleep(0.01)


def test_frames_keep_their_order_through_a_full_socket(pair):
    async def body():
        got = []
        numbers = [b"%d" % i for i in range(5 * MOST_AT_ONCE)]
        ours = ZmqFrames(pair[0], lambda frame: False)
        theirs = ZmqFrames(pair[1], lambda frame: bool(got.append(frame)))
        for number in numbers:
            ours.send(number)
        await until(lambda: len(got) == len(numbers))
        assert got == numbers
        ours.close()
        theirs.close()

    run(body())


def test_both_ways_at_once_lose_nothing(pair):
    """Sending may use up the socket's news of frames that came; they are read all the same."""

    async def body():
        left, right = [], []
        ours = ZmqFrames(pair[0], lambda frame: bool(left.append(frame)))
        theirs = ZmqFrames(pair[1], lambda frame: bool(right.append(frame)) or True)
        for number in range(200):
            ours.send(b"a%d" % number)
            theirs.send(b"b%d" % number)
            if number % 7 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(left) == len(right) == 200)
        assert left == [b"b%d" % i for i in range(200)]
        assert right == [b"a%d" % i for i in range(200)]
        ours.close()
        theirs.close()

    run(body())


def test_a_frame_that_cannot_be_taken_is_logged_and_the_next_one_read(pair, caplog):
    async def body():
        got = []

        def take(frame):
            if frame == b"bad":
                raise ZeroDivisionError
            return bool(got.append(frame))

        theirs = ZmqFrames(pair[1], take)
        pair[0].send(b"bad")
        pair[0].send(b"good")
        await until(lambda: got)
        assert got == [b"good"]
        theirs.close()
        theirs.send(b"after the end")

    with caplog.at_level(logging.ERROR):
        run(body())
    assert "could not be taken" in caplog.text
