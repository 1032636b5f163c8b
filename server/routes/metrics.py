"""GET /metrics: the sum over all fronts, the engine's numbers once."""

import asyncio
from contextlib import suppress

from sanic import HTTPResponse, Request
from sanic.exceptions import NotFound

from ortloom.errors import EngineDead
from ortloom.runtime.messages import EngineStats
from ortloom.server.blueprint import Blueprint
from ortloom.server.context import FrontContext, context_of
from ortloom.server.engine_metrics import EngineFamilies
from ortloom.server.hidden_metrics import old_families
from ortloom.server.metrics_snapshot import Snapshot
from ortloom.server.metrics_text import CONTENT_TYPE, families_of, render

blueprint = Blueprint("metrics")

_STATS_SECONDS = 1.0


async def fresh_stats(front: FrontContext) -> EngineStats:
    """The engine's numbers now, or the newest known ones if it does not answer soon."""
    client = front.client
    if client.ready is not None:
        with suppress(TimeoutError, EngineDead):
            async with asyncio.timeout(_STATS_SECONDS):
                return await client.fetch_stats()
    return client.stats


def snapshot(front: FrontContext, stats: EngineStats) -> Snapshot:
    """This front's numbers now."""
    return Snapshot(families=families_of(front.metrics.registry), stats=stats)


async def metrics(request: Request, below: str = "") -> HTTPResponse:
    """Prometheus text; the path below /metrics is ignored."""
    front = context_of(request)
    if not front.config.metrics.serve:
        raise NotFound
    stats = await fresh_stats(front)
    total = await front.metrics_hub.total(snapshot(front, stats))
    families = list(total.families)
    if front.metrics.log_stats:
        engine = EngineFamilies(front.metrics.model_name, front.created)
        newest = total.stats or stats
        families += engine.build(newest, front.client.ready)
        if front.config.metrics.corrupted:
            families.append(engine.corrupted(newest))
    families += old_families(families, front.config.metrics.hidden_since)
    return HTTPResponse(render(families), content_type=CONTENT_TYPE)


blueprint.add_route(metrics, "/metrics", name="metrics", methods=["GET"])
blueprint.add_route(metrics, "/metrics/<below:path>", name="metrics_below", methods=["GET"])
