"""The front process: `python -m ortloom.server.front --control-fd N --parent PID`.

The supervisor starts it; what to serve, and on which socket, is the first message on N.
"""

import gc

if __name__ == "__main__":
    # Next to nothing that loading modules makes is garbage; looking for it is a tenth of a start.
    gc.disable()

    from ortloom.server import lean_sanic

    lean_sanic.install()

import argparse
import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sanic import Sanic

from ortloom.errors import EngineDead, OrtloomError
from ortloom.log_setup import set_up_logging
from ortloom.models.manifest import Manifest
from ortloom.parent_death import die_with_parent
from ortloom.runtime.streaming_client import StreamingClient
from ortloom.runtime.zmq_client import ZmqClient
from ortloom.server.app import create_app, route_lines
from ortloom.server.context import FrontContext
from ortloom.server.control import FrontFailed, FrontReady, Handoff, frame, receive_handoff
from ortloom.server.engineless import EnginelessClient
from ortloom.server.front_context import build_context
from ortloom.server.serve_app import Stopper, serve_app
from ortloom.server.supervisor_link import SupervisorLink

logger = logging.getLogger("ortloom.server")

_ENGINE_PATIENCE = 10.0  # seconds; an engine in a long step answers after it


def _client(handoff: Handoff) -> StreamingClient:
    config = handoff.config
    if config.front.routes.render_only:
        return EnginelessClient(config, Manifest.load(Path(config.model.bundle)))
    return ZmqClient(handoff.engine_address)


def run_app(
    app: Sanic,
    front: FrontContext,
    handoff: Handoff,
    listener: socket.socket,
    control: socket.socket,
) -> None:
    """Serve until SIGTERM or the supervisor's Drain; the drain is a listener of the app."""
    stopper = Stopper(app)
    link = SupervisorLink(control, front, stopper.request)
    front.metrics_hub = link

    async def start(app: Sanic) -> None:
        await link.start()
        await front.client.start()
        client = front.client
        if handoff.waits and isinstance(client, ZmqClient):
            # Until then connections wait, or go to the other fronts.
            with suppress(EngineDead, TimeoutError):
                await asyncio.wait_for(client.wait_ready(), _ENGINE_PATIENCE)
        app.add_task(_report_ready(app, front, link))

    async def stop(app: Sanic) -> None:
        await link.close()
        await front.client.close()

    async def take_signals(app: Sanic) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopper.request)

    app.register_listener(start, "before_server_start")
    app.register_listener(take_signals, "after_server_start")
    app.register_listener(stop, "after_server_stop")
    serve_app(app, front.config.front, listener)


async def _report_ready(app: Sanic, front: FrontContext, link: SupervisorLink) -> None:
    client = front.client
    if not isinstance(client, StreamingClient):
        return
    try:
        ready = await client.wait_ready()
    except EngineDead:
        return
    link.send(FrontReady(ready, route_lines(app), front.defaults.describe()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of the process; returns the exit code."""
    parser = argparse.ArgumentParser(prog="ortloom-front", description="One ortloom front.")
    parser.add_argument("--control-fd", type=int, required=True, help="end of a socket pair")
    parser.add_argument("--parent", type=int, required=True, help="pid to end with")
    options = parser.parse_args(arguments)
    die_with_parent(options.parent)
    control = socket.socket(fileno=options.control_fd)
    received = receive_handoff(control)
    if received is None:
        return 0  # the supervisor ended before there was anything to serve
    handoff, listener = received
    set_up_logging(handoff.config.log, f"front-{handoff.index}")
    try:
        front = build_context(handoff.config, _client(handoff), handoff.started)
        if handoff.config.front.enable_responses_store and handoff.config.front.num_fronts > 1:
            front.share_responses(Path(handoff.folder), handoff.index)
        app = create_app(front)
    except OrtloomError as error:
        control.sendall(frame(FrontFailed(str(error), error.exit_code)))
        return error.exit_code
    except Exception as error:
        text = f"a front could not start ({type(error).__name__}: {error})"
        logger.debug("%s", text, exc_info=error)
        control.sendall(frame(FrontFailed(" ".join(text.split()), 1)))
        return 1
    run_app(app, front, handoff, listener, control)
    return 0


if __name__ == "__main__":
    sys.exit(main())
