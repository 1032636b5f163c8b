"""One connection: head and body limits in total time and size, registry, clean ends.

Sanic's own timeouts measure idle time (a byte now and then keeps them quiet), so every limit here
is a total one. `LoomHttp` reads the head itself before Sanic parses it; `LoomProtocol` keeps the
connection in the app's registry and wraps each request with admission, deadline and accounting.
"""

import asyncio
import logging
import socket
import time
import uuid

from sanic import Request
from sanic.exceptions import BadRequest, RequestCancelled
from sanic.http import Http, Stage
from sanic.models.server_types import ConnInfo
from sanic.server.protocols.http_protocol import HttpProtocol

from ortloom.errors import RequestTooLarge
from ortloom.server.access_log import record_exchange
from ortloom.server.access_record import AccessRecord, current_record
from ortloom.server.admission import admit
from ortloom.server.connections import ConnectionRegistry
from ortloom.server.context import FrontContext, context_of_app
from ortloom.server.head import (
    MAX_CHUNK_LINE,
    HeadRejected,
    check_head,
    chunk_size_fits,
    strip_root_path,
    too_large,
)
from ortloom.server.request_id import given_request_id

logger = logging.getLogger("ortloom.server")

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_SEND_BUFFER = 128 * 1024  # bytes; a reader that stops is noticed after about this much
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 1024 * 1024
_FULL_BODY = (
    b'{"error":{"message":"The server takes no more connections.",'
    b'"type":"ServiceUnavailableError","param":null,"code":503}}'
)
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
) % (len(_FULL_BODY), _FULL_BODY)


class BodyTimeout(BadRequest):  # type: ignore[misc]
    """The body did not arrive in time. A BadRequest, so Sanic gives the connection up quietly."""

    status_code = 408
    quiet = True


class LoomHttp(Http):  # type: ignore[misc]
    """Sanic's HTTP/1.1 state machine with total limits on head and body."""

    __slots__ = ("__dict__",)

    async def http1(self) -> None:
        """Serve requests until the connection is done; then let a refused client read why."""
        self._linger = False
        await super().http1()
        if self._linger and not self.protocol.conn_info.lost:
            await self.protocol.linger()

    async def http1_request_header(self) -> None:
        """Wait for the whole head, check it, and only then let Sanic parse it."""
        front = self.protocol.front.config.front
        self.HEADER_MAX_SIZE = front.max_head_size + 4  # Sanic's check must not come first
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(front.head_timeout):
                end = await self._receive_head(front.max_head_size)
        except TimeoutError:
            raise HeadRejected("The request head took too long.", status_code=408) from None
        check_head(bytes(self.recv_buffer[:end]), front.max_header_count, front.max_head_size)
        strip_root_path(self.recv_buffer, front.root_path.rstrip("/").encode())
        self._body_deadline = loop.time() + front.body_timeout
        await super().http1_request_header()
        self.upgrade_websocket = False
        if self.request_body is True and self.request_bytes > self.request_max_size:
            self.expecting_continue = False
            raise RequestTooLarge(
                f"The body is larger than the limit of {self.request_max_size} bytes."
            )

    async def _receive_head(self, most: int) -> int:
        """Bytes of the head, at most `most`, without the empty line that ends it."""
        buffer: bytearray = self.recv_buffer
        searched = 0
        while True:
            while buffer.startswith(b"\r\n"):  # RFC 9112 §2.2: blank lines before a request
                del buffer[:2]
                searched = 0
            end = buffer.find(b"\r\n\r\n", searched)
            if 0 <= end <= most:
                return end
            if end > most or len(buffer) > most + 3:  # of the empty line three bytes may be there
                raise too_large(buffer)
            if buffer.find(b"\n\n", searched) >= 0:
                raise HeadRejected("Lines of the head must end with CRLF.", status_code=400)
            searched = max(0, len(buffer) - 3)
            await self._receive_more()

    async def read(self) -> bytes | None:
        """Some bytes of the body, within the total body deadline."""
        try:
            async with asyncio.timeout_at(self._body_deadline):
                if self.request_bytes_left == 0 and self.request_body == "chunked":
                    await self._check_chunk()
                data: bytes | None = await super().read()
        except TimeoutError:
            self.keep_alive = False
            raise BodyTimeout("The request body took too long.") from None
        if data is None and self.protocol.transport is not None:
            # A large body filled the buffer, which stopped the reading; a client that goes away is
            # noticed by reading only.
            self.protocol.transport.resume_reading()
        return data

    async def _check_chunk(self) -> None:
        """Read up to the end of a chunk's size line.

        Raises:
            BadRequest: it is malformed, or longer than MAX_CHUNK_LINE.
        """
        if self.expecting_continue:
            self.expecting_continue = False
            await self._send(_CONTINUE)
        while (fits := chunk_size_fits(self.recv_buffer)) is None:
            if len(self.recv_buffer) > MAX_CHUNK_LINE:
                break
            await self._receive_more()
        if not fits:
            self.keep_alive = False
            raise BadRequest("Bad chunked encoding")

    @property
    def sends_chunks(self) -> bool:
        """Whether the response's body goes out in chunked encoding and has begun."""
        return bool(
            self.stage is Stage.RESPONSE and self.response_func == self.http1_response_chunked
        )

    async def error_response(self, exception: BaseException) -> None:
        """Answer an error outside the handler (head, cancellation) and account for it."""
        if isinstance(exception, RequestCancelled):
            raise exception  # the client is gone: there is nobody to answer
        in_head = self.stage is Stage.REQUEST
        if in_head:
            self._linger = True
            if self.request is None:
                self.create_empty_request()
            self.request.conn_info = self.protocol.conn_info
            self.protocol.begin(self.request)
        try:
            await super().error_response(exception)
        finally:
            if in_head:
                self.protocol.finish(self.request)


class LoomProtocol(HttpProtocol):  # type: ignore[misc]
    """One client connection."""

    __slots__ = ("__dict__",)
    HTTP_CLASS = LoomHttp

    def _setup(self) -> None:
        super()._setup()
        self.front: FrontContext = context_of_app(self.app)
        self.registry: ConnectionRegistry = self.app.ctx.connections
        self.access_log = False  # Sanic's; ours is written in `finish`
        self.request_handler = self._handle
        self.bytes_out = 0
        self.flowing = True  # the client is there and keeps up

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Take the connection in, or turn it away when there are too many."""
        if not self.registry.add(self):
            self.transport = transport
            self.conn_info = ConnInfo(transport, unix=self._unix)
            transport.write(_FULL)
            transport.close()
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection; a handler that is still running is cancelled."""
        self.registry.discard(self)
        self.flowing = False
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client; none are kept once the connection has been turned away."""
        if self._task is not None:
            super().data_received(data)

    @property
    def writable(self) -> bool:
        """Whether `send` hands its bytes on at once: the client keeps up with what was sent."""
        return bool(self._can_write.is_set())

    async def send(self, data: bytes) -> None:
        """Write with backpressure, counting bytes.

        As Sanic's, but for its signal of each write, which nobody here listens to: looking for
        listeners would cost a stream of tokens more than the write itself.

        Raises:
            RequestCancelled: the connection is closing.
        """
        self.bytes_out += len(data)
        if not self._can_write.is_set():
            await self._can_write.wait()
        if self.transport is None or self.transport.is_closing():
            raise RequestCancelled
        self.transport.write(data)
        self._time = time.monotonic()

    def pause_writing(self) -> None:
        """The client does not keep up."""
        self.flowing = False
        super().pause_writing()

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        self.flowing = True

    def write_chunk(self, data: bytes) -> float:
        """Write a part of a body in chunked encoding, as `send` does but without waiting; only
        while `flowing`. Returns the monotonic time."""
        chunk = b"%x\r\n%b\r\n" % (len(data), data)
        self.bytes_out += len(chunk)
        self.transport.write(chunk)
        now = self._time = time.monotonic()
        return now

    async def _handle(self, request: Request) -> None:
        """Run one request from admission to the last byte of its response."""
        front = self.front
        stream = request.stream
        self.begin(request)
        try:
            try:
                if self.app.ctx.middlewares is None:  # the user's come first
                    admit(request, front)
                async with front.in_flight.track(request, front.config.front.request_deadline):
                    await self.app.handle_request(request)
            except RequestCancelled:
                raise
            except Exception as error:
                if stream.stage is Stage.HANDLER:
                    await self.app.handle_exception(request, error, False)
            if stream.stage is Stage.RESPONSE:
                self.cut(request)
        finally:
            self.finish(request)

    def begin(self, request: Request) -> None:
        """Start the accounting of one exchange."""
        if self.front.draining and self._http is not None:
            self._http.keep_alive = False
        request.ctx.request_id = given_request_id(request) or uuid.uuid4().hex
        request.ctx.record = AccessRecord(start=time.monotonic(), bytes_before=self.bytes_out)
        current_record.set(request.ctx.record)

    def finish(self, request: Request) -> None:
        """Write the access line and count the exchange."""
        stream = self._http
        response = stream.response if stream is not None else None
        status = response.status if response is not None else 499
        if self.conn_info.lost and (stream is None or stream.stage is not Stage.IDLE):
            status = 499
        size_in = (stream.request_bytes or 0) if stream is not None else 0
        record: AccessRecord = request.ctx.record
        size_out = self.bytes_out - record.bytes_before
        record_exchange(self.front, request, status, size_in, size_out)

    def cut(self, request: Request) -> None:
        """End a response that began and cannot be completed, without a valid terminator."""
        logger.warning("request %s: response cut off", request.ctx.request_id)
        if self.transport is not None:
            self.transport.abort()

    async def linger(self) -> None:
        """Close our side and swallow what the client still sends, so that it can read the reply.

        Closing with unread input would reset the connection and may destroy the reply.
        """
        if self.transport is None:
            return
        seen = 0
        try:
            if self.transport.can_write_eof():  # TLS has no half-closed connections
                self.transport.write_eof()
            async with asyncio.timeout(_LINGER_SECONDS):
                while seen < _LINGER_BYTES:
                    seen += len(self.recv_buffer)
                    self.recv_buffer.clear()
                    await self.receive_more()
        except (TimeoutError, OSError, RuntimeError):
            return

    def stop_keep_alive(self) -> None:
        """Let the request in progress be the last one."""
        if self._http is not None:
            self._http.keep_alive = False

    @property
    def idle(self) -> bool:
        """True between requests."""
        return self._http is None or self._http.stage is Stage.IDLE
