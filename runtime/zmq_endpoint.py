"""The engine's socket: ZeroMQ ROUTER, msgpack, and a pipe that wakes a blocked wait."""

import contextlib
import logging
import os
import socket as sockets
from collections.abc import Callable

import msgspec
import zmq

from ortloom.runtime.engine_protocols import Delivery
from ortloom.runtime.messages import ClientMessage, EngineControl, EngineMessage, EngineReply

log = logging.getLogger("ortloom.engine")

HEARTBEAT_MS = 2_000
HEARTBEAT_TIMEOUT_MS = 30_000
SEND_QUEUE = 4096
"""Messages that wait for one client before it counts as not reading."""


FAILURE_REPORT_WAIT = 0.1
"""Seconds for the first message of a client that has just connected."""


class ZmqEndpoint:
    """Inbox and Outbox of the engine process.

    Bound before the model loads, so that clients connect at once; what they send waits here.

    Args:
        address: where clients connect, such as ipc:///path.
    """

    def __init__(self, address: str, send_queue: int = SEND_QUEUE) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode: Callable[[bytes], ClientMessage] = msgspec.msgpack.Decoder(
            ClientMessage
        ).decode
        self._context = zmq.Context()
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        router.setsockopt(zmq.LINGER, 500)
        router.setsockopt(zmq.SNDHWM, send_queue)
        router.setsockopt(zmq.RCVHWM, 0)
        router.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        router.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        self._router = router
        router.bind(address)
        self._wake_out, self._wake_in = sockets.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self._poller = zmq.Poller()
        self._poller.register(router, zmq.POLLIN)
        self._poller.register(self._wake_out.fileno(), zmq.POLLIN)

    @property
    def wake_fd(self) -> int:
        """A byte written here ends a blocked `drain` (for signal.set_wakeup_fd)."""
        return self._wake_in.fileno()

    def wake(self) -> None:
        """End a blocked `drain`."""
        with contextlib.suppress(BlockingIOError):
            self._wake_in.send(b"\0")

    def drain(self, timeout: float | None) -> list[tuple[bytes, ClientMessage]]:
        """See Inbox."""
        if timeout != 0.0:
            self._poller.poll(None if timeout is None else max(1, int(timeout * 1000)))
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_out.fileno(), 4096)
        found: list[tuple[bytes, ClientMessage]] = []
        while True:
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return found
            message = self._read(frames)
            if message is not None:
                found.append((frames[0], message))

    def send(self, client_id: bytes, message: EngineMessage) -> Delivery:
        """See Outbox."""
        try:
            self._router.send_multipart([client_id, self._encode(message)], zmq.NOBLOCK)
        except zmq.Again:
            return "full"
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return "gone"
        return "sent"

    def report_failure(self, reason: str) -> None:
        """Tell the clients that are connected why there will be no engine."""
        for client_id, message in self.drain(FAILURE_REPORT_WAIT):
            call_id = message.call_id if isinstance(message, EngineControl) else 0
            self.send(client_id, EngineReply(call_id, success=False, error=reason))

    def close(self) -> None:
        """Send what is left (half a second at most) and close."""
        self._router.close()
        self._context.term()
        self._wake_in.close()
        self._wake_out.close()

    def _read(self, frames: list[bytes]) -> ClientMessage | None:
        if len(frames) == 2:
            try:
                return self._decode(frames[1])
            except (msgspec.DecodeError, UnicodeDecodeError):
                pass
        log.warning("a message of client %s cannot be read", frames[0].hex()[:8])
        return None
