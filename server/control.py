"""What the supervisor and its fronts say to each other, over one socket pair a front.

Frames are a four-byte little-endian length and a msgpack message. The configuration reaches a
front as a `Handoff` in an inherited file without a name, never as an argument, because argument
lists can be read by every user of the machine.
"""

import os
import tempfile

import msgspec

from ortloom.config import Config
from ortloom.runtime.messages import EngineReady
from ortloom.server.metrics_snapshot import Snapshot

_LENGTH = 4


class Handoff(msgspec.Struct):
    """All that a front needs to start. The descriptors are inherited ones."""

    config: Config
    index: int
    engine_address: str
    started: float  # unix seconds of the supervisor's start
    listen_fd: int
    control_fd: int
    supervisor: int  # pid; the front ends with it


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


def nameless_file(data: bytes) -> int:
    """A descriptor of a file that has this content and no name, positioned at its start."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("ortloom", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
