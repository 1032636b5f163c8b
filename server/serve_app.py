"""Running the Sanic app of a front on a socket until its event loop is stopped."""

import asyncio
import gc
import socket
import ssl

from sanic import Sanic

from ortloom.config import FrontConfig, TlsConfig
from ortloom.server.protocol import LoomProtocol
from ortloom.server.tls import RenewedContext, server_context

BACKLOG = 2048


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


def serve_app(app: Sanic, front: FrontConfig, listener: socket.socket) -> None:
    """Serve until the loop is stopped.

    Raises:
        ConfigError: the TLS files cannot be used.
    """
    context = _listening_context(app, front.tls)
    gc.freeze()  # what loading made lives for ever
    gc.enable()
    app.prepare(
        sock=listener,
        ssl=context,
        protocol=LoomProtocol,
        single_process=True,
        backlog=BACKLOG,
        register_sys_signals=False,
        access_log=False,
        motd=False,
    )
    if context is not None:
        # until the handshake is over a connection has none of our own limits
        limits = {"ssl_handshake_timeout": front.head_timeout}
        app.state.server_info[0].settings["asyncio_server_kwargs"] = limits
    app.serve_single(primary=app)


def _listening_context(app: Sanic, tls: TlsConfig | None) -> ssl.SSLContext | None:
    """The context to listen with, None = plain HTTP; with refresh the app watches the files."""
    if tls is None:
        return None
    if not tls.refresh:
        return server_context(tls)
    renewed = RenewedContext(tls)
    app.add_task(renewed.watch)
    return renewed.listening
