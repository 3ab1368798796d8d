"""Splits a step time: GPU busy time by origin, idle time by cause. The parts add up to T.

    T = B + (T - B)
        B        busy time of each (operator, input shapes, kernel)
        T - B    the trace's idle time by cause, scaled to the step's idle time without the profiler

Kernels can run slower under the profiler, so that B is above T; the difference is then a part of its own, below zero.
Without GPU work the parts are the self CPU times of the operators, scaled to T.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from msgspec import Struct

from proftrack.record import Record
from proftrack.record.figures import Site
from proftrack.trace.categories import is_mark, is_step

PROFILER = "B above T: kernels ran slower under the profiler"
STEP = "Python outside of operators"


class Part(Struct, frozen=True, kw_only=True):
    """One part of a step time, in microseconds per step."""

    part: str
    """gpu, idle, host or profiler."""
    name: str
    us: float
    calls: float = 0.0
    kind: str = ""
    operator: str = ""
    shapes: str = ""

    @property
    def mean_us(self) -> float:
        """Time of one call."""
        return self.us / self.calls if self.calls else 0.0


def parts_of(record: Record, step_time_us: float) -> list[Part]:
    """The parts of a step of `step_time_us`; they add up to it."""
    busy = record.times.gpu_busy_per_step_us
    if not busy:
        return _host_parts(record, step_time_us)
    return [*_gpu_parts(record, busy), *_rest(record, step_time_us - busy)]


def _gpu_parts(record: Record, busy: float) -> list[Part]:
    """B by site, scaled to make up for rounding; if a record has no sites, by kernel."""
    sites = record.sites or [
        Site(operator="", shapes="", kernel=k.name, kind=k.kind, calls=k.calls, busy_us=k.total_us)
        for k in record.kernels
    ]
    steps = record.window.typical_steps if record.sites else max(record.window.steps, 1)
    total = sum(s.busy_us for s in sites)
    if not total:
        return [Part(part="gpu", name="GPU work", us=busy)]
    return [
        Part(
            part="gpu",
            name=site.kernel,
            us=site.busy_us / total * busy,
            calls=site.calls / steps,
            kind=site.kind,
            operator=site.operator,
            shapes=site.shapes,
        )
        for site in sites
    ]


def _rest(record: Record, rest: float) -> list[Part]:
    """T - B by cause, or the amount by which B exceeds T."""
    if rest < 0:
        return [Part(part="profiler", name=PROFILER, us=rest)]
    causes = record.idle.by_cause_us_per_step.items()
    return [Part(part="idle", name=cause, us=us) for cause, us in _shares(causes, rest)]


def _shares(parts: Iterable[tuple[str, float]], whole: float) -> list[tuple[str, float]]:
    parts = list(parts)
    total = sum(us for _, us in parts)
    return [(name, us / total * whole) for name, us in parts] if total else [("unknown", whole)]


def _host_parts(record: Record, step_time_us: float) -> list[Part]:
    """T by the operators' self CPU time; the rows of the steps themselves, which are numbered, make one part.

    So does what Python did in a module or a parameter group: only some traces have such marks.
    """
    steps = max(record.window.steps, 1)
    time: dict[str, float] = defaultdict(float)
    calls: dict[str, float] = defaultdict(float)
    for op in record.ops:
        name = host_name(op.name)
        time[name] += op.self_cpu_time_us
        calls[name] += 0 if is_mark(op.name) else op.calls / steps
    return [Part(part="host", name=name, us=us, calls=calls[name]) for name, us in _shares(time.items(), step_time_us)]


def host_name(name: str) -> str:
    """A host row's name without the number of its step; marks count as part of their step."""
    return STEP if is_step(name) or is_mark(name) else name
