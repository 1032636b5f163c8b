"""What the supervisor and its fronts say to each other, over one socket pair a front.

Frames are a four-byte little-endian length and a msgpack message. The first one a front gets is
the `Handoff` with its configuration: never an argument, because argument lists can be read by every
user of the machine. The listening socket travels beside it.
"""

import os
import socket

import msgspec

from ortloom.config import Config
from ortloom.runtime.messages import EngineReady
from ortloom.server.metrics_snapshot import Snapshot

_LENGTH = 4


class Handoff(msgspec.Struct):
    """All that a front needs to start, but for the listening socket."""

    config: Config
    index: int
    engine_address: str
    started: float  # unix seconds of the supervisor's start
    waits: bool = False  # accept nobody until the engine has answered
    folder: str = ""  # private to the server; for what fronts share


class FrontReady(msgspec.Struct, tag="ready"):
    """The engine answered this front; what the start-up log says of it."""

    engine: EngineReady
    routes: list[str]
    defaults: str  # resolved sampling defaults, one line


class FrontFailed(msgspec.Struct, tag="failed"):
    """The front cannot start; `message` is for the user."""

    message: str
    exit_code: int


class PushSnapshot(msgspec.Struct, tag="push"):
    """The front's newest numbers."""

    snapshot: Snapshot


class AskTotal(msgspec.Struct, tag="ask"):
    """The front's newest numbers, and a question for the sum over all fronts."""

    call_id: int
    snapshot: Snapshot


class Total(msgspec.Struct, tag="total"):
    """Answer to AskTotal."""

    call_id: int
    snapshot: Snapshot


class PushNow(msgspec.Struct, tag="push_now"):
    """Send a PushSnapshot at once."""


class EngineGone(msgspec.Struct, tag="engine_gone"):
    """The engine process ended."""

    reason: str


class Drain(msgspec.Struct, tag="drain"):
    """Stop in order. Sent beside SIGTERM, which a front that is just starting may miss."""


FromFront = FrontReady | FrontFailed | PushSnapshot | AskTotal
ToFront = Total | PushNow | EngineGone | Drain


def frame(message: msgspec.Struct) -> bytes:
    """A message as it goes over the socket."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_LENGTH, "little") + body


class FrameReader:
    """Collects bytes and gives whole message bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes; returns the bodies that are complete."""
        self._buffer += data
        bodies: list[bytes] = []
        while len(self._buffer) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._buffer[:_LENGTH], "little")
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[_LENGTH:end]))
            del self._buffer[:end]
        return bodies


def receive_handoff(control: socket.socket) -> tuple[Handoff, socket.socket] | None:
    """Wait for a front's first message and the listening socket; None = the supervisor is gone."""
    head, descriptors, _, _ = socket.recv_fds(control, _LENGTH, 1)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    if len(head) == _LENGTH and descriptors:
        length = int.from_bytes(head, "little")
        body = control.recv(length, socket.MSG_WAITALL)  # no more: what follows is not ours
        if len(body) == length:
            listener = socket.socket(fileno=descriptors[0])
            return msgspec.msgpack.decode(body, type=Handoff), listener
    for descriptor in descriptors:
        os.close(descriptor)
    return None
