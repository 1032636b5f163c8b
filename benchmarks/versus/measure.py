"""The rounds: engines of one precision and one way of driving them, turn by turn.

A turn is one case where all engines stay loaded. Where memory does not hold them beside each other
it is all cases of a round, and an engine is loaded for its turn only.
"""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.versus.agreement import Agreement, Judge
from benchmarks.versus.cases import Case, Prompts, PromptSource
from benchmarks.versus.engines import Engine
from benchmarks.versus.process import EngineFailed, Worker
from benchmarks.versus.servers import Server
from benchmarks.versus.setup.steps import say

Running = Worker | Server
Plan = list[tuple[Case, list[Prompts]]]
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
    """All engines of one precision, driven the same way.

    `together` keeps all of them loaded; otherwise at most one is.
    """

    def __init__(
        self, engines: Sequence[Engine], cases: Sequence[Case], logs: Path, together: bool = True
    ) -> None:
        self.records = [Record(engine) for engine in engines]
        self.together = together
        self._cases = cases
        self._logs = logs
        self._running: dict[str, Running] = {}

    def run(self, rounds: int, seed: int, judge: Judge | None) -> None:
        """Start, warm up each case, do the rounds, and last compare with fp32, which would raise
        the peak of memory; an engine that fails is noted and left out from there on."""
        short = [
            dataclasses.replace(case, new=min(case.new, WARM_NEW), repeats=1)
            for case in self._cases
            if case.generates
        ]
        warm_up = plan(short, PromptSource(seed + 1))
        prompts = PromptSource(seed)
        try:
            if self.together:
                self._run_together(rounds, prompts, warm_up, judge)
            else:
                self._run_alone(rounds, prompts, warm_up, judge)
        finally:
            for running in self._running.values():
                running.stop()

    def _run_together(
        self, rounds: int, prompts: PromptSource, warm_up: Plan, judge: Judge | None
    ) -> None:
        for record in self._alive():
            with self._guard(record):
                self._start(record)
        for case, batches in warm_up:
            for record in self._alive():
                with self._guard(record):
                    self._ask(record, case, batches)
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for case, batches in plan(self._cases, prompts):
                for record in self._alive(number):
                    with self._guard(record):
                        self._sample(record, case, batches)
        for record in self._alive():
            with self._guard(record):
                self._peak(record)
                self._judge(record, judge)

    def _run_alone(
        self, rounds: int, prompts: PromptSource, warm_up: Plan, judge: Judge | None
    ) -> None:
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}, one engine at a time")
            cases = plan(self._cases, prompts)
            for record in self._alive(number):
                with self._guard(record):
                    self._turn(record, cases, warm_up, judge if number + 1 == rounds else None)

    def _turn(self, record: Record, cases: Plan, warm_up: Plan, judge: Judge | None) -> None:
        """A round of one engine, from its start to its end."""
        running = self._start(record)
        for case, batches in warm_up:
            self._ask(record, case, batches)
        for case, batches in cases:
            if case.generates:
                self._sample(record, case, batches)
        self._peak(record)
        self._judge(record, judge)
        self._running.pop(record.engine.name).stop()
        # now the files are in the page cache, as far as it holds them
        if any(case.name == "startup" for case, _ in cases):
            self._start_again(record, running)

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

    def _start(self, record: Record) -> Running:
        say(f"starting {record.engine.name}")
        running = start(record.engine, self._logs)
        self._running[record.engine.name] = running
        record.version = running.version
        # The first start finds files and caches as they are; it counts only where it is the one.
        if running.startup > SLOW_START_SECONDS:
            self._note_start(record, running)
        return running

    def _start_again(self, record: Record, loaded: Running) -> None:
        if loaded.startup <= SLOW_START_SECONDS:
            running = start(record.engine, self._logs / "starts")
            running.stop()
            self._note_start(record, running)

    def _note_start(self, record: Record, running: Running) -> None:
        if any(case.name == "startup" for case in self._cases):
            record.add("startup", running.startup)
            if isinstance(running, Server):
                record.health.append(running.health)

    def _ask(self, record: Record, case: Case, batches: list[Prompts]) -> list[float]:
        """The figure of each batch of a case."""
        running = self._running[record.engine.name]
        return [case.figure(running.run(case, batch)) for batch in batches]

    def _sample(self, record: Record, case: Case, batches: list[Prompts]) -> None:
        """One sample of a case, from a loaded engine."""
        running = self._running[record.engine.name]
        if case.name == "startup":
            self._start_again(record, running)
        if not case.generates:
            return
        used, begin = running.cpu_seconds(), time.perf_counter()
        figures = self._ask(record, case, batches)
        wall = time.perf_counter() - begin
        record.add(case.name, statistics.median(figures))
        record.cores.append((running.cpu_seconds() - used) / wall)

    def _peak(self, record: Record) -> None:
        if any(case.name == "rss" for case in self._cases):
            record.add("rss", self._running[record.engine.name].peak_bytes() / MIB)

    def _judge(self, record: Record, judge: Judge | None) -> None:
        engine = record.engine
        if judge is None or not engine.scores:
            return
        if engine.score_command:
            with Worker(engine, self._logs / "score", engine.score_command) as scorer:
                record.agreement = judge.judge(scorer)
        else:
            record.agreement = judge.judge(self._running[engine.name])


def plan(cases: Sequence[Case], prompts: PromptSource) -> Plan:
    """Cases with the prompts that all engines get."""
    return [(case, list(prompts.for_case(case))) for case in cases]
