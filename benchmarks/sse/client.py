"""The client, a process of its own: raw sockets, one selector, nothing parsed.

    python -m benchmarks.sse.client ASK.json

opens the streams, waits until each has brought something, and then for `seconds` counts events
and reads the CPU clocks of the servers' processes. The result is one line of JSON.
"""

import select
import socket
import sys
import time
from pathlib import Path

import msgspec

MARK = b"data: "
_PATIENCE = 60.0  # seconds until every stream has begun


class Ask(msgspec.Struct, kw_only=True):
    """What to do: `streams` times POST `path` with `body`, and watch `pids`."""

    port: int
    path: str
    body: str
    streams: int
    seconds: float
    settle: float
    pids: list[int]


class Window(msgspec.Struct, kw_only=True):
    """What was seen: events, bytes and elapsed seconds, and CPU seconds of each process."""

    events: int
    size: int
    seconds: float
    cpu: list[float]
    client_cpu: float


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads, in nanosecond steps (Linux)."""
    return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid(3) makes it


class Streams:
    """The open connections.

    Args:
        ask: what to send.
    """

    def __init__(self, ask: Ask) -> None:
        payload = ask.body.encode()
        head = (
            f"POST {ask.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(payload)}\r\n\r\n"
        ).encode()
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._seen: set[int] = set()
        self.events = 0
        self.size = 0
        for _ in range(ask.streams):
            sock = socket.create_connection(("127.0.0.1", ask.port))
            sock.sendall(head + payload)
            sock.setblocking(False)
            self._sockets[sock.fileno()] = sock
            self._poll.register(sock, select.EPOLLIN)

    def read(self, until: float) -> None:
        """Count what comes until a monotonic time."""
        while (left := until - time.monotonic()) > 0:
            for number, _ in self._poll.poll(left):
                data = self._sockets[number].recv(1 << 18)
                if not data:
                    raise SystemExit("a stream ended before its time")
                if number not in self._seen:
                    self._begin(number, data)
                self.events += data.count(MARK)
                self.size += len(data)

    def _begin(self, number: int, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 200 "):
            raise SystemExit(f"refused: {data[:500]!r}")
        self._seen.add(number)

    def wait_all(self) -> None:
        """Until each stream has begun."""
        end = time.monotonic() + _PATIENCE
        while len(self._seen) < len(self._sockets):
            self.read(time.monotonic() + 0.05)
            if time.monotonic() > end:
                raise SystemExit("not every stream begins")

    def close(self) -> None:
        """Leave."""
        for sock in self._sockets.values():
            sock.close()


def measure(ask: Ask) -> Window:
    """One window."""
    streams = Streams(ask)
    streams.wait_all()
    streams.read(time.monotonic() + ask.settle)
    before = [cpu_seconds(pid) for pid in ask.pids]
    own, events, size, start = time.process_time(), streams.events, streams.size, time.monotonic()
    streams.read(start + ask.seconds)
    cpu = [cpu_seconds(pid) - b for pid, b in zip(ask.pids, before, strict=True)]
    window = Window(
        events=streams.events - events,
        size=streams.size - size,
        seconds=time.monotonic() - start,
        cpu=cpu,
        client_cpu=time.process_time() - own,
    )
    streams.close()
    return window


if __name__ == "__main__":
    asked = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Ask)
    print(msgspec.json.encode(measure(asked)).decode())
