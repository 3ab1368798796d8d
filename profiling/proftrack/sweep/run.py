"""A sweep from its first point to its parent run's last status.

Each point is kept, and logged as a child run, before the next begins: an interrupted sweep goes on where it was. Points
that are done are found by their key in the store, or in the folder; see `code`.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from proftrack.errors import ProftrackError, UsageError
from proftrack.experiment import Experiment
from proftrack.names import file_name
from proftrack.record import Record
from proftrack.sweep import crossover, plan, point, result, shown
from proftrack.sweep.code import key_of, part_key, points_key, surroundings
from proftrack.sweep.plan import Plan
from proftrack.sweep.result import Crossover, Point, Sweep
from proftrack.tracking import spool
from proftrack.tracking.group import Group, Part, save

POINTS = "points"
LOGS = "logs"
FILE = "sweep.json"


class Keeping(Protocol):
    """Where points go as they are done, and where earlier ones are; see proftrack.sweep.keeping."""

    def earlier(self, part: Part) -> tuple[Record, str | None] | None:
        """The record of a point that is done, and its run; None where it must be measured."""

    def done(self, part: Part, folder: Path) -> str | None:
        """A point is measured, its run folder whole. Returns the run that it was logged as."""


class Runner:
    """Measures points, or takes them over, and keeps the sweep's files up to date."""

    def __init__(
        self,
        reference: str,
        asked: Plan,
        folder: Path,
        group: Group,
        keeping: Keeping,
        *,
        phase: Callable[[str], contextlib.AbstractContextManager[Any]],
    ) -> None:
        self.reference, self.asked, self.folder, self.group = reference, asked, folder, group
        self._keeping, self._phase = keeping, phase
        first = asked.first
        self.sweep = Sweep(
            experiment=first.name,
            title=f"{first.name}: {', '.join(asked.axes)}",
            device=group.tags.get("device.name", ""),
            axes=asked.axes,
            fixed={key: value for key, value in first.params.items() if key not in asked.axes},
        )

    def run(self, *, find_crossover: bool, tolerance: float) -> Sweep:
        """All points, then the crossover where it is asked for. A point that fails does not end it.

        Raises StoreError where another process is at the folder: a sync would discard what is being measured.
        """
        with spool.locked(self.folder):
            return self._run(find_crossover=find_crossover, tolerance=tolerance)

    def _run(self, *, find_crossover: bool, tolerance: float) -> Sweep:
        for number, each in enumerate(self.asked.points, 1):
            self.point(each, counted=f"({number} of {len(self.asked.points)})")
        if find_crossover:
            self.sweep.crossover = self._crossover(tolerance)
        self.group.ended_ns = time.time_ns()
        self.group.error = _what_failed(self.sweep)
        self.write()
        return self.sweep

    def point(self, asked: Experiment, *, counted: str, bisection: bool = False) -> Point:
        """One point, measured or taken over, and written down whatever comes of it."""
        values = plan.values_of(asked, self.asked.axes)
        found = Point(key=part_key(asked), label=plan.label(values), values=values)
        found.found_by = "bisection" if bisection else "grid"
        part = self.group.part(found.key) or Part(key=found.key, name=asked.display_name)
        begin = time.monotonic()
        try:
            earlier = self._keeping.earlier(part)
            if earlier is not None:
                record, found.run_id = earlier
                found.source = "earlier"
            else:
                record, found.run_id = self._measured(asked, part, f"{found.label} {counted}".strip())
                found.seconds = round(time.monotonic() - begin, 1)
            result.fill(found, record)
            part.run_id, part.error = found.run_id, None
        except ProftrackError as error:
            found.error = part.error = str(error)
        self.sweep.points = [*(each for each in self.sweep.points if each.key != found.key), found]
        self.group.put(part)
        self.write()
        return found

    def _measured(self, asked: Experiment, part: Part, text: str) -> tuple[Record, str | None]:
        name = _folder_name(part)
        folder = self.folder / POINTS / name
        shutil.rmtree(folder, ignore_errors=True)  # what a point that was interrupted has left
        # Written down before it is measured: killed at any moment, what is whole is known for what it is.
        part.folder = folder.relative_to(self.folder).as_posix()
        self.group.put(part)
        save(self.folder, self.group)
        try:
            with self._phase(text):
                record = point.measure(
                    self.reference, plan.overrides(asked, self.asked), folder, self.folder / LOGS / f"{name}.txt"
                )
        except ProftrackError:
            part.folder = None
            raise
        return record, self._keeping.done(part, folder)

    def _crossover(self, tolerance: float) -> Crossover | None:
        param = self.sweep.param
        if param is None:
            raise UsageError(f"--find-crossover goes along one parameter; {len(self.asked.axes)} are swept")

        def measure(value: Any) -> Point:
            return self.point(
                plan.at(self.reference, self.asked, {param: value}), counted="(bisection)", bisection=True
            )

        try:
            return crossover.search(self.sweep.points, param, measure, tolerance=tolerance)
        except UsageError:
            raise
        except ProftrackError as error:
            self.sweep.remarks.append(f"{str(error)[0].upper()}{str(error)[1:]}.")
            return None

    def write(self) -> None:
        """sweep.json, table, plot and text, and group.json with what the parent run gets of them."""
        result.save(self.sweep, self.folder / FILE)
        shown.write(self.sweep, self.folder)
        self.group.note = shown.markdown(self.sweep)
        self.group.tags |= shown.tags(self.sweep)
        found = self.sweep.crossover
        self.group.metrics = {"points": len(self.sweep.points), "failed_points": len(self.sweep.failed)}
        if found is not None:
            self.group.metrics |= {
                "crossover": found.estimate,
                "crossover_low": found.low,
                "crossover_high": found.high,
            }
        save(self.folder, self.group)


def new_group(asked: Plan, *, find_crossover: bool) -> Group:
    """The group of a sweep: its key says which earlier points may stand in it."""
    first = asked.first
    facts = surroundings(first)
    if find_crossover and len(asked.axes) > 1:
        raise UsageError(f"--find-crossover goes along one parameter; {len(asked.axes)} are swept")
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
            "device.name": facts.device.name if facts.device else "",
            **({"git.commit": git.commit, "git.dirty": str(git.dirty).lower()} if git else {}),
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
