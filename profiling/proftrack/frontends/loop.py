"""`proftrack.profile(...)`: everything that `proftrack run` does, in a loop of the user's own.

    with proftrack.profile("train", params={"batch": 32}) as p:
        for batch in loader:
            train(batch)
            p.step()

Without `with`, the first step() begins the profile, and the program's end is the loop's. The result is there, and
logged, once the schedule is over; it is printed when the loop ends, by rank 0.

Profiling must not end a training: what cannot be is refused before the loop begins; what goes wrong later is a warning,
and a run that is FAILED. The user's own exceptions pass.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import proftrack
from proftrack.errors import CaptureError, ProftrackError
from proftrack.record import Record

if TYPE_CHECKING:
    from proftrack.capture.loop import LoopCapture
    from proftrack.capture.result import Capture
    from proftrack.experiment import Experiment
    from proftrack.frontends.distributed.team import Team
    from proftrack.record.figures import Flag
    from proftrack.record.verdict import Verdict
    from proftrack.recorder import RankRecording, RunRecording

SCHEDULE = {"skip_first": 3, "wait": 12, "warmup": 2, "active": 3, "repeat": 1}
"""Where none is given, 20 steps: 3 to warm up, 12 that are timed, then the profiler."""
LONG_SCHEDULE = {"skip_first": 10, "wait": 40, "warmup": 5, "active": 3, "repeat": 1}
"""Of a loop that is known to be long enough, 58 steps: 40 that are timed."""
_UNSTEPPED = "step() was never called, so nothing was recorded; call p.step() at the end of every step of the loop"


class ProfileWarning(UserWarning):
    """A profile that could not be made as asked, in a program that goes on."""


class Off:
    """A profile that is switched off: `step()` does nothing."""

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
        """Do nothing."""


class Profile:
    """One profile of a loop; made by `profile`, entered once, by `with` or by the first `step()`.

    `record`, `verdict`, `run_id` and `folder` say what came of it, once the schedule is over, and are None before;
    `error` says why nothing did.
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
        unstepped: str = _UNSTEPPED,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """The arguments of `profile`; `unstepped` is said where no step ever came, `warn` says what went wrong."""
        self.experiment = experiment
        self.record: Record | None = None
        self.run_id: str | None = None
        self.folder: Path | None = None
        self.error: ProftrackError | None = None
        self._output, self._mlflow, self._parent_run_id = output, mlflow, parent_run_id
        self._calibrate, self._quiet, self._unstepped = calibrate, quiet, unstepped
        self._warn = warn or _warn
        self._begun = False
        self._last_value = getattr(sys, "last_value", None)
        """The error that Python kept before this began."""
        self._shown: list[str] | None = None
        self._capture: LoopCapture | None = None
        self._recording: RankRecording | RunRecording | None = None
        self._team: Team | None = None

    @property
    def verdict(self) -> Verdict | None:
        """The record's."""
        return self.record.verdict if self.record is not None else None

    def __enter__(self) -> Profile:
        """Get ready, and open the run. Raises UsageError or CaptureError for what cannot be, before the loop begins."""
        self._begin(first_is_over=False)
        return self

    def _begin(self, *, first_is_over: bool) -> None:
        from proftrack.capture.loop import LoopCapture
        from proftrack.frontends.distributed.team import join_team
        from proftrack.recorder import Plan, begin_beside
        from proftrack.report.progress import Silent

        _claim(self)
        self._begun = True
        try:
            found_by = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            self._team = team = join_team(choose_gpu=False) if found_by else None
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
            capture = LoopCapture(self.experiment, self._recording.own_folder, rank=rank)
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
        """Conclude what is not concluded yet, and show it.

        An exception of the loop passes, and the run is FAILED (or KILLED).
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
        """One step of the loop is over. After the last step of the schedule the result is made, and logged.

        Outside of `with` the first call begins the profile, so that the first step is not timed.
        """
        if not self._begun:
            self._begin(first_is_over=True)
            return
        if self._capture is None:
            if _active is not self:
                raise CaptureError(
                    f"{self.experiment.name}: step() was called after the profile had ended",
                    "make another with proftrack.profile(...)",
                )
            return
        try:
            self._capture.step()
        except ProftrackError as error:
            self._fail(error)
            return
        if self._capture.is_over:
            self._conclude()

    # ---- the end

    def _program_ends(self) -> None:
        """Nobody left the profile: the program ends, or died of an exception, which Python keeps."""
        died_of = getattr(sys, "last_value", None)
        # A prompt keeps the last error of a whole session, which is none of the program's end.
        if died_of is self._last_value or hasattr(sys, "ps1") or sys.flags.interactive:
            died_of = None
        self.__exit__(type(died_of) if died_of else None, died_of, None)

    def _show(self) -> None:
        """The verdict, and where everything is: once, when the loop is over."""
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
        """Analyse, write, log: whatever goes wrong here does not end the user's program."""
        capture, self._capture = self._capture, None
        assert capture is not None
        try:
            captured = capture.finish()
            if captured is None:
                raise CaptureError(f"{self.experiment.name}: {self._nothing_recorded(capture.steps)}")
            self._keep(captured, capture.steps)
        except ProftrackError as error:
            self._fail(error, capture)
        except Exception as error:  # a bug of ours, or a library that failed: the training is worth more
            self._fail(CaptureError(f"{self.experiment.name}: {type(error).__name__}: {error}"), capture)

    def _nothing_recorded(self, steps: int) -> str:
        if steps == 0:
            return self._unstepped
        plan = self.experiment.schedule
        first = plan.skip_first + plan.wait + plan.warmup + 1
        return (
            f"the loop ended after {steps} steps, and recording begins with step {first} (skip_first {plan.skip_first} "
            f"+ wait {plan.wait} + warmup {plan.warmup}): nothing was recorded; {_needed(plan.total_steps, steps)}"
        )

    def _keep(self, captured: Capture, steps: int) -> None:
        from proftrack.recorder import analysed

        recording = self._recording
        assert recording is not None
        flags = _short(self.experiment, captured, steps)
        if flags:
            self._warn(f"{self.experiment.name}: {flags[0].message}")
        self.record = recording.write(analysed(captured, self.experiment), flags)
        self._shown = recording.log()
        self._where()

    def _fail(self, error: ProftrackError, capture: LoopCapture | None = None) -> None:
        """Our own failure: a warning, and the run's end."""
        self.error = error
        self._end(error, capture)
        recording = self._recording
        rest = ""
        if recording is not None and recording.is_whole:
            rest = f"; everything measured is in {recording.folder}, log it with: proftrack sync"
        self._warn(f"{error}{rest}")

    def _end(self, error: BaseException, capture: LoopCapture | None = None) -> None:
        """Turn the profiler off, end the run with the error, remove a folder with nothing in it."""
        capture, self._capture = capture or self._capture, None
        if capture is not None:
            with contextlib.suppress(ProftrackError):
                capture.close()
        if self._recording is not None:
            self._recording.fail(error)
            self._where()
        elif self._team is not None:
            self._team.fail(error)

    def _where(self) -> None:
        """Which run and which folder there is."""
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
) -> Profile | Off:
    """Profile a loop: `with proftrack.profile("train") as p:`, and `p.step()` at the end of every step.

    The verdict is printed when the loop ends; `p.record` and `p.verdict` hold it once the schedule is over. Without
    `with`, the first `p.step()` begins the profile, and it ends with the program.

    name            of the experiment, as history and comparison know it
    params          what the run was made with; variant_params: those that may differ between runs that are compared
    schedule        keys of torch.profiler.schedule, in steps: skip_first, wait, warmup, active, repeat. The steps of
                    skip_first and wait before the first window are timed without the profiler; with fewer than ten of
                    them the step time is the trace's own. Without a schedule: 17 steps, then 3 recorded ones
    profiler        record_shapes, with_stack, profile_memory
    timing          throughput, or latency: every timed step is synchronised
    device          auto, cuda or cpu: where the loop runs
    output          a new folder in which everything is kept
    mlflow          False: log nothing; True: raise where MLflow cannot be used; None: log where it can be
    parent_run_id   of the run that becomes the parent; otherwise the one that is open, if there is one
    calibrate       False: do not measure the device's ceilings (seconds, once a machine)
    quiet           print nothing at the end
    enabled         False: a no-op object

    Raises UsageError for arguments that cannot be; entering it raises CaptureError inside another profile.
    """
    if not enabled or _is_mute():
        return Off()
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
    """The experiment that a loop in the file `code` is. Raises UsageError for arguments that cannot be."""
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
    """The usual schedule where nothing is known; the long one, or one that uses all steps of a loop that is shorter."""
    if steps is None:
        return dict(SCHEDULE)
    if steps >= sum(LONG_SCHEDULE.values()) - LONG_SCHEDULE["repeat"]:
        return dict(LONG_SCHEDULE)
    active = max(1, min(3, steps - 2))
    warmup = 1 if steps > active else 0
    before = max(0, steps - active - warmup)
    return {"skip_first": before // 5, "wait": before - before // 5, "warmup": warmup, "active": active, "repeat": 1}


def _is_mute() -> bool:
    """Another rank than 0 that cannot find rank 0, since torchrun did not start it: rank 0 profiles itself alone."""
    alone = int(os.environ.get("WORLD_SIZE") or 1) < 2 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return not alone and os.environ.get("RANK", "0") != "0"


# ---- one at a time ---------------------------------------------------------------------------------------------------

_active: Profile | None = None


def _claim(wanted: Profile) -> None:
    global _active  # noqa: PLW0603  # torch has one profiler a process
    if _active is not None:
        raise CaptureError(
            f"{wanted.experiment.name}: the profile {_active.experiment.name!r} is still open and two cannot record at "
            "once",
            "end it before another begins",
        )
    _active = wanted


def _release(held: Profile) -> None:
    global _active  # noqa: PLW0603
    if _active is held:
        _active = None


# ---- in words --------------------------------------------------------------------------------------------------------


def _short(experiment: Experiment, captured: Capture, steps: int) -> list[Flag]:
    from proftrack.measures.quality import flag

    promised = experiment.schedule.active * experiment.schedule.repeat
    recorded = sum(cycle.expected_steps for cycle in captured.cycles)
    if recorded >= promised:
        return []
    total = experiment.schedule.total_steps
    had = f"{recorded} of {promised} were recorded, the loop had {steps} of the {total} steps of the schedule"
    detail = f"{had}; {_needed(total, steps)}."
    return [flag("fewer_steps", promised - recorded, detail)]


def _needed(total: int, steps: int) -> str:
    """What a loop that was too short would have needed, and a schedule that fits it."""
    fitting = ", ".join(f"{key} {value}" for key, value in fitting_schedule(steps).items() if key != "repeat")
    return f"the whole schedule needs {total} steps; a loop of {steps} has room for {fitting}"


def _warn(text: str) -> None:
    """To whoever called us, however deep we are in ourselves."""
    level, frame = 1, sys._getframe(0)
    here = Path(proftrack.__file__).parent
    while frame.f_back is not None and Path(frame.f_code.co_filename).is_relative_to(here):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, ProfileWarning, stacklevel=level)


def caller(frame: FrameType) -> Path:
    """The file that a frame is of; for a notebook or a prompt, which have none, a name in the working folder."""
    path = Path(frame.f_code.co_filename)
    return path.resolve() if path.is_file() else Path.cwd() / "interactive"
