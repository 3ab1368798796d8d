"""What of the program is alive: its modules, its optimizers, what it compiled, and under which names.

Objects are told by their types alone: a proxy among them may do anything when it is asked for an attribute.
"""

from __future__ import annotations

import gc
import sys
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from proftrack.capture import compat

_OURS = "proftrack"
_MOST_OBJECTS = 50_000
"""Objects that `reach` looks at, some ms per 10,000. What it misses then is a module with one name less, or hooks in
compiled code, which ignores them unless it is told otherwise (`compat.guards_hooks`)."""
_FARTHEST = 12
"""Steps from an object to what it refers to. A trainer that wraps a trainer that has the model needs six."""
_CONTAINERS = (list, tuple, dict, set, frozenset, deque, types.CellType, types.MappingProxyType)


@dataclass
class Program:
    """Living objects, in no order that means anything: collections of garbage reorder them."""

    modules: list[Any] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)
    compiled: list[Any] = field(default_factory=list)
    """Functions that torch.compile made."""


@dataclass
class Reach:
    """What is reached from an object, by id, in an order that is the same in each process. The objects are kept alive,
    so that an id stays theirs."""

    modules: dict[int, Any] = field(default_factory=dict)
    direct: set[int] = field(default_factory=set)
    """Those of the modules that are reached without passing through another."""
    optimizers: dict[int, Any] = field(default_factory=dict)
    variables: dict[int, set[str]] = field(default_factory=dict)
    """The names of variables and attributes that hold them."""

    def held_by(self, name: str, each: Any) -> None:
        """A variable or attribute of this name holds it. Those with an underscore are often second names, as a
        notebook's for its results are; `self` says nothing."""
        if name and not name.startswith("_") and name != "self":
            self.variables.setdefault(id(each), set()).add(name)

    def variable(self, each: Any) -> str:
        """The name of the variable that holds an object; empty unless there is exactly one name."""
        names = self.variables.get(id(each), set())
        return next(iter(names)) if len(names) == 1 else ""


def program() -> Program:
    """What the garbage collector knows of the program; what it has not collected yet is part of it."""
    # Of all at once the youngest generation is first: of two objects, each collection could make another the first.
    # Generations in this order: what a collection meanwhile moves on is seen twice, and not missed.
    generations = [gc.get_objects(generation) for generation in (0, 1, 2)]
    everything = [each for generation in reversed(generations) for each in generation]
    kinds = _Kinds()
    wanted = {each: kinds[each] for each in set(map(type, everything)) if kinds[each] in ("module", "optimizer")}
    if compat.may_have_compiled():
        wanted[types.FunctionType] = "function"
    found = Program()
    lists = {"module": found.modules, "optimizer": found.optimizers, "function": found.compiled}
    seen: set[int] = set()
    for each in everything:
        kind = wanted.get(type(each))
        if kind is not None and id(each) not in seen and (kind != "function" or compat.compiled_from(each) is not None):
            seen.add(id(each))
            lists[kind].append(each)
    return found


def reach(start: Any) -> Reach:
    """The modules and optimizers that a function or object reaches: by closure, named globals, attributes."""
    found, kinds = Reach(), _Kinds()
    seen: dict[int, Any] = {}
    # What a module refers to besides modules and functions, such as a trainer, it does not call.
    waiting = deque([("", start, 0, True)])
    while waiting and len(seen) < _MOST_OBJECTS:
        name, each, distance, through_instances = waiting.popleft()
        kind = kinds[type(each)]
        if kind in ("module", "optimizer"):
            (found.modules if kind == "module" else found.optimizers)[id(each)] = each
            found.direct.update([id(each)] if kind == "module" and through_instances else [])
            found.held_by(name, each)
        if id(each) in seen or kind == "closed":
            continue
        seen[id(each)] = each
        if distance == _FARTHEST or (kind == "other" and not through_instances):
            continue
        through = through_instances and kind not in ("module", "optimizer")
        waiting.extend((key, value, distance + 1, through) for key, value in _referred(each, kind, distance == 0))
    return found


def callers_globals() -> Reach:
    """The modules and optimizers in the global variables of the code that called proftrack, and in its local ones.

    Local ones only from Python 3.13 on: before, asking a frame for them keeps their values alive until it ends.
    """
    found, kinds = Reach(), _Kinds()
    frame = sys._getframe(1)
    scopes: dict[int, Any] = {}
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in (_OURS, "torch"):
            scopes[id(frame.f_globals)] = frame.f_globals
            if sys.version_info >= (3, 13):
                scopes[id(frame)] = frame.f_locals
        frame = frame.f_back  # type: ignore[assignment]  # typeshed: the outermost frame has none
    for scope in scopes.values():
        for name, value in list(scope.items()):
            if kinds[type(value)] in ("module", "optimizer"):
                found.held_by(name, value)
    return found


def _referred(each: Any, kind: str, is_start: bool) -> Iterator[tuple[str, Any]]:
    """What an object refers to, with the names of variables and attributes where they are known."""
    if kind == "function":
        if is_start or not str(each.__module__).startswith("torch."):
            yield from _referred_by_function(each)
    elif kind == "method":
        holder = each.__self__
        yield "", each.__func__
        yield "", holder
        if type(holder).__dictoffset__:
            yield from object.__getattribute__(holder, "__dict__").items()
    elif kind == "module":
        yield "", getattr(type(each), "forward", None)
        yield from (("", value) for value in each.__dict__.values())
    else:
        values = each if type(each) in (list, tuple) else gc.get_referents(each)  # those of a list are from its end
        yield from (("", value) for value in values if gc.is_tracked(value))
        if kind == "other" and is_start and callable(each):
            yield "", type(each).__call__
            if type(each).__dictoffset__:
                yield from object.__getattribute__(each, "__dict__").items()


def _referred_by_function(function: Any) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from (("", value) for value in (function.__defaults__ or ()))
    yield from (("", value) for value in (function.__kwdefaults__ or {}).values())
    yield from (("", value) for value in function.__dict__.values())
    names = set(_names_in(function.__code__))
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        yield name, value
        if type(value) is types.ModuleType:
            yield from ((other, vars(value)[other]) for other in sorted(names & vars(value).keys()))


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names_in(each)


class _Kinds(dict[type, str]):
    """Kinds of objects by type: module, optimizer, function, method, container, other; or closed: not looked into."""

    def __init__(self) -> None:
        import torch

        bases: list[tuple[Any, str]] = [
            (torch.nn.Module, "module"),
            (torch.optim.Optimizer, "optimizer"),
            (torch.Tensor, "closed"),
        ]
        bases += [(kind, "closed") for kind in (type, types.ModuleType, types.CodeType, types.FrameType)]
        bases += [(str, "closed"), (bytes, "closed"), (int, "closed"), (float, "closed"), (type(None), "closed")]
        bases += [(types.FunctionType, "function"), (types.MethodType, "method")]
        self._bases: list[tuple[Any, str]] = [*bases, *((kind, "container") for kind in _CONTAINERS)]

    def __missing__(self, kind: type) -> str:
        above = type.__dict__["__mro__"].__get__(kind)
        found = next((name for base, name in self._bases if base in above), "other")
        self[kind] = found
        return found
