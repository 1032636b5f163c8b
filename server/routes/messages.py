"""POST /v1/messages and POST /v1/messages/count_tokens."""

from sanic import HTTPResponse, Request

from ortloom.server.anthropic import messages
from ortloom.server.anthropic.to_chat import chat_request, template_fields
from ortloom.server.anthropic.wire import CountTokensRequest, MessagesRequest
from ortloom.server.blueprint import Blueprint
from ortloom.server.context import context_of
from ortloom.server.limits import read_json
from ortloom.server.openai import chat
from ortloom.server.openai.chat_prompt import chat_prompt
from ortloom.server.openai.reply import json_response
from ortloom.server.openai.to_engine import check_model

blueprint = Blueprint("messages")


async def create_message(request: Request) -> HTTPResponse | None:
    """Generate the next message of a conversation."""
    front = context_of(request)
    body = read_json(request, MessagesRequest)
    fields = template_fields(body, front)
    prepared = await chat.prepare(chat_request(body, front), fields, request, front, "other")
    if body.stream:
        await messages.stream(prepared, request)
        return None
    return await messages.answer(prepared)


async def count_tokens(request: Request) -> HTTPResponse:
    """Tokens of the prompt that the same message would be answered from."""
    front = context_of(request)
    body = read_json(request, CountTokensRequest)
    check_model(body.model, front)
    prompt = await chat_prompt(template_fields(body, front), False, front)
    count = len(prompt.token_ids)
    management = {"original_input_tokens": count}
    return json_response({"input_tokens": count, "context_management": management})


blueprint.add_route(create_message, "/v1/messages", methods=["POST"])
blueprint.add_route(count_tokens, "/v1/messages/count_tokens", methods=["POST"])
