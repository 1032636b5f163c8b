"""`ortloom bench sweep serve | serve_workload | startup | plot | plot_pareto`."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from ortloom.commands.bench.tables import bench_table
from ortloom.errors import ConfigError
from ortloom.sweep.experiment import Experiment, read_rows
from ortloom.sweep.figures import Plot, draw, draw_pareto
from ortloom.sweep.params import normal, read_links, read_params, split_command
from ortloom.sweep.selection import binned, filtered, names
from ortloom.sweep.serving import ServingSweep, sweep_serving, sweep_workload
from ortloom.sweep.starting import StartingSweep, sweep_starting

_SHOWN = ("max_concurrency",)


def run(tokens: list[str]) -> int:
    """Run one of the commands; returns the exit code.

    Raises:
        ConfigError: a flag is wrong.
        BenchmarkFailed: a command of the sweep failed, or there is nothing to draw.
    """
    options = _parser().parse_args(tokens)
    match options.command:
        case "serve":
            sweep_serving(_serving(options), _experiment(options))
        case "serve_workload":
            if options.workload_iters < 2:
                raise ConfigError("argument --workload-iters: must be at least 2")
            sweep, experiment = _serving(options), _experiment(options)
            sweep_workload(sweep, experiment, options.workload_var, options.workload_iters)
        case "startup":
            sweep_starting(_starting(options), _experiment(options))
        case "plot":
            _plot(options)
        case "plot_pareto":
            _plot_pareto(options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ortloom bench sweep", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="every set of a server with every set of a load")
    workload = commands.add_parser("serve_workload", help="loads between one at a time and all")
    for command in (serve, workload):
        _add_serving(command)
        _add_runs(command)
    workload.add_argument(
        "--workload-var",
        choices=("request_rate", "max_concurrency"),
        default="request_rate",
        help="what is changed from point to point",
    )
    workload.add_argument("--workload-iters", type=int, default=10, help="points in all")
    startup = commands.add_parser("startup", help="start-up times over sets of parameters")
    startup.add_argument("--startup-cmd", default="ortloom bench startup")
    startup.add_argument("--serve-params", help="JSON or its file: sets of the server's flags")
    startup.add_argument("--startup-params", help="JSON or its file: sets of bench startup's flags")
    startup.add_argument("--strict-params", action="store_true", help="refuse unknown parameters")
    _add_runs(startup)
    _add_plot(commands.add_parser("plot", help="curves of an experiment"))
    pareto = commands.add_parser("plot_pareto", help="speed for a user against speed for a device")
    pareto.add_argument("experiment", type=Path, metavar="EXPERIMENT_DIR")
    pareto.add_argument("--user-count-var", default="max_concurrency")
    pareto.add_argument("--gpu-count-var", help="absent = one device")
    pareto.add_argument("--label-by", default=",".join(_SHOWN))
    pareto.add_argument("--dry-run", action="store_true")
    return parser


def _add_serving(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--serve-cmd", required=True, help="starts the server")
    parser.add_argument("--bench-cmd", required=True, help="a `bench serve` command")
    parser.add_argument("--after-bench-cmd", help="instead of resetting the server's caches")
    parser.add_argument("--serve-params", help="JSON or its file: sets of the server's flags")
    parser.add_argument("--bench-params", help="JSON or its file: sets of the benchmark's flags")
    parser.add_argument("--link-vars", help="a=b,…: only sets where these are equal")
    parser.add_argument("--server-ready-timeout", type=float, default=300.0, metavar="SECONDS")


def _add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-runs", type=int, default=3, help="runs of each combination")
    parser.add_argument("-o", "--output-dir", type=Path, default=Path("results"))
    parser.add_argument("-e", "--experiment-name", help="folder in it; absent = the time")
    parser.add_argument("--show-stdout", action="store_true", help="of servers and benchmarks")
    parser.add_argument("--dry-run", action="store_true", help="print the commands only")
    parser.add_argument("--resume", action="store_true", help="leave out runs that are done")


def _add_plot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", type=Path, metavar="EXPERIMENT_DIR")
    parser.add_argument("--fig-dir", default="", help="folder of the figures, in the experiment's")
    for name, what in (
        ("fig", "figures"),
        ("row", "rows"),
        ("col", "columns"),
        ("curve", "curves"),
    ):
        parser.add_argument(f"--{name}-by", help=f"parameters, with commas, that part {what}")
    parser.add_argument("--var-x", default="request_throughput")
    parser.add_argument("--var-y", default="p99_ttft_ms")
    parser.add_argument("--filter-by", help="conditions, with commas, such as max_concurrency<=8")
    parser.add_argument("--bin-by", help="steps, with commas, such as request_throughput%%10")
    parser.add_argument("--scale-x", choices=("linear", "log", "symlog", "logit"))
    parser.add_argument("--scale-y", choices=("linear", "log", "symlog", "logit"))
    parser.add_argument("--fig-name", default="FIGURE")
    parser.add_argument("--no-error-bars", action="store_true")
    parser.add_argument("--fig-height", type=float, default=6.4, help="of a panel, in inches")
    parser.add_argument("--fig-dpi", type=int, default=300)
    parser.add_argument("--dry-run", action="store_true", help="print the rows only")


def _experiment(options: argparse.Namespace) -> Experiment:
    if options.num_runs < 1:
        raise ConfigError(f"argument --num-runs: must be at least 1, got {options.num_runs}")
    if options.resume and options.experiment_name is None:
        raise ConfigError("--resume needs --experiment-name")
    name = options.experiment_name or time.strftime("%Y%m%d_%H%M%S")
    folder = options.output_dir / name
    if folder.exists() and not options.resume and not options.dry_run:
        raise ConfigError(f"'{folder}' is there already (--resume goes on with it)")
    return Experiment(folder, options.resume)


def _serving(options: argparse.Namespace) -> ServingSweep:
    after = options.after_bench_cmd
    return ServingSweep(
        serve=split_command("--serve-cmd", options.serve_cmd),
        bench=split_command("--bench-cmd", options.bench_cmd),
        after=None if after is None else split_command("--after-bench-cmd", after),
        serve_params=read_params("--serve-params", options.serve_params),
        bench_params=read_params("--bench-params", options.bench_params),
        links=read_links(options.link_vars),
        num_runs=options.num_runs,
        ready_seconds=options.server_ready_timeout,
        show=options.show_stdout,
        dry_run=options.dry_run,
    )


def _starting(options: argparse.Namespace) -> StartingSweep:
    return StartingSweep(
        startup=split_command("--startup-cmd", options.startup_cmd),
        serve_params=read_params("--serve-params", options.serve_params),
        startup_params=read_params("--startup-params", options.startup_params),
        known=frozenset(normal(flag.name) for flag in bench_table("startup").flags),
        strict=options.strict_params,
        num_runs=options.num_runs,
        show=options.show_stdout,
        dry_run=options.dry_run,
    )


def _plot(options: argparse.Namespace) -> None:
    rows = binned(filtered(read_rows(options.experiment), options.filter_by), options.bin_by)
    plot = Plot(
        x=options.var_x,
        y=options.var_y,
        fig_by=names(options.fig_by),
        row_by=names(options.row_by),
        col_by=names(options.col_by),
        curve_by=names(options.curve_by),
        scale_x=options.scale_x,
        scale_y=options.scale_y,
        name=options.fig_name,
        error_bars=not options.no_error_bars,
        height=options.fig_height,
        dpi=options.fig_dpi,
    )
    if options.dry_run:
        by = (*plot.fig_by, *plot.row_by, *plot.col_by, *plot.curve_by, plot.x, plot.y)
        _print_rows(rows, by)
        return
    for file in draw(rows, plot, options.experiment / options.fig_dir):
        print(file)


def _plot_pareto(options: argparse.Namespace) -> None:
    rows = read_rows(options.experiment)
    labels = names(options.label_by)
    if options.dry_run:
        _print_rows(rows, (*labels, options.user_count_var, "output_throughput"))
        return
    users, devices = options.user_count_var, options.gpu_count_var
    print(draw_pareto(rows, users, devices, labels, options.experiment))


def _print_rows(rows: Sequence[dict[str, object]], columns: Sequence[str]) -> None:
    shown = list(dict.fromkeys(columns))
    print("\t".join(shown))
    for row in rows:
        print("\t".join(str(row.get(name)) for name in shown))
