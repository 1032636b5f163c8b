"""The innermost ASGI application of the middleware chain: Sanic serves the request, and what it
sends goes back through the chain."""

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from httptools import parse_url
from sanic import Request
from sanic.compat import Header
from sanic.exceptions import RequestCancelled
from sanic.http import Stage
from sanic.response import BaseHTTPResponse

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

EXCHANGE = "ortloom.exchange"
"""The scope's key of the `Exchange`."""


class Exchange:
    """One request on its way through the chain.

    Args:
        request: as Sanic parsed it.
        inner: what serves it.
    """

    def __init__(self, request: Request, inner: Callable[[Request], Awaitable[None]]) -> None:
        self._request = request
        self._inner = inner

    async def serve(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve the request as the middlewares left it: method, path, query, headers and body are
        what `scope` and `receive` say."""
        request, real = self._request, self._request.stream
        request.method = scope["method"]
        target = _target(scope)
        if target != request.raw_url:
            request.raw_url = target
            request._parsed_url = parse_url(target)
        request.headers = Header(
            (bytes(name).decode("latin-1"), bytes(value).decode("utf-8", "surrogateescape"))
            for name, value in scope["headers"]
        )
        request.stream = CapturedStream(real, receive, send)
        try:
            await self._inner(request)
        finally:
            request.stream = real


def _target(scope: MutableMapping[str, Any]) -> bytes:
    raw: bytes = scope.get("raw_path") or b""
    if parse_url(raw or b"/").path.decode() != scope["path"]:
        raw = str(scope["path"]).encode()  # a middleware that changes the path changes only this
    query: bytes = scope.get("query_string") or b""
    return raw + b"?" + query if query else raw


async def end(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    """The application."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    exchange: Exchange = scope[EXCHANGE]
    await exchange.serve(scope, receive, send)


class CapturedStream:
    """Stands in for a request's `Http` stream: responses become ASGI messages.

    Args:
        real: the connection's stream, for all that is neither body nor response.
        receive: gives the body, as the middlewares left it.
        send: takes the messages.

    Attributes:
        request_body: whether there is more of the body; only reading it tells.
    """

    def __init__(self, real: Any, receive: Receive, send: Send) -> None:
        self._real = real
        self._receive = receive
        self._send = send
        self.request_body = True
        self.stage = Stage.HANDLER
        self.response: BaseHTTPResponse | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        data = await self.read()
        if data is None:
            raise StopAsyncIteration
        return data

    async def read(self) -> bytes | None:
        """A piece of the body, None after its end.

        Raises:
            RequestCancelled: the client left.
        """
        if not self.request_body:
            return None
        message = await self._receive()
        if message["type"] != "http.request":
            raise RequestCancelled
        self.request_body = bool(message.get("more_body", False))
        return bytes(message.get("body", b""))

    def respond(self, response: BaseHTTPResponse) -> BaseHTTPResponse:
        """See Sanic's `Http.respond`."""
        if self.stage is not Stage.HANDLER:
            self.stage = Stage.FAILED
            raise RuntimeError("Response already started")
        if self.response is not None:
            self.response.stream = None
        self.response, response.stream = response, self
        return response

    @property
    def send(self) -> Callable[..., Awaitable[None]] | None:
        """See Sanic's `Http.send`; None once the response is complete."""
        return None if self.stage is Stage.IDLE else self._write

    async def _write(self, data: bytes, end_stream: bool) -> None:
        response = self.response
        assert response is not None
        if self.stage is Stage.HANDLER:
            if not data and response.body:
                data, end_stream = response.body, True
            if end_stream:
                response.headers["content-length"] = str(len(data))
            headers = [(name.lower(), value) for name, value in response.processed_headers]
            self.stage = Stage.RESPONSE
            await self._send(
                {"type": "http.response.start", "status": response.status, "headers": headers}
            )
        elif not data and not end_stream:
            return
        if end_stream:
            self.stage = Stage.IDLE
        await self._send({"type": "http.response.body", "body": data, "more_body": not end_stream})
