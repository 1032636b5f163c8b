"""POST /invocations: one path for every kind of request, told apart by what the body holds.

The forms are tried in a fixed order: chat first, then completion. GET and POST /ping are beside
/health.
"""

from typing import Any

import msgspec
from sanic import HTTPResponse, Request

from ortloom.errors import InvalidRequest, SchemaViolation
from ortloom.server.blueprint import Blueprint
from ortloom.server.limits import check_content_type, decode_json
from ortloom.server.openai.wire_chat import ChatCompletionRequest, TemplateFields
from ortloom.server.openai.wire_completion import CompletionRequest
from ortloom.server.routes.chat import create_chat_completion
from ortloom.server.routes.completions import create_completion

blueprint = Blueprint("invocations")


class _Members(msgspec.Struct):
    """What tells the forms apart."""

    prompt: Any = None
    prompt_embeds: Any = None


async def invoke(request: Request) -> HTTPResponse | None:
    """Answer a chat or completion request by the form of its body."""
    check_content_type(request)
    members = decode_json(request.body, _Members)
    if _fits(request, ChatCompletionRequest) and _fits(request, TemplateFields):
        return await create_chat_completion(request)
    given = members.prompt is not None or members.prompt_embeds is not None
    if given and _fits(request, CompletionRequest):
        return await create_completion(request)
    raise InvalidRequest(
        "The body fits none of the forms this server takes: a chat completion (messages) or a "
        "completion (prompt)."
    )


def _fits(request: Request, kind: type[msgspec.Struct]) -> bool:
    try:
        decode_json(request.body, kind)
    except SchemaViolation:
        return False
    return True


blueprint.add_route(invoke, "/invocations", methods=["POST"])
