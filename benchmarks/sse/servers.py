"""The servers that are compared, as processes, and windows of the client over them."""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from benchmarks.sse.client import Ask, Window
from ortloom.config import Config, FrontConfig, ModelConfig, SchedulerConfig

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 120.0  # seconds for a server to start


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server process; a context manager that waits for its /health.

    Args:
        module: what to run.
        arguments: of the module, without the port.
        step: SSE_STEP of the engine.
    """

    def __init__(self, module: str, arguments: list[str], port: int, step: float) -> None:
        self.port = port
        self._command = [sys.executable, "-m", module, *arguments]
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), "SSE_STEP": str(step)}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command, env=self._environment, stdout=self._log, stderr=self._log
        )
        end = time.monotonic() + _PATIENCE
        try:
            while not self._healthy():
                if self.process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{self._command} does not start:\n{self.log()}")
                time.sleep(0.05)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End it with its children."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def log(self) -> str:
        """What it has printed."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def _healthy(self) -> bool:
        try:
            return self.get("/health").status == 200
        except OSError:
            return False

    def get(self, path: str) -> http.client.HTTPResponse:
        """GET."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        connection.close()
        return response

    @property
    def pids(self) -> list[int]:
        """The processes whose time counts."""
        assert self.process is not None
        return [self.process.pid]

    def window(
        self,
        path: str,
        body: str,
        streams: int,
        seconds: float,
        *,
        again: bool = False,
        beside: Sequence[int] = (),
    ) -> Window:
        """Measure one window; see `Ask`. `beside` are pids to watch behind the own ones."""
        ask = Ask(
            port=self.port,
            path=path,
            body=body,
            streams=streams,
            seconds=seconds,
            settle=0.5,
            pids=[*self.pids, *beside],
            again=again,
        )
        with tempfile.NamedTemporaryFile() as file:
            file.write(msgspec.json.encode(ask))
            file.flush()
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.sse.client", file.name],
                env=self._environment,
                stdout=subprocess.PIPE,
                check=True,
            )
        return msgspec.json.decode(done.stdout, type=Window)


class Bare(Server):
    """The bare Sanic server."""

    def __init__(self) -> None:
        port = free_port()
        super().__init__("benchmarks.sse.bare", [str(port)], port, 1.0)


class Ours(Server):
    """Our supervisor with its fronts.

    Args:
        bundle: what a front reads.
        folder: for the configuration.
        step: seconds a step of the engine takes.
        fronts: how many.
    """

    def __init__(self, bundle: Path, folder: Path, step: float, fronts: int = 1) -> None:
        port = free_port()
        config = Config(
            model=ModelConfig(bundle=str(bundle), served_model_names=("model",)),
            front=FrontConfig(host="127.0.0.1", port=port, num_fronts=fronts),
            scheduler=SchedulerConfig(max_num_seqs=1024),
        )
        path = folder / f"config-{port}.json"
        path.write_bytes(msgspec.json.encode(config))
        super().__init__("benchmarks.sse.front", [str(path)], port, step)

    @property
    def pids(self) -> list[int]:
        """The fronts."""
        assert self.process is not None
        return [p for p in _children(self.process.pid) if "ortloom.server.front" in _line(p)]

    @property
    def engine_pid(self) -> int:
        """The scripted engine."""
        assert self.process is not None
        (pid,) = [p for p in _children(self.process.pid) if "benchmarks.sse.engine" in _line(p)]
        return pid

    def sample(self, path: str, body: str) -> bytes:
        """The data of an event in the middle of a stream."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        short = {**json.loads(body), "max_tokens": 16}
        connection.request("POST", path, json.dumps(short), {"content-type": "application/json"})
        events = connection.getresponse().read().split(b"\n\n")
        connection.close()
        return events[8].removeprefix(b"data: ")


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
