"""Start-up times over sets of parameters: `bench sweep startup`."""

import shlex

import msgspec

from ortloom.errors import ConfigError
from ortloom.logs import say
from ortloom.sweep.experiment import Experiment, Row, read_result
from ortloom.sweep.params import ParamSet, Value, normal, with_params
from ortloom.sweep.processes import run_command


class StartingSweep(msgspec.Struct, frozen=True, kw_only=True):
    """What is run. `known` = names of the flags of `bench startup`; with `strict` another
    parameter is an error."""

    startup: list[str]
    serve_params: list[ParamSet]
    startup_params: list[ParamSet]
    known: frozenset[str]
    strict: bool
    num_runs: int
    show: bool
    dry_run: bool


def sweep_starting(sweep: StartingSweep, experiment: Experiment) -> None:
    """Every set of the server with every set of the benchmark.

    Raises:
        ConfigError: an unknown parameter, with `strict`.
        BenchmarkFailed: a benchmark failed.
    """
    for serve in sweep.serve_params:
        for startup in sweep.startup_params:
            values = {**_known(serve, sweep), **_known(startup, sweep)}
            folder = experiment.combination((("SERVE", serve), ("STARTUP", startup)))
            rows: list[Row] = []
            for number in range(sweep.num_runs):
                file = folder / f"run={number}.json"
                command = with_params(sweep.startup, {**values, "output_json": str(file)})
                if sweep.dry_run:
                    print(shlex.join(command))
                    continue
                data = experiment.known(file)
                if data is None:
                    folder.mkdir(parents=True, exist_ok=True)
                    run_command(command, sweep.show)
                    data = read_result(file)
                sets = {normal(k).replace("-", "_"): v for k, v in values.items()}
                rows.append({**flat(data), **sets, "run_number": number})
            if not sweep.dry_run:
                experiment.sum_up(folder, rows)


def _known(params: ParamSet, sweep: StartingSweep) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for key, value in params.values.items():
        if normal(key).partition(".")[0] in sweep.known:
            found[key] = value
        elif sweep.strict:
            raise ConfigError(f"'{key}' is no flag of bench startup (--strict-params)")
        else:
            say(f"warning: '{key}' is no flag of bench startup and is left out")
    return found


def flat(data: Row, prefix: str = "") -> Row:
    """Nested objects as one row: `{"warm": {"health": {"avg": 1}}}` → `warm_health_avg`."""
    row: Row = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            row |= flat(value, f"{name}_")
        else:
            row[name] = value
    return row
