"""Server-sent events: `SseWriter` owns everything between the first byte and the last.

Rules it keeps, whatever happens in the handler:
- Nothing is sent before the first event or keep-alive comment, so an error until then is an
  ordinary response with its own status.
- An error after that becomes an error event followed by `[DONE]`. A stream never ends with a clean
  terminator after a failure that the client was not told about.
- Silence is broken by `: keep-alive` comments; a client that stops reading is cut off.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from sanic import Request
from sanic.response import BaseHTTPResponse

from ortloom.server.body_log import log_body
from ortloom.server.context import context_of
from ortloom.server.error_handler import error_json, log_unexpected
from ortloom.server.protocol import LoomHttp, LoomProtocol

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


class SseWriter:
    """Write one event stream.

        async with SseWriter(request) as sse:
            async for output in client.generate(...):
                await sse.send(payload, ...)

    Leaving the block cleanly sends `[DONE]`. Handlers that used it return None.

    Args:
        request: the request that is answered.
        headers: more response headers.
        done: False leaves the `[DONE]` events out (routes with named events).
    """

    def __init__(
        self, request: Request, headers: Mapping[str, str] | None = None, done: bool = True
    ) -> None:
        front = context_of(request).config.front
        self._request = request
        self._in_flight = context_of(request).in_flight
        self._headers = {
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            **(headers or {}),
        }
        self._done = DONE if done else b""
        self._log_bodies = context_of(request).config.log.reply_bodies
        self._send_timeout = front.send_timeout
        self._interval = front.sse_keep_alive_interval
        self._response: BaseHTTPResponse | None = None
        self._lock = asyncio.Lock()
        self._waiting = 0  # writes that have or want the lock
        self._chunked: LoomProtocol | None = None  # takes chunks of the body itself
        self._last_write = 0.0
        self._ticker: asyncio.Task[None] | None = None

    @property
    def started(self) -> bool:
        """True once anything was sent; errors can no longer have a status of their own."""
        return self._response is not None

    async def send(self, *payloads: bytes) -> None:
        """Send each payload (JSON text without line breaks) as one event, all in one write.

        Raises:
            asyncio.CancelledError: the client is gone or does not read.
        """
        if payloads:
            await self._write(b"".join(b"data: %b\n\n" % payload for payload in payloads))

    @property
    def ready(self) -> bool:
        """Whether `send_at_once` may be called: the stream has begun and nothing waits."""
        chunked = self._chunked
        return (
            chunked is not None
            and chunked.flowing
            and not self._waiting
            and chunked.transport is not None
            and not chunked.transport.is_closing()
        )

    def send_at_once(self, payloads: Sequence[bytes]) -> None:
        """As `send`, without waiting; only while `ready`."""
        if len(payloads) == 1:
            self._chunk(b"data: %b\n\n" % payloads[0])
        elif payloads:
            self._chunk(b"".join([b"data: %b\n\n" % payload for payload in payloads]))

    def send_raw_at_once(self, events: Sequence[bytes]) -> None:
        """As `send_raw`, without waiting; only while `ready`."""
        if events:
            self._chunk(b"".join(events))

    def _chunk(self, data: bytes) -> None:
        if self._chunked is not None:
            self._last_write = self._chunked.write_chunk(data)
            if self._log_bodies:
                log_body(self._request, data)

    async def send_raw(self, data: bytes) -> None:
        """Send ready-made event text (named events)."""
        await self._write(data)

    async def __aenter__(self) -> Self:
        self._last_write = asyncio.get_running_loop().time()
        if self._interval > 0:
            self._ticker = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        await self._stop_ticker()
        if error is None:
            await self._finish(self._done)
            return False
        reason: BaseException | None = error
        if isinstance(error, asyncio.CancelledError):
            reason = self._in_flight.interruption(self._request)
        if not self.started or not isinstance(reason, Exception):
            return False
        log_unexpected(self._request, reason)
        await self._finish(self.failure(reason))
        return isinstance(error, Exception)

    def failure(self, error: BaseException) -> bytes:
        """The last words of a stream that failed; routes with named events have their own."""
        return b"data: %b\n\n%b" % (error_json(error, self._request), self._done)

    async def _finish(self, last: bytes) -> None:
        if last:
            await self._write(last)
        if self._response is not None:
            self._chunked = None
            async with self._lock:
                await self._bounded(self._response.eof())

    async def _write(self, data: bytes) -> None:
        response = self._response
        if response is not None and not self._lock.locked() and self._takes_at_once():
            # The usual case: nothing waits before these bytes and they do not wait themselves, so
            # neither the order nor the time limit needs care.
            await response.send(data)
            self._written(data)
            return
        self._waiting += 1
        try:
            await self._write_in_turn(data)
        finally:
            self._waiting -= 1

    async def _write_in_turn(self, data: bytes) -> None:
        async with self._lock:
            if self._response is None:
                response = await self._request.respond(
                    status=200,
                    headers=dict(self._headers),
                    content_type="text/event-stream; charset=utf-8",
                )
                self._response = response
            await self._bounded(self._response.send(data))
            self._written(data)
            stream = self._request.stream
            if isinstance(stream, LoomHttp) and stream.sends_chunks:
                self._chunked = stream.protocol

    def _written(self, data: bytes) -> None:
        if self._log_bodies:
            log_body(self._request, data)
        self._last_write = asyncio.get_running_loop().time()

    async def _bounded(self, sending: "asyncio.Future[None] | object") -> None:
        """Wait for a write; a client that does not take it within the send timeout is cut off."""
        try:
            async with asyncio.timeout(self._send_timeout):
                await sending  # type: ignore[misc]
        except TimeoutError:
            self._cut_off()
            raise asyncio.CancelledError("the client does not read") from None

    def _takes_at_once(self) -> bool:
        """Whether a write goes to the transport without waiting for the client."""
        stream = self._request.stream
        protocol = None if stream is None else stream.protocol
        return isinstance(protocol, LoomProtocol) and protocol.writable

    def _cut_off(self) -> None:
        stream = self._request.stream
        if stream is not None and stream.protocol.transport is not None:
            stream.protocol.transport.abort()

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = self._last_write + self._interval
            now = loop.time()
            if now < due:
                await asyncio.sleep(due - now)
            else:
                await self._write(KEEP_ALIVE)

    async def _stop_ticker(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticker
