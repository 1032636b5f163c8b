"""Running a call while its client waits: to a reply or to a stream."""

import asyncio
from contextlib import aclosing

import msgspec
from sanic import HTTPResponse, Request

from ortloom.server.error_handler import describe, log_unexpected
from ortloom.server.openai.generation import generate
from ortloom.server.openai.reply import json_response
from ortloom.server.openai.responses.events import EventNumbers
from ortloom.server.openai.responses.prepare import Call
from ortloom.server.openai.responses.progress import Progress
from ortloom.server.openai.responses.store import EventLog, StoredResponse
from ortloom.server.openai.shortcut import EventSink
from ortloom.server.openai.stream_interval import Spacing
from ortloom.server.sse import KEEP_ALIVE, SseWriter


async def answer(call: Call) -> HTTPResponse:
    """The whole reply."""
    progress = Progress(call)
    front = call.front
    working = generate(call.job, front.client, front.tokenizer, front.metrics)
    async with aclosing(working) as pieces:
        async for piece in pieces:
            progress.add(piece)
    progress.finish()
    _keep(call, progress)
    return json_response(progress.response())


async def stream(call: Call, request: Request) -> None:
    """The reply as events; errors before the first engine output are raised."""
    progress = Progress(call)
    numbers = EventNumbers()
    front = call.front
    sse = SseWriter(request, done=False)
    sink = EventSink(
        sse, Spacing(None), lambda piece: numbers.frames(progress.add(piece)), named=True
    )
    working = generate(call.job, front.client, front.tokenizer, front.metrics, sink)
    async with sse, aclosing(working) as pieces:
        events = progress.begin()
        try:
            async for piece in pieces:
                events += progress.add(piece)
                if events:
                    await sse.send_raw(b"".join(numbers.frames(events)))
                    events = []
                    sink.begin()
            events = progress.finish()
            _keep(call, progress)
        except (Exception, asyncio.CancelledError) as error:
            reason: BaseException | None = error
            if isinstance(error, asyncio.CancelledError):
                reason = front.in_flight.interruption(request)
            if reason is None or not sse.started:
                raise
            log_unexpected(request, reason)
            events = progress.fail(reason, describe(reason, request).message)
        await sse.send_raw(b"".join(numbers.frames(events)))


async def follow(log: EventLog, start: int, request: Request) -> None:
    """The events of a background response from number `start` on, until it ends."""
    async with SseWriter(request, done=False) as sse, aclosing(log.follow(start)) as frames:
        async for frame in frames:
            await sse.send_raw(frame)
        if not sse.started:
            await sse.send_raw(KEEP_ALIVE)  # all is known: an empty stream, but a stream


def _keep(call: Call, progress: Progress) -> None:
    """Store a finished response, if it is to be."""
    if call.stored:
        record = StoredResponse(
            id=call.id,
            status=progress.status,
            body=msgspec.json.encode(progress.response()),
            item_ids=progress.item_ids(),
            conversation=progress.conversation(),
        )
        call.front.responses.put(record)
