"""What all engine clients share: requests out, outputs demultiplexed to their readers.

Subclasses are transports: they send with `_post` and hand what arrives to `_receive`, on the event
loop the client was started on.
"""

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import Literal

from ortloom.errors import EngineDead, InvalidRequest, RequestFailed
from ortloom.runtime.client import OutputTaker
from ortloom.runtime.messages import (
    ClientMessage,
    EngineAbort,
    EngineControl,
    EngineMessage,
    EngineOutput,
    EngineOutputs,
    EngineReady,
    EngineReply,
    EngineRequest,
    EngineStats,
)
from ortloom.runtime.output_stream import OutputStream


class StreamingClient(ABC):
    """Implements `EngineClient` over a transport."""

    def __init__(self) -> None:
        self._ready: EngineReady | None = None
        self._dead: str | None = None
        self._stats = EngineStats()
        self._streams: dict[str, OutputStream] = {}
        self._left: list[str] = []
        self._offers: list[OutputStream] = []
        self._calls: dict[int, asyncio.Future[EngineReply]] = {}
        self._call_ids = itertools.count(1)
        self._changed = asyncio.Event()

    @property
    def ready(self) -> EngineReady | None:
        """None until the engine has run one decode step."""
        return self._ready

    @property
    def dead(self) -> str | None:
        """Why the engine is gone, or None while it lives."""
        return self._dead

    @property
    def stats(self) -> EngineStats:
        """The newest numbers of the engine."""
        return self._stats

    @property
    def num_streams(self) -> int:
        """Requests that are being read."""
        return len(self._streams)

    @abstractmethod
    async def start(self) -> None:
        """Connect; returns at once, `ready` turns non-None later."""

    @abstractmethod
    async def close(self) -> None:
        """Abort what is left and disconnect."""

    @abstractmethod
    def _post(self, message: ClientMessage) -> None:
        """Send without waiting."""

    async def wait_ready(self) -> EngineReady:
        """Wait for `ready`.

        Raises:
            EngineDead: the engine ended before, with its reason.
        """
        while self._ready is None:
            if self._dead is not None:
                raise EngineDead(self._dead)
            self._changed.clear()
            await self._changed.wait()
        return self._ready

    async def generate(
        self, request: EngineRequest, taker: OutputTaker | None = None
    ) -> AsyncGenerator[EngineOutput, None]:
        """Outputs of one request up to its finish; closing the iterator aborts the request.

        Outputs that are ready together come merged into one, also to the taker.

        Raises:
            InvalidRequest: the engine refuses the request, or it cannot be sent (before the first
                output).
            QueueFull: an admission limit is reached (before the first output).
            EngineDead: the engine is gone.
            RequestFailed: the request failed inside the engine.
        """
        if self._dead is not None:
            raise EngineDead(self._dead)
        request_id = request.request_id
        if request_id in self._streams:
            raise InvalidRequest(f"request id '{request_id}' is in use.", "request_id")
        self._abort_left()
        stream = self._streams[request_id] = OutputStream(taker)
        try:
            self._post(request)
            while not stream.ended:
                yield await stream.next()
        finally:
            del self._streams[request_id]
            if not stream.ended and self._dead is None:
                self._leave(request_id)

    def _leave(self, request_id: str) -> None:
        """Abort a request that nobody reads any more, in one message with all others that are left
        in this turn of the loop: a client that goes away may have thousands of samples."""
        if not self._left:
            asyncio.get_running_loop().call_soon(self._abort_left)
        self._left.append(request_id)

    def _abort_left(self) -> None:
        """Comes before any other message, so that an id can be used again at once."""
        left, self._left = self._left, []
        if left and self._dead is None:
            self._post(EngineAbort(left))

    async def abort(
        self,
        request_ids: Sequence[str],
        finish_reason: Literal["abort", "stop"] = "abort",
    ) -> None:
        """Stop requests; unknown ids are ignored. Their iterators end with this finish reason.

        Args:
            request_ids: which.
            finish_reason: stop = a stop string was found (counts as a finished request).
        """
        self._abort_left()
        if request_ids and self._dead is None:
            self._post(EngineAbort(list(request_ids), finish_reason))

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes; False while any block is in use.

        Raises:
            EngineDead: the engine is gone.
        """
        call = EngineControl(0, "reset_prefix_cache", reset_running_requests)
        return (await self._call(call)).success

    async def fetch_stats(self) -> EngineStats:
        """The engine's numbers of now, asked for.

        Raises:
            EngineDead: the engine is gone.
        """
        reply = await self._call(EngineControl(0, "stats"))
        return reply.stats or self._stats

    async def server_info(self) -> dict[str, str]:
        """Facts about the engine: provider, losing providers, sizes.

        Raises:
            EngineDead: the engine is gone.
        """
        return (await self._call(EngineControl(0, "server_info"))).info

    async def control(self, call: EngineControl) -> dict[str, str]:
        """Make a control call; what the engine says of itself after it.

        Raises:
            EngineDead: the engine is gone.
            RequestFailed: it could not be done.
        """
        reply = await self._call(call)
        if reply.error is not None:
            raise RequestFailed(reply.error)
        return reply.info

    def mark_dead(self, reason: str) -> None:
        """The engine is gone: every reader gets EngineDead. Call on the client's event loop."""
        if self._dead is not None:
            return
        self._dead = reason
        self._ready = None
        for stream in self._streams.values():
            stream.fail(EngineDead(reason))
        for call in self._calls.values():
            if not call.done():
                call.set_exception(EngineDead(reason))
        self._changed.set()

    async def _call(self, control: EngineControl) -> EngineReply:
        if self._dead is not None:
            raise EngineDead(self._dead)
        self._abort_left()
        control.call_id = next(self._call_ids)
        future: asyncio.Future[EngineReply] = asyncio.get_running_loop().create_future()
        self._calls[control.call_id] = future
        try:
            self._post(control)
            return await future
        finally:
            del self._calls[control.call_id]

    def _offer_later(self, offers: list[OutputStream]) -> None:
        """Once what has arrived is read: then a front that is behind takes several steps' tokens
        as one output."""
        if not self._offers:
            asyncio.get_running_loop().call_soon(self._offer)
        self._offers += offers

    def _offer(self) -> None:
        offers, self._offers = self._offers, []
        for stream in offers:
            stream.offer()

    def _hello(self) -> None:
        self._post(EngineControl(0, "hello"))

    def _receive(self, message: EngineMessage) -> None:
        match message:
            case EngineOutputs():
                if message.stats is not None:
                    self._stats = message.stats
                find, offers = self._streams.get, []
                for output in message.outputs:
                    stream = find(output.request_id)
                    if stream is not None and stream.push(output):
                        offers.append(stream)
                if offers:
                    self._offer_later(offers)
            case EngineReady():
                self._ready, self._dead = message, None
                self._changed.set()
            case EngineReply():
                call = self._calls.get(message.call_id)
                if call is not None and not call.done():
                    call.set_result(message)
                elif message.call_id == 0 and message.error is not None:
                    self.mark_dead(message.error)
