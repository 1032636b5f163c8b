"""Cross-origin headers on every response, errors and streams included, and preflight answers."""

from sanic import HTTPResponse, Request, Sanic
from sanic.response import BaseHTTPResponse

from ortloom.config import FrontConfig
from ortloom.server.context import context_of

_METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
_MAX_AGE = "600"  # seconds a browser may keep a preflight answer
_EXPOSED = "x-request-id, retry-after"


def install(app: Sanic) -> None:
    """Add the headers to all responses of the app."""
    app.register_middleware(_add_headers, "response")


def _add_headers(request: Request, response: BaseHTTPResponse) -> None:
    front = context_of(request).config.front
    origin = request.headers.getone("origin", None)
    if origin is None:
        return
    allowed = _allowed_origin(origin, front)
    if allowed is None:
        response.headers.add("vary", "Origin")
        return
    response.headers["access-control-allow-origin"] = allowed
    response.headers["access-control-expose-headers"] = _EXPOSED
    if allowed != "*":
        response.headers.add("vary", "Origin")
    if front.allow_credentials:
        response.headers["access-control-allow-credentials"] = "true"


def _allowed_origin(origin: str, front: FrontConfig) -> str | None:
    if "*" in front.allowed_origins:
        return origin if front.allow_credentials else "*"
    return origin if origin in front.allowed_origins else None


def is_preflight(request: Request) -> bool:
    """True for a browser's question whether it may send a request."""
    headers = request.headers
    return (
        request.method == "OPTIONS"
        and "origin" in headers
        and "access-control-request-method" in headers
    )


def preflight(request: Request) -> HTTPResponse:
    """Answer a preflight; the origin headers are added as to every response."""
    front = context_of(request).config.front
    if _allowed_origin(request.headers["origin"], front) is None:
        return HTTPResponse(b"Disallowed CORS origin", 400, content_type="text/plain")
    wanted = request.headers.getone("access-control-request-headers", "")
    methods = _METHODS if "*" in front.allowed_methods else ", ".join(front.allowed_methods)
    allowed = wanted if "*" in front.allowed_headers else ", ".join(front.allowed_headers)
    headers = {"access-control-allow-methods": methods, "access-control-max-age": _MAX_AGE}
    if allowed:
        headers["access-control-allow-headers"] = allowed
    return HTTPResponse(None, 204, headers=headers)
