"""POST .../render and .../derender of completions and chat: the halves of a request without the
engine between them.
"""

from typing import Any

import msgspec
from sanic import HTTPResponse, Request

from ortloom.server.blueprint import Blueprint
from ortloom.server.context import context_of
from ortloom.server.limits import read_json
from ortloom.server.openai import chat, completions, derender
from ortloom.server.openai.render import rendered
from ortloom.server.openai.wire_chat import ChatCompletionRequest, TemplateFields
from ortloom.server.openai.wire_completion import CompletionRequest
from ortloom.server.openai.wire_derender import DerenderChat, DerenderCompletion

blueprint = Blueprint("render")


async def render_completion(request: Request) -> HTTPResponse:
    """The generate requests of a completion, one a prompt."""
    front = context_of(request)
    body = read_json(request, CompletionRequest)
    work = await completions.prepare(body, request, front)
    return _json(rendered(work.job, body, front))


async def render_chat(request: Request) -> HTTPResponse:
    """The generate request of a chat completion."""
    front = context_of(request)
    body = read_json(request, ChatCompletionRequest)
    fields = read_json(request, TemplateFields)
    work = await chat.prepare(body, fields, request, front)
    return _json(rendered(work.job, body, front)[0])


async def derender_completion(request: Request) -> HTTPResponse:
    """The completion of generated tokens; with `stream`, one chunk of it."""
    front = context_of(request)
    asked = read_json(request, DerenderCompletion)
    work = derender.completion_chunk if asked.stream else derender.completion_reply
    return _json(await work(asked, request, front))


async def derender_chat(request: Request) -> HTTPResponse:
    """The chat completion of generated tokens; with `stream`, one chunk of it."""
    front = context_of(request)
    asked = read_json(request, DerenderChat)
    work = derender.chat_chunk if asked.stream else derender.chat_reply
    return _json(await work(asked, request, front))


def _json(value: Any) -> HTTPResponse:
    return HTTPResponse(msgspec.json.encode(value), content_type="application/json")


for handler, path in (
    (render_completion, "/v1/completions/render"),
    (render_chat, "/v1/chat/completions/render"),
    (derender_completion, "/v1/completions/derender"),
    (derender_chat, "/v1/chat/completions/derender"),
):
    blueprint.add_route(handler, path, methods=["POST"])
