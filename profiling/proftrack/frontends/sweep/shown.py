"""How a sweep is shown: its table, the sentences below it, and its plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from proftrack.errors import ProftrackError
from proftrack.frontends.batch import shown
from proftrack.frontends.batch.result import regimes
from proftrack.frontends.batch.shown import Column
from proftrack.frontends.sweep.crossover import MEASURE_BETTER
from proftrack.frontends.sweep.result import Crossover, Point, Sweep, is_number
from proftrack.report import curves
from proftrack.report.curves import Curve
from proftrack.report.document import Document
from proftrack.text import counted, plain

_COLUMNS = (
    shown.STEP_TIME,
    shown.BUSY,
    shown.FRACTION,
    shown.ROOFLINE,
    shown.ENERGY,
    shown.REGIME,
    shown.CONFIDENCE,
)
_MOST_TICKS = 16
_MOST_FAILURES = 10


def page(sweep: Sweep) -> Document:
    """The whole page about a sweep, with one table row per point."""
    return shown.page(
        sweep.ordered(),
        [_axis(key, sweep.points) for key in sweep.axes],
        _COLUMNS,
        caption=f"{sweep.title}, {sweep.device or 'unknown device'}",
        sentences=sentences(sweep),
    )


def _axis(key: str, points: Sequence[Point]) -> Column[Point]:
    sized = all(is_number(point.values[key]) for point in points)
    return Column(key, lambda point: plain(str(point.values[key]), 30), "number" if sized else "text")


def table(sweep: Sweep) -> bytes:
    """The points in the form of mlflow.log_table."""
    return shown.as_table([{**point.values, **shown.figures(point)} for point in sweep.ordered()])


def sentences(sweep: Sweep) -> list[str]:
    """The sentences below the table."""
    lines = [crossover_sentence(sweep.crossover)] if sweep.crossover is not None else []
    earlier = sum(point.source == "earlier" for point in sweep.points)
    if earlier:
        lines.append(
            f"{earlier} of {counted(len(sweep.points), 'point')} reused from an earlier sweep; --fresh measures again."
        )
    doubtful = sweep.inconclusive
    for point in doubtful[:_MOST_FAILURES]:
        lines.append(f"{point.label} is inconclusive: {plain((point.doubts or ['no reason was recorded.'])[0], 500)}")
    if doubtful and not any(MEASURE_BETTER in remark for remark in sweep.remarks):
        lines.append(f"{MEASURE_BETTER[0].upper()}{MEASURE_BETTER[1:]}.")
    if any(point.on_cpu for point in sweep.points):
        lines.append(
            "On the CPU there is no GPU time to measure: B is the time that operators work, according to the profile."
        )
    failed = [f"{point.label} failed: {plain(point.error or '', 300)}" for point in sweep.failed[:_MOST_FAILURES]]
    return [*lines, *sweep.remarks, *failed]


def tags(sweep: Sweep) -> dict[str, str]:
    """Tags for the parent run's row: the regimes in the order of the points, and the conclusion as a sentence."""
    points = [point for point in sweep.ordered() if point.error is None and point.regime]
    if not points:
        return {}
    distinct = regimes(points)
    if sweep.crossover is not None:
        conclusion = crossover_sentence(sweep.crossover)
    elif len(distinct) == 1:
        conclusion = f"{distinct[0]} at {'all ' if len(points) > 1 else ''}{counted(len(points), 'point')}."
    else:
        labels_of = {regime: [point.label for point in points if point.regime == regime] for regime in distinct}
        conclusion = "; ".join(f"{regime} at {_first_three(labels)}" for regime, labels in labels_of.items()) + "."
    failed = f" {counted(len(sweep.failed), 'point')} failed." if sweep.failed else ""
    return {"regime": ", ".join(distinct), "conclusion": conclusion + failed}


def _first_three(labels: list[str]) -> str:
    return ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")


def crossover_sentence(crossover: Crossover) -> str:
    """Where the regime changes, and how many runs it took to find it."""
    place = f"between {crossover.param}={_number(crossover.low)} and {_number(crossover.high)}"
    return (
        f"B reaches half of T {place}, at about {_number(crossover.estimate)} by interpolation: "
        f"{crossover.low_regime} below, {crossover.high_regime} above. Found with {counted(crossover.runs, 'run')}."
    )


def plot(sweep: Sweep, path: Path) -> None:
    """Draw T, B and u over a parameter. Raises ProftrackError if the file cannot be written."""
    try:
        _plot(sweep, path)
    except OSError as error:
        raise ProftrackError(f"{path.parent}: cannot be written ({error.strerror})", "free some space") from error


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
    crossover = sweep.crossover
    curves.write(
        path,
        [_curve(name, members) for name, members in groups.items()],
        title=f"{sweep.title}, {sweep.device}",
        x_label=along,
        ticks=ticks[:: max(1, -(-len(ticks) // _MOST_TICKS))],
        numeric=numeric,
        span=(crossover.low, crossover.high) if crossover is not None else None,
    )


def _along(sweep: Sweep, points: list[Point]) -> str:
    """The parameter of the x axis: the first numeric one, else the first."""
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
