"""`--disable-frontend-multiprocessing`: engine and HTTP side in one process, without a supervisor.

The engine runs in a thread behind the same client interface. Text work and steps then share one
interpreter; several processes are faster. Ends like the supervisor: 0 after SIGTERM or SIGINT
(a second one ends at once), else with the code of what failed.
"""

import asyncio
import logging
import os
import signal
import time

from sanic import Sanic

from ortloom import logs
from ortloom.config import Config
from ortloom.errors import EngineDead, OrtloomError
from ortloom.log_setup import set_up_logging
from ortloom.runtime import engine_process
from ortloom.runtime.engine_core import EngineCore
from ortloom.runtime.in_process_client import InProcessClient
from ortloom.server.app import create_app, route_lines
from ortloom.server.context import FrontContext
from ortloom.server.control import FrontReady
from ortloom.server.front_context import build_context
from ortloom.server.listening import bind, url_of
from ortloom.server.serve_app import Stopper, serve_app
from ortloom.server.spawn import raise_file_limit
from ortloom.server.startup_report import announce

logger = logging.getLogger("ortloom.supervisor")

ENGINE_GONE_LINGER = 3.0  # seconds in which clients still see errors and a 503 on /health
_LOOK = 0.2


def engine_of(config: Config) -> EngineCore:
    """A warm engine over the runner that the configuration asks for."""
    return EngineCore(config, engine_process.load_runner(config))


def run(config: Config) -> int:
    """Serve until a signal or a failure; returns the exit code."""
    raise_file_limit()
    set_up_logging(config.log, "server")
    try:
        with bind(config.front) as listener:
            server = OneProcess(config)
            serve_app(server.app, config.front, listener)
    except OrtloomError as error:
        logs.say(f"ortloom: error: {error}")
        return error.exit_code
    finally:
        if config.front.uds is not None and os.path.exists(config.front.uds):
            os.unlink(config.front.uds)
    return server.exit_code


class OneProcess:
    """The app with its engine.

    Args:
        config: the tree.

    Attributes:
        app: serve it.
        exit_code: of the process once it was served.

    Raises:
        OrtloomError: the bundle or a setting cannot be used.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._started = time.time()
        self._client = InProcessClient(lambda: engine_of(config))
        self._front: FrontContext = build_context(config, self._client, self._started)
        self.exit_code = 0
        self._signals = 0
        self.app = create_app(self._front)
        self._stopper = Stopper(self.app)
        self.app.register_listener(self._start, "before_server_start")
        self.app.register_listener(self._take_signals, "after_server_start")
        self.app.register_listener(self._end, "after_server_stop")

    async def _start(self, app: Sanic) -> None:
        await self._client.start()
        app.add_task(self._report(app))

    async def _end(self, app: Sanic) -> None:
        await self._client.close()

    async def _take_signals(self, app: Sanic) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals > 1:
            logger.warning("shutting down at once")
            if self._config.front.uds is not None and os.path.exists(self._config.front.uds):
                os.unlink(self._config.front.uds)
            os._exit(self.exit_code)
        logger.info("shutting down")
        self._stopper.request()

    async def _report(self, app: Sanic) -> None:
        """Say that the server is up; end it when the engine has ended."""
        try:
            ready = await self._client.wait_ready()
        except EngineDead as error:
            self._fail(str(error))
            self._stopper.request()
            return
        listening = app.state.server_info[0].settings["sock"]
        url = url_of(listening, tls=self._config.front.tls is not None)
        report = FrontReady(ready, route_lines(app), self._front.defaults.describe())
        announce(self._config, report, url, self._started)
        while self._client.dead is None:
            await asyncio.sleep(_LOOK)
        if not self._signals:
            self._fail(self._client.dead)
            await asyncio.sleep(ENGINE_GONE_LINGER)
            self._stopper.request()

    def _fail(self, reason: str) -> None:
        failure = self._client.failure
        self.exit_code = failure.exit_code if isinstance(failure, OrtloomError) else 1
        logs.say(f"ortloom: error: {reason}")
