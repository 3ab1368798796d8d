"""A profile that begins, steps and ends with a training that a library runs."""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proftrack.errors import CaptureError, UsageError
from proftrack.frontends.loop import Profile, ProfileWarning, caller, described, fitting_schedule
from proftrack.record import Record
from proftrack.record.verdict import Verdict

__all__ = ["ProfileWarning", "Training"]


class Training:
    """Base of the callbacks. The arguments are those of `proftrack.profile`; name and schedule are optional.

    The default name is the model's class, the default schedule one that fits into the training. `params` are added to
    those from the library, and override them.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        variant_params: Sequence[str] = (),
        schedule: Mapping[str, int] | None = None,
        profiler: Mapping[str, bool] | None = None,
        timing: str = "throughput",
        output: str | Path | None = None,
        mlflow: bool | None = None,
        calibrate: bool = True,
        quiet: bool = False,
        enabled: bool = True,
        code: Path | None = None,
    ) -> None:
        self.profile: Profile | None = None
        """The profile of the last training; its `record`, `run_id` and `folder` are the result."""
        self._name, self._params, self._variant = name, dict(params or {}), list(variant_params)
        self._schedule, self._profiler, self._timing = schedule, profiler, timing
        self._profile_options: dict[str, Any] = {"mlflow": mlflow, "calibrate": calibrate, "quiet": quiet}
        self._output = None if output is None else Path(output)
        self._enabled = enabled
        self._code = code or caller(sys._getframe(1))  # where the callback was created: the user's own file
        self._open = False
        self._excluded = contextlib.ExitStack()
        self._is_excluded = False
        if enabled:
            # Invalid arguments are rejected here, where the user wrote them, not when the training begins.
            self._experiment("name", {}, None, "cpu")

    @property
    def record(self) -> Record | None:
        """The record of the last training, once its schedule is over."""
        return self.profile.record if self.profile else None

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of that record, once the schedule is over."""
        return self.profile.verdict if self.profile else None

    @property
    def run_id(self) -> str | None:
        """The MLflow run of the last training's profile."""
        return self.profile.run_id if self.profile else None

    def begin(
        self,
        name: str,
        facts: Mapping[str, Any],
        *,
        variant: Sequence[str] = (),
        steps: int | None,
        device: str,
        parent_run_id: str | None = None,
    ) -> None:
        """Start a profile with a training. `facts` come from the library; `steps` is its length, if known."""
        if not self._enabled:
            return
        self.end(CaptureError("another training began before this one had ended"))
        experiment = self._experiment(name, facts, steps, device, variant)
        self.profile = Profile(experiment, output=self._output, parent_run_id=parent_run_id, **self._profile_options)
        self.profile.__enter__()
        self._open = True
        atexit.register(self._interpreter_ends)

    def step(self) -> None:
        """Count a step."""
        if self._open and self.profile is not None:
            self.resume()
            self.profile.step()

    def pause(self) -> None:
        """What follows is no part of a step, until `resume`: the library evaluates, or writes a checkpoint."""
        if self._open and self.profile is not None and not self._is_excluded:
            self._is_excluded = True
            self._excluded.enter_context(self.profile.excluded())

    def resume(self) -> None:
        """The training goes on; without a pause, nothing happens."""
        self._is_excluded = False
        self._excluded.close()

    def end(self, error: BaseException | None = None) -> None:
        """End the profile with the training, and with the exception that ended it, if any."""
        if self._open and self.profile is not None:
            self._open = False
            self.resume()
            atexit.unregister(self._interpreter_ends)
            self.profile.__exit__(type(error) if error else None, error, None)

    def _interpreter_ends(self) -> None:
        """Some libraries do not report the exception that ends a training; Python keeps the one that ends a program."""
        last_exception = getattr(sys, "last_value", None)
        self.end(last_exception or CaptureError("the program ended before the training did"))

    def _experiment(
        self, name: str, facts: Mapping[str, Any], steps: int | None, device: str, variant: Sequence[str] = ()
    ) -> Any:
        params = {**facts, **self._params}
        variant_params = [*dict.fromkeys([*variant, *self._variant])]
        unknown = [key for key in self._variant if facts and key not in params]
        if unknown:
            raise UsageError(f"variant_params: {unknown[0]} is not a param", f"name one of: {', '.join(params)}")
        return described(
            self._name or name,
            self._code,
            params,
            [key for key in variant_params if key in params],
            self._schedule if self._schedule is not None else fitting_schedule(steps),
            profiler=self._profiler,
            mode=self._timing,
            device=device if device in ("cuda", "cpu") else "auto",
        )
