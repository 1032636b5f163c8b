"""A watch over steps that do not come back (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)."""

import faulthandler
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("ortloom.engine")

DEFAULT_LIMIT = 300.0
"""Seconds without a limit of the user's, in which only idle time counts."""

IDLE_SHARE = 0.02
"""A process that uses less than this share of one processor does not compute."""

LOOKS_A_LIMIT = 8
"""How often a step is looked at before it counts as stuck."""


class StepWatchdog:
    """Calls `on_stuck` once if a step runs longer than it may.

    Only time in which this process ran counts: one that was stopped for a while, or moved to
    another machine, is not stuck.

    Args:
        limit: seconds a step may take; None = DEFAULT_LIMIT, of which time in which the process
            computes is no part: a long prompt may take a small machine minutes.
        on_stuck: called in the watchdog's thread with a line that says what happened.
    """

    def __init__(self, limit: float | None, on_stuck: Callable[[str], None]) -> None:
        self._idle_only = limit is None
        self._limit = DEFAULT_LIMIT if limit is None else limit
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
        step, seconds, last, used = 0, 0.0, time.monotonic(), time.process_time()
        while not self._ended.wait(pause):
            now = time.monotonic()
            computed = time.process_time() - used > IDLE_SHARE * (now - last)
            if not self._busy or self._step != step or (computed and self._idle_only):
                step, seconds = self._step, 0.0
            else:
                seconds += min(now - last, 2 * pause)
            last, used = now, time.process_time()
            if seconds >= self._limit:
                self._report(step)
                return

    def _report(self, step: int) -> None:
        text = f"step {step} has not come back for {self._limit:g} s"
        log.critical("%s; the threads are at:", text)
        if sys.stderr is not None:
            faulthandler.dump_traceback(sys.stderr)
        self._on_stuck(text)
