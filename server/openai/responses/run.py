"""Running a call while its client waits: to a reply or to a stream."""

import asyncio
import logging
from contextlib import aclosing

import msgspec
from sanic import HTTPResponse, Request

from ortloom.errors import FrontBusy, ResponseRefused
from ortloom.server.error_handler import describe, log_unexpected
from ortloom.server.openai.generation import generate
from ortloom.server.openai.reply import json_response
from ortloom.server.openai.responses.events import EventNumbers
from ortloom.server.openai.responses.find import take_id
from ortloom.server.openai.responses.kept import Events
from ortloom.server.openai.responses.prepare import Call
from ortloom.server.openai.responses.progress import Progress
from ortloom.server.openai.responses.store import StoredResponse
from ortloom.server.openai.shortcut import EventSink
from ortloom.server.openai.stream_interval import Spacing, interval_of, spaced
from ortloom.server.sse import KEEP_ALIVE, SseWriter

logger = logging.getLogger("ortloom.server")


async def answer(call: Call) -> HTTPResponse:
    """The whole reply."""
    progress = Progress(call)
    front = call.front
    working = generate(call.job, front.client, front.tokenizer, front.metrics)
    async with aclosing(working) as pieces:
        async for piece in pieces:
            progress.add(piece)
    progress.finish()
    await _keep(call, progress)
    return json_response(progress.response())


async def stream(call: Call, request: Request) -> None:
    """The reply as events; errors before the first engine output are raised."""
    progress = Progress(call)
    numbers = EventNumbers()
    front = call.front
    sse = SseWriter(request, done=False)
    spacing = Spacing(interval_of(front, None))
    sink = EventSink(sse, spacing, lambda piece: numbers.frames(progress.add(piece)), named=True)
    working = generate(call.job, front.client, front.tokenizer, front.metrics, sink)
    async with sse, aclosing(spaced(working, spacing)) as pieces:
        events = progress.begin()
        try:
            async for piece in pieces:
                events += progress.add(piece)
                if events:
                    await sse.send_raw(b"".join(numbers.frames(events)))
                    events = []
                    sink.begin()
            events = progress.finish()
            await _keep(call, progress)
        except (Exception, asyncio.CancelledError) as error:
            reason: BaseException | None = error
            if isinstance(error, asyncio.CancelledError):
                reason = front.in_flight.interruption(request)
            if reason is None or not sse.started:
                raise
            log_unexpected(request, reason)
            events = progress.fail(reason, describe(reason, request).message)
        await sse.send_raw(b"".join(numbers.frames(events)))


async def follow(log: Events, start: int, request: Request) -> None:
    """The events of a background response from number `start` on, until it ends."""
    async with SseWriter(request, done=False) as sse, aclosing(log.follow(start)) as frames:
        async for frame in frames:
            await sse.send_raw(frame)
        if not sse.started:
            await sse.send_raw(KEEP_ALIVE)  # all is known: an empty stream, but a stream


async def _keep(call: Call, progress: Progress) -> None:
    """Store a finished response, if it is to be."""
    if call.stored:
        try:
            await take_id(call.id, call.front)
        except (ResponseRefused, FrontBusy) as error:
            # somebody took its id meanwhile; what was generated is answered all the same
            logger.warning("response '%s' is not stored: %s", call.id, error)
            return
        record = StoredResponse(
            id=call.id,
            status=progress.status,
            body=msgspec.json.encode(progress.response()),
            item_ids=progress.item_ids(),
            conversation=progress.conversation(),
        )
        call.front.responses.put(record)
