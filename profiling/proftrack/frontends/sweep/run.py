"""A sweep from its first point to its parent run's last status.

All points are timed, then each is profiled, kept and logged as a child run: an interrupted sweep goes on with those
that are not whole. Points that are done are found by their key in the store, or in the folder; see `code`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from proftrack.errors import ProftrackError, UsageError
from proftrack.experiment import Experiment
from proftrack.frontends.sweep import crossover, plan, result, shown
from proftrack.frontends.sweep.code import key_of, part_key, points_key, surroundings
from proftrack.frontends.sweep.measuring import Asked, Measured
from proftrack.frontends.sweep.plan import Plan
from proftrack.frontends.sweep.result import Crossover, Point, Sweep
from proftrack.frontends.sweep.stages import Where
from proftrack.names import file_name
from proftrack.record import Record
from proftrack.rundir import run_folders
from proftrack.store import keys
from proftrack.store.batch import Group, Part, save

POINTS = "points"
LOGS = "logs"
FILE = "sweep.json"


class Keeping(Protocol):
    """Where points go as they are done, and where earlier ones are; see proftrack.frontends.sweep.keeping."""

    def earlier(self, part: Part) -> tuple[Record, str | None] | None:
        """The record of a point that is done, and its run; None where it must be measured."""

    def done(self, part: Part, folder: Path) -> str | None:
        """A point is measured, its run folder whole. Returns the run that it was logged as."""


class Measurer(Protocol):
    """What measures points; see proftrack.frontends.sweep.measuring."""

    def measure(self, asked: Sequence[Asked]) -> Iterator[Measured]:
        """The points as they are done, their run folders whole."""


class Runner:
    """Measures points, or takes them over, and keeps the sweep's files up to date."""

    def __init__(
        self, reference: str, asked: Plan, folder: Path, group: Group, keeping: Keeping, measurer: Measurer
    ) -> None:
        self.reference, self.asked, self.folder, self.group = reference, asked, folder, group
        self._keeping, self._measurer = keeping, measurer
        self._order: dict[str, int] = {}
        """The points' keys, in the order in which they were asked for."""
        first = asked.first
        self.sweep = Sweep(
            experiment=first.name,
            title=f"{first.name}: {', '.join(asked.axes)}",
            device=group.tags.get(keys.DEVICE_TAG, ""),
            axes=asked.axes,
            fixed={key: value for key, value in first.params.items() if key not in asked.axes},
        )

    def run(self, *, find_crossover: bool, tolerance: float) -> Sweep:
        """All points, then the crossover where it is asked for. A point that fails does not end it.

        Raises StoreError where another process is at the folder: a sync would discard what is being measured.
        """
        with run_folders.locked(self.folder):
            return self._run(find_crossover=find_crossover, tolerance=tolerance)

    def _run(self, *, find_crossover: bool, tolerance: float) -> Sweep:
        self.points(self.asked.points)
        if find_crossover:
            self.sweep.crossover = self._crossover(tolerance)
        self.group.ended_ns = time.time_ns()
        self.group.error = _what_failed(self.sweep)
        self.write(plot=True)
        return self.sweep

    def points(self, asked: Sequence[Experiment], *, bisection: bool = False) -> None:
        """Measure points, or take them over, each written down as it is done, whatever comes of it."""
        waiting: dict[str, tuple[Experiment, Point, Part]] = {}
        for each in asked:
            found, part = self._new(each, bisection=bisection)
            if not self._taken_over(found, part):
                waiting[found.key] = (each, found, part)
        requests = [
            self._request(*each, "(bisection)" if bisection else f"({number} of {len(waiting)})")
            for number, each in enumerate(waiting.values(), 1)
        ]
        # Written down before they are measured: killed at any moment, what is whole is known for what it is.
        self.write()
        for measured in self._measurer.measure(requests):
            _, found, part = waiting[measured.asked.key]
            self._take(measured, found, part)

    def _new(self, asked: Experiment, *, bisection: bool) -> tuple[Point, Part]:
        values = plan.values_of(asked, self.asked.axes)
        found = Point(key=part_key(asked), label=plan.label(values), values=values)
        found.found_by = "bisection" if bisection else "grid"
        self._order.setdefault(found.key, len(self._order))
        return found, self.group.part(found.key) or Part(key=found.key, name=asked.display_name)

    def _taken_over(self, found: Point, part: Part) -> bool:
        """Whether a point need not be measured: it was, or nobody can say whether it was."""
        try:
            earlier = self._keeping.earlier(part)
        except ProftrackError as error:
            found.error = part.error = str(error)
        else:
            if earlier is None:
                return False
            found.source = "earlier"
            record, found.run_id = earlier
            result.fill(found, record)
            part.run_id, part.error = found.run_id, None
        self._put(found, part)
        return True

    def _request(self, asked: Experiment, found: Point, part: Part, counted: str) -> Asked:
        name = _folder_name(part)
        part.folder = f"{POINTS}/{name}"
        self.group.put(part)
        return Asked(
            key=found.key,
            experiment=asked,
            where=Where(self.reference, plan.overrides(asked, self.asked)),
            folder=self.folder / POINTS / name,
            log=self.folder / LOGS / f"{name}.txt",
            text=f"{found.label} {counted}",
        )

    def _take(self, measured: Measured, found: Point, part: Part) -> None:
        """Keep a point that was measured, and write it down."""
        found.seconds = round(measured.seconds, 1)
        if measured.record is None:
            found.error = part.error = measured.error
            part.folder = None
        else:
            try:
                found.run_id = self._keeping.done(part, measured.asked.folder)
                result.fill(found, measured.record)
                part.run_id, part.error = found.run_id, None
                self._resolve(measured.record)
            except ProftrackError as error:
                found.error = part.error = str(error)
        self._put(found, part)
        self.write()

    def _resolve(self, record: Record) -> None:
        """What all points share, with what `auto` became."""
        params = record.run.params if record.run is not None else {}
        self.sweep.fixed = {key: params.get(key, value) for key, value in self.sweep.fixed.items()}

    def _put(self, found: Point, part: Part) -> None:
        points = [*(each for each in self.sweep.points if each.key != found.key), found]
        self.sweep.points = sorted(points, key=lambda point: self._order[point.key])
        self.group.put(part)

    def _crossover(self, tolerance: float) -> Crossover | None:
        param = self.sweep.param
        assert param is not None  # plan.check_crossover has seen to it

        def measure(value: Any) -> Point:
            asked = plan.at(self.reference, self.asked, {param: value})
            self.points([asked], bisection=True)
            return next(point for point in self.sweep.points if point.key == part_key(asked))

        try:
            return crossover.search(self.sweep.points, param, measure, tolerance=tolerance)
        except UsageError:
            raise
        except ProftrackError as error:
            self.sweep.remarks.append(f"{str(error)[0].upper()}{str(error)[1:]}.")
            return None

    def write(self, *, plot: bool = False) -> None:
        """sweep.json, table, text and plot, and group.json with what the parent run gets of them."""
        result.save(self.sweep, self.folder / FILE)
        shown.write(self.sweep, self.folder, plot=plot)
        self.group.note = shown.markdown(self.sweep)
        self.group.tags |= shown.tags(self.sweep)
        found = self.sweep.crossover
        self.group.metrics = {
            "points": len(self.sweep.points),
            "failed_points": len(self.sweep.failed),
            "inconclusive_points": len(self.sweep.inconclusive),
        }
        if found is not None:
            self.group.metrics |= {
                "crossover": found.estimate,
                "crossover_low": found.low,
                "crossover_high": found.high,
            }
        save(self.folder, self.group)


def new_group(asked: Plan) -> Group:
    """The group of a sweep: its key says which earlier points may stand in it."""
    first = asked.first
    facts = surroundings(first)
    git = facts.git
    return Group(
        kind="sweep",
        key=key_of(first, list(asked.axes), facts),
        points=points_key(asked.axes),
        experiment=first.name,
        name=f"{first.name} sweep of {', '.join(asked.axes)}",
        params={
            "experiment": first.name,
            **{key: str(value) for key, value in first.params.items() if key not in asked.axes},
            **{f"sweep.{key}": ",".join(map(str, values)) for key, values in asked.axes.items()},
        },
        tags={
            keys.DEVICE_TAG: facts.device.name if facts.device else "",
            **({keys.COMMIT_TAG: git.commit, keys.DIRTY_TAG: str(git.dirty).lower()} if git else {}),
        },
    )


def _folder_name(part: Part) -> str:
    return f"{file_name(part.name)}-{part.key[:6]}"


def _what_failed(sweep: Sweep) -> str | None:
    failed = sweep.failed
    if not failed:
        return None
    first = failed[0]
    return f"{len(failed)} of {len(sweep.points)} points failed; {first.label}: {first.error}"
