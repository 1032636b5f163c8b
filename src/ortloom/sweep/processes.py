"""The commands of a sweep: servers that run beside, benchmarks that run to their end."""

import os
import shlex
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from ortloom.errors import BenchmarkFailed
from ortloom.logs import say
from ortloom.sweep.params import flag_value

_STOP_SECONDS = 60.0
_POLL_SECONDS = 0.2
RESETS = ("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache")
"""Routes that are called between runs, where the server has them."""


def base_url(serve: Sequence[str], bench: Sequence[str]) -> str:
    """Where the benchmark finds the server."""
    given = flag_value(bench, "base-url")
    if given is not None:
        return given.rstrip("/")
    host = flag_value(bench, "host") or flag_value(serve, "host") or "127.0.0.1"
    port = flag_value(bench, "port") or flag_value(serve, "port") or "8000"
    return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"


class ServerProcess:
    """A server in a session of its own; a context manager that waits until it answers.

    Args:
        command: starts it.
        url: of the server.
        ready_seconds: it may take to answer.
        show: let its output through.
    """

    def __init__(self, command: Sequence[str], url: str, ready_seconds: float, show: bool) -> None:
        self._command, self._url = command, url
        self._ready_seconds = ready_seconds
        self._output = None if show else subprocess.DEVNULL

    def __enter__(self) -> "ServerProcess":
        """Start it.

        Raises:
            BenchmarkFailed: it cannot be started, ends, or does not answer in time.
        """
        if _status(f"{self._url}/health") is not None:
            raise BenchmarkFailed(f"another server answers on {self._url}")
        say(f"server: {shlex.join(self._command)}")
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )
        except OSError as error:
            raise BenchmarkFailed(f"cannot start '{self._command[0]}': {error.strerror}") from None
        try:
            self._wait_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _wait_ready(self) -> None:
        end = time.monotonic() + self._ready_seconds
        while time.monotonic() < end:
            if self._process.poll() is not None:
                code = self._process.returncode
                raise BenchmarkFailed(
                    f"the server ended with code {code} (--show-stdout shows why)"
                )
            if _status(f"{self._url}/health") == 200:
                return
            time.sleep(_POLL_SECONDS)
        raise BenchmarkFailed(f"the server was not ready within {self._ready_seconds:g} s")

    def _stop(self) -> None:
        """End the whole session."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                say("the server did not end in time and is killed")
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def reset_caches(self) -> None:
        """Make the next run start as the first one did; routes that are not there are skipped."""
        for route in RESETS:
            _status(f"{self._url}{route}", method="POST")


def _status(url: str, method: str = "GET") -> int | None:
    """The status of a reply; None where nobody answers."""
    request = urllib.request.Request(url, method=method, data=b"" if method == "POST" else None)
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def run_command(command: Sequence[str], show: bool) -> None:
    """Run a command to its end.

    Raises:
        BenchmarkFailed: it cannot be started, or ends with another code than 0.
    """
    say(f"run: {shlex.join(command)}")
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=None if show else subprocess.PIPE,
            stderr=None if show else subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise BenchmarkFailed(f"cannot start '{command[0]}': {error.strerror}") from None
    if done.returncode:
        lines = (done.stdout or "").splitlines()[-10:]
        what = f"'{shlex.join(command)}' ended with code {done.returncode}"
        raise BenchmarkFailed("\n".join([what, *lines]))
