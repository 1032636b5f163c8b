"""A front's end of the control socket: pushes numbers, asks for sums, hears of the engine's end."""

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable

import msgspec

from ortloom.server.context import FrontContext
from ortloom.server.control import (
    AskTotal,
    Drain,
    EngineGone,
    FrameReader,
    PushNow,
    PushSnapshot,
    ToFront,
    Total,
    frame,
)
from ortloom.server.metrics_snapshot import Snapshot
from ortloom.server.metrics_text import families_of

logger = logging.getLogger("ortloom.server")

PUSH_INTERVAL = 1.0
_TOTAL_SECONDS = 2.0


class SupervisorLink:
    """The metrics hub of a front that has a supervisor.

    Args:
        sock: the control socket.
        front: whose numbers are pushed.
        stop: called when the front is to drain, or the supervisor is gone.
    """

    def __init__(self, sock: socket.socket, front: FrontContext, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._sock = sock
        self._front = front
        self._calls: dict[int, asyncio.Future[Snapshot]] = {}
        self._call_ids = itertools.count(1)
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._decode = msgspec.msgpack.Decoder(ToFront).decode

    async def start(self) -> None:
        """Begin to listen and to push."""
        reader, self._writer = await asyncio.open_connection(sock=self._sock)
        self._tasks = [
            asyncio.create_task(self._read(reader)),
            asyncio.create_task(self._push_changes()),
        ]

    async def close(self) -> None:
        """Push the last numbers and hang up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.send(PushSnapshot(self._snapshot()))
        if self._writer is not None:
            self._writer.close()
            try:
                await self._writer.wait_closed()
            except OSError:
                logger.debug("the supervisor hung up first")

    def send(self, message: msgspec.Struct) -> None:
        """Send without waiting; messages are few and small."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frame(message))

    async def total(self, own: Snapshot) -> Snapshot:
        """The sum over all fronts; the own numbers alone if the supervisor does not answer."""
        call_id = next(self._call_ids)
        future: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            self.send(AskTotal(call_id, own))
            async with asyncio.timeout(_TOTAL_SECONDS):
                return await future
        except TimeoutError:
            return own
        finally:
            del self._calls[call_id]

    def _snapshot(self) -> Snapshot:
        front = self._front
        return Snapshot(families=families_of(front.metrics.registry), stats=front.client.stats)

    async def _push_changes(self) -> None:
        while True:
            await asyncio.sleep(PUSH_INTERVAL)
            if self._front.metrics.changed:
                self._front.metrics.changed = False
                self.send(PushSnapshot(self._snapshot()))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        frames = FrameReader()
        while data := await reader.read(1 << 16):
            for body in frames.feed(data):
                self._on_message(self._decode(body))
        self._stop()

    def _on_message(self, message: ToFront) -> None:
        match message:
            case Total():
                call = self._calls.get(message.call_id)
                if call is not None and not call.done():
                    call.set_result(message.snapshot)
            case PushNow():
                self.send(PushSnapshot(self._snapshot()))
            case EngineGone():
                self._front.client.mark_dead(message.reason)
            case Drain():
                self._stop()
