"""A profile that begins, steps and ends with a training that a library runs."""

from __future__ import annotations

import atexit
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
    """What a callback holds. The arguments are those of `proftrack.profile`; name and schedule may be left open.

    Without a name it is the model's class, without a schedule one that the training is long enough for. `params` are
    added to those that the library tells, and win over them.
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
        """The last training's; its `record`, `run_id` and `folder` say what came of it."""
        self._name, self._params, self._variant = name, dict(params or {}), list(variant_params)
        self._schedule, self._profiler, self._timing = schedule, profiler, timing
        self._kept: dict[str, Any] = {"mlflow": mlflow, "calibrate": calibrate, "quiet": quiet}
        self._output = None if output is None else Path(output)
        self._enabled = enabled
        self._code = code or caller(sys._getframe(1))  # where the callback was made: the user's own file
        self._open = False
        if enabled:
            # What cannot be is refused where it is written, not when the training begins.
            self._experiment("name", {}, None, "cpu")

    @property
    def record(self) -> Record | None:
        """Of the last training, once its schedule is over."""
        return self.profile.record if self.profile else None

    @property
    def verdict(self) -> Verdict | None:
        """The record's, once the schedule is over."""
        return self.profile.verdict if self.profile else None

    @property
    def run_id(self) -> str | None:
        """The MLflow run of the last training's profile."""
        return self.profile.run_id if self.profile else None

    def begin(
        self,
        name: str,
        told: Mapping[str, Any],
        *,
        variant: Sequence[str] = (),
        steps: int | None,
        device: str,
        parent_run_id: str | None = None,
    ) -> None:
        """A training begins: `told` is what the library says of it, `steps` how long it will be, if that is known."""
        if not self._enabled:
            return
        self.end(CaptureError("another training began before this one had ended"))
        asked = self._experiment(name, told, steps, device, variant)
        self.profile = Profile(asked, output=self._output, parent_run_id=parent_run_id, **self._kept)
        self.profile.__enter__()
        self._open = True
        atexit.register(self._interpreter_ends)

    def step(self) -> None:
        """One step is over."""
        if self._open and self.profile is not None:
            self.profile.step()

    def end(self, error: BaseException | None = None) -> None:
        """The training is over, by an exception where there is one."""
        if self._open and self.profile is not None:
            self._open = False
            atexit.unregister(self._interpreter_ends)
            self.profile.__exit__(type(error) if error else None, error, None)

    def _interpreter_ends(self) -> None:
        """Some libraries do not say that a training was ended by an exception; Python keeps the one it died of."""
        died_of = getattr(sys, "last_value", None)
        self.end(died_of or CaptureError("the program ended before the training did"))

    def _experiment(
        self, name: str, told: Mapping[str, Any], steps: int | None, device: str, variant: Sequence[str] = ()
    ) -> Any:
        params = {**told, **self._params}
        both = [*dict.fromkeys([*variant, *self._variant])]
        unknown = [key for key in self._variant if told and key not in params]
        if unknown:
            raise UsageError(f"variant_params: {unknown[0]} is not among the params: {', '.join(params) or 'none'}")
        return described(
            self._name or name,
            self._code,
            params,
            [key for key in both if key in params],
            self._schedule if self._schedule is not None else fitting_schedule(steps),
            profiler=self._profiler,
            mode=self._timing,
            device=device if device in ("cuda", "cpu") else "auto",
        )
