"""How a front ends: nothing is dropped silently and nothing can hold it up.

Sanic closes its listening socket and waits for live connections before its own grace period; on
CPython 3.12 and later a running stream makes that wait endless. So all connections are gone
before Sanic gets there: this runs in `before_server_stop`.
"""

import asyncio
import logging

from sanic import Sanic

from ortloom.server.connections import ConnectionRegistry
from ortloom.server.context import context_of_app

logger = logging.getLogger("ortloom.server")

_LAST_WORDS = 2.0  # seconds for aborted handlers to write their error event
_FLUSH = 1.0  # seconds for written bytes to leave


async def drain(app: Sanic) -> None:
    """Finish what is in flight within the shutdown timeout, abort the rest, close everything."""
    front = context_of_app(app)
    registry: ConnectionRegistry = app.ctx.connections
    front.in_flight.draining = True
    registry.stop_keep_alive()
    registry.close_idle()
    timeout = front.config.front.shutdown_timeout
    if len(front.in_flight) and timeout > 0:
        logger.info("waiting up to %g s for %d requests", timeout, len(front.in_flight))
    if not await front.in_flight.wait_idle(timeout):
        logger.warning("aborting %d requests", len(front.in_flight))
        front.in_flight.abort_all()
        await front.in_flight.wait_idle(_LAST_WORDS)
    await _flush(registry)
    registry.abort_all()


async def _flush(registry: ConnectionRegistry) -> None:
    registry.close_idle()
    deadline = asyncio.get_running_loop().time() + _FLUSH
    while len(registry) and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.01)
