"""A measured process: started, asked, held still while others are measured, and ended."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from benchmarks.memory import tree
from benchmarks.versus.cases import Case, Prompts
from benchmarks.versus.engines import ROOT, Engine

STOP_SECONDS = 30.0


class EngineFailed(RuntimeError):
    """An engine's process ended or did not answer; the text has the end of its log."""


class MeasuredProcess:
    """A process in a session of its own, whose output goes to a log."""

    def __init__(self, engine: Engine, command: Sequence[str], logs: Path) -> None:
        self.engine = engine
        logs.mkdir(parents=True, exist_ok=True)
        self._log = logs / (engine.name.replace(" ", "-").replace("/", "-") + ".log")
        self.begin = time.perf_counter()
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if engine.drive == "process" else log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, **engine.environment},
                start_new_session=True,
            )

    def failure(self, what: str) -> EngineFailed:
        """What went wrong, with the end of the log."""
        tail = self._log.read_text(errors="replace").splitlines()[-12:]
        return EngineFailed("\n  ".join([f"{self.engine.name}: {what}", *tail]))

    def peak_bytes(self) -> int:
        """Peak resident memory, summed over the process and its descendants.

        Pages shared between them count once for each.
        """
        total = 0
        for pid in tree(self.process.pid):
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith("VmHWM:"):
                        total += int(line.split()[1]) * 1024
        return total

    def cpu_seconds(self) -> float:
        """Processor time used so far by the process and its living descendants."""
        ticks = 0
        for pid in tree(self.process.pid):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End it, and nothing else."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Worker(MeasuredProcess):
    """An in-process engine behind workers/protocol.py.

    Between questions it is stopped by SIGSTOP, so that no pool of it spins beside another's run.
    `startup` is the time (s) from the start of the process to its first tokens.
    """

    def __init__(self, engine: Engine, logs: Path, command: Sequence[str] = ()) -> None:
        super().__init__(engine, command or engine.command, logs)
        ready = self._read()
        self.startup = time.perf_counter() - self.begin
        self.version = str(ready["version"])
        self._hold()

    def _hold(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGSTOP)

    def _release(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGCONT)

    def _read(self) -> dict[str, object]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise self.failure(f"ended with {self.process.wait()}")
        answer: dict[str, object] = json.loads(line)
        return answer

    def _ask(self, question: str) -> dict[str, object]:
        assert self.process.stdin is not None
        self._release()
        try:
            self.process.stdin.write(question.encode() + b"\n")
            self.process.stdin.flush()
            answer = self._read()
        except BrokenPipeError:
            raise self.failure(f"ended with {self.process.wait()}") from None
        self._hold()
        return answer

    def run(self, case: Case, prompts: Prompts) -> dict[str, float]:
        """One submission of a case; the engine's own times and count.

        Raises:
            EngineFailed: it ended, or made another number of tokens than asked for.
        """
        ids = " ".join(str(token) for prompt in prompts for token in prompt)
        question = f"run {len(prompts)} {case.prompt} {case.new} {ids}"
        answer = {key: float(str(value)) for key, value in self._ask(question).items()}
        check_count(self, answer, len(prompts) * case.new)
        return answer

    def score(self, ids: Sequence[int], path: Path) -> str:
        """Has the engine write its logits or log-probabilities of a text; the kind of file."""
        question = f"score {path} {' '.join(str(token) for token in ids)}"
        return str(self._ask(question)["kind"])

    def stop(self) -> None:
        self._release()
        if self.process.poll() is None and self.process.stdin is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self.process.stdin.write(b"quit\n")
                self.process.stdin.close()
                self.process.wait(STOP_SECONDS)
        super().stop()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def check_count(process: MeasuredProcess, run: dict[str, float], asked: int) -> None:
    """Raises EngineFailed where an engine made another number of tokens than asked for."""
    if run["tokens"] != asked:
        raise process.failure(f"made {run['tokens']:.0f} tokens, {asked} were asked for")
