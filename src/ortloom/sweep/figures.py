"""Figures of experiments, drawn by matplotlib (extra `plot`)."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ortloom.errors import BenchmarkFailed
from ortloom.sweep.experiment import Row
from ortloom.sweep.selection import Point, as_number, frontier, grouped, points


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn: a figure for each group of `fig_by`, panels by row and column, curves."""

    x: str
    y: str
    fig_by: tuple[str, ...] = ()
    row_by: tuple[str, ...] = ()
    col_by: tuple[str, ...] = ()
    curve_by: tuple[str, ...] = ()
    scale_x: str | None = None
    scale_y: str | None = None
    name: str = "FIGURE"
    error_bars: bool = True
    height: float = 6.4
    dpi: int = 300


def require_matplotlib() -> None:
    """Find out whether figures can be drawn.

    Raises:
        BenchmarkFailed: naming the extra.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise BenchmarkFailed("plots need matplotlib: pip install 'ortloom[plot]'")


def draw(rows: Sequence[Row], plot: Plot, folder: Path) -> list[Path]:
    """Draw all figures; the files that were written.

    Raises:
        BenchmarkFailed: matplotlib is missing, or no row has both values.
    """
    require_matplotlib()
    if not points(rows, plot.x, plot.y):
        raise BenchmarkFailed(f"no result has both '{plot.x}' and '{plot.y}'")
    written = []
    for name, group in grouped(rows, plot.fig_by).items():
        figure = _figure(group, plot)
        file = folder / f"{plot.name}{'-' if name else ''}{_plain(name)}.png"
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=plot.dpi)
        written.append(file)
    return written


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_=.," else "_" for c in name.replace(", ", ","))


def _new_figure(rows: int, columns: int, height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = (height * 1.4 * columns, height * rows)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _figure(rows: Sequence[Row], plot: Plot) -> Any:
    by_row = grouped(rows, plot.row_by)
    columns = list(grouped(rows, plot.col_by))
    figure, panels = _new_figure(len(by_row), len(columns), plot.height)
    for line, (row_name, in_row) in zip(panels, by_row.items(), strict=True):
        by_column = grouped(in_row, plot.col_by)
        for panel, column in zip(line, columns, strict=True):
            _panel(panel, by_column.get(column, []), plot)
            panel.set_title(", ".join(part for part in (row_name, column) if part))
    return figure


def _panel(panel: Any, rows: Sequence[Row], plot: Plot) -> None:
    for name, group in grouped(rows, plot.curve_by).items():
        curve = points(group, plot.x, plot.y)
        if not curve:
            continue
        xs, ys = [p.x for p in curve], [p.y for p in curve]
        panel.plot(xs, ys, marker="o", label=name or None)
        if plot.error_bars:
            lows = [p.y - p.low for p in curve]
            highs = [p.high - p.y for p in curve]
            panel.errorbar(xs, ys, yerr=[lows, highs], fmt="none", capsize=3, alpha=0.5)
    panel.set_xlabel(plot.x)
    panel.set_ylabel(plot.y)
    if plot.scale_x is not None:
        panel.set_xscale(plot.scale_x)
    if plot.scale_y is not None:
        panel.set_yscale(plot.scale_y)
    panel.grid(alpha=0.3)
    if plot.curve_by and panel.get_legend_handles_labels()[0]:
        panel.legend()


def pareto_points(rows: Sequence[Row], users: str, devices: str | None) -> list[tuple[Point, Row]]:
    """Tokens a second for one user and for one device, of every row that tells both."""
    found = []
    for row in rows:
        tokens, count = as_number(row.get("output_throughput")), as_number(row.get(users))
        machines = 1.0 if devices is None else as_number(row.get(devices))
        if tokens is None or not count or not machines:
            continue
        point = Point(tokens / count, tokens / machines, tokens / machines, tokens / machines)
        found.append((point, row))
    return found


def draw_pareto(
    rows: Sequence[Row], users: str, devices: str | None, labels: Sequence[str], folder: Path
) -> Path:
    """Draw speed for a user against speed for a device, and the line nothing lies beyond.

    Raises:
        BenchmarkFailed: matplotlib is missing, or no row tells both.
    """
    require_matplotlib()
    found = pareto_points(rows, users, devices)
    if not found:
        raise BenchmarkFailed(f"no result has both 'output_throughput' and '{users}'")
    figure, panels = _new_figure(1, 1, 6.4)
    panel = panels[0][0]
    panel.scatter([p.x for p, _ in found], [p.y for p, _ in found], alpha=0.6)
    line = frontier([p for p, _ in found])
    panel.plot([p.x for p in line], [p.y for p in line], marker="o", color="C1")
    for point, row in found:
        text = ", ".join(f"{name}={row.get(name)}" for name in labels if name in row)
        panel.annotate(
            text, (point.x, point.y), fontsize=7, xytext=(4, 4), textcoords="offset points"
        )
    panel.set_xlabel("tokens/s for one user")
    panel.set_ylabel("tokens/s for one device")
    panel.grid(alpha=0.3)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "PARETO.png"
    figure.savefig(file, dpi=300)
    return file
