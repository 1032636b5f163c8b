"""Work that waits for a moment without requests, and is begun once."""

import logging
from collections.abc import Callable

log = logging.getLogger("ortloom.engine")

IDLE_SECONDS = 1.0
"""How long nothing must have been asked for. Longer than a client of a server that has just become
ready takes for its first request."""


class IdleWork:
    """Begins `work` once the engine has had nothing to do for `IDLE_SECONDS`, at first something:
    until a client has come the server is still starting.

    Args:
        work: begins it and returns at once; called in the engine's thread.
        clock: monotonic seconds.
    """

    def __init__(self, work: Callable[[], None], clock: Callable[[], float]) -> None:
        self._work: Callable[[], None] | None = work
        self._clock = clock
        self._since: float | None = None

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
        elif self._since is not None and now - self._since >= IDLE_SECONDS:
            work, self._work = self._work, None
            try:
                work()
            except Exception:  # whoever needs what it makes meets the error again
                log.debug("work ahead of need failed", exc_info=True)
