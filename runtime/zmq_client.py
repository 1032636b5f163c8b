"""The engine process as seen by a front: ZeroMQ DEALER, msgpack."""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from ortloom.errors import InvalidRequest
from ortloom.runtime.messages import ClientMessage, EngineMessage, EngineRequest
from ortloom.runtime.streaming_client import StreamingClient
from ortloom.runtime.zmq_frames import ZmqFrames

log = logging.getLogger("ortloom.client")

HEARTBEAT_MS = 2_000
HEARTBEAT_TIMEOUT_MS = 30_000
SEND_QUEUE = 100_000


LARGE_FRAME = 1 << 18
"""Bytes of a message that takes milliseconds to read."""

_MONITOR = "inproc://monitor"

_FIELD_NAMES = {"thinking": "thinking_token_budget", "extra_args": "vllm_xargs"}
"""Requests' names of sampling fields that have another one here."""


class ZmqClient(StreamingClient):
    """Async client of one engine process.

    It may be started before the engine: messages wait until the engine binds its address. A lost
    connection marks the engine dead; if it was a pause only and the engine answers again, the
    client comes back to life (requests of before are lost).

    Args:
        address: the engine's, such as ipc:///run/user/1000/ortloom-1/engine.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode: Callable[[bytes], EngineMessage] = msgspec.msgpack.Decoder(
            EngineMessage
        ).decode
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._frames: ZmqFrames | None = None
        self._connected = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def connected(self) -> bool:
        """True while the engine's socket is reached (its model may still load)."""
        return self._connected

    async def start(self) -> None:
        """Connect and say hello; returns at once."""
        self._context = zmq.Context()
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.ROUTING_ID, uuid.uuid4().bytes)
        socket.setsockopt(zmq.LINGER, 200)
        socket.setsockopt(zmq.SNDHWM, SEND_QUEUE)
        socket.setsockopt(zmq.RCVHWM, SEND_QUEUE)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        self._socket = socket
        socket.monitor(_MONITOR, zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        monitor = zmq.asyncio.Context(self._context).socket(zmq.PAIR)
        monitor.connect(_MONITOR)
        self._spawn(self._watch(monitor))
        socket.connect(self._address)
        self._frames = ZmqFrames(socket, self._on_frame)
        self._hello()

    async def close(self) -> None:
        """End own requests at the engine and disconnect."""
        if self._socket is None:
            return
        self._abort_left()
        if self._streams and self._dead is None:
            await self.abort(list(self._streams))
        self.mark_dead("the client was closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._frames is not None:
            self._frames.close()
        self._socket.disable_monitor()
        self._socket.close()
        self._socket = None
        if self._context is not None:
            context, self._context = self._context, None
            await asyncio.to_thread(context.term)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    def _post(self, message: ClientMessage) -> None:
        try:
            frame = self._encode(message)
        except OverflowError:
            raise _too_wide(message) from None
        if self._frames is not None:
            self._frames.send(frame)

    def _on_frame(self, frame: bytes) -> bool:
        try:
            message = self._decode(frame)
        except msgspec.DecodeError:
            log.exception("a message of the engine cannot be read")
            return False
        self._receive(message)
        return len(frame) > LARGE_FRAME  # the next one may be there already: others come first

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        connected_before = False
        with contextlib.closing(monitor):
            while True:
                event = await recv_monitor_message(monitor)
                self._connected = event["event"] != zmq.EVENT_DISCONNECTED
                if not self._connected:
                    self.mark_dead("the connection to the engine is lost")
                elif connected_before:
                    self._hello()
                else:
                    connected_before = True


def _too_wide(message: ClientMessage) -> InvalidRequest:
    """The error of a message that holds an integer msgpack has no form for."""
    field = None
    if isinstance(message, EngineRequest):
        for name in message.sampling.__struct_fields__:
            try:
                msgspec.msgpack.encode(getattr(message.sampling, name))
            except OverflowError:
                field = _FIELD_NAMES.get(name, name)
                break
    return InvalidRequest(f"{field or 'The request'} holds an integer of more than 64 bits.", field)
