"""SIGTERM and SIGINT while `ortloom serve` starts, and while its supervisor runs.

At no time may one of them leave the private folder or a child behind: Python's own answer to
SIGTERM is to end at once, and that to SIGINT an exception at any place, which native modules that
are being loaded do not always survive. This module imports nothing heavy.
"""

import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

STOPPING = (signal.SIGTERM, signal.SIGINT)

Handler = Callable[[int, FrameType | None], Any] | int | None


class StartSignals:
    """Context manager: the signals are remembered; between `release` and `hold` they raise
    KeyboardInterrupt, once, and one that has come before is raised by `release`.

    Outside the main thread it changes nothing.

    Attributes:
        seen: one has come.
    """

    def __init__(self) -> None:
        self._held = True
        self.seen = False
        self._before: dict[int, Handler] = {}

    def __enter__(self) -> "StartSignals":
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            # the supervisor's stay until the process has ended
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        if not self._held:
            self._held = True
            raise KeyboardInterrupt

    def release(self) -> None:
        """Let the signals interrupt from now on.

        Raises:
            KeyboardInterrupt: one has come.
        """
        self._held = False
        if self.seen:
            self._held = True
            raise KeyboardInterrupt

    def hold(self) -> None:
        """Let nothing interrupt any more."""
        self._held = True


class StopSignals:
    """Counts the signals from its making on, and wakes a selector at each and at a child's end.

    Args:
        earlier: what watched for them until now.

    Attributes:
        wake: readable after a signal.
        count: signals since it was last set to 0.
    """

    def __init__(self, earlier: StartSignals | None = None) -> None:
        self.count = 0
        self.wake, self._wakened_by = socket.socketpair()
        self.wake.setblocking(False)
        self._wakened_by.setblocking(False)
        for number in STOPPING:
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wakened_by.fileno(), warn_on_full_buffer=False)
        if earlier is not None and earlier.seen:
            self.count += 1
            self._wakened_by.send(b"\0")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1

    def drain(self) -> None:
        """Make `wake` unreadable until the next signal."""
        try:
            while self.wake.recv(4096):
                continue
        except BlockingIOError:
            return

    def close(self) -> None:
        """Wake nobody any more; the signals stay without effect."""
        signal.set_wakeup_fd(-1)
        self.wake.close()
        self._wakened_by.close()
