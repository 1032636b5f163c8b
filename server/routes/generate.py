"""POST /inference/v1/generate."""

from sanic import HTTPResponse, Request

from ortloom.server.blueprint import Blueprint
from ortloom.server.context import context_of
from ortloom.server.limits import read_json
from ortloom.server.openai import generate_tokens
from ortloom.server.openai.wire_generate import GenerateRequest

blueprint = Blueprint("generate")


async def generate(request: Request) -> HTTPResponse | None:
    """Generate token ids after token ids."""
    body = read_json(request, GenerateRequest)
    work = generate_tokens.prepare(body, request, context_of(request))
    if body.stream:
        await generate_tokens.stream(work, request)
        return None
    return await generate_tokens.answer(work)


blueprint.add_route(generate, "/inference/v1/generate", methods=["POST"])
