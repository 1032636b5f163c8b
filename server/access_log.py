"""One line per request, at its end. Prompts, outputs, headers and keys are never in it."""

import logging
import time

from sanic import Request

from ortloom.server.access_record import AccessRecord
from ortloom.server.context import FrontContext

logger = logging.getLogger("ortloom.access")

_UNMEASURED = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info"})


def record_exchange(
    front: FrontContext, request: Request, status: int, size_in: int, size_out: int
) -> None:
    """Write the line and count the exchange.

    Args:
        front: the front's context.
        request: the request; of a refused head it is an empty one.
        status: sent status, 499 when the client left before the end.
        size_in: body bytes read.
        size_out: bytes sent, head included.
    """
    record: AccessRecord = request.ctx.record
    seconds = time.monotonic() - record.start
    route = request.route
    handler = f"/{route.path}" if route is not None else "none"
    if handler not in _UNMEASURED and not handler.startswith("/metrics/"):
        front.metrics.http(handler, request.method, status, seconds, size_in, size_out)
    settings = front.config.front
    if not settings.access_log or request.path in settings.access_log_skip:
        return
    client = f"{request.ip}:{request.port}" if request.ip else "-"
    logger.info(
        '%s "%s %s" %d %.3fs in=%d out=%d id=%s%s',
        client,
        request.method,
        request.path,
        status,
        seconds,
        size_in,
        size_out,
        request.ctx.request_id,
        _tokens(record),
        extra={
            "client_addr": client,
            "request_line": f"{request.method} {request.path} HTTP/1.1",
            "status_code": status,
        },
    )


def _tokens(record: AccessRecord) -> str:
    if not record.finish_reason:
        return ""
    text = (
        f" prompt={record.prompt_tokens} cached={record.cached_tokens}"
        f" output={record.output_tokens} finish={record.finish_reason}"
    )
    if record.first_token:
        text += f" ttft_ms={1000 * (record.first_token - record.start):.1f}"
    return text
