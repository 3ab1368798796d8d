"""How long a measurement may take (timing.budget_seconds), and what of it fits.

    start                                                                                        budget
    | device | build | first step | counted | ceilings | warm-up | timing | recorded steps | report |
                                  ^ the plan is made here, from the first step's time

What must be done: the first step, FEWEST_STEPS timed ones and the schedule's. What is done where there is time:
counting a step's work, ceilings, warm-up, more timed steps. A measurement of which not even the least fits is refused,
before it takes the time. What is nearly through is never thrown away: a rest of a tenth of the budget may overrun it.

A first step that would take many times the budget does not run to its end, see `guarded`.
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
from proftrack.capture.dtype import Emulated
from proftrack.capture.timing import FEWEST_STEPS
from proftrack.errors import BudgetError
from proftrack.experiment import Experiment
from proftrack.threads import beside

_REPORT_SHARE = 0.05
"""Of the budget, for reading the trace and writing the report."""
_OVERRUN = 0.1
_WARM_UP_SHARE = 0.2
_TIMING_SHARE = 0.4
"""Of the time to spare, for each of the two timings."""
_COUNTED_STEPS = 2
"""What a counted step costs, in steps: each operator passes through Python."""
_CEILINGS_SECONDS = 6.0
"""Of the first run on a machine; later ones read them."""
_CERTAIN = 2.0
"""By how much an estimate from small products must be over the budget to refuse a step that has not run."""


class Plan(Struct, frozen=True, kw_only=True):
    """What fits into the budget, made after the first step. Times in seconds."""

    step_seconds: float
    """What a step is taken to last."""
    count: bool
    ceilings: bool
    warm_up_seconds: float
    """At most."""
    timing_seconds: float
    """At most, for each of the two timings."""
    expected_seconds: float
    """What all of it is expected to take from now on."""


class Budget:
    """The time that a measurement may take, running since this was made. `clock` gives seconds."""

    def __init__(
        self,
        experiment: Experiment,
        *,
        timed_steps: int = FEWEST_STEPS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timed_steps`: the fewest that are run and timed without the profiler."""
        self.experiment, self.seconds = experiment, experiment.timing.budget_seconds
        self.timed_steps = timed_steps
        self.emulated: Emulated | None = None
        """A type that this CPU only emulates, once that is known."""
        self._clock, self._start = clock, clock()

    @property
    def left(self) -> float:
        """Seconds until the budget is over, the report's share set aside; may be negative."""
        return self.seconds * (1 - _REPORT_SHARE) - (self._clock() - self._start)

    @property
    def least_steps(self) -> int:
        """Steps that must be run after the first one."""
        return self.timed_steps + self.experiment.schedule.total_steps

    def is_ample(self, step_seconds: float, left: float) -> bool:
        """Whether steps of this length leave time for all there is to do."""
        spare = left - self.least_steps * step_seconds
        return spare >= 2 * _CEILINGS_SECONDS and _WARM_UP_SHARE * spare >= step_seconds

    def plan(self, step_seconds: float, left: float) -> Plan:
        """The use of the `left` seconds for steps of this length.

        Raises BudgetError where not even the least that must be done fits.
        """
        least = self.least_steps * step_seconds
        spare = left - least
        if spare < 0 and least > _OVERRUN * self.seconds:
            what = f"a step takes about {_duration(step_seconds)}, and"
            raise BudgetError(self._refusal(step_seconds, what, left=left))
        spare = max(spare, 0.0)
        counted = _COUNTED_STEPS * step_seconds
        count = counted <= spare / 2
        ceilings = spare - counted * count >= 2 * _CEILINGS_SECONDS
        spare -= counted * count + _CEILINGS_SECONDS * ceilings
        options = self.experiment.timing
        warm_up, timing = _WARM_UP_SHARE * spare, min(options.max_seconds, _TIMING_SHARE * spare)
        a_timing = min(timing, max(options.min_seconds, options.min_steps * step_seconds))
        return Plan(
            step_seconds=step_seconds,
            count=count,
            ceilings=ceilings,
            warm_up_seconds=warm_up if warm_up >= step_seconds else 0.0,
            timing_seconds=timing,
            expected_seconds=least + counted * count + 2 * a_timing + min(warm_up, 1.0) + _REPORT_SHARE * self.seconds,
        )

    def refuse_before(self, predicted_seconds: float) -> None:
        """Raise BudgetError where a step that has not run is certain to take too long."""
        if (1 + self.least_steps) * predicted_seconds > _CERTAIN * self.seconds:
            what = f"a step takes over {_duration(predicted_seconds)}, and"
            left = self.seconds * (1 - _REPORT_SHARE) - predicted_seconds
            raise BudgetError(self._refusal(predicted_seconds, what, left=left, uncertainty=_CERTAIN))

    def allowed(self, first_seconds: float | None = None) -> float:
        """Seconds after which a step that is not over leaves no way to end in time.

        The first one may compile, so it has all the time there is; once it is known what that took, the least must fit
        with steps of such length.
        """
        left = max(self.left, _OVERRUN * self.seconds)
        return left if first_seconds is None else left / (1 + self.least_steps)

    def overrun(self, elapsed: float, *, first_seconds: float | None = None) -> BudgetError:
        """What is said of a step that is not over after so many seconds; of the second one, what the first one took."""
        if first_seconds is None:
            what = f"the first step is not over after {_duration(elapsed)}; if all take as long,"
            return BudgetError(self._refusal(elapsed, what, left=self.left, compiles=self.emulated is None))
        took = f"the first took {_duration(first_seconds)}"
        what = f"the second step is not over after {_duration(elapsed)} ({took}), and"
        return BudgetError(self._refusal(max(first_seconds, elapsed), what, left=self.left))

    def _refusal(
        self, step_seconds: float, what: str, *, left: float, uncertainty: float = 1.0, compiles: bool = False
    ) -> str:
        """`what` is known of steps of this length, or up to `uncertainty` times as long, with so much time left.

        `compiles`: it may be that the first step compiles, and the others take no time.
        """
        plan, available = self.experiment.schedule, self.seconds * (1 - _REPORT_SHARE)
        spent = max(available - left, step_seconds)
        total = (spent + self.least_steps * step_seconds) / (1 - _REPORT_SHARE)
        more = max(_rounded_up(total * uncertainty), _rounded_up(self.seconds))
        shorter = FEWEST_STEPS + 2
        if self.emulated is not None:
            quicker = self.emulated.sentence().rstrip(".").replace(": ", ", so ")
        elif shorter < self.least_steps and spent + shorter * step_seconds < available:
            quicker = "a shorter schedule fits (--skip_first 0 --wait 0 --warmup 1 --active 1 --repeat 1)"
        else:
            quicker = "a smaller problem is quicker"
        compiling = f" (--budget {_rounded_up(2 * self.seconds)} if the first one compiles)" if compiles else ""
        return (
            f"{self.experiment.name}: {what} the least measurement (1 first, {self.timed_steps} timed and "
            f"{plan.total_steps} scheduled steps) takes {_duration(total)} or more, over the budget of "
            f"{_duration(self.seconds)}: {quicker}, or --budget {more} allows it{compiling}"
        )


@contextlib.contextmanager
def guarded(
    budget: Budget,
    *,
    first_seconds: float | None = None,
    on_overrun: Callable[[BudgetError], Any] | None = None,
) -> Iterator[None]:
    """Around a step of unknown length: it ends, one way or another, when it cannot fit any more (`Budget.allowed`).

    On a CPU that only emulates the workload's type, an operator that is certain to take too long is refused before it
    runs (BudgetError). `on_overrun` is called, in another thread, when the time is over and the step is not: it has to
    end the measurement, for which a step that hangs in native code leaves no other way. `first_seconds`: what the first
    step took, where this is the second.
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
    """A thread that calls `on_overrun` where the block lasts longer than the budget allows."""
    seconds = budget.allowed(first_seconds)

    def watch(over: threading.Event) -> None:
        if not over.wait(seconds):
            on_overrun(budget.overrun(seconds, first_seconds=first_seconds))

    return beside(watch)


def _predicting(budget: Budget, emulated: Emulated) -> Any:
    """A dispatch mode that adds up what the operators of a step will take, each before it runs.

    Not around compiled code, which would not be compiled under it.
    """
    from torch.utils.flop_counter import flop_registry

    class Predicting(compat.dispatch_mode()):  # type: ignore[misc]  # torch is not followed
        """Refuses the operator with which the step becomes too long."""

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
    """A value to type: two digits, with a tenth to spare."""
    seconds *= 1.1
    unit: int = 10 ** max(0, math.floor(math.log10(seconds)) - 1)
    return math.ceil(seconds / unit) * unit
