"""POST /v1/messages/render and /v1/responses/render."""

import msgspec
from sanic import HTTPResponse, Request

from ortloom.server.anthropic.to_chat import chat_request, template_fields
from ortloom.server.anthropic.wire import MessagesRequest
from ortloom.server.blueprint import Blueprint
from ortloom.server.context import context_of
from ortloom.server.limits import read_json
from ortloom.server.openai import chat
from ortloom.server.openai.render import rendered
from ortloom.server.openai.responses.prepare import prepare
from ortloom.server.openai.responses.wire import ResponsesRequest, generation_fields

blueprint = Blueprint("render_newer")


async def render_message(request: Request) -> HTTPResponse:
    """The generate request of a message."""
    front = context_of(request)
    given = read_json(request, MessagesRequest)
    body = chat_request(given, front)
    work = await chat.prepare(body, template_fields(given, front), request, front)
    return _json(rendered(work.job, body, front)[0])


async def render_response(request: Request) -> HTTPResponse:
    """The generate request of a response."""
    front = context_of(request)
    body = read_json(request, ResponsesRequest)
    call = await prepare(body, request, front)
    return _json(rendered(call.job, generation_fields(body), front)[0])


def _json(value: object) -> HTTPResponse:
    return HTTPResponse(msgspec.json.encode(value), content_type="application/json")


blueprint.add_route(render_message, "/v1/messages/render", methods=["POST"])
blueprint.add_route(render_response, "/v1/responses/render", methods=["POST"])
