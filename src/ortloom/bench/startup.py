"""Start-up time: `ortloom serve` in a fresh process, again and again.

A cold start reads the bundle from the disk: the kernel is asked to drop the files' pages first. A
warm start finds them in memory.
"""

import asyncio
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from ortloom.bench.generation import error_text
from ortloom.bench.http_client import HttpClient
from ortloom.bench.latency import PERCENTILES
from ortloom.bench.progress import Progress
from ortloom.errors import BenchmarkFailed
from ortloom.logs import say

_START_SECONDS = 600.0
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.01
METRICS = ("health", "completion")
_RULE = "=" * 60
_TITLE = "STARTUP TIME BENCHMARK RESULTS"
_TRIAL = msgspec.json.encode({"prompt": "Hi", "max_tokens": 1})


class StartupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`command` starts a server on 127.0.0.1 at `port`; `bundle` is the folder it reads."""

    command: list[str]
    environment: Mapping[str, str]
    port: int
    bundle: Path
    headers: Mapping[str, str]
    cold: int
    warmup: int
    warm: int
    hide_progress: bool = False


class StartTimes(msgspec.Struct, frozen=True):
    """Seconds from the start of the process to the first 200 of /health, and to the answer of a
    one-token completion sent at that moment."""

    health: float
    completion: float


class Summary(msgspec.Struct, frozen=True):
    """Seconds of one metric in one phase, and what they come to."""

    avg: float
    median: float
    min: float
    max: float
    percentiles: dict[str, float]
    seconds: list[float]

    @classmethod
    def of(cls, seconds: list[float]) -> "Summary":
        """Of the starts' times."""
        return cls(
            avg=float(np.mean(seconds)),
            median=float(np.median(seconds)),
            min=min(seconds),
            max=max(seconds),
            percentiles={str(p): float(np.percentile(seconds, p)) for p in PERCENTILES},
            seconds=seconds,
        )

    def lines(self) -> list[str]:
        """Two printed rows."""
        shares = ", ".join(f"{share}% {value:.3f}" for share, value in self.percentiles.items())
        return [
            f"    avg {self.avg:.3f}, median {self.median:.3f}, min {self.min:.3f}, "
            f"max {self.max:.3f} seconds",
            f"    percentiles: {shares} seconds",
        ]


class StartupResult(msgspec.Struct, frozen=True):
    """Starts by phase, `cold` and `warm`; a phase that was not run is missing."""

    phases: dict[str, list[StartTimes]]

    def lines(self) -> list[str]:
        """The printed report."""
        rows = [_RULE, _TITLE.center(len(_RULE)).rstrip(), _RULE]
        for phase, starts in self.phases.items():
            rows.append(f"{phase.capitalize()} starts ({len(starts)}):")
            rows.append("  Time to first 200 on /health:")
            rows += self.summary(phase, "health").lines()
            rows.append("  Time to first answered completion:")
            rows += self.summary(phase, "completion").lines()
        return [*rows, _RULE]

    def to_json(self) -> dict[str, object]:
        """The JSON result: a summary of each metric of each phase."""
        return {
            phase: {metric: msgspec.to_builtins(self.summary(phase, metric)) for metric in METRICS}
            for phase in self.phases
        }

    def summary(self, phase: str, metric: str) -> Summary:
        """One of `METRICS` over the starts of a phase."""
        return Summary.of([getattr(start, metric) for start in self.phases[phase]])


def free_port() -> int:
    """A port that is free on the loopback now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def measure_startup(plan: StartupPlan) -> StartupResult:
    """Start and stop servers one after another; nothing that was started is left behind.

    Raises:
        BenchmarkFailed: a server ended or did not answer; the text has the end of its log.
    """
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    phases: dict[str, list[StartTimes]] = {}
    total = plan.cold + plan.warmup + plan.warm
    with Progress(total, plan.hide_progress) as progress:
        for phase, count in (("cold", plan.cold), ("warmup", plan.warmup), ("warm", plan.warm)):
            if count:
                say(f"{phase}: {count} starts")
            for _ in range(count):
                if phase == "cold":
                    drop_pages(plan.bundle)
                times = await _one_start(plan)
                progress.step()
                if phase != "warmup":
                    phases.setdefault(phase, []).append(times)
    return StartupResult(phases)


def drop_pages(folder: Path) -> None:
    """Ask the kernel to forget the files of a folder; pages that another process maps stay.

    On systems without the call nothing happens.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def _one_start(plan: StartupPlan) -> StartTimes:
    client = HttpClient(f"http://127.0.0.1:{plan.port}", plan.headers)
    with tempfile.TemporaryFile() as log:
        begin = time.perf_counter()
        try:
            with _running(plan, log.fileno()) as process:
                await _healthy(client, process)
                health = time.perf_counter() - begin
                reply = await client.post("/v1/completions", _TRIAL)
                completion = time.perf_counter() - begin
                if reply.status != 200:
                    raise BenchmarkFailed(
                        f"the completion got HTTP {reply.status}: {error_text(reply.body)}"
                    )
        except (BenchmarkFailed, OSError) as error:
            log.seek(0)
            lines = log.read().decode("utf-8", "replace").splitlines()[-10:]
            raise BenchmarkFailed("\n".join([str(error), *lines])) from None
        finally:
            client.close()
    return StartTimes(health, completion)


@contextmanager
def _running(plan: StartupPlan, log: int) -> Iterator["subprocess.Popen[bytes]"]:
    """The server, in a session of its own so that it is stopped here alone and as a whole."""
    process = subprocess.Popen(
        plan.command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=dict(plan.environment),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _stop(process)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def _healthy(client: HttpClient, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise BenchmarkFailed(f"the server exited with code {process.returncode}")
        try:
            if (await client.get("/health")).status == 200:
                return
        except OSError:
            pass  # not listening yet
        await asyncio.sleep(_POLL_SECONDS)
    raise BenchmarkFailed(f"the server was not healthy within {_START_SECONDS:g} s")
