"""Recorded timings of CPU workloads whose regime is known (benchmarks/cpu_timings.py), and their verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from proftrack.measures import Measures
from proftrack.measures.work import cpu_work
from proftrack.record.ceilings import Ceilings, StepWork
from proftrack.record.figures import CpuTrace
from proftrack.record.timing import Timing
from proftrack.record.verdict import Verdict
from proftrack.verdict.context import Context
from proftrack.verdict.judge import judge

FOLDER = Path(__file__).parent / "data" / "cpu"


class Case(msgspec.Struct):
    """One workload in one setting."""

    case: str
    setting: str
    labels: list[str]
    all_threads: bool
    timing: Timing
    work: StepWork | None
    trace: CpuTrace
    measures: dict[str, Any]


class Machine(msgspec.Struct):
    """All that was recorded on one machine."""

    machine: dict[str, Any]
    ceilings: dict[str, Ceilings]
    cases: list[Case]


class Judged(NamedTuple):
    """A case judged by the ceilings of one setting."""

    machine: str
    case: Case
    ceilings: str
    verdict: Verdict

    @property
    def outcome(self) -> str:
        """right, silent (inconclusive), unsure (wrong at low confidence) or wrong."""
        if self.verdict.regime in self.case.labels:
            return "right"
        if self.verdict.regime == "inconclusive":
            return "silent"
        return "unsure" if self.verdict.confidence == "low" else "wrong"


def machines() -> dict[str, Machine]:
    """Every fixture by its file's name."""
    return {path.stem: msgspec.json.decode(path.read_bytes(), type=Machine) for path in sorted(FOLDER.glob("*.json"))}


def judged(name: str, machine: Machine) -> Iterator[Judged]:
    """Every case, by the ceilings of its own setting, and by those of the same threads with and without load."""
    for case in machine.cases:
        for setting in machine.ceilings:
            if (setting == "one") != (case.setting == "one"):
                continue
            ceilings = machine.ceilings[setting]
            measures = msgspec.convert(case.measures, Measures)
            measures = replace(measures, cpu=cpu_work(case.trace, ceilings))
            context = Context(timing=case.timing, ceilings=ceilings, work=case.work, all_threads=case.all_threads)
            yield Judged(name, case, setting, judge(measures, context).verdict)
