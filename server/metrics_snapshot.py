"""Numbers of one front as plain data, and their sum over all fronts.

A front sends its `Snapshot` to the supervisor, which keeps the newest one of each front and, for
fronts that died, what their counters had reached. Series are named by their text in the
exposition format (`name{label="value"}`), so adding two snapshots is adding two dictionaries.

This module knows neither prometheus_client nor how the numbers are collected.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from ortloom.runtime.messages import EngineStats

Merge = Literal["sum", "live", "min"]
"""How a family adds up: over all fronts that ever lived, over the living ones, or the least."""


class Family(msgspec.Struct, array_like=True):
    """One metric with all its series, in exposition order."""

    name: str
    help: str
    type: str
    merge: Merge
    series: dict[str, float]

    def is_created(self, series: str) -> bool:
        """True for the series that tells when a counter or histogram began."""
        return series.partition("{")[0] == f"{self.name}_created"


class Snapshot(msgspec.Struct):
    """All families of one front, with the newest engine numbers it has seen."""

    families: list[Family] = []
    stats: EngineStats | None = None


def add(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The sum of snapshots; of the engine's cumulative numbers the newest is taken once."""
    total: dict[str, Family] = {}
    stats: EngineStats | None = None
    for snapshot in snapshots:
        if snapshot.stats is not None and (stats is None or _age(snapshot.stats) >= _age(stats)):
            stats = snapshot.stats
        for family in snapshot.families:
            known = total.get(family.name)
            if known is None:
                total[family.name] = msgspec.structs.replace(family, series=dict(family.series))
            else:
                _add_series(known, family)
    return Snapshot(families=list(total.values()), stats=stats)


def _add_series(total: Family, more: Family) -> None:
    series = total.series
    for name, value in more.series.items():
        if name not in series:
            series[name] = value
        elif total.merge == "min" or total.is_created(name):
            series[name] = min(series[name], value)
        else:
            series[name] += value


def _age(stats: EngineStats) -> tuple[int, int, int]:
    return (stats.num_steps, sum(stats.finished.values()), stats.admission_rejections)


class SnapshotStore:
    """The supervisor's memory of every front's numbers, by front index."""

    def __init__(self) -> None:
        self._live: dict[int, Snapshot] = {}
        self._retired = Snapshot()

    def update(self, index: int, snapshot: Snapshot) -> None:
        """Replace the numbers of a living front."""
        self._live[index] = snapshot

    def retire(self, index: int) -> None:
        """A front died: keep what its counters had reached, forget its gauges."""
        last = self._live.pop(index, None)
        if last is not None:
            kept = [family for family in last.families if family.merge == "sum"]
            self._retired = add([self._retired, Snapshot(families=kept, stats=last.stats)])

    def total(self) -> Snapshot:
        """The sum over the living and the dead."""
        return add([*self._live.values(), self._retired])
