"""The client, a process of its own: raw sockets, one selector, nothing parsed.

    python -m benchmarks.sse.client ASK.json

opens the streams, waits until each has brought something, and then for `seconds` counts events
and reads the CPU clocks of the servers' processes. With `again` a connection whose stream ends
sends its request once more. The result is one line of JSON.
"""

import select
import socket
import sys
import time
from pathlib import Path

import msgspec

MARK = b"data: "
_END = b"data: [DONE]\n\n\r\n0\r\n\r\n"
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
    again: bool = False


class Window(msgspec.Struct, kw_only=True):
    """What was seen: events, streams that ended, bytes and elapsed seconds, and CPU seconds of
    each process."""

    events: int
    ended: int
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
        self._again = ask.again
        head = (
            f"POST {ask.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(payload)}\r\n\r\n"
        ).encode()
        self._request = head + payload
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._seen: set[int] = set()
        self._tails: dict[int, bytes] = {}
        self.events = 0
        self.ended = 0
        self.size = 0
        for _ in range(ask.streams):
            sock = socket.create_connection(("127.0.0.1", ask.port))
            sock.sendall(self._request)
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
                if self._again:
                    self._follow(number, data)

    def _follow(self, number: int, data: bytes) -> None:
        """Ask once more at a stream's end."""
        tail = (self._tails.get(number, b"") + data)[-len(_END) :]
        if tail == _END:
            self.ended += 1
            self.events -= 1  # [DONE] is none
            self._sockets[number].sendall(self._request)
            tail = b""
        self._tails[number] = tail

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
    own, start = time.process_time(), time.monotonic()
    events, ended, size = streams.events, streams.ended, streams.size
    streams.read(start + ask.seconds)
    cpu = [cpu_seconds(pid) - b for pid, b in zip(ask.pids, before, strict=True)]
    window = Window(
        events=streams.events - events,
        ended=streams.ended - ended,
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
