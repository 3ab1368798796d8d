"""Profile a whole program, unchanged: `proftrack run -m package.module ARGUMENTS`, or a script.

The program runs in this process, as `python -m package.module ARGUMENTS` would run it. Its steps are those of its
optimizer, or the calls of a named function.
"""

from __future__ import annotations

import contextlib
import importlib.util
import runpy
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import proftrack
from proftrack import experiment
from proftrack.errors import ProftrackError, UsageError
from proftrack.frontends.loop import SCHEDULE, Profile
from proftrack.redact import without_secrets

_PARAM = "arguments"
_UNSTEPPED = (
    "no step was seen, so nothing was recorded: steps are those of the program's optimizers, or the calls of "
    "--step MODULE:FUNCTION",
    "name such a function, or mark the steps with proftrack.profile in the program",
)


class Program:
    """A module or a script with its arguments."""

    def __init__(self, target: str, arguments: Sequence[str], *, is_module: bool) -> None:
        """Raises UsageError if there is no such module or file."""
        self.target, self.arguments, self.is_module = target, list(arguments), is_module
        self.path = _module_file(target) if is_module else Path(target).absolute()
        if not self.path.is_file():
            raise UsageError(f"{target}: no such file")

    @property
    def name(self) -> str:
        """The name of its experiment."""
        return self.target if self.is_module else self.path.stem

    def run(self) -> None:
        """Run it as Python would; its exceptions and its SystemExit propagate."""
        if self.is_module:
            runpy.run_module(self.target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(self.path), run_name="__main__")


def profile_of(
    program: Program, overrides: Mapping[str, str], *, output: Path | None, mlflow: bool | None, calibrate: bool = True
) -> Profile:
    """The profile to run the program in. Raises UsageError for an invalid setting."""
    document = {
        "name": program.name,
        "workload": f"{program.path.name}:main",
        "params": {_PARAM: " ".join(without_secrets(program.arguments))},
        "schedule": dict(SCHEDULE),
    }
    described = experiment.described(document, program.path, overrides)
    return Profile(described, output=output, mlflow=mlflow, calibrate=calibrate, unstepped=_UNSTEPPED, warn=_warn)


def _warn(text: str) -> None:
    """Warn on stderr: a command has no line of the user's code for a Python warning to point at."""
    print(f"proftrack: {text}", file=sys.stderr)


def run(program: Program, profile: Profile, *, step: str | None, stop: bool) -> int:
    """Run the program in its profile; `stop` ends it once the schedule is over. Returns the program's exit code.

    An exception from the program is printed as Python prints it.
    """
    from proftrack.capture import step_hooks

    def stepped() -> None:
        profile.step()
        if stop and (profile.record is not None or profile.error is not None):
            raise SystemExit(0)

    counted = step_hooks.after_calls(step, stepped) if step is not None else step_hooks.after_optimizer_steps(stepped)
    try:
        with _as_main(program), counted, profile:
            program.run()
    except ProftrackError:
        raise
    except SystemExit as error:
        return _exit_code(error)
    except Exception as error:
        traceback.print_exception(type(error), error, _of_the_program(error))
        return 1
    return 0 if profile.error is None else 1


def _exit_code(error: SystemExit) -> int:
    if isinstance(error.code, str):
        print(error.code, file=sys.stderr)
        return 1
    return error.code or 0


def _of_the_program(error: BaseException) -> TracebackType | None:
    """The traceback without its first frames, those of proftrack and runpy."""
    frame = error.__traceback__
    package = str(Path(proftrack.__file__).parent)
    while frame is not None and frame.tb_next is not None:
        name = frame.tb_frame.f_code.co_filename
        if not (name.startswith((package, "<frozen runpy")) or name == runpy.__file__):
            break
        frame = frame.tb_next
    return frame


def _module_file(name: str) -> Path:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # where `python -m` looks first
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError) as error:
        raise UsageError(f"-m {name}: cannot be imported ({error})") from error
    if spec is None or spec.origin is None:
        raise UsageError(
            f"-m {name}: no such module in {here} or among the installed packages",
            "check its name, or run from the folder that contains it",
        )
    return Path(spec.origin)


@contextlib.contextmanager
def _as_main(program: Program) -> Iterator[None]:
    """Set sys.argv and sys.path as the program expects them, and restore both afterwards."""
    before = sys.argv[:], sys.path[:]
    sys.argv = [str(program.path), *program.arguments]
    if not program.is_module:
        sys.path.insert(0, str(program.path.parent))
    try:
        yield
    finally:
        sys.argv[:], sys.path[:] = before
