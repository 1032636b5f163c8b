"""Progress of an export on standard error: bars on a terminal, lines elsewhere, or JSON."""

import json
import sys
import time
from typing import Any, Protocol, TextIO


class Progress(Protocol):
    """Told what happens. A phase ends where the next one starts, or at `close`."""

    def phase(self, name: str, total: int | None = None, unit: str = "") -> None:
        """A phase starts; `total` in units (`B` = bytes), None where unknown."""

    def advance(self, amount: int) -> None:
        """So many units of the phase are done."""

    def note(self, text: str) -> None:
        """Something worth knowing."""

    def warn(self, text: str) -> None:
        """Something the user should look at."""

    def close(self) -> None:
        """The export is over, with or without success."""


def _size(amount: float, unit: str) -> str:
    if unit != "B":
        return f"{amount:.0f}"
    return f"{amount / 1e6:.0f} MB"


class LineProgress:
    """One line when a phase starts and one when it ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._name: str | None = None
        self._start = 0.0
        self._done = 0
        self._unit = ""

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def phase(self, name: str, total: int | None = None, unit: str = "") -> None:
        """See `Progress.phase`."""
        self._end()
        self._name, self._start, self._done, self._unit = name, time.monotonic(), 0, unit
        size = "" if total is None else f" ({_size(total, unit)})"
        self._print(f"{name} ...{size}")

    def advance(self, amount: int) -> None:
        """See `Progress.advance`."""
        self._done += amount

    def _end(self) -> None:
        if self._name is None:
            return
        seconds = time.monotonic() - self._start
        rate = ""
        if self._unit == "B" and seconds > 0:
            rate = f", {self._done / 1e6 / seconds:.0f} MB/s"
        self._print(f"{self._name}: {seconds:.1f} s{rate}")
        self._name = None

    def note(self, text: str) -> None:
        """See `Progress.note`."""
        self._print(text)

    def warn(self, text: str) -> None:
        """See `Progress.warn`."""
        self._print(f"warning: {text}")

    def close(self) -> None:
        """See `Progress.close`."""
        self._end()


class JsonProgress:
    """One JSON object a line: {"event": phase | progress | note | warning | end, ...}."""

    INTERVAL = 0.5
    """Least seconds between two progress events."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._name: str | None = None
        self._total: int | None = None
        self._done = 0
        self._last = 0.0

    def _event(self, event: str, **fields: Any) -> None:
        print(json.dumps({"event": event, **fields}), file=self._stream, flush=True)

    def phase(self, name: str, total: int | None = None, unit: str = "") -> None:
        """See `Progress.phase`."""
        self._name, self._total, self._done, self._last = name, total, 0, time.monotonic()
        self._event("phase", name=name, total=total, unit=unit)

    def advance(self, amount: int) -> None:
        """See `Progress.advance`."""
        self._done += amount
        if time.monotonic() - self._last >= self.INTERVAL or self._done == self._total:
            self._last = time.monotonic()
            self._event("progress", name=self._name, done=self._done, total=self._total)

    def note(self, text: str) -> None:
        """See `Progress.note`."""
        self._event("note", text=text)

    def warn(self, text: str) -> None:
        """See `Progress.warn`."""
        self._event("warning", text=text)

    def close(self) -> None:
        """See `Progress.close`."""
        self._event("end")


class RichProgress:
    """Bars on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(file=stream)
        self._bars = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._task: Any = None
        self._unit = ""
        self._start = 0.0
        self._bars.start()

    def phase(self, name: str, total: int | None = None, unit: str = "") -> None:
        """See `Progress.phase`."""
        self._end()
        self._unit, self._start = unit, time.monotonic()
        self._task = self._bars.add_task(name, total=total, rate="")

    def advance(self, amount: int) -> None:
        """See `Progress.advance`."""
        if self._task is None:
            return
        self._bars.update(self._task, advance=amount)
        seconds = time.monotonic() - self._start
        if self._unit == "B" and seconds > 0:
            done = self._bars.tasks[self._task].completed
            self._bars.update(self._task, rate=f"{done / 1e6 / seconds:.0f} MB/s")

    def _end(self) -> None:
        if self._task is not None:
            total = self._bars.tasks[self._task].total or 1
            self._bars.update(self._task, total=total, completed=total)
            self._bars.stop_task(self._task)
            self._task = None

    def note(self, text: str) -> None:
        """See `Progress.note`."""
        self._console.print(text, markup=False, highlight=False)

    def warn(self, text: str) -> None:
        """See `Progress.warn`."""
        self._console.print(f"warning: {text}", style="yellow", markup=False, highlight=False)

    def close(self) -> None:
        """See `Progress.close`."""
        self._end()
        self._bars.stop()


def progress_for(as_json: bool, stream: TextIO | None = None, bars: bool = True) -> Progress:
    """The progress that fits the stream (standard error by default); bars only where asked for."""
    out = sys.stderr if stream is None else stream
    if as_json:
        return JsonProgress(out)
    if bars and out.isatty():
        return RichProgress(out)
    return LineProgress(out)
