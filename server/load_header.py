"""The ORCA header: how busy the engine is, in replies to requests that ask for it.

A request's `endpoint-load-metrics-format: TEXT | JSON` on the completion routes gets the header
`endpoint-load-metrics`; streams get none.
"""

import json
import logging

from sanic import HTTPResponse, Request

from ortloom.server.context import context_of

logger = logging.getLogger("ortloom.server")

ASKED, ANSWER = "endpoint-load-metrics-format", "endpoint-load-metrics"
_ROUTES = frozenset({"/v1/completions", "/v1/chat/completions"})


def add_load(request: Request, response: HTTPResponse) -> None:
    """Response middleware."""
    asked = request.headers.getone(ASKED, None)
    if asked is None or request.path not in _ROUTES or not isinstance(response, HTTPResponse):
        return
    if response.status != 200 or not response.body:
        return  # an error, or a stream
    stats = context_of(request).client.stats
    named = {
        "kv_cache_usage_perc": stats.kv_cache_usage,
        "num_requests_waiting": stats.num_requests_waiting,
    }
    match asked.strip().upper():
        case "TEXT":
            pairs = ", ".join(f"named_metrics.{name}={value}" for name, value in named.items())
            response.headers[ANSWER] = f"TEXT {pairs}"
        case "JSON":
            response.headers[ANSWER] = "JSON " + json.dumps({"named_metrics": named})
        case _:
            logger.warning("request %s: unknown %s", request.ctx.request_id, ASKED)
