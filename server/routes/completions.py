"""POST /v1/completions."""

from sanic import HTTPResponse, Request

from ortloom.server.blueprint import Blueprint
from ortloom.server.context import context_of
from ortloom.server.limits import read_json
from ortloom.server.openai import completions
from ortloom.server.openai.wire_completion import CompletionRequest

blueprint = Blueprint("completions")


async def create_completion(request: Request) -> HTTPResponse | None:
    """Generate text after a prompt."""
    body = read_json(request, CompletionRequest)
    completion = await completions.prepare(body, request, context_of(request))
    if body.stream:
        await completions.stream(completion, request)
        return None
    return await completions.answer(completion)


blueprint.add_route(create_completion, "/v1/completions", methods=["POST"])
