"""GET /openapi.json, /docs and /redoc, unless --disable-fastapi-docs."""

import msgspec
from sanic import HTTPResponse, Request
from sanic.response import html

from ortloom.server.blueprint import Blueprint
from ortloom.server.context import context_of
from ortloom.server.openapi.pages import OFFLINE_PAGE, REDOC_PAGE, SWAGGER_PAGE

blueprint = Blueprint("docs")


async def openapi(request: Request) -> HTTPResponse:
    """The OpenAPI document of this server."""
    # Loaded when it is asked for: it needs the bodies of all routes, served or not.
    from ortloom.server.openapi.document import build

    body = msgspec.json.encode(build(request.app, context_of(request)))
    return HTTPResponse(body, content_type="application/json")


async def docs(request: Request) -> HTTPResponse:
    """A page that shows the document."""
    return _page(request, SWAGGER_PAGE)


async def redoc(request: Request) -> HTTPResponse:
    """Another page that shows the document."""
    return _page(request, REDOC_PAGE)


def _page(request: Request, online: str) -> HTTPResponse:
    offline = context_of(request).config.front.routes.offline_docs
    return html(OFFLINE_PAGE if offline else online)


blueprint.add_route(openapi, "/openapi.json", methods=["GET"])
blueprint.add_route(docs, "/docs", methods=["GET"])
blueprint.add_route(redoc, "/redoc", methods=["GET"])
