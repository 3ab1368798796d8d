"""How long a measurement may take (timing.budget_seconds), and which of its parts fit.

    start                                                                                        budget
    | device | build | first step | counted | ceilings | warm-up | timing | counters | recorded steps | report |
                                  ^ the plan is made here, from the first step's time

Required: the first step, FEWEST_STEPS timed steps and the schedule's steps. Done if there is time: counting a step's
work, ceilings, warm-up, more timed steps, steps repeated for hardware counters. If not even the required steps fit, the
measurement is refused before it takes the time. A measurement that is nearly done is never discarded: the rest may
overrun the budget by a tenth of it.

A first step that would take many times the budget is interrupted, see `guarded`.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from msgspec import Struct

from proftrack.capture import compat
from proftrack.capture.counters import COUNTED_SECONDS
from proftrack.capture.dtype import Emulated
from proftrack.capture.timing import FEWEST_STEPS
from proftrack.errors import BudgetError
from proftrack.experiment import Experiment
from proftrack.threads import beside

_REPORT_SHARE = 0.05
"""Share of the budget for reading the trace and writing the report."""
_OVERRUN = 0.1
_WARM_UP_SHARE = 0.2
_TIMING_SHARE = 0.4
"""Share of the spare time, for each of the two timings."""
_COUNTED_STEPS = 2
"""Cost of a counted step, in steps: each operator passes through Python."""
_CEILINGS_SECONDS = 6.0
"""In the first run on a machine; later runs read them from the cache."""
_COUNTERS_SHARE = 0.2
"""Share of the spare time for steps that are repeated for hardware counters, if the device has some."""
_CERTAIN = 2.0
"""An estimate from small products must exceed the budget by this factor to refuse a step that has not run."""


class Plan(Struct, frozen=True, kw_only=True):
    """What fits into the budget, decided after the first step. Times in seconds."""

    step_seconds: float
    """The assumed duration of a step."""
    count: bool
    ceilings: bool
    warm_up_seconds: float
    """At most."""
    timing_seconds: float
    """At most, for each of the two timings."""
    counters: bool = False
    """Whether steps may be repeated for hardware counters."""
    expected_seconds: float
    """Expected duration of everything that is left to do."""


class Budget:
    """The time that a measurement may take, counted from construction. `clock` returns seconds."""

    def __init__(
        self,
        experiment: Experiment,
        *,
        timed_steps: int = FEWEST_STEPS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timed_steps`: the fewest steps that are timed without the profiler."""
        self.experiment, self.seconds = experiment, experiment.timing.budget_seconds
        self.timed_steps = timed_steps
        self.emulated: Emulated | None = None
        """The workload's type if this CPU only emulates it, once that is known."""
        self.counts_hardware = False
        """Whether steps will be repeated for hardware counters."""
        self._clock, self._start = clock, clock()

    @property
    def left(self) -> float:
        """Seconds left in the budget, not counting the report's share; may be negative."""
        return self.seconds * (1 - _REPORT_SHARE) - (self._clock() - self._start)

    @property
    def least_steps(self) -> int:
        """Number of steps that must run after the first one."""
        return self.timed_steps + self.experiment.schedule.total_steps

    def is_ample(self, step_seconds: float, left: float) -> bool:
        """Whether steps of this length leave time for everything."""
        spare = left - self.least_steps * step_seconds
        if spare < 2 * _CEILINGS_SECONDS or _WARM_UP_SHARE * spare < step_seconds:
            return False
        return self.plan(step_seconds, left).counters or not self.counts_hardware

    def plan(self, step_seconds: float, left: float) -> Plan:
        """How to use the `left` seconds with steps of this length.

        Raises BudgetError if not even the required steps fit.
        """
        least = self.least_steps * step_seconds
        spare = left - least
        if spare < 0 and least > _OVERRUN * self.seconds:
            raise self._refusal(step_seconds, f"a step takes about {_duration(step_seconds)}, so", left=left)
        spare = max(spare, 0.0)
        counted = _COUNTED_STEPS * step_seconds
        count = counted <= spare / 2
        ceilings = spare - counted * count >= 2 * _CEILINGS_SECONDS
        spare -= counted * count + _CEILINGS_SECONDS * ceilings
        # A lead-in and a window are one step each at least.
        repeated = max(COUNTED_SECONDS, 2 * step_seconds) if self.counts_hardware else 0.0
        counters = 0 < repeated <= _COUNTERS_SHARE * spare
        spare -= repeated * counters
        options = self.experiment.timing
        warm_up, timing = _WARM_UP_SHARE * spare, min(options.max_seconds, _TIMING_SHARE * spare)
        a_timing = min(timing, max(options.min_seconds, options.min_steps * step_seconds))
        return Plan(
            step_seconds=step_seconds,
            count=count,
            ceilings=ceilings,
            warm_up_seconds=warm_up if warm_up >= step_seconds else 0.0,
            timing_seconds=timing,
            counters=counters,
            expected_seconds=least
            + counted * count
            + 2 * a_timing
            + repeated * counters
            + min(warm_up, 1.0)
            + _REPORT_SHARE * self.seconds,
        )

    def refuse_before(self, predicted_seconds: float) -> None:
        """Raise BudgetError if a step that has not run is certain to take too long."""
        if (1 + self.least_steps) * predicted_seconds > _CERTAIN * self.seconds:
            what = f"a step takes over {_duration(predicted_seconds)}, so"
            left = self.seconds * (1 - _REPORT_SHARE) - predicted_seconds
            raise self._refusal(predicted_seconds, what, left=left, uncertainty=_CERTAIN)

    def allowed(self, first_seconds: float | None = None) -> float:
        """Seconds after which a step that is still running makes it impossible to finish in time.

        The first step may compile, so it may use all the time. Once its duration is known, the required steps must fit
        with steps of that length.
        """
        left = max(self.left, _OVERRUN * self.seconds)
        return left if first_seconds is None else left / (1 + self.least_steps)

    def overrun(self, elapsed: float, *, first_seconds: float | None = None) -> BudgetError:
        """The error for a step that is still running after `elapsed` seconds.

        `first_seconds`: duration of the first step, if this is the second.
        """
        if first_seconds is None:
            what = f"the first step was still running after {_duration(elapsed)}; if every step takes as long,"
            return self._refusal(elapsed, what, left=self.left, compiles=self.emulated is None)
        took = f"the first took {_duration(first_seconds)}"
        what = f"the second step was still running after {_duration(elapsed)} ({took}), so"
        return self._refusal(max(first_seconds, elapsed), what, left=self.left)

    def _refusal(
        self, step_seconds: float, what: str, *, left: float, uncertainty: float = 1.0, compiles: bool = False
    ) -> BudgetError:
        """The error for steps of this length, or up to `uncertainty` times as long. `what` begins its sentence.

        `left`: seconds left in the budget. `compiles`: the first step may have compiled, and the others may be short.
        """
        plan, available = self.experiment.schedule, self.seconds * (1 - _REPORT_SHARE)
        spent = max(available - left, step_seconds)
        total = (spent + self.least_steps * step_seconds) / (1 - _REPORT_SHARE)
        more = max(_rounded_up(total * uncertainty), _rounded_up(self.seconds))
        shorter = FEWEST_STEPS + 2
        if self.emulated is not None:
            faster = self.emulated.remedy()
        elif shorter < self.least_steps and spent + shorter * step_seconds < available:
            faster = "use a shorter schedule (--skip_first 0 --wait 0 --warmup 1 --active 1 --repeat 1)"
        else:
            faster = "make the problem smaller"
        compiling = f" (--budget {_rounded_up(2 * self.seconds)} if the first step compiles)" if compiles else ""
        return BudgetError(
            f"{self.experiment.name}: {what} the shortest measurement (1 first, {self.timed_steps} timed and "
            f"{plan.total_steps} scheduled steps) takes at least {_duration(total)}, which is over the budget of "
            f"{_duration(self.seconds)}",
            f"{faster}, or allow more time with --budget {more}{compiling}",
        )


@contextlib.contextmanager
def guarded(
    budget: Budget,
    *,
    first_seconds: float | None = None,
    on_overrun: Callable[[BudgetError], Any] | None = None,
) -> Iterator[None]:
    """Guard a step of unknown length: end it once it can no longer fit (`Budget.allowed`).

    On a CPU that only emulates the workload's type, an operator that is certain to take too long is refused before it
    runs (BudgetError). `on_overrun` is called in another thread if the step is still running when the time is up. It
    must end the measurement: there is no other way to stop a step that hangs in native code. `first_seconds`: duration
    of the first step, if this is the second.
    """
    with contextlib.ExitStack() as stack:
        if on_overrun is not None:
            stack.enter_context(_watching(budget, on_overrun, first_seconds))
        if budget.emulated is not None and budget.experiment.params.get("compile", "none") == "none":
            stack.enter_context(_predicting(budget, budget.emulated))
        yield


def _watching(
    budget: Budget, on_overrun: Callable[[BudgetError], Any], first_seconds: float | None
) -> AbstractContextManager[None]:
    """A thread that calls `on_overrun` if the block lasts longer than the budget allows."""
    seconds = budget.allowed(first_seconds)

    def watch(over: threading.Event) -> None:
        if not over.wait(seconds):
            on_overrun(budget.overrun(seconds, first_seconds=first_seconds))

    return beside(watch)


def _predicting(budget: Budget, emulated: Emulated) -> Any:
    """A dispatch mode that adds up the predicted times of a step's operators, each before it runs.

    Do not use it around compiled code, which would not be compiled under it.
    """
    from torch.utils.flop_counter import flop_registry

    class Predicting(compat.dispatch_mode()):  # type: ignore[misc]  # torch is not followed
        """Refuses the operator that makes the step too long."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            formula = flop_registry.get(compat.operator_of(func))
            if formula is not None and any(str(getattr(a, "dtype", "")) == f"torch.{emulated.dtype}" for a in args):
                with contextlib.suppress(TypeError):  # a formula that needs the result's shape
                    predicted = formula(*args, **(kwargs or {})) / emulated.best_rate
                    budget.refuse_before(time.perf_counter() - begin + predicted)
            return func(*args, **(kwargs or {}))

    begin = time.perf_counter()
    return Predicting()


def _duration(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def _rounded_up(seconds: float) -> int:
    """A value for the user to type: two digits, with a margin of a tenth."""
    seconds *= 1.1
    unit: int = 10 ** max(0, math.floor(math.log10(seconds)) - 1)
    return math.ceil(seconds / unit) * unit
