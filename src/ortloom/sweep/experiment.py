"""The folder of one experiment: a file for each run, sums for each combination and for all."""

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ortloom.errors import BenchmarkFailed
from ortloom.sweep.params import ParamSet

Row = dict[str, Any]


class Experiment:
    """Reads and writes the results of an experiment.

    Args:
        folder: of the experiment.
        resume: runs whose files are there are not done again.
    """

    def __init__(self, folder: Path, resume: bool) -> None:
        self.folder = folder
        self._resume = resume
        self._rows: list[Row] = []

    def combination(self, parts: Iterable[tuple[str, ParamSet]]) -> Path:
        """The folder of a combination, as `SERVE-max-num-seqs=8-BENCH-request-rate=2`."""
        named = [f"{kind}-{params.label}" for kind, params in parts if params.values or params.name]
        return self.folder / ("-".join(named) or "DEFAULT")

    def known(self, file: Path) -> Row | None:
        """The result of a run that is done."""
        if not self._resume or not file.is_file():
            return None
        try:
            return read_result(file)
        except BenchmarkFailed:
            return None  # it was broken off while it was written

    def sum_up(self, folder: Path, rows: list[Row]) -> None:
        """Write a combination's `summary.json`, and all combinations' `summary.csv`."""
        folder.mkdir(parents=True, exist_ok=True)
        rows = [{**row, "combination": folder.name} for row in rows]
        (folder / "summary.json").write_text(json.dumps(rows, indent=2) + "\n")
        self._rows += rows
        write_csv(self.folder / "summary.csv", self._rows)


def read_result(file: Path) -> Row:
    """The JSON object of a result file.

    Raises:
        BenchmarkFailed: there is none.
    """
    try:
        data = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BenchmarkFailed(f"the benchmark left no result in '{file}': {error}") from None
    if not isinstance(data, dict):
        raise BenchmarkFailed(f"the result in '{file}' is no JSON object")
    return data


def write_csv(file: Path, rows: list[Row]) -> None:
    """All rows; the columns are those of any row, in the order they come up. Lists are left out."""
    columns = list(
        dict.fromkeys(key for row in rows for key, v in row.items() if not isinstance(v, list))
    )
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def read_rows(folder: Path) -> list[Row]:
    """The rows of all combinations of an experiment.

    Raises:
        BenchmarkFailed: there are none.
    """
    rows: list[Row] = []
    for file in sorted(folder.rglob("summary.json")):
        try:
            found = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise BenchmarkFailed(f"cannot read '{file}': {error}") from None
        rows += [row for row in found if isinstance(row, dict)]
    if not rows:
        raise BenchmarkFailed(f"there are no results below '{folder}'")
    return rows
