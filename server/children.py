"""What the supervisor tells its child processes: one engine, N fronts (spawn.py starts them)."""

import signal
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from ortloom.config import Config
from ortloom.server.control import FrameReader, FrontReady, Handoff, frame
from ortloom.server.engine_process import EngineProcess


@dataclass(slots=True, eq=False)
class Front:
    """One front process and the supervisor's end of its control socket."""

    index: int
    process: "subprocess.Popen[bytes]"
    control: socket.socket
    reader: FrameReader = field(default_factory=FrameReader)
    outbox: bytearray = field(default_factory=bytearray)
    ready: FrontReady | None = None

    def send(self, message: msgspec.Struct) -> None:
        """Queue a message and write as much as the socket takes."""
        self.outbox += frame(message)
        self.flush()

    def flush(self) -> None:
        """Write what is queued; a front that is gone loses it."""
        while self.outbox:
            try:
                sent = self.control.send(self.outbox)
            except BlockingIOError:
                return
            except OSError:
                self.outbox.clear()
                return
            del self.outbox[:sent]


def configure_engine(process: "subprocess.Popen[bytes]", config: Config) -> None:
    """Give an engine its configuration, without the API keys; one that is gone loses it."""
    front = msgspec.structs.replace(config.front, api_keys=())
    data = msgspec.json.encode(msgspec.structs.replace(config, front=front))
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(data)


def hand_over(
    process: "subprocess.Popen[bytes]",
    control: socket.socket,
    handoff: Handoff,
    listener: socket.socket,
) -> Front:
    """Give a front what it needs to serve; one that is gone loses it.

    Args:
        process: the front.
        control: our end of its control socket.
        handoff: its message.
        listener: the bound socket, which travels beside the message.
    """
    with suppress(OSError):
        socket.send_fds(control, [frame(handoff)], [listener.fileno()])
    control.setblocking(False)
    return Front(index=handoff.index, process=process, control=control)


def terminate(process: EngineProcess, number: int = signal.SIGTERM) -> None:
    """Send a signal if the process still runs."""
    if process.poll() is None:
        process.send_signal(number)


def how_it_ended(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
