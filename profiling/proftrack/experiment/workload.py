"""Workloads: the code that is profiled, and how a user defines a step.

A workload is a callable, `build(device=..., **params)`. It returns a callable that runs one step, or a context manager
that yields one and cleans up when profiling is over. `device` is a `torch.device`; the params are those of the
experiment file. To reject a value, raise ValueError in `build`, before the first step, with a message that names the
parameter: the user then sees that message instead of a traceback.

    @contextlib.contextmanager
    def build(device, n):
        if n < 1:
            raise ValueError(f"n must be 1 or more, not {n}")
        x = torch.randn(n, n, device=device)
        yield lambda: x @ x

A step may say how many tokens (or samples) it handles, by an attribute: `step.tokens_per_step = batch * length`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import math
import numbers
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
from proftrack.text import meant, show

Step = Callable[[], Any]
TOKENS = "tokens_per_step"
"""Attribute of a step: see `tokens_of`."""
_MESSAGE_LIMIT = 400


class Workload(Struct, frozen=True):
    """A loaded `build` function, callable itself. `reference` is its name in messages."""

    build: Callable[..., Any]
    reference: str
    folder: Path | None = None
    """On sys.path while the workload is loaded, built and run; None for a workload in an installed package."""

    def __call__(self, /, **arguments: Any) -> Any:
        """Call `build`: returns a step, or a context manager that yields one."""
        return self.build(**arguments)


def load(experiment: Experiment, *, check: bool = True) -> Workload:
    """Import the experiment's workload. With `check`, make sure that its build accepts the experiment's parameters.

    Raises UsageError if the file, module or callable is missing or a parameter does not fit, WorkloadError if importing
    fails.
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
    """The experiment for a build function without a YAML file: `train.py:build` or `package.module:build`.

    The parameters and their defaults come from the callable's signature. A parameter without a default must be in
    `overrides`. Raises the errors of `load`, and UsageError for a value that is not allowed.
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
    """The name that `described` gives the experiment. Nothing is loaded."""
    source, _, name = reference.rpartition(":")
    label = Path(source).stem if source.endswith(".py") else source.rpartition(".")[2]
    return label if name == "build" else f"{label}.{name}"


@contextlib.contextmanager
def open_step(build: Callable[..., Any], device: Any, params: Mapping[str, Any]) -> Iterator[Step]:
    """Build the workload and yield its step. The workload is closed at the end in every case.

    Raises UsageError if build rejects a parameter (ValueError), WorkloadError if it fails in another way or returns no
    step. Errors raised in the body propagate even if the workload's context manager would swallow them.
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
            # Report the first error: one raised while closing would hide it.
            with contextlib.suppress(Exception):
                manager.__exit__(*sys.exc_info())
            raise
        with failing(f"{workload.reference}: closing the workload"):
            manager.__exit__(None, None, None)


@contextlib.contextmanager
def failing(what: str, remedy: str | None = None) -> Iterator[None]:
    """Turn an exception in the user's code into `WorkloadError: <what> raised <type>: <message>; <remedy>`.

    Ctrl-C, a signal handler's exit and proftrack's own errors propagate. `sys.exit(0)` does not: it would look like
    success.
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
        raise WorkloadError(f"{what} raised {type(error).__name__}: {first_line(error)}", remedy) from error


def tokens_of(step: Step) -> float | None:
    """Tokens, or samples, that one step handles, if the workload says so: `step.tokens_per_step = batch * length`.

    Raises UsageError if that is not a number above 0.
    """
    return checked_tokens(getattr(step, TOKENS, None))


def checked_tokens(tokens: object) -> float | None:
    """The number of tokens of a step, None if there is none. Raises UsageError if it is not a number above 0."""
    if tokens is None:
        return None
    number = float(tokens) if isinstance(tokens, numbers.Real) and not isinstance(tokens, bool) else 0.0
    if not 0 < number < math.inf:
        raise UsageError(f"{TOKENS}={show(tokens)} is not allowed", "it must be a number above 0")
    return number


def first_line(error: BaseException) -> str:
    """The first line of an error's message, with the next after a colon: torch may follow with pages of advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else "(no message)"
    if text.endswith(":") and len(lines) > 1:
        text = f"{text} {lines[1]}"
    if isinstance(error, SyntaxError) and error.lineno:
        text = f"{error.msg} ({Path(error.filename or '').name}, line {error.lineno})"
    return text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 3] + "..."


# ---- importing -----------------------------------------------------------------------------------------------------


def _load_file(path: Path, experiment: Experiment) -> ModuleType:
    """Import the file under a unique module name, so that `test.py` or `train.py` hides no other module."""
    if not path.is_file():
        neighbours = sorted(file.name for file in path.parent.glob("*.py")) if path.parent.is_dir() else []
        problem = f"{experiment.path}: workload={experiment.workload}: there is no file {path}"
        raise UsageError(problem, meant(path.name, neighbours).removeprefix("; ") or None)
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = f"proftrack_workload_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py suffix always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses, pickle and torch.compile look the module up
    try:
        with failing(f"importing {path}"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load_module(source: str, experiment: Experiment) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # as `python -m` does; installed packages come first
    try:
        with failing(f"importing {source}"):
            return importlib.import_module(source)
    except WorkloadError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name and f"{source}.".startswith(f"{cause.name}."):
            problem = f"{experiment.path}: workload={experiment.workload}: there is no module {cause.name}"
            raise UsageError(problem, "install it, or name a file beside the YAML (file.py:build)") from error
        raise


@contextlib.contextmanager
def _importable(folder: Path | None) -> Iterator[None]:
    """Let the workload import modules from its own folder while it is in use.

    Modules imported from another workload's folder are unloaded first: two folders may each have a model.py.
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
    available = sorted(
        key
        for key, value in vars(module).items()
        if (inspect.isroutine(value) or inspect.isclass(value))
        and getattr(value, "__module__", None) == module.__name__
    )
    problem = f"{name} is not a callable" if hasattr(module, name) else f"there is no callable {name}"
    where = f"{experiment.path}: workload={experiment.workload}"
    raise UsageError(f"{where}: {problem}", f"available: {', '.join(available) or 'none'}{meant(name, available)}")


# ---- checking ------------------------------------------------------------------------------------------------------


def _check_signature(workload: Workload, params: Mapping[str, Any]) -> None:
    """Raise UsageError for a parameter that build does not accept, or one that it requires and does not get."""
    try:
        signature = inspect.signature(workload.build)
    except (TypeError, ValueError):  # built-in callables have no signature; calling them will show
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
    """The callable's parameters with their defaults; None if there is no default and `given` has the value."""
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
            f"{workload.reference} yields but is not a context manager", "add @contextlib.contextmanager"
        )
    if inspect.iscoroutinefunction(step) or inspect.iscoroutine(step):
        if inspect.iscoroutine(step):
            step.close()  # or Python warns that it was never awaited
        raise WorkloadError(
            f"{workload.reference} returns a coroutine", "make the step a plain function that does its work"
        )
    if not callable(step):
        kind = type(step).__name__
        raise WorkloadError(f"{workload.reference} returns a {kind}", "return a callable that runs one step")


@contextlib.contextmanager
def _failures(workload: Workload, params: Mapping[str, Any]) -> Iterator[None]:
    arguments = ", ".join(f"{key}={value!r}" for key, value in params.items())
    with failing(f"{workload.reference.rpartition(':')[0] or workload.reference}: {_name(workload)}({arguments})"):
        try:
            yield
        except ValueError as error:
            raise UsageError(_refusal(workload, params, first_line(error))) from error


def _refusal(workload: Workload, params: Mapping[str, Any], message: str) -> str:
    """The workload's own message, after the values that it is about unless the message has them already."""
    mentioned = [key for key in params if _mentions(message, key)] or list(params)
    missing = [f"{key}={params[key]}" for key in mentioned if not _mentions(message, str(params[key]))]
    return (
        f"{workload.reference} rejects {', '.join(missing)}: {message}"
        if missing
        else f"{workload.reference}: {message}"
    )


def _mentions(message: str, word: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", message) is not None


def _name(workload: Workload) -> str:
    return workload.reference.rpartition(":")[2]
