"""Logging of all our processes: one line a record, UTC, the process's role in it."""

import logging
import sys
import time
from contextlib import suppress

_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s {role} %(name)s: %(message)s"
_DATES = "%Y-%m-%dT%H:%M:%S"
_LEVELS = frozenset({"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"})
_NOISY = ("sanic", "asyncio", "websockets")


def set_up(level: str, role: str) -> None:
    """Log to standard error.

    Args:
        level: least level of our own records; an unknown name counts as INFO.
        role: what this process is, such as `supervisor` or `front-0`.
    """
    formatter = logging.Formatter(_FORMAT.format(role=role), _DATES)
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    wanted = level.upper()
    root.setLevel(wanted if wanted in _LEVELS else "INFO")
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def say(text: str) -> None:
    """Print a line for the user on standard error.

    Whoever reads it may be gone, or the disk behind it full: that must not end a server, so it is
    tried and no more.
    """
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
