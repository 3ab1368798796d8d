"""What a sweep found: sweep.json, and what its table, plot and parent run are made of. Times in microseconds a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from proftrack.record import Record

INCONCLUSIVE = "inconclusive"


class Point(Struct, kw_only=True):
    """One point. Figures are None where it failed, or where they do not exist."""

    key: str
    label: str
    values: dict[str, Any]
    """Of the swept parameters."""
    found_by: Literal["grid", "bisection"] = "grid"
    source: Literal["measured", "earlier"] = "measured"
    """earlier: taken over from a sweep before."""
    step_time_us: float | None = None
    """T."""
    busy_us: float | None = None
    """B; on the CPU the operators' working time."""
    on_cpu: bool = False
    """Whether `busy_us` is the operators' working time."""
    roofline_us: float | None = None
    """R."""
    regime: str = ""
    confidence: str = ""
    doubts: list[str] = []
    """Why it is inconclusive; empty where it is not."""
    run_id: str | None = None
    seconds: float | None = None
    """What measuring it took, with the start of its process where it had one of its own."""
    error: str | None = None

    @property
    def is_inconclusive(self) -> bool:
        """Whether its figures carry no verdict."""
        return self.regime == INCONCLUSIVE

    @property
    def busy_fraction(self) -> float | None:
        """u = B / T."""
        return self.busy_us / self.step_time_us if self.busy_us is not None and self.step_time_us else None


class Crossover(Struct, kw_only=True):
    """Where B reaches half of T along one parameter."""

    param: str
    low: float
    """Between these two values it does."""
    high: float
    estimate: float
    """By interpolating u between the two, on a log scale."""
    low_regime: str
    high_regime: str
    tolerance: float
    """What high / low was to come to."""
    runs: int
    """Points that were measured (or taken over) for it, those of the grid included."""


class Sweep(Struct, kw_only=True):
    """sweep.json."""

    schema_version: int = 1
    experiment: str
    title: str
    device: str
    axes: dict[str, list[Any]]
    fixed: dict[str, Any]
    """The other parameters, which all points share."""
    points: list[Point] = []
    crossover: Crossover | None = None
    """None where it was not asked for, not found, or where inconclusive points leave it open: the remarks say which."""
    remarks: list[str] = []

    @property
    def failed(self) -> list[Point]:
        """Points that could not be measured."""
        return [point for point in self.points if point.error is not None]

    @property
    def inconclusive(self) -> list[Point]:
        """Points whose figures carry no verdict."""
        return [point for point in self.ordered() if point.is_inconclusive]

    @property
    def param(self) -> str | None:
        """The swept parameter, if there is but one."""
        return next(iter(self.axes)) if len(self.axes) == 1 else None

    def ordered(self) -> list[Point]:
        """Points in order of their values; along one parameter of numbers by size, else as they were asked for."""
        param = self.param
        if param is not None and all(is_number(point.values[param]) for point in self.points):
            return sorted(self.points, key=lambda point: float(point.values[param]))
        return list(self.points)


def is_number(value: Any) -> bool:
    """Whether a parameter's value has a size."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def fill(point: Point, record: Record) -> Point:
    """The point with a record's figures."""
    point.step_time_us = record.step_time_us
    point.busy_us = busy_of(record)
    point.roofline_us = record.times.roofline_time_us
    point.regime, point.confidence = record.verdict.regime, record.verdict.confidence
    point.doubts = list(record.verdict.reasons) if point.is_inconclusive else []
    point.on_cpu = record.times.gpu_busy_per_step_us is None and point.busy_us is not None
    return point


def busy_of(record: Record) -> float | None:
    """B; on the CPU, which has no such lane, the part of the step that its verdict counts as work."""
    if record.times.gpu_busy_per_step_us is not None:
        return record.times.gpu_busy_per_step_us
    return next((item.value for item in record.verdict.evidence if item.name == "cpu_working_us"), None)


def save(sweep: Sweep, path: Path) -> None:
    """Write sweep.json."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(sweep), indent=1) + b"\n")


def load(path: Path) -> Sweep:
    """Read sweep.json. Raises OSError, msgspec.MsgspecError."""
    return msgspec.json.decode(path.read_bytes(), type=Sweep)
