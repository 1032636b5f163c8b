"""A child process that must not outlive the one that started it."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; end now if it already has.

    On systems other than Linux only the second half holds.

    Args:
        parent: pid of the process that started this one, as that process knows it. It cannot be
            found out here: the parent may be gone by now, and in a container it may be pid 1.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
