"""POST /tokenize and POST /detokenize."""

import msgspec
from sanic import HTTPResponse, Request

from ortloom.errors import SchemaViolation
from ortloom.server.blueprint import Blueprint
from ortloom.server.context import FrontContext, context_of
from ortloom.server.limits import read_json
from ortloom.server.openai.chat_prompt import chat_prompt
from ortloom.server.openai.to_engine import (
    check_model,
    check_token_ids,
    decode,
    encode,
    engine_ready,
    tokenizer_of,
)
from ortloom.server.openai.wire_chat import TemplateFields
from ortloom.server.openai.wire_tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)

blueprint = Blueprint("tokenize")


async def tokenize(request: Request) -> HTTPResponse:
    """Token ids of a text, or of the prompt a chat request would send."""
    front = context_of(request)
    body = read_json(request, TokenizeRequest)
    check_model(body.model, front)
    tokenizer = tokenizer_of(front)
    if body.messages is not None:
        fields = read_json(request, TemplateFields)
        rendered = await chat_prompt(fields, bool(body.add_special_tokens), front)
        ids = rendered.token_ids
    elif body.prompt is not None:
        ids = await encode(body.prompt, body.add_special_tokens is not False, front)
    else:
        raise SchemaViolation("1 validation error: prompt or messages is required.", "body.prompt")
    strings = [tokenizer.token_str(i) for i in ids] if body.return_token_strs else None
    return _json(
        TokenizeResponse(
            count=len(ids), max_model_len=_context(front), tokens=ids, token_strs=strings
        )
    )


def _context(front: FrontContext) -> int:
    return engine_ready(front).max_model_len


async def detokenize(request: Request) -> HTTPResponse:
    """Text of token ids, special tokens included."""
    front = context_of(request)
    body = read_json(request, DetokenizeRequest)
    check_model(body.model, front)
    tokenizer = tokenizer_of(front)
    check_token_ids(body.tokens, max(tokenizer.vocab_size, engine_ready(front).vocab_size))
    return _json(DetokenizeResponse(prompt=await decode(body.tokens, front)))


def _json(value: msgspec.Struct) -> HTTPResponse:
    return HTTPResponse(msgspec.json.encode(value), content_type="application/json")


blueprint.add_route(tokenize, "/tokenize", methods=["POST"])
blueprint.add_route(detokenize, "/detokenize", methods=["POST"])
