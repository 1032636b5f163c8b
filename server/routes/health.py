"""Liveness and load."""

from sanic import HTTPResponse, Request
from sanic.response import json

from ortloom import __version__
from ortloom.server.blueprint import Blueprint
from ortloom.server.context import FrontContext, context_of

blueprint = Blueprint("health")


def healthy(front: FrontContext) -> bool:
    """True once the engine has run a decode step, until it dies or the front drains."""
    client = front.client
    return client.ready is not None and client.dead is None and not front.draining


async def health(request: Request) -> HTTPResponse:
    """200 or 503, empty."""
    status = 200 if healthy(context_of(request)) else 503
    return HTTPResponse(None, status, content_type="text/plain; charset=utf-8")


async def ping(request: Request) -> HTTPResponse:
    """As /health."""
    return await health(request)


async def version(request: Request) -> HTTPResponse:
    """The version of ortloom."""
    return json({"version": __version__})


async def load(request: Request) -> HTTPResponse:
    """Inference requests in flight; 0 unless load tracking is on."""
    front = context_of(request)
    tracking = front.config.front.enable_server_load_tracking
    return json({"server_load": front.in_flight.inference if tracking else 0})


blueprint.add_route(health, "/health", methods=["GET", "HEAD"])
blueprint.add_route(ping, "/ping", methods=["GET", "HEAD", "POST"])
blueprint.add_route(version, "/version", methods=["GET", "HEAD"])
blueprint.add_route(load, "/load", methods=["GET"])
