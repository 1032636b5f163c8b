"""Blanking secrets in this process's own argument list, which every user of the machine can read
through /proc."""

import sys
from collections.abc import Iterable
from pathlib import Path


def blank_arguments(secrets: Iterable[str]) -> bool:
    """Overwrite each secret in the process's argument memory with asterisks (Linux).

    Returns:
        Whether none of the secrets is left there.
    """
    wanted = [secret.encode() for secret in secrets if secret]
    if not wanted or not sys.platform.startswith("linux"):
        return not wanted
    import ctypes

    try:
        # /proc/self/stat: arg_start is field 48; fields are counted after the command in brackets
        start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45])
        line = Path("/proc/self/cmdline").read_bytes()
    except (OSError, IndexError, ValueError):
        return False
    if start == 0:
        return False
    for secret in wanted:
        at = line.find(secret)
        while at >= 0:
            ctypes.memset(start + at, ord("*"), len(secret))
            at = line.find(secret, at + len(secret))
    left = Path("/proc/self/cmdline").read_bytes()
    return not any(secret in left for secret in wanted)
