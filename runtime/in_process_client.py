"""An engine in a thread of this process, behind the same client interface as a process."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable

from ortloom.errors import OrtloomError
from ortloom.runtime.engine_core import EngineCore
from ortloom.runtime.engine_protocols import Delivery
from ortloom.runtime.messages import ClientMessage, EngineMessage
from ortloom.runtime.streaming_client import StreamingClient

log = logging.getLogger("ortloom.engine")

CLIENT_ID = b"in-process"


class QueueInbox:
    """An inbox other threads put messages into; None only wakes the engine."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[ClientMessage | None] = queue.SimpleQueue()

    def put(self, message: ClientMessage | None) -> None:
        """Add a message."""
        self._queue.put(message)

    def drain(self, timeout: float | None) -> list[tuple[bytes, ClientMessage]]:
        """See Inbox."""
        found: list[tuple[bytes, ClientMessage]] = []
        block = timeout is None or timeout > 0
        try:
            while True:
                message = self._queue.get(block=block, timeout=timeout if block else None)
                block = False
                if message is not None:
                    found.append((CLIENT_ID, message))
        except queue.Empty:
            return found


class InProcessClient(StreamingClient):
    """One engine thread; `LLM` and tests use it.

    Args:
        load: makes the engine, in the engine thread (it may take seconds).
    """

    def __init__(self, load: Callable[[], EngineCore]) -> None:
        super().__init__()
        self._load = load
        self._inbox = QueueInbox()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._core: EngineCore | None = None
        self._closing = False
        self._ended = asyncio.Event()
        self.failure: Exception | None = None

    async def start(self) -> None:
        """Start the engine thread; `ready` turns non-None once it has loaded."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._main, name="ortloom-engine", daemon=True)
        self._hello()
        self._thread.start()

    async def close(self) -> None:
        """End all requests, stop the engine thread and wait for it."""
        self._closing = True
        if self._core is not None:
            self._core.stop()
        self._inbox.put(None)
        if self._thread is not None:
            await self._ended.wait()
            self._thread.join()
        self.mark_dead("the engine was closed")

    def send(self, client_id: bytes, message: EngineMessage) -> Delivery:
        """Outbox side, called by the engine thread."""
        return "sent" if self._on_loop(self._receive, message) else "gone"

    def _post(self, message: ClientMessage) -> None:
        self._inbox.put(message)

    def _on_loop(self, call: Callable[..., None], *args: object) -> bool:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            return False  # the loop is closed: nobody reads any more
        return True

    def _main(self) -> None:
        try:
            self._core = self._load()
            if self._closing:
                self._core.stop()
            self._core.run(self._inbox, self)
        except Exception as error:
            self.failure = error
            if not isinstance(error, OrtloomError):
                log.exception("the engine thread ended")
            reason = str(error) if isinstance(error, OrtloomError) else "the engine failed"
            self._on_loop(self.mark_dead, reason)
        finally:
            self._on_loop(self._ended.set)
