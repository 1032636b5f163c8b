"""What the bodies' types do not tell: forms of members that are told apart by hand, and errors."""

from typing import Any

_TEXT = {"type": "string"}
_TOKEN_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}

_PROMPT: dict[str, Any] = {
    "required": ["prompt"],
    "properties": {
        "prompt": {
            "anyOf": [
                _TEXT,
                {"type": "array", "minItems": 1, "items": _TEXT},
                _TOKEN_IDS,
                {"type": "array", "minItems": 1, "items": _TOKEN_IDS},
            ]
        },
    },
}

_CONVERSATION: dict[str, Any] = {"properties": {"messages": {"minItems": 1}}}


def _member(name: str, types: tuple[str, ...], required: bool) -> dict[str, Any]:
    """A member that is a request of another route."""
    references = [{"$ref": f"#/components/schemas/{kind}"} for kind in types]
    return {"required": [name] if required else [], "properties": {name: {"allOf": references}}}


FURTHER: dict[str, dict[str, Any]] = {
    "/v1/completions": _PROMPT,
    "/v1/completions/render": _PROMPT,
    "/v1/completions/derender": _member("completion_request", ("CompletionRequest",), False),
    "/v1/chat/completions/batch": _CONVERSATION,
    "/v1/chat/completions/derender": _member(
        "chat_request", ("ChatCompletionRequest", "TemplateFields"), False
    ),
    "/v1/messages": _CONVERSATION,
    "/v1/messages/count_tokens": _CONVERSATION,
    "/tokenize": {
        "anyOf": [
            {"required": ["prompt"], "properties": {"prompt": _TEXT}},
            {"$ref": "#/components/schemas/TemplateFields"},
        ]
    },
}
"""A schema that a path's body fits beside those of its types."""

EITHER: dict[str, tuple[str, ...]] = {"/invocations": ("/v1/chat/completions", "/v1/completions")}
"""Paths that take any of the bodies of others."""

ID_FORMS = {"response_id": "^resp_"}
"""Patterns of path parameters."""

MESSAGES_ERROR: dict[str, Any] = {
    "title": "MessagesError",
    "description": "An error in the form of the Messages API.",
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}
"""What stands in place of `ErrorBody` on the routes of the Messages API."""
