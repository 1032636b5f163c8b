"""A profile of the engine's Python calls, between /start_profile and /stop_profile."""

import cProfile
import os
import time
from pathlib import Path


class EngineProfile:
    """Profiles the thread that calls `start`.

    Args:
        folder: where profiles are written, one file a run, for the standard module `pstats`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._profile: cProfile.Profile | None = None

    def start(self) -> None:
        """Begin; does nothing while one runs.

        Raises:
            OSError: the folder cannot be made.
            ValueError: another profiler runs in this thread.
        """
        if self._profile is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            profile = cProfile.Profile()
            profile.enable()
            self._profile = profile

    def stop(self) -> Path | None:
        """End and write; the file, or None if nothing ran.

        Raises:
            OSError: the file cannot be written.
        """
        if self._profile is None:
            return None
        profile, self._profile = self._profile, None
        profile.disable()
        path = self._folder / f"engine-{os.getpid()}-{time.time_ns()}.prof"
        profile.dump_stats(path)
        return path
