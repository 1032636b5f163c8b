"""Work that waits for a moment without requests: done once, in a thread of its own."""

import logging
import threading
from collections.abc import Callable

log = logging.getLogger("ortloom.engine")

IDLE_SECONDS = 1.0
"""How long nothing must have been asked for. Longer than a client of a server that has just become
ready takes for its first request."""


class IdleWork:
    """Starts `work` once the engine has had nothing to do for `IDLE_SECONDS`.

    Args:
        work: what to do; may hold the interpreter lock for long.
        clock: monotonic seconds.
    """

    def __init__(self, work: Callable[[], None], clock: Callable[[], float]) -> None:
        self._work: Callable[[], None] | None = work
        self._clock = clock
        self._since = clock()

    @property
    def patience(self) -> float | None:
        """Seconds after which to look again; None = any time."""
        return None if self._work is None else IDLE_SECONDS

    def note(self, busy: bool) -> None:
        """Say whether there was anything to do since the last call."""
        if self._work is None:
            return
        now = self._clock()
        if busy:
            self._since = now
        elif now - self._since >= IDLE_SECONDS:
            work, self._work = self._work, None
            threading.Thread(target=_done, args=(work,), name="ortloom-idle", daemon=True).start()


def _done(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:  # whoever needs what it makes meets the error again
        log.debug("work ahead of need failed", exc_info=True)
