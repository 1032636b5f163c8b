"""A progress bar on standard error, drawn on terminals only."""

import sys
import time
from types import TracebackType
from typing import Self

_WIDTH = 30
_SECONDS_BETWEEN = 0.1


class Progress:
    """Counts up to a total; a context manager.

    Args:
        total: steps to come.
        hidden: draw nothing.
    """

    def __init__(self, total: int, hidden: bool = False) -> None:
        self._total = total
        self._done = 0
        self._shown = not hidden and sys.stderr.isatty()
        self._drawn_at = 0.0
        self._begin = time.monotonic()

    def step(self) -> None:
        """One more is done."""
        self._done += 1
        now = time.monotonic()
        if self._shown and (now - self._drawn_at >= _SECONDS_BETWEEN or self._done == self._total):
            self._drawn_at = now
            filled = _WIDTH * self._done // max(1, self._total)
            bar = "#" * filled + "." * (_WIDTH - filled)
            rate = self._done / max(1e-9, now - self._begin)
            line = f"\r[{bar}] {self._done}/{self._total} {rate:.2f}/s "
            print(line, end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown and self._drawn_at:
            print(file=sys.stderr, flush=True)
