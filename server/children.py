"""The supervisor's child processes: one engine, N fronts.

They are started by module name in process groups of their own, so that Ctrl-C in a terminal
reaches the supervisor only, which then stops them in order.
"""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field

import msgspec

from ortloom.config import Config
from ortloom.server.control import FrameReader, FrontReady, Handoff, frame, nameless_file

ENGINE_MODULE = "ortloom.runtime.engine_process"
FRONT_MODULE = "ortloom.server.front"


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


def start_engine(config: Config, address: str) -> "subprocess.Popen[bytes]":
    """Start the engine; its configuration, without the API keys, is its standard input."""
    front = msgspec.structs.replace(config.front, api_keys=())
    data = msgspec.json.encode(msgspec.structs.replace(config, front=front))
    descriptor = nameless_file(data)
    try:
        return subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", ENGINE_MODULE),
                *("--address", address, "--config", "-", "--parent", str(os.getpid())),
            ],
            stdin=descriptor,
            process_group=0,
        )
    finally:
        os.close(descriptor)


def start_front(
    config: Config, index: int, address: str, started: float, listener: socket.socket
) -> Front:
    """Start one front on the listening socket.

    Args:
        config: the tree.
        index: 0 … num_fronts - 1; a replacement has the index of the one that died.
        address: the engine's.
        started: unix seconds of the supervisor's start.
        listener: the bound socket.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    handoff = Handoff(
        config=config,
        index=index,
        engine_address=address,
        started=started,
        listen_fd=listener.fileno(),
        control_fd=theirs.fileno(),
        supervisor=os.getpid(),
    )
    descriptor = nameless_file(msgspec.msgpack.encode(handoff))
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", FRONT_MODULE, "--handoff-fd", str(descriptor)],
            stdin=subprocess.DEVNULL,
            pass_fds=(descriptor, listener.fileno(), theirs.fileno()),
            process_group=0,
        )
    finally:
        os.close(descriptor)
        theirs.close()
    return Front(index=index, process=process, control=ours)


def terminate(process: "subprocess.Popen[bytes]", number: int = signal.SIGTERM) -> None:
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
