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

ALL, ANY = "allOf", "anyOf"

Body = tuple[str, tuple[type, ...]]
"""Several types, and whether a body fits all of them or any."""

BODIES: dict[str, Body] = {
    "/v1/completions": (ALL, (CompletionRequest,)),
    "/v1/chat/completions": (ALL, (ChatCompletionRequest, TemplateFields)),
    "/v1/chat/completions/batch": (ALL, (ChatCompletionRequest, BatchFields)),
    "/v1/messages": (ALL, (MessagesRequest,)),
    "/v1/messages/count_tokens": (ALL, (CountTokensRequest,)),
    "/v1/messages/render": (ALL, (MessagesRequest,)),
    "/v1/responses": (ALL, (ResponsesRequest,)),
    "/v1/responses/render": (ALL, (ResponsesRequest,)),
    "/inference/v1/generate": (ALL, (GenerateRequest,)),
    "/v1/completions/render": (ALL, (CompletionRequest,)),
    "/v1/chat/completions/render": (ALL, (ChatCompletionRequest, TemplateFields)),
    "/v1/completions/derender": (ALL, (DerenderCompletion,)),
    "/v1/chat/completions/derender": (ALL, (DerenderChat,)),
    "/invocations": (ANY, (ChatCompletionRequest, CompletionRequest)),
    "/tokenize": (ALL, (TokenizeRequest,)),
    "/detokenize": (ALL, (DetokenizeRequest,)),
    "/abort_requests": (ALL, (AbortBody,)),
    "/collective_rpc": (ALL, (RpcBody,)),
}

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
