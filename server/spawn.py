"""Starting the supervisor's child processes, also before it is known what they are to do.

Most of a child's start is the loading of modules. So a child gets its configuration over a pipe or
socket that it inherits, and `ortloom serve` starts the first engine and front before it reads its
own flags. This module imports nothing heavy.

They are started by module name in process groups of their own, so that Ctrl-C in a terminal
reaches the supervisor only, which then stops them in order.
"""

import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile

from ortloom.errors import OrtloomError

ENGINE_MODULE = "ortloom.runtime.engine_process"
FRONT_MODULE = "ortloom.server.front"

MOST_FILES = 65_536
LONGEST_FOLDER = 80  # characters; a unix socket's path may have 107


class NoFolder(OrtloomError):
    """There is no place for temporary files."""


def private_folder() -> str:
    """A new folder for the engine's socket; paths of unix sockets are short by nature.

    Raises:
        NoFolder: no place can be written to.
    """
    try:
        folder = tempfile.mkdtemp(prefix="ortloom-")
        if len(folder) > LONGEST_FOLDER:
            os.rmdir(folder)
            folder = tempfile.mkdtemp(prefix="ortloom-", dir="/tmp")
    except OSError as error:
        raise NoFolder(f"cannot make a folder for temporary files: {error.strerror}") from None
    return folder


def engine_address(folder: str) -> str:
    """Where the engine listens inside a private folder."""
    return f"ipc://{folder}/engine"


def raise_file_limit() -> None:
    """Every connection is a file descriptor; the usual soft limit of 1024 is soon reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def spawn_engine(address: str, *, ahead: bool = False) -> "subprocess.Popen[bytes]":
    """An engine that waits for its configuration on standard input.

    Args:
        address: that it binds.
        ahead: the configuration will take a while: load the modules of the real runner first.
    """
    command = [sys.executable, "-P", "-m", ENGINE_MODULE]
    command += ["--address", address, "--config", "-", "--parent", str(os.getpid())]
    if ahead:
        command.append("--ahead")
    # NumPy's BLAS, which the engine has no use for, would start a thread for each processor.
    environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}
    return subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0, env=environment)


def spawn_front() -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """A front that waits for its `Handoff` on the other end of the control socket returned."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-m", FRONT_MODULE]
    command += ["--control-fd", str(theirs.fileno()), "--parent", str(os.getpid())]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), process_group=0
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


class EarlyChildren:
    """The first engine and front, started before the configuration is known.

    Attributes:
        folder: the private folder of the engine's socket.
        engine: waits on standard input.
        front: waits on the other end of `control`.
        control: the supervisor's end.

    Raises:
        NoFolder: see `private_folder`.
        OSError: a process cannot be started.
    """

    def __init__(self) -> None:
        raise_file_limit()
        self.folder = private_folder()
        try:
            self.engine = spawn_engine(engine_address(self.folder), ahead=True)
            try:
                self.front, self.control = spawn_front()
            except BaseException:
                _end(self.engine)
                raise
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def discard(self) -> None:
        """End them and leave nothing behind; does nothing more where they have ended."""
        _end(self.engine)
        _end(self.front)
        self.control.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
