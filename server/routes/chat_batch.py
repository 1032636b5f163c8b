"""POST /v1/chat/completions/batch."""

from sanic import HTTPResponse, Request

from ortloom.server.blueprint import Blueprint
from ortloom.server.context import context_of
from ortloom.server.limits import read_json
from ortloom.server.openai import chat_batch
from ortloom.server.openai.wire_batch import BatchFields
from ortloom.server.openai.wire_chat import ChatCompletionRequest

blueprint = Blueprint("chat_batch")


async def create_chat_batch(request: Request) -> HTTPResponse:
    """Generate the next message of several conversations."""
    fields = read_json(request, BatchFields)
    body = read_json(request, ChatCompletionRequest)
    return await chat_batch.answer(body, fields, request, context_of(request))


blueprint.add_route(create_chat_batch, "/v1/chat/completions/batch", methods=["POST"])
