"""Requests with very many samples: bounded in the engine, begun in groups, given back whole."""

import asyncio
import itertools
import time
from contextlib import aclosing, contextmanager

import msgspec
import pytest

from ortloom.config import SchedulerConfig
from ortloom.runtime.messages import EngineOutput
from ortloom.server.openai.interleave import GROUP, Interleaved
from ortloom.server.openai.sample import Piece

PATH = "/v1/completions"


class Samples:
    """Samples of three pieces each; what is open, and the most that ever was."""

    def __init__(self, count, fail_at=None):
        self.count, self.fail_at = count, fail_at
        self.begun, self.open, self.most, self.closed = 0, 0, 0, 0

    def streams(self):
        for index in range(self.count):
            self.begun += 1
            yield self._one(index)

    async def _one(self, index):
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            for number in range(3):
                await asyncio.sleep(0)
                if index == self.fail_at and number == 1:
                    raise RuntimeError("broken")
                reason = "length" if number == 2 else None
                yield Piece(index, str(number), [number], [], EngineOutput("r"), reason)
        finally:
            self.open -= 1
            self.closed += 1


async def collected(samples, at_once):
    found = {}
    async with aclosing(Interleaved(at_once).pieces(samples.streams())) as pieces:
        async for piece in pieces:
            found[piece.index] = found.get(piece.index, "") + piece.text
    return found


@pytest.mark.parametrize(
    ("count", "at_once"), [(0, 2), (1, None), (7, 1), (100, 3), (100, None), (65, 64)]
)
def test_every_piece_of_every_sample_comes_in_order(count, at_once):
    samples = Samples(count)
    assert asyncio.run(collected(samples, at_once)) == dict.fromkeys(range(count), "012")
    assert (samples.open, samples.closed) == (0, count)
    assert samples.most <= (at_once or count)


def test_an_error_ends_all_and_begins_no_more():
    samples = Samples(5000, fail_at=7)
    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(collected(samples, 16))
    assert samples.open == 0
    assert samples.begun < 200


def test_a_reader_that_leaves_closes_what_is_open():
    samples = Samples(5000)

    async def leave():
        async with aclosing(Interleaved(64).pieces(samples.streams())) as pieces:
            async for _ in pieces:
                return

    asyncio.run(leave())
    assert samples.open == 0
    assert samples.begun < 500


def test_others_have_their_turn_between_groups():
    """No turn of the loop begins more than a group, so that one turn is short whatever n is."""
    samples = Samples(4096)
    seen = []

    async def watch():
        while True:
            seen.append(samples.begun)
            await asyncio.sleep(0)

    async def both():
        watching = asyncio.create_task(watch())
        await collected(samples, None)
        watching.cancel()

    asyncio.run(both())
    assert len(seen) >= samples.count / GROUP
    assert max(b - a for a, b in itertools.pairwise(seen)) <= GROUP


@contextmanager
def scheduler(app, **settings):
    before = app.context.config
    app.context.config = msgspec.structs.replace(before, scheduler=SchedulerConfig(**settings))
    yield
    app.context.config = before


def test_a_request_of_several_batches_leaves_a_quarter_of_each_to_others(app, engine, say):
    say("The sea", end=False)
    counts = []
    produce = engine.generate

    async def counted(request, taker=None):
        async for output in produce(request, taker):
            counts.append(len(engine.open))
            yield output

    fields = {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 2, "n": 30, "temperature": 1}
    engine.generate = counted
    try:
        for settings, most in (
            ({"max_num_seqs": 8}, 6),
            ({"max_num_seqs": 1}, 1),
            ({"max_num_seqs": 60}, 60),
            ({"max_num_seqs": 8, "max_num_queued_reqs": 100}, 60),  # refused or taken as a whole
        ):
            counts.clear()
            engine.requests.clear()
            with scheduler(app, **settings):
                choices = app.post(PATH, fields).json()["choices"]
            assert [choice["index"] for choice in choices] == list(range(60))
            assert {choice["finish_reason"] for choice in choices} == {"length"}
            assert max(counts) == most
            arrivals = [request.arrival_time for request in engine.requests]
            assert len(set(arrivals[:most])) == 1
            later = arrivals[most:]
            assert all(a > arrivals[0] for a in later)  # they pass nobody who came meanwhile
            assert later == sorted(later)
    finally:
        del engine.generate


def test_samples_that_were_never_begun_are_aborted_too(app, engine, say):
    say("The sea", end=False)
    reasons = app.context.metrics.success
    before = reasons["abort"]._value.get()
    app.run_on_loop(lambda: setattr(engine, "hold", asyncio.Event()))
    fields = {"model": "tiny", "prompt": "a", "max_tokens": 9, "n": 40, "temperature": 1}
    with (
        scheduler(app, max_num_seqs=10),
        app.client.stream("POST", PATH, json={**fields, "stream": True}) as response,
    ):
        next(response.iter_raw())
        assert len(engine.requests) == 8
    assert engine.all_closed.wait(10)
    end = time.monotonic() + 10
    while reasons["abort"]._value.get() != before + 40:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert len(engine.requests) == 8
