"""A small HTTP/1.1 client on asyncio: kept-alive connections, streamed bodies, little work a byte.

Body bytes reach the caller inside the event loop's read callback, so a time taken there is the
time of arrival and not that of a task switch.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import cast
from urllib.parse import urlsplit

import msgspec

from ortloom.bench.http_response import ResponseParser
from ortloom.errors import ConfigError

CONNECT_SECONDS = 60.0

Sink = Callable[[int, bytes], None]
"""Called with the status and a piece of the body as it arrives."""


class Reply(msgspec.Struct):
    """A response; `body` is empty where a sink took it."""

    status: int
    headers: dict[str, str]
    body: bytes


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._parser = ResponseParser()
        self._sink: Sink | None = None
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done():
            self.abort()  # bytes that nobody asked for
            return
        try:
            body = self._parser.feed(data)
            if body and self._sink is not None:
                self._sink(self._parser.status, body)
        except Exception as error:
            self._fail(error)
            return
        if self._parser.finished:
            self._done.set_result(None)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._done is None or self._done.done():
            return
        try:
            if exc is not None:
                raise exc
            self._parser.feed_end()
            self._done.set_result(None)
        except Exception as error:
            self._done.set_exception(error)

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def reusable(self) -> bool:
        return not self.closed and self._parser.reusable

    @property
    def touched(self) -> bool:
        """Whether any byte of the response came."""
        return self._parser.touched

    async def exchange(self, request: bytes, sink: Sink) -> ResponseParser:
        """Send a request and wait for the end of its response."""
        if self._transport is None or self.closed:
            raise ConnectionResetError("the connection is closed")
        self._parser = ResponseParser()
        self._sink = sink
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._done
        except BaseException:
            self.abort()
            raise
        finally:
            self._sink = None
        return self._parser


class HttpClient:
    """Requests to one server; use inside one event loop and `close` at the end.

    `url` is the base URL as given.

    Args:
        base_url: http:// or https://, a host, and possibly a port and a path put before all paths.
        headers: sent with every request.
        verify: check the certificate of an https server.

    Raises:
        ConfigError: the URL cannot be used.
    """

    def __init__(
        self, base_url: str, headers: Mapping[str, str] | None = None, verify: bool = True
    ) -> None:
        try:
            parts = urlsplit(base_url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"the URL '{base_url}' cannot be used: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"the URL '{base_url}' must be http://HOST[:PORT] or https://…")
        self.url = base_url
        self._host = parts.hostname
        self._prefix = parts.path.rstrip("/")
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = ssl.create_default_context()
            if not verify:
                self._tls.check_hostname = False
                self._tls.verify_mode = ssl.CERT_NONE
        self._port = port or (443 if self._tls else 80)
        lines = [f"Host: {parts.netloc.rpartition('@')[2]}", "Accept: */*"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self._head = _checked(lines)
        self._idle: list[_Connection] = []

    async def get(self, path: str) -> Reply:
        """GET a path.

        Raises:
            OSError: no connection, or it broke.
        """
        return await self._request("GET", path, b"", (), None)

    async def post(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        sink: Sink | None = None,
    ) -> Reply:
        """POST a JSON body; with a sink the response's body goes there piece by piece.

        Raises:
            OSError: no connection, or it broke.
        """
        lines = [f"{name}: {value}" for name, value in (headers or {}).items()]
        return await self._request("POST", path, body, lines, sink)

    async def _request(
        self,
        method: str,
        path: str,
        body: bytes,
        lines: list[str] | tuple[()],
        sink: Sink | None,
    ) -> Reply:
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._head}{_checked(lines)}"
        if method == "POST":
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        request = head.encode("latin-1", "replace") + b"\r\n" + body
        pieces: list[bytes] = []

        def collect(_: int, piece: bytes) -> None:
            pieces.append(piece)

        parser = await self._exchange(request, sink or collect)
        return Reply(parser.status, parser.headers, b"".join(pieces))

    async def _exchange(self, request: bytes, sink: Sink) -> ResponseParser:
        while self._idle:
            connection = self._idle.pop()
            if connection.closed:
                continue
            try:
                return await self._use(connection, request, sink)
            except ConnectionError:
                if connection.touched:
                    raise
            # the server had dropped the idle connection: the request has not been seen
        return await self._use(await self._connect(), request, sink)

    async def _use(self, connection: _Connection, request: bytes, sink: Sink) -> ResponseParser:
        parser = await connection.exchange(request, sink)
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.abort()
        return parser

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        server_hostname = self._host if self._tls else None
        opening = loop.create_connection(
            _Connection, self._host, self._port, ssl=self._tls, server_hostname=server_hostname
        )
        try:
            _, connection = await asyncio.wait_for(opening, CONNECT_SECONDS)
        except TimeoutError:
            raise ConnectionError(f"no connection within {CONNECT_SECONDS:g} s") from None
        return connection

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().abort()


def _checked(lines: list[str] | tuple[()]) -> str:
    for line in lines:
        if "\r" in line or "\n" in line:
            raise ConfigError(f"a header must not hold line breaks: {line!r}")
    return "".join(line + "\r\n" for line in lines)
