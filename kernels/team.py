"""The op library's thread team: how many threads its ops use, and how long they spin when idle."""

import ctypes
from pathlib import Path

from ortloom.errors import KernelUnavailable
from ortloom.kernels.library import library_path

MAX_THREADS = 256
MAX_SPIN_MICROSECONDS = 1_000_000


def _library(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        library.OrtloomTeamConfigure.restype = ctypes.c_char_p
        library.OrtloomTeamConfigure.argtypes = (ctypes.c_int, ctypes.c_int)
        library.OrtloomTeamThreads.restype = ctypes.c_int
        library.OrtloomTeamThreads.argtypes = ()
    except (OSError, AttributeError) as error:
        raise KernelUnavailable(f"{path} cannot be loaded: {error}") from error
    return library


def configure(threads: int, spin_microseconds: int) -> None:
    """Set up the one team of this process; sessions that exist use it from their next step on.

    The team belongs to the library, not to a session: a region of one session that finds it busy
    with another's runs on its own thread. Results do not depend on the number of threads.

    Args:
        threads: 1 to 256, the calling thread included. Without any call it is 1.
        spin_microseconds: 0 to 1 000 000; how long an idle thread waits for work before it sleeps.

    Raises:
        ValueError: an argument outside its range.
        KernelUnavailable: no library, or it cannot be loaded.
    """
    if not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"threads must be 1 to {MAX_THREADS}, not {threads}")
    if not 0 <= spin_microseconds <= MAX_SPIN_MICROSECONDS:
        raise ValueError(
            f"spin_microseconds must be 0 to {MAX_SPIN_MICROSECONDS}, not {spin_microseconds}"
        )
    path = library_path()
    error: bytes | None = _library(path).OrtloomTeamConfigure(threads, spin_microseconds)
    if error is not None:
        raise KernelUnavailable(f"{path}: {error.decode()}")


def threads() -> int:
    """Threads that the ops use: as configured, or fewer where the system refused to make more.

    Raises:
        KernelUnavailable: no library, or it cannot be loaded.
    """
    count: int = _library(library_path()).OrtloomTeamThreads()
    return count
