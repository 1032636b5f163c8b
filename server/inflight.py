"""The requests one front is working on: counted, refused while draining, ended by deadline.

Each request runs inside an `asyncio.Timeout` that is kept here. Ending a request, whether its
deadline passed or the front shuts down, always means that this timeout fires, so a handler sees
one kind of interruption: a CancelledError, with `interruption(request)` telling why.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sanic import Request

from ortloom.errors import DeadlineExceeded, OrtloomError, ServerDraining


@dataclass(frozen=True, eq=False, slots=True)
class BackgroundWork:
    """Work that goes on after its request was answered; counted and ended as one."""

    request_id: str


class InFlight:
    """All requests between the end of their head and the end of their response."""

    def __init__(self) -> None:
        self._timeouts: dict[Request | BackgroundWork, asyncio.Timeout] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._aborting = False
        self.draining = False

    def __len__(self) -> int:
        return len(self._timeouts)

    @property
    def inference(self) -> int:
        """How many of them are inference requests (what /load tells)."""
        return sum(
            isinstance(work, BackgroundWork) or (work.method == "POST" and _infers(work.path))
            for work in self._timeouts
        )

    @asynccontextmanager
    async def track(
        self, request: Request | BackgroundWork, deadline: float
    ) -> AsyncIterator[None]:
        """Run one request.

        Args:
            request: the request, or its work in the background.
            deadline: seconds it may take in all.

        Raises:
            DeadlineExceeded: the deadline passed.
            ServerDraining: the front shut down before the request was done.
        """
        try:
            async with asyncio.timeout(deadline) as timeout:
                self._timeouts[request] = timeout
                self._idle.clear()
                if self._aborting:
                    timeout.reschedule(asyncio.get_running_loop().time())
                yield
        except TimeoutError:
            if not timeout.expired():
                raise
            raise self._reason() from None
        finally:
            self._timeouts.pop(request, None)
            if not self._timeouts:
                self._idle.set()

    def interruption(self, request: Request) -> OrtloomError | None:
        """Why the request is being ended by us, or None when it is not."""
        timeout = self._timeouts.get(request)
        return self._reason() if timeout is not None and timeout.expired() else None

    def _reason(self) -> OrtloomError:
        if self._aborting:
            return ServerDraining("the server is shutting down")
        return DeadlineExceeded("the request took longer than the server's request deadline")

    def abort_all(self) -> None:
        """End every request now; their handlers still write their last words."""
        self._aborting = True
        now = asyncio.get_running_loop().time()
        for timeout in self._timeouts.values():
            if not timeout.expired():
                timeout.reschedule(now)

    async def wait_idle(self, seconds: float) -> bool:
        """True when no request is left within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while self._timeouts:  # what was answered may just go on in the background
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True


def _infers(path: str) -> bool:
    return path.startswith(("/v1/", "/inference/")) or path == "/invocations"
