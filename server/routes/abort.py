"""POST /abort_requests in the form of --tokens-only: ids are required, nothing is waited for."""

import msgspec
from sanic import HTTPResponse, Request

from ortloom.errors import SchemaViolation
from ortloom.runtime.messages import EngineControl
from ortloom.server.blueprint import Blueprint
from ortloom.server.context import context_of
from ortloom.server.engine_control import control
from ortloom.server.limits import read_json

blueprint = Blueprint("abort")


class AbortBody(msgspec.Struct):
    """Which requests to end."""

    request_ids: list[str]


async def abort_requests(request: Request) -> HTTPResponse:
    """End requests by the ids their clients know."""
    ids = read_json(request, AbortBody).request_ids
    if not ids:
        raise SchemaViolation("1 validation error: request_ids is empty.", "body.request_ids")
    call = EngineControl(0, "abort", request_ids=ids)
    request.app.add_task(control(context_of(request), call))
    return HTTPResponse(None, 200)


blueprint.add_route(abort_requests, "/abort_requests", methods=["POST"])
