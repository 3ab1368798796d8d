"""Run a sweep, from its first point to its last line of output.

All points are timed; then each is profiled, written and logged as a child run. An interrupted sweep resumes with the
points that are incomplete. Finished points are found by their key, in the store or in the folder; see `batch.group`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from proftrack.errors import ProftrackError, UsageError
from proftrack.experiment import Experiment
from proftrack.frontends.batch.group import new_group, part_key, points_key, resolve, shared
from proftrack.frontends.batch.result import fill
from proftrack.frontends.batch.shown import Outcome
from proftrack.frontends.sweep import crossover, measuring, plan, shown
from proftrack.frontends.sweep.measuring import Measured, Measuring, Request
from proftrack.frontends.sweep.plan import Plan
from proftrack.frontends.sweep.result import Crossover, Point, Sweep
from proftrack.frontends.sweep.stages import PointSpec
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
    requested: Plan,
    destination: Destination,
    *,
    isolate: bool,
    find_crossover: bool,
    tolerance: float,
    say: Say,
) -> Outcome:
    """Measure the points, then the crossover if it is requested. A failed point does not end the sweep.

    `say` gets a sentence about what was kept if the sweep ends early. Raises what `recorder.Batch` raises.
    """
    with measuring.Measuring(requested.first, isolate=isolate, phase=progress().phase) as measurer:
        measurer.begin(requested.first)  # its processes load torch while this one loads MLflow
        with refusals_noted(mlflow=destination.mlflow):
            batch = Batch(group_of(requested), destination)
        with batch.living(say):
            runner = Runner(reference, requested, batch, measurer)
            with measurer:  # end the processes before anything is logged, so that an interruption leaves none running
                sweep = runner.run(find_crossover=find_crossover, tolerance=tolerance)
    return Outcome(shown.page(sweep), batch.leave(), batch.group.error)


class _Waiting(NamedTuple):
    """A point that is still to be measured."""

    experiment: Experiment
    point: Point
    part: Part


class Runner:
    """Measures or reuses points, and keeps the sweep's files up to date."""

    def __init__(self, reference: str, requested: Plan, batch: Batch, measurer: Measuring) -> None:
        self._reference, self._plan = reference, requested
        self._batch, self._measurer = batch, measurer
        self._order: dict[str, int] = {}
        """The points' keys, in the order in which they were requested."""
        first = requested.first
        self.sweep = Sweep(
            experiment=first.name,
            title=f"{first.name}: {', '.join(requested.axes)}",
            device=batch.group.tags.get(keys.DEVICE_TAG, ""),
            axes=requested.axes,
            fixed=shared(first, requested.axes),
        )

    def run(self, *, find_crossover: bool, tolerance: float) -> Sweep:
        """Measure all points, then the crossover if it is requested."""
        self.points(self._plan.points)
        if find_crossover:
            self.sweep.crossover = self._crossover(tolerance)
        self._batch.over(_what_failed(self.sweep))
        shown.plot(self.sweep, self._batch.folder / self._batch.group.names.plot)
        self._write()
        return self.sweep

    def points(self, experiments: Sequence[Experiment], *, bisection: bool = False) -> None:
        """Measure or reuse points; each is written to the sweep's files when it is done, even if it failed."""
        waiting: dict[str, _Waiting] = {}
        for experiment in experiments:
            point, part = self._new(experiment, bisection=bisection)
            if not self._is_reused(point, part):
                waiting[point.key] = _Waiting(experiment, point, part)
        requests = [
            self._request(unmeasured, "(bisection)" if bisection else f"({number} of {len(waiting)})")
            for number, unmeasured in enumerate(waiting.values(), 1)
        ]
        # Written before they are measured, so that complete folders can be identified even after a kill.
        self._write()
        for measured in self._measurer.measure(requests):
            _, point, part = waiting[measured.request.key]
            self._take(measured, point, part)

    def _new(self, experiment: Experiment, *, bisection: bool) -> tuple[Point, Part]:
        values = plan.values_of(experiment, self._plan.axes)
        point = Point(key=part_key(experiment), label=plan.label(values), values=values)
        point.found_by = "bisection" if bisection else "grid"
        self._order.setdefault(point.key, len(self._order))
        return point, self._batch.group.part(point.key) or Part(key=point.key, name=experiment.display_name)

    def _is_reused(self, point: Point, part: Part) -> bool:
        """Whether a point need not be measured: an earlier result exists, or it cannot be read to find out."""
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

    def _request(self, waiting: _Waiting, counted: str) -> Request:
        experiment, point, part = waiting
        name = f"{file_name(part.name)}-{part.key[:6]}"
        folder = self._batch.folder_for(name)
        part.folder = folder.relative_to(self._batch.folder).as_posix()
        self._batch.group.put(part)
        return Request(
            key=point.key,
            experiment=experiment,
            spec=PointSpec(self._reference, plan.overrides(experiment, self._plan)),
            folder=folder,
            log=self._batch.log_for(name),
            text=f"{point.label} {counted}",
        )

    def _take(self, measured: Measured, point: Point, part: Part) -> None:
        """Keep a measured point, and update the sweep's files."""
        point.seconds = round(measured.seconds, 1)
        if measured.record is None:
            point.error = part.error = measured.error
            part.folder = None
        else:
            try:
                self._batch.keep(part, measured.request.folder)
                self._fill(point, part, measured.record)
            except ProftrackError as error:
                point.error = part.error = str(error)
        self._put(point, part)
        self._write()

    def _fill(self, point: Point, part: Part, record: Record) -> None:
        """Give a point its figures, and the sweep the value to which `auto` was resolved."""
        point.run_id = part.run_id
        fill(point, record)
        self.sweep.fixed = resolve(self._batch.group, self.sweep.fixed, record)

    def _put(self, point: Point, part: Part) -> None:
        points = [*(other for other in self.sweep.points if other.key != point.key), point]
        self.sweep.points = sorted(points, key=lambda member: self._order[member.key])
        self._batch.group.put(part)

    def _crossover(self, tolerance: float) -> Crossover | None:
        param = self.sweep.param
        assert param is not None  # plan.check_crossover ensures it

        def measure(value: Any) -> Point:
            experiment = plan.at(self._reference, self._plan, {param: value})
            self.points([experiment], bisection=True)
            return next(point for point in self.sweep.points if point.key == part_key(experiment))

        try:
            return crossover.search(self.sweep.points, param, measure, tolerance=tolerance)
        except UsageError:
            raise
        except ProftrackError as error:
            self.sweep.remarks.append(f"{str(error)[0].upper()}{str(error)[1:]}.")
            return None

    def _write(self) -> None:
        """Write sweep.json, table and text, and group.json with the tags and metrics of the parent run."""
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


def group_of(requested: Plan) -> Group:
    """The group of a sweep; its key decides which earlier points it may reuse."""
    return new_group(
        "sweep",
        requested.first,
        requested.axes,
        name=f"{requested.first.name} sweep of {', '.join(requested.axes)}",
        parent_params={f"sweep.{key}": ",".join(map(str, values)) for key, values in requested.axes.items()},
        points=points_key(requested.axes),
    )


def _what_failed(sweep: Sweep) -> str | None:
    failed = sweep.failed
    if not failed:
        return None
    first = failed[0]
    return f"{len(failed)} of {len(sweep.points)} points failed; {first.label}: {first.error}"
