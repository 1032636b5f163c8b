"""Interrupts that cannot get lost.

Python raises KeyboardInterrupt wherever the main thread happens to be; in a destructor or a
callback of a native library it is printed and dropped. The export must then still not finish.
"""

import signal
import threading
from types import FrameType, TracebackType


class Interrupts:
    """Context manager: SIGINT and SIGTERM raise KeyboardInterrupt and are remembered.

    Outside the main thread it changes nothing.
    """

    def __init__(self) -> None:
        self._seen = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._seen = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise if an interrupt came, even if nobody saw it.

        Raises:
            KeyboardInterrupt: a signal came since the block began.
        """
        if self._seen:
            raise KeyboardInterrupt
