"""The rounds: engines of one precision and one way of driving them, turn by turn."""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.versus.agreement import Agreement, Judge
from benchmarks.versus.cases import Case, PromptSource
from benchmarks.versus.engines import Engine
from benchmarks.versus.process import EngineFailed, Worker
from benchmarks.versus.servers import Server
from benchmarks.versus.setup.steps import say

Running = Worker | Server
MIB = 1024 * 1024
SLOW_START_SECONDS = 60.0
"""An engine that starts slower than this is started once, not once a round."""
WARM_NEW = 3


@dataclass
class Record:
    """What was measured of one engine: samples of each case, one a round.

    `cores` are processor seconds a second of its runs (the share of the machine it got and used);
    `health` is seconds to the first 200 of a server's /health.
    """

    engine: Engine
    version: str = ""
    samples: dict[str, list[float]] = field(default_factory=dict)
    cores: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    agreement: Agreement | None = None
    failure: str = ""

    def add(self, case: str, figure: float) -> None:
        """One more sample."""
        self.samples.setdefault(case, []).append(figure)


def start(engine: Engine, logs: Path) -> Running:
    """A running engine, warm for nothing but its first tokens."""
    return Worker(engine, logs) if engine.drive == "process" else Server(engine, logs)


class Field:
    """All engines of one precision, driven the same way."""

    def __init__(self, engines: Sequence[Engine], cases: Sequence[Case], logs: Path) -> None:
        self.records = [Record(engine) for engine in engines]
        self._cases = cases
        self._logs = logs
        self._running: dict[str, Running] = {}

    def run(self, rounds: int, seed: int, judge: Judge | None) -> None:
        """Start all, warm up each case, do the rounds, and last compare with fp32, which would
        raise the peak of memory; an engine that fails is noted and left out from there on."""
        try:
            for record in self.records:
                with self._guard(record):
                    self._start(record)
            prompts = PromptSource(seed + 1)
            generating = [case for case in self._cases if case.generates]
            for case in generating:
                short = dataclasses.replace(case, new=min(case.new, WARM_NEW), repeats=1)
                for record in self._alive():
                    with self._guard(record):
                        for batch in prompts.for_case(short):
                            self._running[record.engine.name].run(short, batch)
            prompts = PromptSource(seed)
            for number in range(rounds):
                say(f"round {number + 1} of {rounds}")
                for case in self._cases:
                    self._round(case, prompts, number)
            self._peaks()
            if judge is not None:
                self._judge(judge)
        finally:
            for running in self._running.values():
                running.stop()

    def _alive(self, turn: int = 0) -> list[Record]:
        """Engines still in the race, another one first each round."""
        alive = [record for record in self.records if not record.failure]
        turn = turn % len(alive) if alive else 0
        return alive[turn:] + alive[:turn]

    @contextlib.contextmanager
    def _guard(self, record: Record) -> Iterator[None]:
        try:
            yield
        except (EngineFailed, OSError) as error:
            record.failure = str(error) or type(error).__name__
            say(f"{record.engine.name} failed: {record.failure}")
            running = self._running.pop(record.engine.name, None)
            if running is not None:
                running.stop()

    def _start(self, record: Record) -> None:
        say(f"starting {record.engine.name}")
        running = start(record.engine, self._logs)
        self._running[record.engine.name] = running
        record.version = running.version
        # The first start finds files and caches as they are; it counts only where it is the one.
        if running.startup > SLOW_START_SECONDS:
            self._note_start(record, running)

    def _note_start(self, record: Record, running: Running) -> None:
        if any(case.name == "startup" for case in self._cases):
            record.add("startup", running.startup)
            if isinstance(running, Server):
                record.health.append(running.health)

    def _judge(self, judge: Judge) -> None:
        for record in self._alive():
            engine = record.engine
            if not engine.scores:
                continue
            with self._guard(record):
                if engine.score_command:
                    with Worker(engine, self._logs / "score", engine.score_command) as scorer:
                        record.agreement = judge.judge(scorer)
                else:
                    record.agreement = judge.judge(self._running[engine.name])

    def _round(self, case: Case, prompts: PromptSource, number: int) -> None:
        if case.name == "startup":
            for record in self._alive(number):
                with self._guard(record):
                    if self._running[record.engine.name].startup <= SLOW_START_SECONDS:
                        running = start(record.engine, self._logs / "starts")
                        running.stop()
                        self._note_start(record, running)
            return
        if not case.generates:
            return
        batches = list(prompts.for_case(case))
        for record in self._alive(number):
            with self._guard(record):
                running = self._running[record.engine.name]
                used, begin = running.cpu_seconds(), time.perf_counter()
                runs = [case.figure(running.run(case, batch)) for batch in batches]
                wall = time.perf_counter() - begin
                record.add(case.name, statistics.median(runs))
                record.cores.append((running.cpu_seconds() - used) / wall)

    def _peaks(self) -> None:
        if any(case.name == "rss" for case in self._cases):
            for record in self._alive():
                with self._guard(record):
                    peak = self._running[record.engine.name].peak_bytes()
                    record.add("rss", peak / MIB)
