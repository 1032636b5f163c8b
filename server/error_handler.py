"""Every error a client can see, in one mapping.

`OrtloomError` classes carry their status and type; Sanic's own exceptions are given the same
object form, except that an unknown route or method keeps the framework form vLLM has
(`{"detail": …}`). The text of an unexpected exception never leaves the process: the client gets
the request id, the log gets both.
"""

import logging
from http import HTTPStatus

import msgspec
from sanic import HTTPResponse, Request
from sanic.exceptions import MethodNotAllowed, NotFound, SanicException
from sanic.handlers import ErrorHandler

from ortloom.errors import OrtloomError, RequestError, SchemaViolation
from ortloom.server.anthropic.error_body import error_body, words_errors_of
from ortloom.server.context import context_of

logger = logging.getLogger("ortloom.server")

_JSON = "application/json"
_SANIC_TYPES = {400: "BadRequestError", 503: "ServiceUnavailableError"}


class ErrorObject(msgspec.Struct):
    """The inner object of an error body."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(msgspec.Struct):
    """`{"error": {"message", "type", "param", "code"}}`."""

    error: ErrorObject


def describe(error: BaseException, request: Request | None) -> ErrorObject:
    """The error object of an exception, safe to show."""
    if isinstance(error, RecursionError):
        error = SchemaViolation("The body is nested too deeply.", "body")
    if isinstance(error, OrtloomError):
        param = error.param if isinstance(error, RequestError) else None
        return ErrorObject(str(error), error.wire_type, param, error.status)
    if isinstance(error, SanicException) and error.status_code < 500:
        status = error.status_code
        return ErrorObject(str(error) or _phrase(status), _sanic_type(status), None, status)
    if isinstance(error, SanicException) and error.status_code == 503:
        return ErrorObject("the server cannot take the request now", _sanic_type(503), None, 503)
    request_id = request_id_of(request)
    text = f"Internal server error. Request id: {request_id}."
    return ErrorObject(text, "InternalServerError", None, 500)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def _sanic_type(status: int) -> str:
    return _SANIC_TYPES.get(status) or _phrase(status).replace(" ", "").replace("-", "")


def request_id_of(request: Request | None) -> str:
    """The id under which the log knows the request."""
    return str(getattr(request.ctx, "request_id", "unknown")) if request is not None else "unknown"


def error_json(error: BaseException, request: Request | None) -> bytes:
    """The error body as JSON text."""
    return msgspec.json.encode(ErrorBody(describe(error, request)))


def log_unexpected(request: Request | None, error: BaseException) -> None:
    """Log an exception that is a fault of ours, with its traceback; those that are the client's
    only with `--log-error-stack`."""
    code = describe(error, request).code
    if code >= 500 and not isinstance(error, OrtloomError):
        logger.error("request %s failed", request_id_of(request), exc_info=error)
    elif request is not None and context_of(request).config.log.error_stack:
        logger.error("request %s: answer %d", request_id_of(request), code, exc_info=error)


def error_response(request: Request, error: Exception) -> HTTPResponse:
    """The response to an exception."""
    log_unexpected(request, error)
    if isinstance(error, NotFound):
        return HTTPResponse(b'{"detail":"Not Found"}', 404, content_type=_JSON)
    if isinstance(error, MethodNotAllowed):
        body = b'{"detail":"Method Not Allowed"}'
        return HTTPResponse(body, 405, headers=dict(error.headers), content_type=_JSON)
    headers = dict(error.headers) if isinstance(error, SanicException) else {}
    described = describe(error, request)
    if described.code == 503:
        headers.setdefault("retry-after", str(getattr(error, "retry_after", 1)))
    if described.code == 401:
        headers["www-authenticate"] = "Bearer"
    if words_errors_of(request.path):
        body = error_body(described.message, described.type, described.param, described.code)
    else:
        body = msgspec.json.encode(ErrorBody(described))
    return HTTPResponse(body, described.code, headers=headers, content_type=_JSON)


class OrtloomErrorHandler(ErrorHandler):  # type: ignore[misc]
    """Sanic's hook: all exceptions go through `error_response`."""

    def response(self, request: Request, exception: Exception) -> HTTPResponse:
        """Turn an exception into a response, including those no handler is registered for."""
        return error_response(request, exception)

    @staticmethod
    def log(request: Request, exception: Exception) -> None:
        """Logging is done once, in `error_response`."""
