"""Servers × benchmarks: `bench sweep serve` and `bench sweep serve_workload`."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from ortloom.errors import BenchmarkFailed
from ortloom.sweep.experiment import Experiment, Row, read_result
from ortloom.sweep.params import ParamSet, Value, flag_value, linked, normal, with_params
from ortloom.sweep.processes import ServerProcess, base_url, run_command

WorkloadVar = Literal["request_rate", "max_concurrency"]


class ServingSweep(msgspec.Struct, frozen=True, kw_only=True):
    """What is run. `after` None = the caches of the server are reset between runs."""

    serve: list[str]
    bench: list[str]
    after: list[str] | None
    serve_params: list[ParamSet]
    bench_params: list[ParamSet]
    links: list[tuple[str, str]]
    num_runs: int
    ready_seconds: float
    show: bool
    dry_run: bool

    def combinations(self, serve: ParamSet) -> list[ParamSet]:
        """The sets of the benchmark that go with one of the server."""
        return [bench for bench in self.bench_params if linked(serve, bench, self.links)]


def sweep_serving(sweep: ServingSweep, experiment: Experiment) -> None:
    """Every server with every benchmark.

    Raises:
        BenchmarkFailed: a server or a benchmark failed.
    """

    def all_of(serve: ParamSet, runner: "Runner") -> None:
        for bench in sweep.combinations(serve):
            runner.rows(bench)

    _for_each_server(sweep, experiment, all_of)


def sweep_workload(
    sweep: ServingSweep, experiment: Experiment, variable: WorkloadVar, iterations: int
) -> None:
    """For every combination: one request at a time, all at once, and points between.

    Args:
        sweep: what is run.
        experiment: where results go.
        variable: what is changed from point to point.
        iterations: points in all, the two ends included.

    Raises:
        BenchmarkFailed: a server or a benchmark failed.
    """

    def points(serve: ParamSet, runner: "Runner") -> None:
        for bench in sweep.combinations(serve):

            def at(value: Value, extra: dict[str, Value], bench: ParamSet = bench) -> list[Row]:
                values = {**bench.values, **extra}
                label = f"{bench.name}-{variable}={value}" if bench.name else None
                return runner.rows(ParamSet(values, label))

            serial = at("serial", {"max_concurrency": 1, "request_rate": "inf"})
            prompts = flag_value(with_params(sweep.bench, bench.values), "num-prompts") or "1000"
            most: dict[str, Value] = {"max_concurrency": int(prompts), "request_rate": "inf"}
            batch = at("batch", most)
            if sweep.dry_run:
                continue
            for value in between(serial, batch, variable, iterations):
                other = "max_concurrency" if variable == "request_rate" else "request_rate"
                fixed: Value = int(prompts) if other == "max_concurrency" else "inf"
                at(value, {variable: value, other: fixed})

    _for_each_server(sweep, experiment, points)


def between(
    serial: Sequence[Row], batch: Sequence[Row], variable: WorkloadVar, iterations: int
) -> list[int]:
    """Whole values between what one request at a time and all at once reach, ends left out.

    For a rate these are requests a second. For concurrency they are requests in flight, by
    Little's law: throughput × mean time of a request.
    """

    def level(rows: Sequence[Row]) -> float:
        rates = [float(row["request_throughput"]) for row in rows]
        if variable == "request_rate":
            return sum(rates) / len(rates)
        flights = [
            rate * float(row.get("mean_e2el_ms") or 0.0) / 1000
            or float(row.get("max_concurrent_requests") or 1)
            for rate, row in zip(rates, rows, strict=True)
        ]
        return sum(flights) / len(flights)

    low, high = sorted((level(serial), level(batch)))
    steps = max(2, iterations) - 1
    values = [round(low + (high - low) * step / steps) for step in range(1, steps)]
    return sorted({value for value in values if value >= 1})


def _for_each_server(
    sweep: ServingSweep, experiment: Experiment, work: Callable[[ParamSet, "Runner"], None]
) -> None:
    for serve in sweep.serve_params:
        if not sweep.combinations(serve):
            continue
        command = with_params(sweep.serve, serve.values)
        if sweep.dry_run:
            print(shlex.join(command))
            work(serve, Runner(sweep, experiment, serve, None))
            continue
        url = base_url(command, sweep.bench)
        with ServerProcess(command, url, sweep.ready_seconds, sweep.show) as server:
            work(serve, Runner(sweep, experiment, serve, server))


class Runner:
    """Runs benchmarks against one server.

    Args:
        sweep: what is run.
        experiment: where results go.
        serve: the server's set.
        server: it; None = print commands only.
    """

    def __init__(
        self,
        sweep: ServingSweep,
        experiment: Experiment,
        serve: ParamSet,
        server: ServerProcess | None,
    ) -> None:
        self._sweep, self._experiment = sweep, experiment
        self._serve, self._server = serve, server

    def rows(self, bench: ParamSet) -> list[Row]:
        """The results of all runs of one combination."""
        folder = self._experiment.combination((("SERVE", self._serve), ("BENCH", bench)))
        rows = []
        for number in range(self._sweep.num_runs):
            row = self._run(bench, folder, number)
            if row is not None:
                rows.append(row)
        if not self._sweep.dry_run:
            self._experiment.sum_up(folder, rows)
        return rows

    def _run(self, bench: ParamSet, folder: Path, number: int) -> Row | None:
        sweep, file = self._sweep, folder / f"run={number}.json"
        place: dict[str, Value] = {
            "save_result": True,
            "result_dir": str(folder),
            "result_filename": file.name,
        }
        command = with_params(sweep.bench, {**bench.values, **place})
        if self._server is None:
            print(shlex.join(command))
            return None
        data = self._experiment.known(file)
        if data is None:
            folder.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)
            run_command(command, sweep.show)
            if not file.is_file():
                raise BenchmarkFailed(f"the benchmark wrote no '{file}'")
            self._after()
            data = read_result(file)
        sets = {normal(k).replace("-", "_"): v for k, v in self._serve.values.items()}
        sets |= {normal(k).replace("-", "_"): v for k, v in bench.values.items()}
        return {**data, **sets, "run_number": number}

    def _after(self) -> None:
        assert self._server is not None
        if self._sweep.after is None:
            self._server.reset_caches()
        else:
            run_command(self._sweep.after, self._sweep.show)
