"""POST /v1/chat/completions."""

from sanic import HTTPResponse, Request

from ortloom.server.blueprint import Blueprint
from ortloom.server.context import context_of
from ortloom.server.limits import read_json
from ortloom.server.openai import chat
from ortloom.server.openai.wire_chat import ChatCompletionRequest, TemplateFields

blueprint = Blueprint("chat")


async def create_chat_completion(request: Request) -> HTTPResponse | None:
    """Generate the next message of a conversation."""
    body = read_json(request, ChatCompletionRequest)
    fields = read_json(request, TemplateFields)
    prepared = await chat.prepare(body, fields, request, context_of(request))
    if body.stream:
        await chat.stream(prepared, request)
        return None
    return await chat.answer(prepared)


blueprint.add_route(create_chat_completion, "/v1/chat/completions", methods=["POST"])
