"""Regions in the trace around each call of a module, and around an optimizer's work for each parameter group.

    nn.Module: layers.7 (LlamaDecoderLayer)        |-----------------------------|
    nn.Module: layers.7.mlp (LlamaMLP)                   |-------|
    Optimizer.step#AdamW.step                                                          |---------------|
    proftrack: parameter group decay                                                     |------|
    proftrack: parameter group 1                                                                |------|

Modules are hooked, not changed: a copy or a replica of one still runs its own weights. What is compiled is never hooked
inside, since that would change what torch.compile sees: the compiled call as a whole is marked, from outside.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from proftrack.capture import compat, live_objects
from proftrack.capture.live_objects import Program, Reach
from proftrack.capture.module_names import Named, below, models, named
from proftrack.capture.trace_file import region_name
from proftrack.trace.categories import MODULE, PARAMETER_GROUP


@contextlib.contextmanager
def marked(step: Callable[..., Any] | None = None) -> Iterator[None]:
    """Mark calls of modules and parameter groups of optimizers inside, in what a profiler records meanwhile.

    `step` runs the steps, if that is known: its modules are then the model's, whatever else the process holds. A step
    that is compiled as a whole is not marked. Modules that are made inside are not marked either.
    """
    if step is not None and compat.compiled_from(step) is not None:
        yield
        return
    marks = _Marks()
    try:
        marks.install(step)
        yield
    finally:
        marks.remove()


class _Open(threading.local):
    """The open regions of each thread, outermost first: whose, of what name."""

    def __init__(self) -> None:
        self.regions: list[tuple[Any, str, Any]] = []
        self.region = compat.fast_region()

    def enter(self, owner: Any, name: str) -> None:
        """Open a region."""
        region = self.region(name)
        region.__enter__()
        self.regions.append((owner, name, region))

    def leave(self, owner: Any) -> None:
        """Close the owner's innermost region, and those inside it that an exception left open."""
        regions = self.regions
        for index in range(len(regions) - 1, -1, -1):
            if regions[index][0] is owner:
                while len(regions) > index:
                    regions.pop()[2].__exit__(None, None, None)
                return

    def leave_all(self) -> None:
        """Close all of this thread."""
        while self.regions:
            self.regions.pop()[2].__exit__(None, None, None)


class _Hook:
    """Marks the calls of one module, or of a replica of it that DataParallel made for another GPU.

    Not those that torch.compile traces: it takes `is_compiling` for a constant. Copied or pickled with its module, a
    hook becomes a function of the standard library that does nothing. Flat, since it runs at each call.
    """

    __slots__ = ("is_compiling", "is_wrapped", "module", "name", "opened")

    def __init__(self, each: Named, opened: _Open) -> None:
        self.name = region_name(f"{MODULE}{each.path}{' ' if each.path else ''}({each.class_name})")
        self.module = weakref.ref(each.module)
        self.is_wrapped = each.is_wrapped
        self.opened = opened
        self.is_compiling = compat.is_compiling()

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _Before(_Hook):
    """Opens a region, but none for what a wrapper wraps: that call is the wrapper's."""

    __slots__ = ()

    def __call__(self, module: Any, args: Any) -> None:
        if self.is_compiling() or (module is not self.module() and not compat.is_replica(module)):
            return
        opened = self.opened
        regions = opened.regions
        if not (self.is_wrapped and regions and regions[-1][1] == self.name):
            region = opened.region(self.name)
            region.__enter__()
            regions.append((self.module, self.name, region))


class _After(_Hook):
    __slots__ = ()

    def __call__(self, module: Any, args: Any, result: Any) -> None:
        if self.is_compiling() or (module is not self.module() and not compat.is_replica(module)):
            return
        regions = self.opened.regions
        if regions and regions[-1][0] is self.module:
            regions.pop()[2].__exit__(None, None, None)
        else:
            self.opened.leave(self.module)


def _living(reached: Reach) -> Program:
    living = live_objects.program()
    if not reached.modules and len(models(living.modules, reached)) > 1:
        gc.collect()  # a model of earlier steps that waits for it would be one of several
        living = live_objects.program()
    known = {id(each) for each in living.modules}
    living.modules += [each for key, each in reached.modules.items() if key not in known]  # gc.freeze hides them
    living.modules = [each for each in living.modules if not compat.is_made_by_compiler(each)]
    living.modules = _in_order(living.modules, reached.modules)
    living.optimizers = _in_order(living.optimizers, reached.optimizers)
    return living


def _in_order(living: list[Any], reached: dict[int, Any]) -> list[Any]:
    """The objects as the step reaches them, then the others: the numbers of equal ones must not differ by run."""
    place = {key: number for number, key in enumerate(reached)}
    return sorted(living, key=lambda each: place.get(id(each), len(place)))


_CALLED_BY_TORCH: tuple[Callable[..., Any], ...] = (
    *(_Before.__call__, _After.__call__, _Open.__init__, _Open.enter, _Open.leave, compat.is_replica),
)


class _Marks:
    """All marks of one time, and how they are taken away."""

    def __init__(self) -> None:
        self._opened = _Open()
        self._undo = contextlib.ExitStack()
        self._hooks: set[int] = set()

    def install(self, step: Callable[..., Any] | None) -> None:
        """Mark what is alive."""
        reached = live_objects.callers_globals() if step is None else live_objects.reach(step)
        living = _living(reached)
        compiled = _Compiled(living)
        if living.compiled:
            if compat.guards_hooks():
                return
            compat.never_compile(*_CALLED_BY_TORCH)
        for each in named(living.modules, reached):
            if compiled.spares(each.module):
                self._hook(each)
            elif compiled.is_whole(each.module):
                self._surround(each)
        for optimizer, label in _labels(living, reached):
            if not compiled.reaches(optimizer):
                self._mark_groups(optimizer, label)

    def remove(self) -> None:
        """Take all marks away, also from copies that were made of marked modules."""
        self._opened.leave_all()
        self._undo.close()
        if self._hooks:
            for each in live_objects.program().modules:
                compat.remove_hooks(each, self._hooks)

    def _hook(self, each: Named) -> None:
        before, after = _Before(each, self._opened), _After(each, self._opened)
        with contextlib.suppress(Exception):  # some modules forbid hooks of either kind: those of torch.jit
            self._keep(each.module.register_forward_hook(after, always_call=True))
            self._keep(each.module.register_forward_pre_hook(before, prepend=True))

    def _keep(self, handle: Any) -> None:
        self._undo.callback(handle.remove)
        self._hooks.add(handle.id)

    def _surround(self, each: Named) -> None:
        """Mark a module whose call is compiled as a whole, by `module.compile()`."""
        before, after, module = _Before(each, self._opened), _After(each, self._opened), weakref.ref(each.module)

        def around(call: Callable[..., Any]) -> Callable[..., Any]:
            def marked_call(*args: Any, **kwargs: Any) -> Any:
                before(module(), args)
                try:
                    return call(*args, **kwargs)
                finally:
                    after(module(), args, None)

            return marked_call

        self._undo.enter_context(compat.around_compiled_call(each.module, around))

    def _mark_groups(self, optimizer: Any, label: str) -> None:
        if not label and len(optimizer.param_groups) < 2:
            return
        opened = self._opened

        def begins(group: Any) -> None:
            opened.leave(begins)
            groups = optimizer.param_groups
            number = next((i for i, each in enumerate(groups) if each is group), len(groups))
            name = str(group.get("name") or number)
            text = (f"{label}, group {name}" if len(groups) > 1 else label) if label else name
            opened.enter(begins, region_name(f"{PARAMETER_GROUP}{text}"))

        self._undo.enter_context(compat.before_each_group(optimizer, begins, lambda: opened.leave(begins)))


class _Compiled:
    """What torch.compile compiled, and so must not be hooked."""

    def __init__(self, living: Program) -> None:
        self._reached: list[tuple[Any, Reach, set[int]]] = []
        for function in living.compiled:
            reached = live_objects.reach(compat.compiled_from(function))
            modules = {id(each) for module in reached.modules.values() for each in below(module)}
            self._reached.append((function, reached, modules))

    def spares(self, module: Any) -> bool:
        """Whether none of a module's call is compiled but what `forward` does, so that hooks run outside of that."""
        own = module.__dict__.get("forward")
        return not any(id(module) in modules for function, _, modules in self._reached if function is not own)

    def is_whole(self, module: Any) -> bool:
        """Whether a module's call is compiled as a whole and is no part of another compiled call."""
        own = compat.compiled_call(module)
        others = (modules for function, _, modules in self._reached if function is not own)
        return own is not None and not any(id(module) in modules for modules in others)

    def reaches(self, optimizer: Any) -> bool:
        """Whether an optimizer's step may be compiled."""
        return any(id(optimizer) in reached.optimizers for _, reached, _ in self._reached)


def _labels(living: Program, reached: Reach) -> list[tuple[Any, str]]:
    """Optimizers with what tells them from others of the same class; empty if there is no other."""
    grouped = [each for each in living.optimizers if compat.works_by_groups(each)]
    used = [each for each in grouped if id(each) in reached.optimizers] or grouped
    often = Counter(type(each).__name__ for each in used)
    numbers, result = Counter[str](), []
    for each in used:
        name = type(each).__name__
        numbers[name] += 1
        result.append((each, (reached.variable(each) or f"{name} {numbers[name]}") if often[name] > 1 else ""))
    return result
