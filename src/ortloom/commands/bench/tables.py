"""The flag tables of the benchmarks: their own rows, and those of the engine they start."""

from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from ortloom.flags import GROUPS, Flag, FlagTable, flag_table, named_by_option

Command = Literal["serve", "latency", "throughput", "startup"]

BENCH_GROUPS = {
    "Server": "the server that is measured",
    "Load": "how many requests are sent, and when",
    "Sampling": "what the requests ask for",
    "Dataset": "the prompts",
    "Run": "sizes and repetitions",
    "Results": "what is reported and where it is written",
}
_SHARED_SERVER_FLAGS = frozenset({"--config", "--log-level", "--disable-log-stats"})


class _Rows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """flags.json beside this file."""

    reasons: dict[str, str]
    serve: tuple[Flag, ...]
    dataset: tuple[Flag, ...]
    latency: tuple[Flag, ...]
    throughput: tuple[Flag, ...]
    startup: tuple[Flag, ...]


@cache
def _rows() -> _Rows:
    data = Path(__file__).with_name("flags.json").read_bytes()
    return msgspec.json.decode(data, type=_Rows)


def bench_table(command: Command) -> FlagTable:
    """All flags of a benchmark; where the engine has a flag of the same name, the engine's."""
    rows = _rows()
    own = {
        "serve": (*rows.serve, *rows.dataset),
        "latency": rows.latency,
        "throughput": (*rows.throughput, *rows.dataset),
        "startup": rows.startup,
    }[command]
    engine = _engine_flags(command)
    taken = {flag.name for flag in engine}
    reasons = {**flag_table().reasons, **rows.reasons}
    return FlagTable(reasons, (*(flag for flag in own if flag.name not in taken), *engine))


def _engine_flags(command: Command) -> tuple[Flag, ...]:
    """A startup takes every flag of the server it starts; the runs in this process have no HTTP."""
    flags = tuple(map(named_by_option, flag_table().flags))
    if command == "serve":
        return ()
    if command == "startup":
        return flags
    return tuple(
        flag
        for flag in flags
        if flag.group not in ("Frontend", "Server") or flag.name in _SHARED_SERVER_FLAGS
    )


def is_own(command: Command, name: str) -> bool:
    """Whether a flag is the benchmark's and not its server's."""
    rows: tuple[Flag, ...] = getattr(_rows(), command)
    return any(flag.name == name for flag in rows)


def groups(command: Command) -> dict[str, str]:
    """The groups of a benchmark's table, its own first."""
    table = bench_table(command)
    used = {flag.group for flag in table.flags}
    known = BENCH_GROUPS if command == "serve" else {**_without_server(BENCH_GROUPS), **GROUPS}
    return {name: text for name, text in known.items() if name in used}


def _without_server(names: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in names.items() if name != "Server"}
