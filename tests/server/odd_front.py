"""A front without engine and supervisor, with routes that misbehave: `python -m odd_front PORT`."""

import asyncio
import sys
import time
from pathlib import Path

from sanic import Blueprint, HTTPResponse

from ortloom import logs
from ortloom.config import Config, FrontConfig, ModelConfig
from ortloom.errors import InvalidRequest, RequestFailed
from ortloom.models.generation_config import GenerationDefaults
from ortloom.models.manifest import Manifest
from ortloom.runtime.messages import EngineReady, EngineStats, ProviderReport
from ortloom.server import app as app_module
from ortloom.server.context import FrontContext
from ortloom.server.limits import read_json
from ortloom.server.metrics import FrontMetrics
from ortloom.server.protocol import LoomProtocol
from ortloom.server.sse import SseWriter

BIG = 8 * 1024 * 1024


class NoEngine:
    """Ready, and that is all."""

    ready = EngineReady(64, 256, 16, 4, 0, 1, 1, True, ProviderReport("none", "none"))
    dead = None
    stats = EngineStats()

    async def fetch_stats(self):
        return self.stats

    async def close(self):
        pass


async def break_raw(request):
    response = await request.respond(content_type="text/plain")
    await response.send("first")
    raise RuntimeError("secret text")


async def break_sse(request):
    async with SseWriter(request) as sse:
        await sse.send(b'{"n":1}')
        raise RuntimeError("secret text")


async def break_sse_known(request):
    async with SseWriter(request) as sse:
        await sse.send(b'{"n":1}')
        raise RequestFailed("the step failed")


async def break_early(request):
    async with SseWriter(request):
        raise InvalidRequest("not like this", "field")


async def break_plain(request):
    raise RuntimeError("secret text")


async def recursion(request):
    raise RecursionError


async def silent(request):
    async with SseWriter(request) as sse:
        await asyncio.sleep(float(request.args.get("seconds")))
        await sse.send(b"{}")


async def sleep(request):
    await asyncio.sleep(float(request.args.get("seconds")))
    return HTTPResponse(b"slept")


async def big(request):
    return HTTPResponse(b"x" * BIG)


async def flood(request):
    async with SseWriter(request) as sse:
        while True:
            await sse.send(b'"' + b"x" * 16384 + b'"')


async def echo(request):
    read_json(request, dict)
    return HTTPResponse(str(len(request.body)))


def build(bundle, front):
    context = FrontContext(
        config=Config(model=ModelConfig(bundle=bundle), front=front),
        manifest=Manifest.load(Path(bundle)),
        client=NoEngine(),
        metrics=FrontMetrics("odd", 64),
        tokenizer=None,
        chat_template=None,
        defaults=GenerationDefaults(),
        created=int(time.time()),
        served_names=("odd",),
    )
    app = app_module.create_app(context)
    odd = Blueprint("odd", url_prefix="/odd")
    for handler in (break_raw, break_sse, break_sse_known, break_early, break_plain):
        odd.add_route(handler, f"/{handler.__name__}")
    for handler in (recursion, silent, sleep, big, flood):
        odd.add_route(handler, f"/{handler.__name__}")
    odd.add_route(echo, "/echo", methods=["POST"])
    app.blueprint(odd)
    return app


if __name__ == "__main__":
    port, bundle = int(sys.argv[1]), sys.argv[2]
    logs.set_up("INFO", "odd")
    front = FrontConfig(
        port=port,
        send_timeout=1.0,
        request_deadline=1.5,
        sse_keep_alive_interval=0.2,
        head_timeout=1.0,
        body_timeout=1.0,
        shutdown_timeout=1.0,
        request_max_size=1 << 20,
    )
    build(bundle, front).run(
        host="127.0.0.1", port=port, protocol=LoomProtocol, single_process=True, motd=False
    )
