"""A sweep as people see it: a table in the terminal, in Markdown and in MLflow's form, and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from proftrack.errors import ProftrackError
from proftrack.frontends.sweep.crossover import MEASURE_BETTER
from proftrack.frontends.sweep.result import Crossover, Point, Sweep, is_number
from proftrack.report import curves
from proftrack.report.curves import Curve
from proftrack.text import counted, duration, percent, plain

TABLE = "tables/sweep.json"
PLOT = "plots/sweep.png"
TEXT = "sweep.md"
_HEADS = ("T", "B", "u", "R", "regime", "confidence")
_MOST_TICKS = 16
_MOST_FAILURES = 10
_NARROWEST = 8
"""Of a parameter's column, in a terminal."""


def rows(sweep: Sweep) -> list[list[str]]:
    """The table's cells, a row a point, with the heads first."""
    found = [[*sweep.axes, *_HEADS]]
    for point in sweep.ordered():
        values = [plain(str(point.values[key]), 30) for key in sweep.axes]
        found.append([*values, *(_figures(point) if point.error is None else _failed())])
    return found


def _figures(point: Point) -> list[str]:
    return [
        duration(point.step_time_us),
        duration(point.busy_us),
        percent(point.busy_fraction),
        duration(point.roofline_us),
        point.regime,
        point.confidence,
    ]


def _failed() -> list[str]:
    return ["-", "-", "-", "-", "failed", "-"]


def print_sweep(sweep: Sweep) -> None:
    """The table, the crossover and the remarks, on stdout."""
    from rich.table import Table
    from rich.text import Text

    from proftrack.report.terminal import console

    out = console()
    head, *body = _fitted(rows(sweep), len(sweep.axes), out.width)
    table = Table(box=None, pad_edge=False, show_edge=False)
    for number, name in enumerate(head):
        right = number < len(head) - 2
        width = max(len(cells[number]) for cells in [head, *body]) if right else None  # no figure is ever cut
        table.add_column(name, justify="right" if right else "left", no_wrap=right, overflow="fold", min_width=width)
    for cells in body:
        table.add_row(*(Text(cell) for cell in cells))
    out.print()
    out.print(Text(f"{sweep.title}, {sweep.device or 'unknown device'}"))
    out.print(table)
    for line in sentences(sweep):
        out.print(Text(line))


def _fitted(cells: list[list[str]], axes: int, width: int) -> list[list[str]]:
    """The cells, those of the axes (the first columns) cut in their middle until all columns fit."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths[:axes]) > _NARROWEST:
        widths[widths.index(max(widths[:axes]), 0, axes)] -= 1
    return [[*map(plain, row[:axes], widths), *row[axes:]] for row in cells]


def sentences(sweep: Sweep) -> list[str]:
    """What the sweep says beside its table."""
    found = [crossover_sentence(sweep.crossover)] if sweep.crossover is not None else []
    earlier = sum(point.source == "earlier" for point in sweep.points)
    if earlier:
        found.append(
            f"{counted(earlier, 'point')} of {len(sweep.points)} were done before; --fresh measures them again."
        )
    doubtful = sweep.inconclusive
    for point in doubtful[:_MOST_FAILURES]:
        found.append(f"{point.label} is inconclusive: {plain((point.doubts or ['no reason was recorded.'])[0], 500)}")
    if doubtful and not any(MEASURE_BETTER in remark for remark in sweep.remarks):
        found.append(f"{MEASURE_BETTER[0].upper()}{MEASURE_BETTER[1:]}.")
    if any(point.on_cpu for point in sweep.points):
        found.append(
            "On the CPU there is no GPU time to measure: B is the time that the operators work, by the profile."
        )
    failed = [f"{point.label} failed: {plain(point.error or '', 300)}" for point in sweep.failed[:_MOST_FAILURES]]
    return [*found, *sweep.remarks, *failed]


def tags(sweep: Sweep) -> dict[str, str]:
    """What the parent run's row says: the regimes in the order of the points, and the conclusion as a sentence."""
    points = [point for point in sweep.ordered() if point.error is None and point.regime]
    if not points:
        return {}
    regimes = list(dict.fromkeys(point.regime for point in points))
    if sweep.crossover is not None:
        said = crossover_sentence(sweep.crossover)
    elif len(regimes) == 1:
        said = f"{regimes[0]} at {'all ' if len(points) > 1 else ''}{counted(len(points), 'point')}."
    else:
        of = {regime: [point.label for point in points if point.regime == regime] for regime in regimes}
        said = "; ".join(f"{regime} at {_some(labels)}" for regime, labels in of.items()) + "."
    failed = f" {counted(len(sweep.failed), 'point')} failed." if sweep.failed else ""
    return {"regime": ", ".join(regimes), "conclusion": said + failed}


def _some(labels: list[str]) -> str:
    return ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")


def crossover_sentence(found: Crossover) -> str:
    """Where the regime changes, and what it took to find."""
    place = f"between {found.param}={_number(found.low)} and {_number(found.high)}"
    return (
        f"B reaches half of T {place}, at about {_number(found.estimate)} by interpolation: {found.low_regime} below, "
        f"{found.high_regime} above. Found with {counted(found.runs, 'run')}."
    )


def markdown(sweep: Sweep) -> str:
    """Table and sentences as Markdown: the parent run's description."""
    head, *body = rows(sweep)
    lines = [f"**{_cell(sweep.title)}**, {_cell(sweep.device or 'unknown device')}", ""]
    lines += [_line(head), _line(["---"] * len(head)), *(_line([_cell(cell) for cell in cells]) for cells in body), ""]
    return "\n".join([*lines, *(f"{_cell(sentence)}\n" for sentence in sentences(sweep))])


def write(sweep: Sweep, folder: Path, *, plot: bool) -> None:
    """Write table and text, and the plot where it is asked for. Raises ProftrackError where the disk refuses."""
    try:
        (folder / TABLE).parent.mkdir(parents=True, exist_ok=True)
        (folder / TABLE).write_bytes(msgspec.json.encode(_table(sweep)))
        (folder / TEXT).write_text(markdown(sweep), encoding="utf-8")
        if plot:
            _plot(sweep, folder / PLOT)
    except OSError as error:
        raise ProftrackError(f"{folder}: cannot be written ({error.strerror}); free some space") from error


def _table(sweep: Sweep) -> dict[str, Any]:
    """In the form of mlflow.log_table."""
    names = [*sweep.axes, "step_time_us", "busy_us", "busy_fraction", "roofline_time_us", "regime", "confidence"]
    data = [
        [
            *(point.values[key] for key in sweep.axes),
            point.step_time_us,
            point.busy_us,
            point.busy_fraction,
            point.roofline_us,
            point.regime,
            point.confidence,
            point.run_id,
            point.error,
        ]
        for point in sweep.ordered()
    ]
    return {"columns": [*names, "run_id", "error"], "data": data}


def _plot(sweep: Sweep, path: Path) -> None:
    points = [point for point in sweep.ordered() if point.step_time_us is not None]
    if not points:
        return
    along = _along(sweep, points)
    numeric = all(is_number(point.values[along]) for point in points)
    places = {str(point.values[along]): float(i) for i, point in enumerate(points)}
    at = [float(p.values[along]) if numeric else places[str(p.values[along])] for p in points]
    ticks = sorted({(x, str(p.values[along])) for x, p in zip(at, points, strict=True)})
    groups: dict[str, list[tuple[float, Point]]] = {}
    for x, point in zip(at, points, strict=True):
        others = " ".join(f"{key}={value}" for key, value in point.values.items() if key != along)
        groups.setdefault(others, []).append((x, point))
    found = sweep.crossover
    curves.write(
        path,
        [_curve(name, members) for name, members in groups.items()],
        title=f"{sweep.title}, {sweep.device}",
        x_label=along,
        ticks=ticks[:: max(1, -(-len(ticks) // _MOST_TICKS))],
        numeric=numeric,
        span=(found.low, found.high) if found is not None else None,
    )


def _along(sweep: Sweep, points: list[Point]) -> str:
    """The parameter of the x axis: the first of numbers, else the first."""
    numbers = [key for key in sweep.axes if all(is_number(point.values[key]) for point in points)]
    return (numbers or list(sweep.axes))[0]


def _curve(name: str, members: list[tuple[float, Point]]) -> Curve:
    members = sorted(members, key=lambda member: member[0])
    return Curve(
        name=name,
        x=[x for x, _ in members],
        time_us=[point.step_time_us for _, point in members],
        busy_us=[point.busy_us for _, point in members],
        fraction=[point.busy_fraction for _, point in members],
    )


def _number(value: float) -> str:
    return str(round(value)) if abs(value) >= 10 else f"{value:.3g}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    from proftrack.report.markdown import escape

    return escape(text, 400)
