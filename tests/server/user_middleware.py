"""Middlewares as users write them: classes and functions, without any framework."""

import json
import time

from sanic.response import text


class Stamp:
    """Adds a field, answers /stamp itself, listens to the lifespan."""

    def __init__(self, app):
        self.app = app
        self.began = None

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":

            async def note(message):
                if message["type"] == "lifespan.startup.complete":
                    self.began = "begun"
                await send(message)

            await self.app(scope, receive, note)
            return
        if scope["path"] == "/stamp":
            body = f"{scope['method']} {self.began}".encode()
            head = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
            await send({"type": "http.response.start", "status": 201, "headers": head})
            await send({"type": "http.response.body", "body": body})
            return

        async def stamped(message):
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-stamp", b"class")]
            await send(message)

        await self.app(scope, receive, stamped)


class Shout:
    """Changes requests: a prompt in capitals, another path, one field more."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        scope = dict(scope)
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["path"] == "/old":
            scope["path"] = "/v1/models"
        if scope["path"] != "/v1/completions" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        fields = json.loads(body)
        fields["prompt"] = fields["prompt"].upper()
        scope["headers"] = [*scope["headers"], (b"x-request-id", b"shouted")]

        async def changed():
            data = json.dumps(fields).encode()
            return {"type": "http.request", "body": data, "more_body": False}

        await self.app(scope, changed, send)


async def timing(request, call_next):
    """The usual function: measures, refuses, fails."""
    if "x-refuse" in request.headers:
        return text("not you", status=418, headers={"x-by": "timing"})
    if request.query_params.get("fail"):
        raise ValueError("a secret of the middleware")
    size = len(await request.body())
    begin = time.perf_counter()
    response = await call_next(request)
    response.headers["X-Process-Time"] = str(time.perf_counter() - begin)
    response.headers["X-Seen"] = f"{request.method} {request.url.path} {size}"
    return response


async def louder(request, call_next):
    """Replaces the body of /version."""
    response = await call_next(request)
    if request.url.path == "/version":
        pieces = [piece async for piece in response.body_iterator]

        async def twice():
            yield b"".join(pieces)
            yield b"!"

        response.body_iterator = twice()
        response.status_code = 202
    return response


class HttpOnly:
    """Knows no lifespan."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        await self.app({**scope, "path": scope["path"]}, receive, send)


class Broken:
    """Says that it cannot start."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no licence"})


class NeedsMore:
    def __init__(self, app, other):
        raise AssertionError


NOT_ONE = 3
