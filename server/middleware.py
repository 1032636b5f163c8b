"""`--middleware`: ASGI classes and functions of the user around every request.

    client ── Sanic's connection ── first of the last flag … last of the first flag ── routes

The forms are vLLM's. A class is an ASGI middleware: `cls(app)`, called as `(scope, receive, send)`.
An async function gets `(request, call_next)` and returns a response. As there, the middleware of
the last flag is the outermost, and all of them come before keys and CORS are looked at.

The innermost ASGI application is `asgi_end.end`, which hands the exchange back to Sanic.
"""

import asyncio
import functools
import importlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sanic import Request
from sanic.exceptions import RequestCancelled
from sanic.http import Stage
from sanic.response import BaseHTTPResponse

from ortloom.errors import ConfigError
from ortloom.server.asgi_end import EXCHANGE, ASGIApp, Exchange, Message, end
from ortloom.server.function_middleware import FunctionMiddleware

logger = logging.getLogger("ortloom.server")

_LIFESPAN_SECONDS = 60.0


def load_chain(paths: Sequence[str]) -> "MiddlewareChain | None":
    """The chain of these import paths; None = there are none.

    Raises:
        ConfigError: one cannot be imported, is neither a class nor an async function, or cannot be
            made.
    """
    if not paths:
        return None
    app: ASGIApp = end
    for path in paths:
        app = _wrapped(path, app)
    return MiddlewareChain(app)


def _wrapped(path: str, app: ASGIApp) -> ASGIApp:
    found = _imported(path)
    if inspect.isclass(found):
        make: Any = found
        try:
            made: ASGIApp = make(app)
        except Exception as error:
            text = f"argument --middleware: '{path}' cannot be made: {type(error).__name__}"
            raise ConfigError(f"{text}: {error}") from error
        return made
    if inspect.iscoroutinefunction(found):
        return _function(found, app)
    raise ConfigError(f"argument --middleware: '{path}' is neither a class nor an async function")


def _imported(path: str) -> Any:
    module, dot, name = path.rpartition(".")
    if not dot:
        raise ConfigError(f"argument --middleware: '{path}' is no import path (module.name)")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # what a user's module may raise is not ours to list
        raise ConfigError(
            f"argument --middleware: cannot import '{path}': {type(error).__name__}: {error}"
        ) from error


def _function(function: Callable[..., Awaitable[Any]], app: ASGIApp) -> ASGIApp:
    """A function with Starlette's request and responses where it is there, else with ours."""
    try:
        from starlette.middleware.base import BaseHTTPMiddleware
    except ImportError:
        return FunctionMiddleware(app, function)
    made: ASGIApp = BaseHTTPMiddleware(app, dispatch=function)
    return made


class MiddlewareChain:
    """Runs requests through the middlewares, and tells those that listen of start and end.

    Args:
        app: the outermost one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._events: asyncio.Queue[Message] = asyncio.Queue()
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self._lifespan: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Send the start of the lifespan; middlewares that do not know it are left alone.

        Raises:
            ConfigError: a middleware says that it failed.
        """
        self._lifespan = asyncio.create_task(self._live())
        answer = await self._tell("lifespan.startup")
        if answer.get("type") == "lifespan.startup.failed":
            raise ConfigError(f"argument --middleware: start-up failed: {answer.get('message')}")

    async def stop(self) -> None:
        """Send the end of the lifespan."""
        if self._lifespan is not None and not self._lifespan.done():
            await self._tell("lifespan.shutdown")
            self._lifespan.cancel()

    async def _live(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        try:
            await self._app(scope, self._events.get, self._answers.put)
        except Exception as error:
            logger.debug("a middleware takes no lifespan", exc_info=error)

    async def _tell(self, what: str) -> Message:
        assert self._lifespan is not None
        await self._events.put({"type": what})
        answer = asyncio.create_task(self._answers.get())
        try:
            await asyncio.wait(
                {answer, self._lifespan},
                timeout=_LIFESPAN_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            return answer.result() if answer.done() else {}
        finally:
            answer.cancel()

    async def handle(self, request: Request, inner: Callable[[Request], Awaitable[None]]) -> None:
        """Serve one request.

        Args:
            request: as Sanic parsed it.
            inner: what serves it without middlewares.

        Raises:
            Exception: whatever a middleware raises; nothing has been sent then, or the response
                is incomplete.
        """
        reply = _Reply(request)
        scope = {**http_scope(request), EXCHANGE: Exchange(request, inner)}
        await self._app(scope, functools.partial(_receive, request, request.stream), reply.send)
        if not reply.complete:
            raise RuntimeError("a middleware ended without a complete response")


def http_scope(request: Request) -> dict[str, Any]:
    """The ASGI scope of a request."""
    path, _, query = request.raw_url.partition(b"?")
    server = request.conn_info.server if request.conn_info is not None else ""
    port = request.conn_info.server_port if request.conn_info is not None else 0
    front = request.app.ctx.front.config.front
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": request.version,
        "method": request.method,
        "scheme": "http" if front.tls is None else "https",
        "path": request.path,
        "raw_path": path,
        "query_string": query,
        "root_path": front.root_path,
        "headers": [
            (name.lower().encode("latin-1", "surrogateescape"), _bytes(value))
            for name, value in request.headers.items()
        ],
        "client": (request.ip, request.port) if request.ip else None,
        "server": (server, port),
        "state": {},
        "extensions": {},
    }


def _bytes(value: object) -> bytes:
    return str(value).encode("utf-8", "surrogateescape")


async def _receive(request: Request, stream: Any) -> Message:
    """The next piece of the body; after its end, nothing until the client leaves."""
    if stream.request_body:
        data = await stream.read()
        if data is not None:
            more = bool(stream.request_body)
            return {"type": "http.request", "body": data, "more_body": more}
    if not getattr(request.ctx, "body_ended", False):
        request.ctx.body_ended = True
        return {"type": "http.request", "body": b"", "more_body": False}
    await asyncio.Event().wait()  # a client that leaves cancels the task
    return {"type": "http.disconnect"}


class _Reply:
    """What the outermost middleware sends, as a response of Sanic's connection."""

    def __init__(self, request: Request) -> None:
        self._stream = request.stream  # the request has another one while it is served
        self._start: Message | None = None
        self._response: BaseHTTPResponse | None = None
        self.complete = False

    async def send(self, message: Message) -> None:
        """One ASGI message."""
        kind = message["type"]
        if kind == "http.response.start":
            if self._start is not None:
                raise RuntimeError("a middleware sent two responses")
            self._start = message
            return
        if kind != "http.response.body":
            raise RuntimeError(f"a middleware sent an unknown message '{kind}'")
        if self._start is None or self.complete:
            raise RuntimeError("a middleware sent a body without a response")
        more = bool(message.get("more_body", False))
        if self._response is None:
            self._response = self._open(self._start)
        self.complete = not more
        await self._response.send(bytes(message.get("body", b"")), end_stream=not more)

    def _open(self, start: Message) -> BaseHTTPResponse:
        stream = self._stream
        if stream is None or stream.stage is not Stage.HANDLER:
            raise RequestCancelled
        response = BaseHTTPResponse()
        response.status = start["status"]
        for name, value in start.get("headers", ()):
            text = bytes(name).decode("latin-1").lower()
            if text not in ("connection", "transfer-encoding"):
                response.headers.add(text, bytes(value).decode("utf-8", "surrogateescape"))
        response.content_type = response.headers.get("content-type", "application/octet-stream")
        made: BaseHTTPResponse = stream.respond(response)
        return made
