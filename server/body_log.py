"""Bodies of replies in the log, for debugging (`VLLM_DEBUG_LOG_API_SERVER_RESPONSE=1`)."""

import logging

from sanic import HTTPResponse, Request
from sanic.response import BaseHTTPResponse

logger = logging.getLogger("ortloom.replies")


def log_body(request: Request, data: bytes) -> None:
    """One body, or one write of a stream."""
    text = data.decode(errors="replace")
    logger.info("request %s: response_body=%s", request.ctx.request_id, text)


def log_reply(request: Request, response: BaseHTTPResponse) -> None:
    """Response middleware; streams log what they write themselves."""
    if isinstance(response, HTTPResponse) and response.body:
        log_body(request, response.body)
