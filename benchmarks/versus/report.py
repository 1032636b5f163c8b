"""The printed tables and the JSON record."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.versus.cases import Case
from benchmarks.versus.engines import OURS, Drive, Precision
from benchmarks.versus.goals import Goal, goal
from benchmarks.versus.measure import Record


@dataclass(frozen=True)
class Ratio:
    """ortloom's best row beside the best peer's, by medians; `ratio` above 1 is for ortloom."""

    case: str
    ours: str
    our_figure: float
    peer: str
    peer_figure: float
    ratio: float
    goal: Goal | None = None

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        return None if self.goal is None else self.our_figure >= self.goal.figure


@dataclass
class Section:
    """One precision, driven one way.

    `trained` is False where the model's predictions mean nothing; `together` says whether the
    engines stayed loaded beside each other.
    """

    precision: Precision
    drive: Drive
    records: list[Record]
    bounds: dict[str, float] = field(default_factory=dict)
    trained: bool = True
    together: bool = True

    def best(self, case: Case, ours: bool) -> tuple[str, float] | None:
        """Name and median of the best of ortloom's rows or of the peers'."""
        found = [
            (record.engine.name, statistics.median(record.samples[case.name]))
            for record in self.records
            if record.engine.ours == ours and record.samples.get(case.name)
        ]
        if not found:
            return None
        choose = max if case.more_is_better else min
        return choose(found, key=lambda item: item[1])

    def ratio(self, case: Case) -> Ratio | None:
        """The case's ratio where both sides were measured."""
        ours, peer = self.best(case, True), self.best(case, False)
        if ours is None or peer is None:
            return None
        ratio = ours[1] / peer[1] if case.more_is_better else peer[1] / ours[1]
        bound = self.bounds.get(case.name)
        wanted = None
        if bound is not None and self.drive == "process":
            wanted = goal(case.name, self.precision, peer[1], bound)
        return Ratio(case.name, *ours, *peer, ratio, wanted)

    def lines(self, cases: Sequence[Case]) -> list[str]:
        """The section as Markdown."""
        how = "in process" if self.drive == "process" else "over HTTP"
        heads = ["engine", *(f"{case.name} {case.unit}" for case in cases)]
        heads += ["cores", "top-1", "KL nats"]
        rows = [f"## {self.precision}, {how}", "", _row(heads), _row(["---"] * len(heads))]
        for record in self.records:
            cells = [_label(record)]
            cells += [spread(record.samples.get(case.name, []), case) for case in cases]
            cells.append(f"{statistics.median(record.cores):.2f}" if record.cores else "-")
            agreement = record.agreement
            none = "-" if self.trained else "n/a"
            cells += [f"{agreement.top1:.1%}", f"{agreement.kl:.2g}"] if agreement else [none] * 2
            rows.append(_row(cells))
        if self.bounds:
            cells = [f"{self.bounds[c.name]:.0f}" if c.name in self.bounds else "" for c in cases]
            rows.append(_row(["bound of the machine", *cells, "", "", ""]))
        rows.append("")
        if not self.trained:
            rows += ["Random weights: top-1 and KL are not applicable.", ""]
        if not self.together:
            rows += ["Each engine was loaded for its turn only, all cases of a round.", ""]
        rows += self._ratio_lines(cases)
        versions = {f"{r.engine.name}: {r.version}" for r in self.records if r.version}
        rows += ["", "Versions: " + "; ".join(sorted(versions))] if versions else []
        rows += [f"{r.engine.name} failed: {r.failure}" for r in self.records if r.failure]
        return [*rows, ""]

    def _ratio_lines(self, cases: Sequence[Case]) -> list[str]:
        rows = []
        for case in cases:
            found = self.ratio(case)
            if found is None:
                continue
            line = f"- {case.name}: {OURS} / best peer = {found.ratio:.2f}; "
            line += f"{found.ours} {found.our_figure:.1f}"
            for record in self.records:
                samples = record.samples.get(case.name)
                if record.engine.ours and record.engine.name != found.ours and samples:
                    line += f", {record.engine.name} {statistics.median(samples):.1f}"
            line += f", {found.peer} {found.peer_figure:.1f} {case.unit}"
            if found.goal is not None:
                line += f"; goal {found.goal.figure:.1f}: {'met' if found.met else 'missed'}"
                line += f" ({found.goal.why})"
            rows.append(line)
        return rows

    def to_json(self, cases: Sequence[Case]) -> dict[str, Any]:
        """All samples, and what they come to."""
        ratios = [ratio for ratio in map(self.ratio, cases) if ratio is not None]
        return {
            "precision": self.precision,
            "drive": self.drive,
            "loaded": "together" if self.together else "turn",
            "bounds_tokens_per_second": self.bounds,
            "engines": [_record_json(record) for record in self.records],
            "ratios": [{**dataclasses.asdict(ratio), "met": ratio.met} for ratio in ratios],
        }


def spread(samples: Sequence[float], case: Case) -> str:
    """Median and range."""
    if not samples:
        return "-"
    digits = 2 if case.unit == "s" else (0 if min(samples) >= 1000 else 1)
    middle, low, high = statistics.median(samples), min(samples), max(samples)
    if len(samples) == 1:
        return f"{middle:.{digits}f}"
    return f"{middle:.{digits}f} [{low:.{digits}f}-{high:.{digits}f}]"


def _label(record: Record) -> str:
    note = f" ({record.engine.note})" if record.engine.note else ""
    return f"{record.engine.peer} {record.engine.label}{note}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _record_json(record: Record) -> dict[str, Any]:
    engine = record.engine
    return {
        "name": engine.name,
        "peer": engine.peer,
        "label": engine.label,
        "note": engine.note,
        "version": record.version,
        "command": list(engine.command),
        "samples": record.samples,
        "medians": {case: statistics.median(list_) for case, list_ in record.samples.items()},
        "health_s": record.health,
        "cores": record.cores,
        "agreement": dataclasses.asdict(record.agreement) if record.agreement else None,
        "failure": record.failure or None,
    }
