"""The names of the program's modules, as `named_modules()` has them.

    one model                     layers.7.mlp
    a model and a loss            layers.7.mlp, CrossEntropyLoss
    two models                    generator.layers.0, discriminator.layers.0

What only wraps a model, such as DistributedDataParallel, has the model's name, so that `layers.7` is the same with and
without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from proftrack.capture import compat
from proftrack.capture.live_objects import Reach

_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "DeepSpeedEngine": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
    "OptimizedModule": "_orig_mod",
}
"""Classes that wrap a module, with the attribute that holds it. Subclasses and other libraries' of the name count."""
_SHARDED = "FSDP"
"""How `fully_shard` begins the name of the class that it gives a module; its base FSDPModule tells such a class."""


class Named(Struct, frozen=True, eq=False):
    """A module and its name."""

    module: Any
    path: str
    class_name: str
    """Of a wrapper, the class of what it wraps."""
    is_wrapped: bool
    """Whether it is what a wrapper of the same path wraps."""


def named(modules: Iterable[Any], reached: Reach) -> list[Named]:
    """Names for all modules. Each has one: shared ones the first.

    The step's models are those that it reaches, if it reaches any. What only one of them holds, hidden from
    `named_modules()`, has its class.
    """
    roots = _roots(modules)
    main = _models(roots, reached)
    others = [each for each in roots if all(each is not model for model in main)]
    found: list[Named] = []
    known: set[int] = set()
    for root, path in [*_prefixed(main, reached), *_numbered(others, reached)]:
        found += _walk(root, path, known)
    return found


def models(modules: Iterable[Any], reached: Reach) -> list[Any]:
    """The outermost modules that have parameters; a loss has none. If the step reaches some, those alone."""
    return _models(_roots(modules), reached)


def _roots(modules: Iterable[Any]) -> list[Any]:
    living = list(modules)
    inner = {id(child) for each in living for child in compat.children_of(each).values()}
    return [each for each in living if id(each) not in inner]


def _models(roots: list[Any], reached: Reach) -> list[Any]:
    trees = [(root, list(below(root))) for root in roots]
    found = [(root, tree) for root, tree in trees if any(map(compat.has_parameters, tree))]
    used = [root for root, tree in found if any(id(each) in reached.direct for each in tree)]
    return used or [root for root, _ in found]


def below(module: Any) -> Iterator[Any]:
    """A module and all below it, each once."""
    waiting, seen = [module], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += compat.children_of(each).values()


def _prefixed(roots: list[Any], reached: Reach) -> list[tuple[Any, str]]:
    return [(roots[0], "")] if len(roots) == 1 else _numbered(roots, reached)


def _numbered(roots: list[Any], reached: Reach) -> list[tuple[Any, str]]:
    """Each with the name of its variable, else its class, numbered if there are several."""
    names = [(reached.variable(root) if _is_model(root) else "") or class_of(root) for root in roots]
    often, used = Counter(names), Counter[str]()
    result = []
    for root, name in zip(roots, names, strict=True):
        used[name] += 1
        result.append((root, f"{name}_{used[name]}" if often[name] > 1 else name))
    return result


def _is_model(root: Any) -> bool:
    return any(map(compat.has_parameters, below(root)))


def _walk(module: Any, path: str, known: set[int], *, is_wrapped: bool = False) -> Iterator[Named]:
    if id(module) in known:
        return
    known.add(id(module))
    yield Named(module, path, class_of(module), is_wrapped)
    inner = _wrapped_name(module)
    for name, child in compat.children_of(module).items():
        inner_path = path if name == inner else f"{path}.{name}" if path else name
        yield from _walk(child, inner_path, known, is_wrapped=name == inner)


def class_of(module: Any) -> str:
    """The name of a module's class; of a wrapper, of what it wraps."""
    inner = _wrapped_name(module)
    while inner:
        module = compat.children_of(module)[inner]
        inner = _wrapped_name(module)
    classes = [each.__name__ for each in type(module).__mro__]
    return classes[0].removeprefix(_SHARDED) if f"{_SHARDED}Module" in classes[1:] else classes[0]


def _wrapped_name(module: Any) -> str:
    """The attribute that holds what a module wraps; empty if it is no wrapper."""
    children = compat.children_of(module)
    names = (_WRAPPERS.get(each.__name__, "") for each in type(module).__mro__)
    return next((name for name in names if name and name in children), "")
