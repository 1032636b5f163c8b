"""The front process: `python -m ortloom.server.front --control-fd N --parent PID`.

The supervisor starts it; what to serve, and on which socket, is the first message on N.
"""

import argparse
import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from sanic import Sanic

from ortloom import logs
from ortloom.errors import EngineDead, OrtloomError
from ortloom.models.chat_template import ChatTemplate
from ortloom.models.generation_config import GenerationDefaults
from ortloom.models.manifest import Manifest
from ortloom.models.tokenizer import Tokenizer
from ortloom.parent_death import die_with_parent
from ortloom.runtime.zmq_client import ZmqClient
from ortloom.server.app import create_app, route_lines
from ortloom.server.context import FrontContext
from ortloom.server.control import FrontFailed, FrontReady, Handoff, frame, receive_handoff
from ortloom.server.metrics import FrontMetrics
from ortloom.server.protocol import LoomProtocol
from ortloom.server.supervisor_link import SupervisorLink

logger = logging.getLogger("ortloom.server")

_BACKLOG = 2048
_ENGINE_PATIENCE = 10.0  # seconds; an engine in a long step answers after it


def build_context(handoff: Handoff) -> FrontContext:
    """Load what a front needs of the bundle.

    Raises:
        ManifestError: the bundle, its tokenizer or its template cannot be used.
        ConfigError: a generation or template setting does not fit.
    """
    config = handoff.config
    model = config.model
    bundle = Path(model.bundle)
    manifest = Manifest.load(bundle)
    tokenizer = None
    tokenizer_folder = bundle if model.tokenizer is None else Path(model.tokenizer)
    tokenizer_config = None if model.tokenizer_config is None else Path(model.tokenizer_config)
    if not model.skip_tokenizer_init:
        tokenizer = Tokenizer.load(tokenizer_folder, tokenizer_config)
    names = model.served_model_names or (model.bundle,)
    limit = model.max_model_len or manifest.architecture.max_position_embeddings
    if limit < 1:
        limit = manifest.architecture.max_position_embeddings
    return FrontContext(
        config=config,
        manifest=manifest,
        client=ZmqClient(handoff.engine_address),
        metrics=FrontMetrics(names[0], limit, config.log.log_stats),
        tokenizer=tokenizer,
        chat_template=(
            None
            if tokenizer is None
            else ChatTemplate.load(
                tokenizer_folder,
                tokenizer,
                config.front.chat_template,
                own_config=tokenizer_config is None,
            )
        ),
        defaults=GenerationDefaults.resolve(
            bundle,
            model.generation_config,
            model.override_generation_config,
            manifest.architecture.eos_token_ids,
        ),
        created=int(handoff.started),
        served_names=names,
        long_texts=ThreadPoolExecutor(
            config.front.renderer_workers, thread_name_prefix="long-text"
        ),
    )


class Stopper:
    """Ends the event loop once, however often and however early it is asked to.

    Sanic's own signal handler stops whatever the loop is running; during its start-up steps that
    stop is lost and the server would run on.
    """

    def __init__(self, app: Sanic) -> None:
        self._app = app
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Stop serving as soon as the server is up."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._stop())

    async def _stop(self) -> None:
        while not self._app.state.is_running:
            await asyncio.sleep(0.01)
        asyncio.get_running_loop().stop()


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
    gc.collect()
    gc.freeze()  # what loading made lives for ever
    app.run(
        sock=listener,
        protocol=LoomProtocol,
        single_process=True,
        backlog=_BACKLOG,
        register_sys_signals=False,
        access_log=False,
        motd=False,
    )


async def _report_ready(app: Sanic, front: FrontContext, link: SupervisorLink) -> None:
    client = front.client
    if not isinstance(client, ZmqClient):
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
    logs.set_up(handoff.config.log.level, f"front-{handoff.index}")
    try:
        front = build_context(handoff)
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
