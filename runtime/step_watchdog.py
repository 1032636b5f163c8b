"""A watch over steps that do not come back (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)."""

import faulthandler
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("ortloom.engine")

LOOKS_A_LIMIT = 8
"""How often a step is looked at before it counts as stuck."""


class StepWatchdog:
    """Calls `on_stuck` once if a step runs longer than it may.

    Only time in which this process ran counts: one that was stopped for a while, or moved to
    another machine, is not stuck.

    Args:
        limit: seconds a step may take.
        on_stuck: called in the watchdog's thread with a line that says what happened.
    """

    def __init__(self, limit: float, on_stuck: Callable[[str], None]) -> None:
        self._limit = limit
        self._on_stuck = on_stuck
        self._step = 0
        self._busy = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._thread = threading.Thread(target=self._watch, name="ortloom-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one step."""
        self._step += 1
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _watch(self) -> None:
        pause = self._limit / LOOKS_A_LIMIT
        step, seconds, last = 0, 0.0, time.monotonic()
        while not self._ended.wait(pause):
            now = time.monotonic()
            if self._busy and self._step == step:
                seconds += min(now - last, 2 * pause)
            else:
                step, seconds = self._step, 0.0
            last = now
            if seconds >= self._limit:
                self._report(step)
                return

    def _report(self, step: int) -> None:
        text = f"step {step} has not come back for {self._limit:g} s"
        log.critical("%s; the threads are at:", text)
        if sys.stderr is not None:
            faulthandler.dump_traceback(sys.stderr)
        self._on_stuck(text)
