"""The Sanic application of one front: `create_app(context)`."""

import importlib
import logging
import pkgutil
import uuid
from collections.abc import Iterator

from sanic import Blueprint, Request, Sanic
from sanic.exceptions import RequestCancelled
from sanic.http import Stage
from sanic.response import BaseHTTPResponse

from ortloom.config import FrontConfig
from ortloom.server import cors, routes
from ortloom.server.admission import admit
from ortloom.server.body_log import log_reply
from ortloom.server.connections import ConnectionRegistry
from ortloom.server.context import FrontContext
from ortloom.server.draining import drain
from ortloom.server.error_handler import OrtloomErrorHandler, log_unexpected
from ortloom.server.load_header import add_load
from ortloom.server.middleware import MiddlewareChain, load_chain
from ortloom.server.route_choice import is_served

logger = logging.getLogger("ortloom.server")


class LoomSanic(Sanic):  # type: ignore[misc]
    """Sanic, with preflights answered for every path and broken streams cut instead of ended."""

    async def handle_request(self, request: Request) -> None:
        """Serve a request, through the user's middlewares if there are any."""
        chain: MiddlewareChain | None = self.ctx.middlewares
        if chain is None:
            await self.serve_request(request)
            return
        try:
            await chain.handle(request, self._admit_and_serve)
        except RequestCancelled:
            raise
        except Exception as error:
            await self.handle_exception(request, error)

    async def _admit_and_serve(self, request: Request) -> None:
        try:
            admit(request, self.ctx.front)
        except Exception as error:
            await self.handle_exception(request, error, False)
            return
        await self.serve_request(request)

    async def serve_request(self, request: Request) -> None:
        """Answer preflights before routing; they need neither route nor key."""
        if cors.is_preflight(request):
            response = await request.respond(cors.preflight(request))
            await response.send(end_stream=True)
            return
        await super().handle_request(request)

    async def handle_exception(
        self, request: Request, exception: BaseException, run_middleware: bool = True
    ) -> None:
        """As Sanic, but a response that already began is cut: a terminator would look clean."""
        stream = request.stream
        if stream is not None and stream.stage not in (Stage.HANDLER, Stage.REQUEST):
            log_unexpected(request, exception)
            if stream.stage is Stage.RESPONSE:
                stream.protocol.cut(request)
            return
        await super().handle_exception(request, exception, run_middleware)


def create_app(context: FrontContext) -> Sanic:
    """Build the app.

    Args:
        context: the front's objects; handlers reach them through `context_of(request)`.

    Raises:
        ConfigError: a middleware cannot be had.
    """
    app = LoomSanic(
        f"ortloom-{uuid.uuid4().hex[:8]}",
        error_handler=OrtloomErrorHandler(),
        configure_logging=False,
        strict_slashes=False,
    )
    app.config.update(sanic_config(context))
    app.ctx.front = context
    app.ctx.connections = ConnectionRegistry()
    chain = load_chain(context.config.front.middleware)
    app.ctx.middlewares = chain
    if chain is not None:
        app.register_listener(lambda app: chain.start(), "before_server_start")
        app.register_listener(lambda app: chain.stop(), "after_server_stop")
    cors.install(app)
    if context.config.front.enable_request_id_headers:
        app.register_middleware(_echo_request_id, "response")
    app.register_middleware(add_load, "response")
    if context.config.log.reply_bodies:
        app.register_middleware(log_reply, "response")
    tracer = context.tracer
    if tracer is not None:
        app.register_listener(lambda app: tracer.close(), "after_server_stop")
    peers = context.peers
    if peers is not None:
        app.register_listener(lambda app: peers.start(), "before_server_start")
        app.register_listener(lambda app: peers.close(), "after_server_stop")
    for blueprint in blueprints(context.config.front):
        app.blueprint(blueprint)
    app.register_listener(drain, "before_server_stop")
    return app


def sanic_config(context: FrontContext) -> dict[str, object]:
    """Sanic's settings. Its timers measure idle time, so ours, which are total, must fire first."""
    front = context.config.front
    return {
        "AUTO_EXTEND": False,
        "ACCESS_LOG": False,
        "FALLBACK_ERROR_FORMAT": "json",
        "KEEP_ALIVE": True,
        "KEEP_ALIVE_TIMEOUT": front.keep_alive_timeout,
        "REQUEST_TIMEOUT": front.head_timeout + 60,
        "RESPONSE_TIMEOUT": front.request_deadline + 60,
        "REQUEST_MAX_SIZE": front.request_max_size,
        "REQUEST_BUFFER_SIZE": 64 * 1024,
        "GRACEFUL_TCP_CLOSE_TIMEOUT": front.send_timeout,
        "GRACEFUL_SHUTDOWN_TIMEOUT": 1.0,
        "MOTD": False,
        "TOUCHUP": True,
    }


def blueprints(config: FrontConfig) -> Iterator[Blueprint]:
    """The `blueprint` of every served module in `server/routes`, in alphabetical order."""
    for module in sorted(pkgutil.iter_modules(routes.__path__), key=lambda m: m.name):
        if not is_served(module.name, config):
            continue
        found = importlib.import_module(f"{routes.__name__}.{module.name}")
        if hasattr(found, "blueprint"):
            yield found.blueprint


def _echo_request_id(request: Request, response: BaseHTTPResponse) -> None:
    response.headers["x-request-id"] = request.ctx.request_id


def route_lines(app: Sanic) -> list[str]:
    """One line per path with its methods, for the start-up log."""
    methods: dict[str, set[str]] = {}
    for route in app.router.routes:
        methods.setdefault(f"/{route.path}", set()).update(route.methods)
    return [f"{path}, Methods: {', '.join(sorted(found))}" for path, found in methods.items()]
