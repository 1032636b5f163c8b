"""One ZeroMQ socket on an event loop: frames in and out, without a future a frame.

A front reads a message a step and writes one a request, so pyzmq's own asyncio socket, which makes
futures and asks for the socket's state several times a message, would cost a tenth of all that a
token costs there.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import zmq

log = logging.getLogger("ortloom.client")

_RETRY = 0.02  # seconds until a full socket is asked again

MOST_AT_ONCE = 64
"""Frames that are read before others on the loop have their turn."""


class ZmqFrames:
    """Reads a socket as frames come and writes without waiting.

    The socket's file descriptor tells changes of its state only, and every call on the socket may
    use such a change up. So the socket is read until it is empty whenever it was told or written.

    Args:
        socket: of a plain context; closed by its owner after `close`.
        on_frame: gets each frame; returns True where others should have their turn before the
            next one. What it raises is logged.
    """

    def __init__(self, socket: "zmq.Socket[bytes]", on_frame: Callable[[bytes], bool]) -> None:
        self._socket = socket
        self._on_frame = on_frame
        self._unsent: deque[bytes] = deque()
        self._open = True
        self._due = False
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._read)
        self._read_soon()

    def send(self, frame: bytes) -> None:
        """Send, or keep it until the socket takes it."""
        if self._open:
            self._unsent.append(frame)
            if len(self._unsent) == 1:
                self._flush()

    def close(self) -> None:
        """Neither read nor write any more."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._descriptor)

    def _flush(self) -> None:
        while self._open and self._unsent:
            try:
                self._socket.send(self._unsent[0], zmq.NOBLOCK)
            except zmq.Again:
                self._loop.call_later(_RETRY, self._flush)
                break
            self._unsent.popleft()
        self._read_soon()

    def _read_soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._read_due)

    def _read_due(self) -> None:
        self._due = False
        self._read()

    def _read(self) -> None:
        for _ in range(MOST_AT_ONCE):
            if not self._open:
                return
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                if self._on_frame(frame):
                    break
            except Exception:
                log.exception("a message of the engine could not be taken")
        self._read_soon()
