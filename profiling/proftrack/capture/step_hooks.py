"""Find the steps of a program that does not mark them: its optimizer's steps, or the calls of one function."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from proftrack.errors import UsageError
from proftrack.experiment.workload import failing


@contextlib.contextmanager
def after_optimizer_steps(call: Callable[[], None]) -> Iterator[None]:
    """Call `call` after each step of every torch optimizer in this process."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    handle = register_optimizer_step_post_hook(lambda *_: call())
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def after_calls(of: str, call: Callable[[], None]) -> Iterator[None]:
    """Call `call` after each call of a function, `package.module:function` or `package.module:Class.method`.

    Raises UsageError if there is no such function.
    """
    source, colon, qualified = of.partition(":")
    if not (source and colon and qualified):
        problem = f"--step {of}: not the name of a function"
        raise UsageError(problem, "write it as package.module:function, or package.module:Class.method")
    with failing(f"importing {source}"):
        holder: Any = importlib.import_module(source)
    *path, name = qualified.split(".")
    for part in path:
        holder = getattr(holder, part, None)
    function = inspect.getattr_static(holder, name, None)
    if holder is None or not callable(function):
        raise UsageError(f"--step {of}: {source} has no function {qualified}")

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        call()
        return result

    setattr(holder, name, counted)
    try:
        yield
    finally:
        setattr(holder, name, function)
