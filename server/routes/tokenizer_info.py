"""GET /tokenizer_info and its older name, with --enable-tokenizer-info-endpoint."""

from typing import Any

import msgspec
from sanic import HTTPResponse, Request

from ortloom.models.tokenizer import Tokenizer
from ortloom.server.blueprint import Blueprint
from ortloom.server.context import context_of
from ortloom.server.openai.to_engine import tokenizer_of

blueprint = Blueprint("tokenizer_info")

_TOKEN_MEMBERS = frozenset({"content", "lstrip", "rstrip", "normalized", "single_word"})
"""An object with `content` and one more of these is a token."""


def plain(value: Any) -> Any:
    """A value of tokenizer_config.json with its token objects as strings."""
    if isinstance(value, dict):
        members = _TOKEN_MEMBERS & value.keys()
        if isinstance(value.get("content"), str) and len(members) > 1:
            return value["content"]
        return {name: plain(member) for name, member in value.items()}
    return [plain(member) for member in value] if isinstance(value, list) else value


def describe(tokenizer: Tokenizer, template: str | None) -> dict[str, Any]:
    """The tokenizer's configuration, with the class and template that are in use."""
    info: dict[str, Any] = plain(tokenizer.config)
    info.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    if template is not None:
        info["chat_template"] = template
    return info


async def tokenizer_info(request: Request) -> HTTPResponse:
    """What the tokenizer is."""
    front = context_of(request)
    loaded = front.chat_template
    template = None if loaded is None else loaded.default_source
    info = describe(tokenizer_of(front), template)
    return HTTPResponse(msgspec.json.encode(info), content_type="application/json")


blueprint.add_route(tokenizer_info, "/tokenizer_info", name="tokenizer_info", methods=["GET"])
blueprint.add_route(tokenizer_info, "/get_tokenizer_info", name="older_name", methods=["GET"])
