"""A sweep from its first point to the last line about it.

All points are timed, then each is profiled, kept and logged as a child run: an interrupted sweep goes on with those
that are not whole. Points that are done are found by their key in the store, or in the folder; see `batch.key`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from proftrack.errors import ProftrackError, UsageError
from proftrack.experiment import Experiment
from proftrack.frontends.batch.group import new_group, resolve, shared
from proftrack.frontends.batch.key import part_key, points_key
from proftrack.frontends.batch.result import fill
from proftrack.frontends.batch.shown import Outcome
from proftrack.frontends.sweep import crossover, measuring, plan, shown
from proftrack.frontends.sweep.measuring import Asked, Measured
from proftrack.frontends.sweep.plan import Plan
from proftrack.frontends.sweep.result import Crossover, Point, Sweep
from proftrack.frontends.sweep.stages import Where
from proftrack.names import file_name
from proftrack.record import Record
from proftrack.recorder import Batch, Destination, refusals_noted
from proftrack.report import markdown
from proftrack.report.progress import progress
from proftrack.rundir.batch import Group, Part
from proftrack.store import keys

if TYPE_CHECKING:
    from proftrack.recorder.life import Say


def run(
    reference: str,
    asked: Plan,
    destination: Destination,
    *,
    isolate: bool,
    find_crossover: bool,
    tolerance: float,
    say: Say,
) -> Outcome:
    """Measure the points, then the crossover where it is asked for. A point that fails does not end it.

    `say` gets a sentence about what is left where it ends before its time. Raises what `recorder.Batch` raises.
    """
    with measuring.Measuring(asked.first, isolate=isolate, phase=progress().phase) as measurer:
        measurer.begin(asked.first)  # they load torch while this process loads MLflow
        with refusals_noted(mlflow=destination.mlflow):
            batch = Batch(group_of(asked), destination)
        with batch.living(say):
            runner = Runner(reference, asked, batch, measurer)
            with measurer:  # the processes end before anything is logged: an interruption must not leave them at work
                sweep = runner.run(find_crossover=find_crossover, tolerance=tolerance)
    return Outcome(shown.page(sweep), batch.leave(), batch.group.error)


class Measurer(Protocol):
    """What measures points; see proftrack.frontends.sweep.measuring."""

    def measure(self, asked: Sequence[Asked]) -> Iterator[Measured]:
        """The points as they are done, their run folders whole."""


class _Waiting(NamedTuple):
    """A point that is to be measured."""

    experiment: Experiment
    point: Point
    part: Part


class Runner:
    """Measures points, or takes them over, and keeps the sweep's files up to date."""

    def __init__(self, reference: str, asked: Plan, batch: Batch, measurer: Measurer) -> None:
        self._reference, self._asked = reference, asked
        self._batch, self._measurer = batch, measurer
        self._order: dict[str, int] = {}
        """The points' keys, in the order in which they were asked for."""
        first = asked.first
        self.sweep = Sweep(
            experiment=first.name,
            title=f"{first.name}: {', '.join(asked.axes)}",
            device=batch.group.tags.get(keys.DEVICE_TAG, ""),
            axes=asked.axes,
            fixed=shared(first, asked.axes),
        )

    def run(self, *, find_crossover: bool, tolerance: float) -> Sweep:
        """All points, then the crossover where it is asked for."""
        self.points(self._asked.points)
        if find_crossover:
            self.sweep.crossover = self._crossover(tolerance)
        self._batch.over(_what_failed(self.sweep))
        shown.plot(self.sweep, self._batch.folder / self._batch.group.names.plot)
        self._write()
        return self.sweep

    def points(self, asked: Sequence[Experiment], *, bisection: bool = False) -> None:
        """Measure points, or take them over, each written down as it is done, whatever comes of it."""
        waiting: dict[str, _Waiting] = {}
        for experiment in asked:
            point, part = self._new(experiment, bisection=bisection)
            if not self._taken_over(point, part):
                waiting[point.key] = _Waiting(experiment, point, part)
        requests = [
            self._request(each, "(bisection)" if bisection else f"({number} of {len(waiting)})")
            for number, each in enumerate(waiting.values(), 1)
        ]
        # Written down before they are measured: killed at any moment, what is whole is known for what it is.
        self._write()
        for measured in self._measurer.measure(requests):
            _, point, part = waiting[measured.asked.key]
            self._take(measured, point, part)

    def _new(self, asked: Experiment, *, bisection: bool) -> tuple[Point, Part]:
        values = plan.values_of(asked, self._asked.axes)
        point = Point(key=part_key(asked), label=plan.label(values), values=values)
        point.found_by = "bisection" if bisection else "grid"
        self._order.setdefault(point.key, len(self._order))
        return point, self._batch.group.part(point.key) or Part(key=point.key, name=asked.display_name)

    def _taken_over(self, point: Point, part: Part) -> bool:
        """Whether a point need not be measured: it was, or nobody can say whether it was."""
        try:
            record = self._batch.earlier(part)
        except ProftrackError as error:
            point.error = part.error = str(error)
        else:
            if record is None:
                return False
            point.source = "earlier"
            self._fill(point, part, record)
        self._put(point, part)
        return True

    def _request(self, waiting: _Waiting, counted: str) -> Asked:
        experiment, point, part = waiting
        name = f"{file_name(part.name)}-{part.key[:6]}"
        folder = self._batch.folder_for(name)
        part.folder = folder.relative_to(self._batch.folder).as_posix()
        self._batch.group.put(part)
        return Asked(
            key=point.key,
            experiment=experiment,
            where=Where(self._reference, plan.overrides(experiment, self._asked)),
            folder=folder,
            log=self._batch.log_for(name),
            text=f"{point.label} {counted}",
        )

    def _take(self, measured: Measured, point: Point, part: Part) -> None:
        """Keep a point that was measured, and write it down."""
        point.seconds = round(measured.seconds, 1)
        if measured.record is None:
            point.error = part.error = measured.error
            part.folder = None
        else:
            try:
                self._batch.keep(part, measured.asked.folder)
                self._fill(point, part, measured.record)
            except ProftrackError as error:
                point.error = part.error = str(error)
        self._put(point, part)
        self._write()

    def _fill(self, point: Point, part: Part, record: Record) -> None:
        """Give a point its figures, and all of them what `auto` became in it."""
        point.run_id = part.run_id
        fill(point, record)
        self.sweep.fixed = resolve(self._batch.group, self.sweep.fixed, record)

    def _put(self, point: Point, part: Part) -> None:
        points = [*(each for each in self.sweep.points if each.key != point.key), point]
        self.sweep.points = sorted(points, key=lambda each: self._order[each.key])
        self._batch.group.put(part)

    def _crossover(self, tolerance: float) -> Crossover | None:
        param = self.sweep.param
        assert param is not None  # plan.check_crossover has seen to it

        def measure(value: Any) -> Point:
            asked = plan.at(self._reference, self._asked, {param: value})
            self.points([asked], bisection=True)
            return next(point for point in self.sweep.points if point.key == part_key(asked))

        try:
            return crossover.search(self.sweep.points, param, measure, tolerance=tolerance)
        except UsageError:
            raise
        except ProftrackError as error:
            self.sweep.remarks.append(f"{str(error)[0].upper()}{str(error)[1:]}.")
            return None

    def _write(self) -> None:
        """sweep.json, table and text, and group.json with what the parent run gets of them."""
        group, crossing = self._batch.group, self.sweep.crossover
        group.tags |= shown.tags(self.sweep)
        group.metrics = {
            "points": len(self.sweep.points),
            "failed_points": len(self.sweep.failed),
            "inconclusive_points": len(self.sweep.inconclusive),
        }
        if crossing is not None:
            group.metrics |= {
                "crossover": crossing.estimate,
                "crossover_low": crossing.low,
                "crossover_high": crossing.high,
            }
        self._batch.write(self.sweep, markdown.render(shown.page(self.sweep)), shown.table(self.sweep))


def group_of(asked: Plan) -> Group:
    """The group of a sweep: its key says which earlier points may stand in it."""
    return new_group(
        "sweep",
        asked.first,
        asked.axes,
        name=f"{asked.first.name} sweep of {', '.join(asked.axes)}",
        asked={f"sweep.{key}": ",".join(map(str, values)) for key, values in asked.axes.items()},
        points=points_key(asked.axes),
    )


def _what_failed(sweep: Sweep) -> str | None:
    failed = sweep.failed
    if not failed:
        return None
    first = failed[0]
    return f"{len(failed)} of {len(sweep.points)} points failed; {first.label}: {first.error}"
