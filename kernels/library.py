"""Where the op library lies inside the installed package."""

import os
import sys
from pathlib import Path

import ortloom.kernels
from ortloom.errors import KernelUnavailable

NO_OPS_VARIABLE = "ORTLOOM_NO_OPS"
"""Set to anything but 0 or nothing, the library counts as absent: graphs run on the op bodies."""

LIBRARY_VARIABLE = "ORTLOOM_OPS_LIBRARY"
"""Path of another build of the library, used instead of the installed one."""

LIBRARY_NAME = "libortloom_ops.dylib" if sys.platform == "darwin" else "libortloom_ops.so"


def library_is_named() -> bool:
    """Whether the environment names a library, so that nothing else may stand in for it."""
    return bool(os.environ.get(LIBRARY_VARIABLE))


def library_path() -> Path:
    """The op library: the one that ORTLOOM_OPS_LIBRARY names, else the installed one.

    Raises:
        KernelUnavailable: the package was installed without it, ORTLOOM_OPS_LIBRARY names no file,
            or ORTLOOM_NO_OPS is set.
    """
    if os.environ.get(NO_OPS_VARIABLE, "") not in ("", "0"):
        raise KernelUnavailable(f"the op library is switched off by {NO_OPS_VARIABLE}")
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise KernelUnavailable(f"{LIBRARY_VARIABLE} names '{named}', which is no file")
        return Path(named)
    for folder in ortloom.kernels.__path__:
        path = Path(folder) / LIBRARY_NAME
        if path.is_file():
            return path
    raise KernelUnavailable(
        f"{LIBRARY_NAME} is not installed: the package was built with ORTLOOM_NO_NATIVE=1; "
        "install it again without that variable, on a machine with a C++17 compiler"
    )
