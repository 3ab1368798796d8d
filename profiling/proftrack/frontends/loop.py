"""`proftrack.profile(...)`: everything that `proftrack run` does, for a loop in the user's own program.

    with proftrack.profile("train", params={"batch": 32}) as p:
        for batch in loader:
            train(batch)
            p.step()
            if it_is_time:
                with p.excluded():  # no part of a step
                    evaluate()

Without `with`, the first step() starts the profile, and the end of the program ends it. The result is available, and
logged, as soon as the schedule is over; rank 0 prints it when the loop ends.

Profiling must not end a training: invalid arguments are rejected before the loop starts; anything that goes wrong later
is a warning and marks the run FAILED. The user's own exceptions propagate.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import proftrack
from proftrack.errors import CaptureError, ProftrackError, UsageError
from proftrack.record import Record
from proftrack.text import show

if TYPE_CHECKING:
    from proftrack.capture.loop import LoopCapture
    from proftrack.capture.result import Capture
    from proftrack.experiment import Experiment
    from proftrack.frontends.distributed import Team
    from proftrack.record.figures import Flag
    from proftrack.record.verdict import Verdict
    from proftrack.recorder import RankRecording, RunRecording

SCHEDULE = {"skip_first": 3, "wait": 12, "warmup": 2, "active": 3, "repeat": 1}
"""The default, 20 steps: 3 to warm up, 12 that are timed, then the profiler."""
LONG_SCHEDULE = {"skip_first": 10, "wait": 40, "warmup": 5, "active": 3, "repeat": 1}
"""For a loop known to be long enough, 58 steps: 40 of them are timed."""
_UNSTEPPED = (
    "step() was never called, so nothing was recorded",
    "call p.step() at the end of every step of the loop",
)
"""Problem and remedy."""


class ProfileWarning(UserWarning):
    """The profile failed or is incomplete; the program itself goes on."""


class Off:
    """A profile that is switched off: it has the attributes of `Profile` and records nothing."""

    record: Record | None = None
    verdict: Verdict | None = None
    run_id: str | None = None
    folder: Path | None = None
    error: ProftrackError | None = None

    def __enter__(self) -> Off:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def step(self) -> None:
        """Accept the call that a profile would count."""

    def excluded(self) -> contextlib.AbstractContextManager[None]:
        """Accept what a profile would leave out."""
        return contextlib.nullcontext()


class Profile:
    """One profile of a loop; made by `profile`, started once, by `with` or by the first `step()`.

    `record`, `verdict`, `run_id` and `folder` hold the result once the schedule is over, and are None before; `error`
    holds the reason if profiling failed.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        output: Path | None = None,
        mlflow: bool | None = None,
        calibrate: bool = True,
        quiet: bool = False,
        parent_run_id: str | None = None,
        unstepped: tuple[str, str] = _UNSTEPPED,
        warn: Callable[[str], None] | None = None,
        tokens_per_step: float | None = None,
        captured: Callable[[], Any] | None = None,
    ) -> None:
        """The arguments of `profile`; `unstepped` is the problem and the remedy to report if step() is never called,
        `warn` reports what goes wrong. Raises UsageError if kernels are to be replayed.
        """
        experiment.refuse_replay("a loop in its own program")
        self.experiment = experiment
        self.record: Record | None = None
        self.run_id: str | None = None
        self.folder: Path | None = None
        self.error: ProftrackError | None = None
        self._output, self._mlflow, self._parent_run_id = output, mlflow, parent_run_id
        self._calibrate, self._quiet, self._unstepped = calibrate, quiet, unstepped
        self._tokens_per_step, self._captured_function = tokens_per_step, captured
        self._warn = warn or _warn
        self._begun = False
        self._last_value = getattr(sys, "last_value", None)
        """The exception that Python had stored before the profile was made."""
        self._shown: list[str] | None = None
        self._capture: LoopCapture | None = None
        self._recording: RankRecording | RunRecording | None = None
        self._team: Team | None = None

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of `record`."""
        return self.record.verdict if self.record is not None else None

    def __enter__(self) -> Profile:
        """Set up the profiler and open the run. Raises UsageError or CaptureError if the loop cannot be profiled."""
        self._begin(first_is_over=False)
        return self

    def _begin(self, *, first_is_over: bool) -> None:
        from proftrack.capture.loop import LoopCapture
        from proftrack.frontends.distributed import join_team
        from proftrack.recorder import Plan, begin_beside
        from proftrack.report.progress import Silent

        _claim(self)
        self._begun = True
        try:
            self._team = team = join_team(choose_gpu=False) if _is_under_torchrun() else None
            plan = Plan(
                experiment=self.experiment,
                output=self._output,
                mlflow=self._mlflow,
                peers=team,
                parent_run_id=self._parent_run_id,
            )
            self._recording = begin_beside(plan, self._warn)
            self.folder = self._recording.folder
            rank = None if team is None else team.rank
            capture = LoopCapture(
                self.experiment, self._recording.own_folder, rank=rank, captured=self._captured_function
            )
            capture.start(Silent(), calibrate=self._calibrate, pace=team, first_is_over=first_is_over)
        except BaseException as error:
            self._end(error)
            _release(self)
            raise
        self._capture = capture
        atexit.register(self._program_ends)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Conclude the profile unless the schedule already did, and print the result.

        An exception from the loop propagates and marks the run FAILED (or KILLED).
        """
        atexit.unregister(self._program_ends)
        try:
            if error is not None and not (isinstance(error, SystemExit) and not error.code):
                self._end(error)
            elif self._capture is not None:
                self._conclude()
            self._show()
        finally:
            _release(self)

    def step(self) -> None:
        """Mark the end of a step. After the schedule's last step the profile is analysed and logged.

        Without `with`, the first call starts the profile, so the first step is not timed.
        """
        if not self._begun:
            self._begin(first_is_over=True)
            return
        if self._capture is None:
            if _active is not self:
                raise CaptureError(
                    f"{self.experiment.name}: step() was called after the profile had ended",
                    "start another with proftrack.profile(...)",
                )
            return
        try:
            self._capture.step()
        except ProftrackError as error:
            self._fail(error)
            return
        if self._capture.is_over:
            self._conclude()

    @contextlib.contextmanager
    def excluded(self) -> Iterator[None]:
        """A context around what runs between two steps but is no part of them: evaluation, writing a checkpoint.

        It is left out of the step time, and in the trace it has a region of its own. Outside of the schedule it does
        nothing; the next `step()` ends it in any case.
        """
        capture = self._capture
        if capture is not None:
            capture.pause()
        yield
        if capture is not None:  # after an exception the next step, if there is one, ends it
            capture.resume()

    # ---- the end

    def _program_ends(self) -> None:
        """End a profile that is still open when the program ends, with the exception that ended the program, if any.

        Python keeps an uncaught exception in `sys.last_value`.
        """
        uncaught = getattr(sys, "last_value", None)
        # An interactive prompt keeps the session's last error, which is not what ends the program.
        if uncaught is self._last_value or hasattr(sys, "ps1") or sys.flags.interactive:
            uncaught = None
        self.__exit__(type(uncaught) if uncaught else None, uncaught, None)

    def _show(self) -> None:
        """Print the verdict and where the results are; once, when the loop is over."""
        lines, self._shown = self._shown, None
        if lines is None or self._quiet:
            return
        from proftrack.report import terminal
        from proftrack.report.pages.run import result

        with contextlib.suppress(OSError, ValueError):  # a closed stream must not end the program
            if self.record is not None:
                terminal.show(result(self.record))
                print()
            for line in lines:
                print(line)

    def _conclude(self) -> None:
        """Analyse, write, log. No failure here ends the user's program."""
        capture, self._capture = self._capture, None
        assert capture is not None
        try:
            captured = capture.finish()
            if captured is None:
                raise self._nothing_recorded(capture.steps)
            self._keep(captured, capture.steps)
        except ProftrackError as error:
            self._fail(error, capture)
        except Exception as error:  # a bug in proftrack or a failing library: the training matters more
            self._fail(CaptureError(f"{self.experiment.name}: {type(error).__name__}: {error}"), capture)

    def _nothing_recorded(self, steps: int) -> CaptureError:
        name, plan = self.experiment.name, self.experiment.schedule
        if steps == 0:
            problem, remedy = self._unstepped
            return CaptureError(f"{name}: {problem}", remedy)
        first = plan.skip_first + plan.wait + plan.warmup + 1
        return CaptureError(
            f"{name}: the loop ended after {steps} steps, before recording began at step {first} (skip_first "
            f"{plan.skip_first} + wait {plan.wait} + warmup {plan.warmup}), so nothing was recorded",
            _schedule_that_fits(plan.total_steps, steps),
        )

    def _keep(self, captured: Capture, steps: int) -> None:
        from msgspec.structs import replace

        from proftrack.recorder import analysed

        recording = self._recording
        assert recording is not None
        captured = replace(captured, tokens_per_step=self._tokens_per_step)
        flags = _fewer_steps(self.experiment, captured, steps)
        if flags:
            self._warn(f"{self.experiment.name}: {flags[0].message}")
        self.record = recording.write(analysed(captured, self.experiment), flags)
        self._shown = recording.log()
        self._note_run_and_folder()

    def _fail(self, error: ProftrackError, capture: LoopCapture | None = None) -> None:
        """End the run with a failure of the profile itself, and warn."""
        self.error = error
        self._end(error, capture)
        recording = self._recording
        kept = ""
        if recording is not None and recording.is_whole:
            kept = f"; everything measured is in {recording.folder}; log it with: proftrack sync"
        self._warn(f"{error}{kept}")

    def _end(self, error: BaseException, capture: LoopCapture | None = None) -> None:
        """Turn the profiler off, end the run with the error, and remove the folder if it is empty."""
        capture, self._capture = capture or self._capture, None
        if capture is not None:
            with contextlib.suppress(ProftrackError):
                capture.close()
        if self._recording is not None:
            self._recording.fail(error)
            self._note_run_and_folder()
        elif self._team is not None:
            self._team.fail(error)

    def _note_run_and_folder(self) -> None:
        assert self._recording is not None
        folder = self._recording.folder
        self.run_id, self.folder = self._recording.run_id, folder if folder.is_dir() else None


def profile(
    name: str,
    *,
    params: Mapping[str, Any] | None = None,
    variant_params: Sequence[str] = (),
    schedule: Mapping[str, int] | None = None,
    profiler: Mapping[str, bool] | None = None,
    timing: str = "throughput",
    device: str = "auto",
    output: str | Path | None = None,
    mlflow: bool | None = None,
    parent_run_id: str | None = None,
    calibrate: bool = True,
    quiet: bool = False,
    enabled: bool = True,
    tokens_per_step: float | None = None,
    captured: Callable[[], Any] | None = None,
) -> Profile | Off:
    """Profile a loop: `with proftrack.profile("train") as p:`, and `p.step()` at the end of every step.

    What is no part of a step, such as evaluation, goes into `with p.excluded():`. How long steps wait for a DataLoader
    is measured; mark data from anything else with `proftrack.loading`.

    The verdict is printed when the loop ends; `p.record` and `p.verdict` hold it once the schedule is over. Without
    `with`, the first `p.step()` starts the profile, and the end of the program ends it.

    name            name of the experiment, used by history and compare
    params          parameters of the run
    variant_params  those parameters that may differ between compared runs
    schedule        keys of torch.profiler.schedule, in steps: skip_first, wait, warmup, active, repeat. The skip_first
                    and wait steps before the first window are timed without the profiler; if there are fewer than ten,
                    the step time is taken from the trace. Default: 17 steps, then 3 recorded ones
    profiler        record_shapes, with_stack, profile_memory, modules, graph_names
    timing          throughput, or latency: every timed step is synchronised
    device          auto, cuda or cpu: where the loop runs
    output          a new folder that keeps all results
    mlflow          False: log nothing; True: raise if MLflow cannot be used; None: log if MLflow can be used
    parent_run_id   the parent run; default: the active MLflow run, if there is one
    calibrate       False: do not measure the device's ceilings (takes seconds, once per machine)
    quiet           print nothing at the end
    enabled         False: return an object that does nothing
    tokens_per_step tokens, or samples, that a step handles: for the metrics tokens_per_s and joules_per_token
    captured        if the steps replay a CUDA graph that you captured: the function that was captured. After the last
                    recorded step it is called once, captured once more, and replayed once, so that the graph's kernels
                    have the names of operators and modules; a training step trains twice more. Or a function that
                    captures itself (with make_graphed_callables, say) and replays what it has captured

    Raises UsageError for invalid arguments. Entering raises CaptureError while another profile is open.
    """
    if not enabled or _is_mute():
        return Off()
    from proftrack.experiment.workload import checked_tokens

    if captured is not None and not callable(captured):
        raise UsageError(f"captured={show(captured)} is not a function", "pass the function that was captured")
    code = caller(sys._getframe(1))
    experiment = described(
        name, code, params or {}, variant_params, schedule, profiler=profiler, mode=timing, device=device
    )
    return Profile(
        experiment,
        output=None if output is None else Path(output),
        mlflow=mlflow,
        calibrate=calibrate,
        quiet=quiet,
        parent_run_id=parent_run_id,
        tokens_per_step=checked_tokens(tokens_per_step),
        captured=captured,
    )


def described(
    name: str,
    code: Path,
    params: Mapping[str, Any],
    variant_params: Sequence[str] = (),
    schedule: Mapping[str, int] | None = None,
    *,
    profiler: Mapping[str, bool] | None = None,
    mode: str = "throughput",
    device: str = "auto",
) -> Experiment:
    """The experiment for a loop in the file `code`. Raises UsageError for invalid arguments."""
    from proftrack import experiment

    document: dict[str, Any] = {
        "name": name,
        "workload": f"{code.name if code.is_file() else 'interactive'}:loop",
        "params": dict(params),
        "variant_params": list(variant_params),
        "schedule": dict(SCHEDULE if schedule is None else schedule),
        "profiler": dict(profiler or {}),
        "timing": {"mode": mode},
        "device": device,
    }
    return experiment.described(document, code)


def fitting_schedule(steps: int | None) -> dict[str, int]:
    """A schedule for a loop of `steps` steps: SCHEDULE if the number is unknown, LONG_SCHEDULE if the loop is long
    enough for it, else one that uses every step.
    """
    if steps is None:
        return dict(SCHEDULE)
    if steps >= sum(LONG_SCHEDULE.values()) - LONG_SCHEDULE["repeat"]:
        return dict(LONG_SCHEDULE)
    active = max(1, min(3, steps - 2))
    warmup = 1 if steps > active else 0
    before = max(0, steps - active - warmup)
    return {"skip_first": before // 5, "wait": before - before // 5, "warmup": warmup, "active": active, "repeat": 1}


def _is_mute() -> bool:
    """Whether this is a rank other than 0 that torchrun did not start. Such ranks cannot find each other, so rank 0
    profiles itself alone.
    """
    is_one_of_several = int(os.environ.get("WORLD_SIZE") or 1) > 1
    return is_one_of_several and not _is_under_torchrun() and os.environ.get("RANK", "0") != "0"


def _is_under_torchrun() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


# ---- one at a time ---------------------------------------------------------------------------------------------------

_active: Profile | None = None


def _claim(profile: Profile) -> None:
    global _active  # noqa: PLW0603  # torch has one profiler per process
    if _active is not None:
        raise CaptureError(
            f"{profile.experiment.name}: the profile {_active.experiment.name!r} is still open, and two cannot record "
            "at once",
            "end it before you start another",
        )
    _active = profile


def _release(profile: Profile) -> None:
    global _active  # noqa: PLW0603
    if _active is profile:
        _active = None


# ---- in words --------------------------------------------------------------------------------------------------------


def _fewer_steps(experiment: Experiment, captured: Capture, steps: int) -> list[Flag]:
    """The flag `fewer_steps`, if the loop ended before the schedule did."""
    from proftrack.measures.quality import flag

    promised = experiment.schedule.active * experiment.schedule.repeat
    recorded = sum(cycle.expected_steps for cycle in captured.cycles)
    if recorded >= promised:
        return []
    total = experiment.schedule.total_steps
    detail = (
        f"{recorded} of {promised} were recorded, and the loop ran {steps} of the schedule's {total} steps; "
        f"{_schedule_that_fits(total, steps)}."
    )
    return [flag("fewer_steps", promised - recorded, detail)]


def _schedule_that_fits(total: int, steps: int) -> str:
    """The remedy for a loop that was too short for its schedule of `total` steps."""
    fitting = ", ".join(f"{key} {value}" for key, value in fitting_schedule(steps).items() if key != "repeat")
    return f"run at least {total} steps, or use a schedule that fits {steps}: {fitting}"


def _warn(text: str) -> None:
    """Warn at the caller's line: the innermost frame outside this package."""
    level, frame = 1, sys._getframe(0)
    here = Path(proftrack.__file__).parent
    while frame.f_back is not None and Path(frame.f_code.co_filename).is_relative_to(here):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, ProfileWarning, stacklevel=level)


def caller(frame: FrameType) -> Path:
    """The source file of a frame; for a notebook or a prompt, which have none, a name in the working folder."""
    path = Path(frame.f_code.co_filename)
    return path.resolve() if path.is_file() else Path.cwd() / "interactive"
