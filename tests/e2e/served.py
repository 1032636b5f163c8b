"""A real server in a subprocess, for the end-to-end tests and the benchmarks."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import httpx


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Served:
    """`ortloom serve BUNDLE` in a session of its own on a free loopback port.

    Use as a context manager; entering waits for /health (the start limit is an error, not a hang).
    """

    def __init__(
        self,
        bundle: Path | str,
        *flags: str,
        env: dict[str, str] | None = None,
        start_limit: float = 90.0,
        python: Path | str = sys.executable,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [str(python), "-m", "ortloom", "serve", str(bundle)]
        self.command += ["--host", "127.0.0.1", "--port", str(self.port), *flags]
        self.env = {**os.environ, **(env or {})}
        self.start_limit = start_limit
        self.log = Path(tempfile.mkstemp(prefix="ortloom-serve-", suffix=".log")[1])
        self.process: subprocess.Popen[bytes] | None = None
        self.client = httpx.Client(base_url=self.url, timeout=300)

    def spawn(self) -> "Served":
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=self.env, start_new_session=True
            )
        return self

    def wait_healthy(self) -> "Served":
        assert self.process is not None
        end = time.monotonic() + self.start_limit
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"server exited {self.process.returncode}:\n{self.text()}")
            try:
                if self.client.get("/health", timeout=2).status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.01)
        self.stop()
        raise RuntimeError(f"server not healthy in {self.start_limit} s:\n{self.text()}")

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self, number: int = signal.SIGTERM, limit: float = 30.0) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)
        return self.process.returncode

    def children(self) -> list[int]:
        """Pids of the server's own child processes (engine and fronts)."""
        assert self.process is not None
        task = Path(f"/proc/{self.process.pid}/task")
        return [
            int(pid)
            for thread in task.iterdir()
            for pid in (thread / "children").read_text().split()
        ]

    def pid_of(self, module: str) -> int:
        """Pid of the child that runs a module, e.g. `ortloom.runtime.engine_process`."""
        for pid in self.children():
            if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise LookupError(module)

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics; a series' value under its name with labels, and summed under its
        bare name."""
        samples: dict[str, float] = {}
        for line in self.client.get("/metrics").text.splitlines():
            match = re.fullmatch(r"([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)", line)
            if match:
                name, labels, value = match.groups()
                samples[name + (labels or "")] = float(value)
                if labels:
                    samples[name] = samples.get(name, 0.0) + float(value)
        return samples

    def __enter__(self) -> "Served":
        return self.spawn().wait_healthy()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            sys.stderr.write(f"--- server log {self.log}\n{self.text()[-4000:]}\n")
        self.stop()
        self.client.close()
        if kind is None:
            self.log.unlink(missing_ok=True)


def bucket(metrics: dict[str, float], name: str, bound: str) -> float:
    """Cumulative count of a histogram bucket, over all label sets."""
    total = 0.0
    for series, value in metrics.items():
        if series.startswith(name + "_bucket{") and f'le="{bound}"' in series:
            total += value
    return total


def run_cli(
    *arguments: str, env: dict[str, str] | None = None, limit: float = 600
) -> "subprocess.CompletedProcess[str]":
    """`ortloom ARGUMENTS` to its end."""
    command: Sequence[str] = [sys.executable, "-m", "ortloom", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=limit, env={**os.environ, **(env or {})}
    )
