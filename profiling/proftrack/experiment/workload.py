"""Workloads: the code that is profiled, and how a user says what a step is.

A workload is a callable, `build(device=..., **params)`, that returns a callable doing one step, or a context manager
that yields one (what it opens is closed when the profile is over). `device` is a `torch.device`; the params are those
of the experiment file. To refuse a value, raise ValueError in `build`, before the first step, in words that name the
parameter: the user then reads that sentence and not a traceback.

    @contextlib.contextmanager
    def build(device, n):
        if n < 1:
            raise ValueError(f"n must be 1 or more, not {n}")
        x = torch.randn(n, n, device=device)
        yield lambda: x @ x
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import Struct

from proftrack import experiment
from proftrack.errors import ProftrackError, UsageError, WorkloadError
from proftrack.experiment import Experiment
from proftrack.text import meant

Step = Callable[[], Any]
_MESSAGE_LIMIT = 400


class Workload(Struct, frozen=True):
    """A loaded `build`; calling it calls that. `reference` names it in messages."""

    build: Callable[..., Any]
    reference: str
    folder: Path | None = None
    """Importable while the workload is loaded, built and run; None for a workload in an installed package."""

    def __call__(self, /, **arguments: Any) -> Any:
        """Build: returns a step, or a context manager that yields one."""
        return self.build(**arguments)


def load(experiment: Experiment, *, check: bool = True) -> Workload:
    """Import the experiment's workload and, unless told not to, check that its build takes the experiment's parameters.

    Raises UsageError where file, module or callable are missing or a parameter does not fit, WorkloadError where
    importing fails.
    """
    source, _, name = experiment.workload.rpartition(":")
    if source.endswith(".py"):
        path = experiment.path.parent / Path(source).expanduser()
        folder, label = path.parent, path.name
        with _importable(folder):
            module = _load_file(path, experiment)
    else:
        folder, label = None, source
        module = _load_module(source, experiment)
    workload = Workload(_callable(module, name, experiment), f"{label}:{name}", folder)
    if check:
        _check_signature(workload, experiment.params)
    return workload


def described(reference: str, overrides: Mapping[str, str] = {}) -> Experiment:
    """The experiment of a build without a YAML file: `train.py:build` or `package.module:build`.

    Its parameters are those of the callable with their defaults; one without must be among `overrides`. Raises as
    `load` does, and UsageError for a value that cannot be.
    """
    source, _, name = reference.rpartition(":")
    path = Path(source).expanduser().absolute() if source.endswith(".py") else Path.cwd() / "experiment"
    document: dict[str, Any] = {
        "name": name_of(reference),
        "workload": f"{path.name if source.endswith('.py') else source}:{name}",
    }
    loaded = load(experiment.described(document, path), check=False)
    document["params"] = _defaults(loaded, overrides)
    origin = getattr(sys.modules.get(source), "__file__", None)
    return experiment.described(document, Path(origin) if origin else path, overrides)


def name_of(reference: str) -> str:
    """The name of the experiment that `described` makes of it; nothing is loaded."""
    source, _, name = reference.rpartition(":")
    label = Path(source).stem if source.endswith(".py") else source.rpartition(".")[2]
    return label if name == "build" else f"{label}.{name}"


@contextlib.contextmanager
def open_step(build: Callable[..., Any], device: Any, params: Mapping[str, Any]) -> Iterator[Step]:
    """Build the workload and give its step; what it opened is closed at the end, whatever happens.

    Raises UsageError where build refuses a parameter (ValueError), WorkloadError where it fails otherwise or gives no
    step. Errors of the body pass through, even if the workload's context manager would swallow them.
    """
    workload = build if isinstance(build, Workload) else Workload(build, getattr(build, "__qualname__", repr(build)))
    with _importable(workload.folder):
        with _failures(workload, params):
            built = workload(device=device, **params)
            manager = built if hasattr(type(built), "__enter__") else contextlib.nullcontext(built)
            step = manager.__enter__()
        try:
            _check_step(step, workload)
            yield step
        except BaseException:
            # The first error is the one to tell; one in closing would hide it.
            with contextlib.suppress(Exception):
                manager.__exit__(*sys.exc_info())
            raise
        with failing(f"{workload.reference}: closing the workload"):
            manager.__exit__(None, None, None)


@contextlib.contextmanager
def failing(what: str) -> Iterator[None]:
    """Turn what the user's code raises into `WorkloadError: <what> raised <type>: <message>`.

    Ctrl-C, a signal handler's exit and our own errors pass; `sys.exit(0)` does not, it would look like success.
    """
    try:
        yield
    except ProftrackError:
        raise
    except SystemExit as error:
        if error.code:
            raise
        raise WorkloadError(f"{what} ended the process with sys.exit({error.code or ''})", "return instead") from error
    except Exception as error:
        raise WorkloadError(f"{what} raised {type(error).__name__}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of an error's text, which torch may follow with pages of advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else "(no message)"
    if isinstance(error, SyntaxError) and error.lineno:
        text = f"{error.msg} ({Path(error.filename or '').name}, line {error.lineno})"
    return text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 3] + "..."


# ---- importing -----------------------------------------------------------------------------------------------------


def _load_file(path: Path, experiment: Experiment) -> ModuleType:
    """Run the file as a module of its own name, so that `test.py` or `train.py` hides no other module."""
    if not path.is_file():
        there = sorted(file.name for file in path.parent.glob("*.py")) if path.parent.is_dir() else []
        problem = f"{experiment.path}: workload={experiment.workload}: there is no file {path}"
        raise UsageError(problem + meant(path.name, there))
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = f"proftrack_workload_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py suffix always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses, pickle and torch.compile look the module up
    try:
        with failing(f"{path}: importing it"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load_module(source: str, experiment: Experiment) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # as with `python -m`; what is installed comes first
    try:
        with failing(f"{source}: importing it"):
            return importlib.import_module(source)
    except WorkloadError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name and f"{source}.".startswith(f"{cause.name}."):
            problem = f"{experiment.path}: workload={experiment.workload}: there is no module {cause.name}"
            raise UsageError(f"{problem}", "install it, or name a file beside the YAML (file.py:build)") from error
        raise


@contextlib.contextmanager
def _importable(folder: Path | None) -> Iterator[None]:
    """Let the workload import its neighbours, for as long as it is in use.

    Neighbours of another folder's workload are forgotten first: two folders may each have a model.py.
    """
    if folder is None:
        yield
        return
    entry = str(folder.resolve())
    for name, home in list(_neighbours.items()):
        if home != entry:
            sys.modules.pop(name, None)
            del _neighbours[name]
    before = set(sys.modules)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(entry)
        for name in set(sys.modules) - before:
            origin = getattr(sys.modules[name], "__file__", None)
            if origin and Path(origin).is_relative_to(entry) and not name.startswith("proftrack_workload_"):
                _neighbours[name] = entry


_neighbours: dict[str, str] = {}


def _callable(module: ModuleType, name: str, experiment: Experiment) -> Callable[..., Any]:
    target = getattr(module, name, None)
    if callable(target):
        return target  # type: ignore[no-any-return]
    own = [key for key, value in vars(module).items() if inspect.isroutine(value) or inspect.isclass(value)]
    own = sorted(key for key in own if getattr(vars(module)[key], "__module__", None) == module.__name__)
    problem = f"{name} is not a callable" if hasattr(module, name) else f"there is no callable {name}"
    given = f"{experiment.path}: workload={experiment.workload}"
    raise UsageError(f"{given}: {problem}", f"callables there: {', '.join(own) or 'none'}{meant(name, own)}")


# ---- checking ------------------------------------------------------------------------------------------------------


def _check_signature(workload: Workload, params: Mapping[str, Any]) -> None:
    """Refuse parameters that build does not take, and needs of build that nothing meets, by name."""
    try:
        signature = inspect.signature(workload.build)
    except (TypeError, ValueError):  # built-in callables have none; the call itself will tell
        return
    named = {key: item for key, item in signature.parameters.items() if item.kind in _BY_KEYWORD}
    open_ended = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in signature.parameters.values())
    takes = ", ".join(named) or "nothing"
    for key in ("device", *params):
        if key not in named and not open_ended:
            remedy = "build(device=..., **params) must take it" if key == "device" else f"it takes {takes}"
            raise UsageError(f"{workload.reference} takes no parameter {key}", f"{remedy}{meant(key, named)}")
    for key, item in signature.parameters.items():
        if item.default is item.empty and item.kind not in _OPEN and key not in params and key != "device":
            raise UsageError(f"{workload.reference} needs a parameter {key}", "add it to the experiment's params")


def _defaults(workload: Workload, given: Mapping[str, str]) -> dict[str, Any]:
    """The callable's parameters with their defaults; None for one that has none and is given as a text."""
    defaults: dict[str, Any] = {}
    for key, item in inspect.signature(workload.build).parameters.items():
        if key == "device" or item.kind not in _BY_KEYWORD:
            continue
        if item.default is not item.empty:
            if item.default is None or isinstance(item.default, (bool, int, float, str, list)):
                defaults[key] = item.default
        elif key in given or f"params.{key}" in given:
            defaults[key] = None
        else:
            raise UsageError(f"{workload.reference} needs a parameter {key}", f"give it with -P {key}=...")
    return defaults


_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _check_step(step: Any, workload: Workload) -> None:
    if inspect.isgenerator(step):
        raise WorkloadError(
            f"{workload.reference} yields without being a context manager", "add @contextlib.contextmanager"
        )
    if inspect.iscoroutinefunction(step) or inspect.iscoroutine(step):
        if inspect.iscoroutine(step):
            step.close()  # or Python warns that nobody awaited it
        raise WorkloadError(
            f"{workload.reference} gives a coroutine", "a step must be a plain function that does its work"
        )
    if not callable(step):
        kind = type(step).__name__
        raise WorkloadError(f"{workload.reference} gives a {kind}", "it must return a callable that does one step")


@contextlib.contextmanager
def _failures(workload: Workload, params: Mapping[str, Any]) -> Iterator[None]:
    arguments = ", ".join(f"{key}={value!r}" for key, value in params.items())
    with failing(f"{workload.reference.rpartition(':')[0] or workload.reference}: {_name(workload)}({arguments})"):
        try:
            yield
        except ValueError as error:
            raise UsageError(_refusal(workload, params, first_line(error))) from error


def _refusal(workload: Workload, params: Mapping[str, Any], message: str) -> str:
    """The workload's own words; with the values before them, unless they are in them already."""
    named = [key for key in params if _says(message, key)] or list(params)
    missing = [f"{key}={params[key]}" for key in named if not _says(message, str(params[key]))]
    return (
        f"{workload.reference} refuses {', '.join(missing)}: {message}"
        if missing
        else f"{workload.reference}: {message}"
    )


def _says(message: str, word: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", message) is not None


def _name(workload: Workload) -> str:
    return workload.reference.rpartition(":")[2]
