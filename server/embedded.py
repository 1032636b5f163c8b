"""A whole server inside an event loop that has other work too: engine in a thread, app on a
socket, no signals."""

import socket
import time

from ortloom.config import Config
from ortloom.errors import EngineDead
from ortloom.runtime.in_process_client import InProcessClient
from ortloom.server.app import create_app
from ortloom.server.front_context import build_context
from ortloom.server.one_process import engine_of
from ortloom.server.protocol import LoomProtocol


class EmbeddedServer:
    """An async context manager: inside it the server answers. Once a process.

    Args:
        config: the tree.
        listener: a listening socket, which stays the caller's.

    Raises:
        OrtloomError: the bundle or a setting cannot be used, or the engine cannot start.
    """

    def __init__(self, config: Config, listener: socket.socket) -> None:
        self._client = InProcessClient(lambda: engine_of(config))
        self._app = create_app(build_context(config, self._client, time.time()))
        self._listener = listener

    async def __aenter__(self) -> "EmbeddedServer":
        """Start, and wait for the engine's first step."""
        await self._client.start()
        try:
            await self._client.wait_ready()
        except EngineDead:
            raise self._client.failure or EngineDead("the engine ended") from None
        self._server = await self._app.create_server(
            sock=self._listener, protocol=LoomProtocol, return_asyncio_server=True
        )
        await self._server.startup()
        await self._server.before_start()
        await self._server.after_start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.before_stop()
        await self._server.close()
        await self._server.after_stop()
        await self._client.close()
