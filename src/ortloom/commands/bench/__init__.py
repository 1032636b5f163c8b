"""`ortloom bench serve | latency | throughput | startup | sweep`."""

import difflib
import importlib

from ortloom.errors import ConfigError

BENCHMARKS = {
    "serve": "load a running server with requests and report throughput and latencies",
    "latency": "time one batch again and again in this process",
    "throughput": "time a whole data set in this process",
    "startup": "time the start of `ortloom serve`",
    "sweep": "run the others over sets of parameters, and draw what came out",
}
_NOT_YET = {
    "mm-processor": "image, audio and video input is not built",
}


def run(tokens: list[str]) -> int:
    """Run one of the commands; returns its exit code.

    Raises:
        ConfigError: there is no such command.
    """
    if not tokens or tokens[0] in ("-h", "--help", "help") or tokens[0].startswith("--help="):
        print(_usage())
        return 0
    name, rest = tokens[0], tokens[1:]
    if name in _NOT_YET:
        raise ConfigError(f"'{name}' is known, but not in this build yet: {_NOT_YET[name]}")
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name, BENCHMARKS, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        what = "unrecognized arguments" if name.startswith("-") else "unknown benchmark"
        raise ConfigError(f"{what}: {name}{hint}")
    module = importlib.import_module(f"ortloom.commands.bench.{name}")
    code: int = module.run(rest)
    return code


def _usage() -> str:
    width = max(map(len, BENCHMARKS)) + 2
    rows = [f"  {name:<{width}}{text}" for name, text in BENCHMARKS.items()]
    head = "usage: ortloom bench <benchmark> ...\n\nbenchmarks:"
    return "\n".join([head, *rows, "", "ortloom bench <benchmark> --help says more."])
