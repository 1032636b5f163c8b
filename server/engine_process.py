"""The engine process as the supervisor sees it, or what stands for it where there is none."""

import subprocess


class NoEngine:
    """Stands for the engine process in the supervisor: runs until it is told to end."""

    stdin = None

    def __init__(self) -> None:
        self._ended = False

    def poll(self) -> int | None:
        """0 once it was told to end."""
        return 0 if self._ended else None

    def send_signal(self, number: int) -> None:
        """Every signal ends it."""
        self._ended = True

    def wait(self) -> int:
        """End."""
        self._ended = True
        return 0


EngineProcess = subprocess.Popen[bytes] | NoEngine
"""What the supervisor watches."""
