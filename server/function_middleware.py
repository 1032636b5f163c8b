"""Middleware functions `async def name(request, call_next)`, where Starlette is not installed.

The request and the response that `call_next` gives have the members that such functions use. A
function may return that response, one of Sanic's, or anything that is an ASGI application.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import suppress
from http.cookies import SimpleCookie
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

from sanic.response import HTTPResponse

from ortloom.server.asgi_end import ASGIApp, Message, Receive, Send

RawHeaders = list[tuple[bytes, bytes]]


class Headers(MutableMapping[str, str]):
    """Header fields by name in any case; changes go to the list they were made of."""

    def __init__(self, raw: RawHeaders) -> None:
        self.raw = raw

    def __getitem__(self, name: str) -> str:
        for key, value in self.raw:
            if key.decode("latin-1").lower() == name.lower():
                return value.decode("latin-1")
        raise KeyError(name)

    def __setitem__(self, name: str, value: str) -> None:
        with suppress(KeyError):
            del self[name]
        self.append(name, value)

    def __delitem__(self, name: str) -> None:
        kept = [item for item in self.raw if item[0].decode("latin-1").lower() != name.lower()]
        if len(kept) == len(self.raw):
            raise KeyError(name)
        self.raw[:] = kept

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key.decode("latin-1").lower() for key, _ in self.raw))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def append(self, name: str, value: str) -> None:
        """Add a field beside others of its name."""
        self.raw.append((name.lower().encode("latin-1"), value.encode("latin-1")))

    def getlist(self, name: str) -> list[str]:
        """All values of a name."""
        return [
            v.decode("latin-1") for k, v in self.raw if k.decode("latin-1").lower() == name.lower()
        ]


class MiddlewareRequest:
    """What a function sees of a request.

    Attributes:
        scope: the ASGI scope.
        state: a place for the function's own values.
    """

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive) -> None:
        self.scope = scope
        self.state = SimpleNamespace(**scope.get("state", {}))
        self._receive = receive
        self._body: bytes | None = None

    @property
    def method(self) -> str:
        """The method."""
        return str(self.scope["method"])

    @property
    def headers(self) -> Headers:
        """The header fields."""
        return Headers(self.scope["headers"])

    @property
    def query_params(self) -> dict[str, str]:
        """The query's fields; of several of one name the last."""
        query = self.scope["query_string"].decode("latin-1")
        return dict(parse_qsl(query, keep_blank_values=True))

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies."""
        cookie: SimpleCookie = SimpleCookie(self.headers.get("cookie", ""))
        return {name: morsel.value for name, morsel in cookie.items()}

    @property
    def client(self) -> SimpleNamespace | None:
        """The peer's `host` and `port`; None on a unix socket."""
        peer = self.scope.get("client")
        return None if peer is None else SimpleNamespace(host=peer[0], port=peer[1])

    @property
    def url(self) -> "Url":
        """The address."""
        return Url(self.scope, self.headers.get("host", ""))

    async def body(self) -> bytes:
        """The whole body; what comes after the function sees it too."""
        if self._body is None:
            parts, more = [], True
            while more:
                message = await self._receive()
                parts.append(bytes(message.get("body", b"")))
                more = bool(message.get("more_body", False))
            self._body = b"".join(parts)
        return self._body

    async def json(self) -> Any:
        """The body as JSON.

        Raises:
            ValueError: it is none.
        """
        return json.loads(await self.body())

    async def replay(self) -> Message:
        """`receive` for what comes after the function."""
        if self._body is None:
            return await self._receive()
        body, self._body, self._receive = self._body, None, _nothing
        return {"type": "http.request", "body": body, "more_body": False}


async def _nothing() -> Message:
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}


class Url:
    """Parts of a request's address; `str()` gives all of it."""

    def __init__(self, scope: MutableMapping[str, Any], host: str) -> None:
        self.scheme = str(scope["scheme"])
        self.netloc = host
        self.path = str(scope["path"])
        self.query = scope["query_string"].decode("latin-1")
        self.hostname = host.rpartition(":")[0] or host

    def __str__(self) -> str:
        query = f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{self.netloc}{self.path}{query}"


class MiddlewareResponse:
    """The response of what comes after a function, still on its way.

    Attributes:
        status_code: may be changed.
        headers: may be changed.
        body_iterator: the pieces of the body; may be replaced.
    """

    def __init__(self, start: Message, pieces: AsyncIterator[bytes]) -> None:
        self.status_code = int(start["status"])
        self.headers = Headers([(bytes(k), bytes(v)) for k, v in start.get("headers", ())])
        self.body_iterator = pieces
        self._pieces = pieces

    async def __call__(self, scope: object, receive: object, send: Send) -> None:
        """Send it."""
        if self.body_iterator is not self._pieces:
            self.headers.pop("content-length", None)  # nobody knows any more
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.headers.raw,
            }
        )
        async for piece in self.body_iterator:
            data = piece.encode() if isinstance(piece, str) else piece
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class FunctionMiddleware:
    """A middleware function as an ASGI application.

    Args:
        app: what comes after it.
        function: `(request, call_next) -> response`.
    """

    def __init__(self, app: ASGIApp, function: Callable[..., Awaitable[Any]]) -> None:
        self._app = app
        self._function = function

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request; other scopes pass."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = MiddlewareRequest(scope, receive)
        rest = _Rest(self._app, request, send)
        try:
            response = await self._function(request, rest.call)
            if isinstance(response, HTTPResponse):
                await _send_sanic(response, send)
            elif callable(response):
                await response(scope, receive, send)
            else:
                kind = type(response).__name__
                raise TypeError(f"a middleware function returned no response but {kind}")
        finally:
            await rest.close()


async def _send_sanic(response: HTTPResponse, send: Send) -> None:
    body = response.body or b""
    response.headers["content-length"] = str(len(body))
    headers = [(name.lower(), value) for name, value in response.processed_headers]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class _Rest:
    """What comes after a function, in a task of its own, because the function waits for the head
    of the response only. Pieces of the body go over one place: nobody runs ahead of the client."""

    def __init__(self, app: ASGIApp, request: MiddlewareRequest, send: Send) -> None:
        self._app = app
        self._request = request
        self._last_words = send
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue(1)
        self._task: asyncio.Task[None] | None = None
        self._opened = False

    async def call(self, request: Any = None) -> MiddlewareResponse:
        """`call_next`.

        Raises:
            Exception: what the rest raised before its response.
        """
        if self._task is not None:
            raise RuntimeError("call_next may be called once")
        self._task = asyncio.create_task(self._run())
        start = await self._messages.get()
        if start is None:
            await self._task
            raise RuntimeError("no response was made")
        self._opened = True
        return MiddlewareResponse(start, self._pieces())

    async def _run(self) -> None:
        try:
            await self._app(self._request.scope, self._request.replay, self._messages.put)
        finally:
            await self._messages.put(None)

    async def _pieces(self) -> AsyncIterator[bytes]:
        assert self._task is not None
        while (message := await self._messages.get()) is not None:
            if message.get("body"):
                yield bytes(message["body"])
        await self._task

    async def close(self) -> None:
        """End the rest if it still runs (the client left, the server stops, or the function
        answered itself); what it still says to a client that is reading is passed on."""
        task = self._task
        if task is None:
            return
        if not task.done():
            task.cancel()
        while not task.done() or not self._messages.empty():
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._pass_on(await self._messages.get())
        if not task.cancelled():
            task.exception()

    async def _pass_on(self, message: Message | None) -> None:
        if message is not None and self._opened and message["type"] == "http.response.body":
            with suppress(Exception):
                await self._last_words(message)
