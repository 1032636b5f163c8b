"""Responses that are generated after their request was answered.

Each is a task of the front, counted among what is in flight: a front that shuts down waits for it
as for a request, and ends it when the time is up.
"""

import asyncio
from contextlib import aclosing

import msgspec
from sanic import Request

from ortloom.errors import QueueFull
from ortloom.server.error_handler import describe, log_unexpected
from ortloom.server.inflight import BackgroundWork
from ortloom.server.openai.generation import generate
from ortloom.server.openai.responses.events import Event, EventNumbers
from ortloom.server.openai.responses.find import take_id
from ortloom.server.openai.responses.prepare import Call
from ortloom.server.openai.responses.progress import Progress
from ortloom.server.openai.responses.store import EventLog, StoredResponse
from ortloom.server.openai.stream_interval import Spacing, interval_of, spaced


async def start(call: Call, request: Request) -> StoredResponse:
    """Generate in the background; the response is in the store from now on.

    Raises:
        QueueFull: too many are being generated already.
        ResponseRefused: one with this id is, begun while this one was made ready.
    """
    if call.front.responses.full:
        raise QueueFull("Too many responses are being generated in the background.")
    await take_id(call.id, call.front)
    return _Background(call, request).record


class _Background:
    """One response, its record and its task."""

    def __init__(self, call: Call, request: Request) -> None:
        self._call = call
        self._request = request
        self._numbers = EventNumbers()
        self._progress = Progress(call)
        self.record = StoredResponse(
            id=call.id,
            status=self._progress.status,
            body=b"",
            conversation=call.before,
            events=EventLog() if call.body.stream else None,
        )
        self._update([])
        self.record.task = asyncio.create_task(self._run())
        self.record.task.add_done_callback(self._ended)

    async def _run(self) -> None:
        call, front = self._call, self._call.front
        work = BackgroundWork(call.id)
        try:
            async with front.in_flight.track(work, front.config.front.request_deadline):
                working = generate(call.job, front.client, front.tokenizer, front.metrics)
                if self.record.events is not None:
                    working = spaced(working, Spacing(interval_of(front, None)))
                async with aclosing(working) as pieces:
                    if self.record.events is not None:
                        self._begin()  # those who read along see at once that it is there
                    async for piece in pieces:
                        self._begin()
                        self._log(self._progress.add(piece))
            events = self._progress.finish()
        except asyncio.CancelledError:
            events = self._progress.cancel()
        except Exception as error:
            log_unexpected(self._request, error)
            events = self._progress.fail(error, describe(error, self._request).message)
        self.record.conversation = self._progress.conversation()
        self._update(events)

    def _begin(self) -> None:
        """Once the engine works on it; before, it is queued."""
        if self.record.status == "queued":
            self._update(self._progress.begin())

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Nothing may leave a record unfinished, not even a cancel before the first step."""
        self.record.task = None
        if self.record.finished:
            return
        if task.cancelled():
            self._update(self._progress.cancel())
            return
        error = task.exception() or RuntimeError("the task ended early")
        log_unexpected(self._request, error)
        self._update(self._progress.fail(error, describe(error, self._request).message))

    def _update(self, events: list[Event]) -> None:
        """Bring the record up to date."""
        record, progress = self.record, self._progress
        record.status = progress.status
        record.item_ids = progress.item_ids()
        record.body = msgspec.json.encode(progress.response())
        self._call.front.responses.put(record)
        self._log(events)
        if record.finished and record.events is not None:
            record.events.close()

    def _log(self, events: list[Event]) -> None:
        if events and self.record.events is not None:
            self.record.events.append(self._numbers.frames(events))
            self._call.front.responses.grown(self.record)
