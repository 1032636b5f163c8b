"""What the routes take: body types and query parameters by path.

A path that is not here takes no body, or one that is not described.
"""

from typing import Any

from ortloom.server.anthropic.wire import CountTokensRequest, MessagesRequest
from ortloom.server.openai.responses.wire import ResponsesRequest
from ortloom.server.openai.wire_batch import BatchFields
from ortloom.server.openai.wire_chat import ChatCompletionRequest, TemplateFields
from ortloom.server.openai.wire_completion import CompletionRequest
from ortloom.server.openai.wire_derender import DerenderChat, DerenderCompletion
from ortloom.server.openai.wire_generate import GenerateRequest
from ortloom.server.openai.wire_tokenize import DetokenizeRequest, TokenizeRequest
from ortloom.server.routes.dev import AbortBody, RpcBody

BODIES: dict[str, tuple[type, ...]] = {
    "/v1/completions": (CompletionRequest,),
    "/v1/chat/completions": (ChatCompletionRequest, TemplateFields),
    "/v1/chat/completions/batch": (ChatCompletionRequest, BatchFields),
    "/v1/messages": (MessagesRequest,),
    "/v1/messages/count_tokens": (CountTokensRequest,),
    "/v1/messages/render": (MessagesRequest,),
    "/v1/responses": (ResponsesRequest,),
    "/v1/responses/render": (ResponsesRequest,),
    "/inference/v1/generate": (GenerateRequest,),
    "/v1/completions/render": (CompletionRequest,),
    "/v1/chat/completions/render": (ChatCompletionRequest, TemplateFields),
    "/v1/completions/derender": (DerenderCompletion,),
    "/v1/chat/completions/derender": (DerenderChat,),
    "/tokenize": (TokenizeRequest,),
    "/detokenize": (DetokenizeRequest,),
    "/abort_requests": (AbortBody,),
    "/collective_rpc": (RpcBody,),
}
"""The types that a body fits, all of them."""

STREAMS = frozenset(
    {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/responses",
        "/v1/responses/{response_id}",
        "/inference/v1/generate",
        "/invocations",
    }
)
"""Paths that answer with server-sent events where the body asks for them."""

_MODE = {"type": "string", "enum": ["abort", "wait", "keep"], "default": "abort"}
_SWITCH = {"type": "boolean"}

QUERIES: dict[str, dict[str, dict[str, Any]]] = {
    "/v1/responses/{response_id}": {
        "stream": _SWITCH,
        "starting_after": {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
    },
    "/server_info": {"config_format": {"type": "string", "enum": ["text", "json"]}},
    "/reset_prefix_cache": {"reset_running_requests": _SWITCH, "reset_external": _SWITCH},
    "/pause": {"mode": _MODE, "clear_cache": {"type": "boolean", "default": True}},
    "/sleep": {"level": {"type": "integer", "enum": [0, 1, 2], "default": 1}, "mode": _MODE},
    "/wake_up": {
        "tags": {
            "type": "array",
            "items": {"type": "string", "enum": ["weights", "kv_cache", "scheduling"]},
        }
    },
}
"""Query parameters of a path: name -> schema."""

EMPTY = frozenset(
    {
        "/health",
        "/ping",
        "/sleep",
        "/wake_up",
        "/release_kv_cache_memory",
        "/reset_mm_cache",
        "/reset_encoder_cache",
        "/start_profile",
        "/stop_profile",
    }
)
"""Paths that answer 200 without a body."""

OTHER_CONTENT = {"/metrics": "text/plain", "/docs": "text/html", "/redoc": "text/html"}
"""Content types that are not JSON."""
