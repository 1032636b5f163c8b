"""Errors as the Messages API words them: `{"type": "error", "error": {"type", "message"}}`.

A body that does not fit the schema keeps the members of the OpenAI form (`type` "Bad Request",
`param`, `code`) beside the outer `type`: that is what vLLM answers there.
"""

import msgspec

_ROUTES = "/v1/messages"
_SCHEMA = "Bad Request"
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def words_errors_of(path: str) -> bool:
    """True for paths whose errors have this form."""
    return path == _ROUTES or path.startswith(f"{_ROUTES}/")


def error_body(message: str, wire_type: str, param: str | None, status: int) -> bytes:
    """The JSON text of an error.

    Args:
        message: for the reader.
        wire_type: type in the OpenAI form.
        param: the field, if one is known.
        status: HTTP status that goes, or would go, with it.
    """
    inner: dict[str, object]
    if wire_type == _SCHEMA:
        inner = {"message": message, "type": wire_type, "param": param, "code": status}
    else:
        fallback = "api_error" if status >= 500 else _TYPES[400]
        inner = {"type": _TYPES.get(status, fallback), "message": message}
    return msgspec.json.encode({"type": "error", "error": inner})
