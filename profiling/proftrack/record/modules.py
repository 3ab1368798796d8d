"""Whose time it is: GPU time by module, optimizer or region, and the tree of modules that the paths make.

    path                  kind       class          forward  backward  recompute  optimizer
    layers.7.mlp          module     LlamaMLP           310       620          0          0
    layers.7.mlp.act      module     SiLU                40        60          0          0
    AdamW.group 0         optimizer                       0         0          0        410
    clip                  region                         12         0          0          0
                          none                            3         1          0          0

The rows are exclusive: what `layers.7.mlp.act` took is not in `layers.7.mlp`, so all rows add up to B times the steps.
`tree` adds them up along the paths; `owners` finds and sums what pages show of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

import msgspec
from msgspec import Struct

OwnerKind = Literal["module", "compiled", "optimizer", "region", "none"]
"""What owns GPU time: a call of an nn.Module; a compiled region, of which no module is known; an optimizer, or one of
its parameter groups; a record_function region outside of all these; nothing of the kind."""

Pass = Literal["forward", "backward", "recompute", "optimizer", "other"]
"""The part of a training step that work belongs to. `recompute` is a forward that activation checkpointing runs again
during backward; outside of modules, `forward` is the work of operators that the recorded backward passes go back to,
and `other` the rest: copies, metrics, all of inference."""
PASSES: tuple[Pass, ...] = get_args(Pass)


class OwnedWork(Struct, frozen=True, kw_only=True):
    """GPU work of one name that one operator launched for an owner in one pass."""

    operator: str
    """Empty if none is known."""
    kernel: str
    part: Pass
    calls: int
    busy_us: float


class Module(Struct, frozen=True, kw_only=True):
    """One owner's exclusive time over the typical steps. Microseconds.

    Of the GPU: its share of B times the steps, where concurrent work shares its time equally. In a trace without GPU
    work: self CPU time of the host rows.
    """

    path: str = ""
    """Of a module, its name as `named_modules()` has it, `layers.7.mlp`; where stacks were recorded without proftrack,
    the classes and numbers that torch gives, `LlamaModel_0.LlamaDecoderLayer_7.LlamaMLP_7`. The outermost module is
    the empty path if it is the only one, else its class or the name of its variable. Of a compiled region, the path of
    the module around it and its number; of an optimizer, its class and group; of a region, its name."""
    kind: OwnerKind = "module"
    class_name: str = msgspec.field(default="", name="class")
    calls: int = 0
    """Forward calls, or steps of an optimizer, in the typical steps."""
    forward_us: float = 0.0
    backward_us: float = 0.0
    recompute_us: float = 0.0
    optimizer_us: float = 0.0
    other_us: float = 0.0
    communication_us: float = 0.0
    """The part of all these that is collectives."""
    copies_us: float = 0.0
    """The part that is copies between host and device."""
    host_us: float = 0.0
    """Self CPU time of its host rows in all passes, on all threads."""
    typical_us: float | None = None
    """Its time in one typical step, on which a single long call has no effect: the median of GPU time; of self CPU time
    the least, since other programs can only add to it. None if there are fewer than two steps."""
    deviation_us: float | None = None
    """How far the steps are from that median: 1.4826 times the median absolute deviation, which of normal times is
    their standard deviation. Of self CPU time, how far their median is above the least."""
    largest: list[OwnedWork] = []
    """Its largest pieces of GPU work, largest first; see MOST_PIECES."""

    @property
    def busy_us(self) -> float:
        """All passes."""
        return self.forward_us + self.backward_us + self.recompute_us + self.optimizer_us + self.other_us

    def part_us(self, part: Pass) -> float:
        """The time of one pass."""
        return float(getattr(self, f"{part}_us"))


COLLECTIVES = ("nccl:", "rccl:", "gloo:", "mpi:", "ucc:", "xccl:", "hccl:", "c10d:")
"""How the names of the regions begin that torch puts around collectives."""

MOST_PIECES = 5
"""How many pieces of GPU work a row lists."""
DEEPEST = 60
"""Parts of a path that become levels of the tree: a path is untrusted, and may be nothing but dots."""


class Graph(Struct, frozen=True, kw_only=True):
    """One CUDA graph that the recorded steps replay, and whether a recorded capture names its kernels."""

    kernels: int
    """GPU work of one replay: kernels, copies and memory sets."""
    replays: int
    total_us: float
    """Sum of its work's durations over all replays."""
    named: bool
    problem: str = ""
    """Why its work has no operators; empty if it has."""
    capture: str = ""
    """Name of the trace that holds its capture; empty if there is none."""


@dataclass
class Node:
    """A module in the tree, or a path between modules that is no module call itself (a ModuleList: `layers`)."""

    name: str
    """The last part of the path; of the top, empty."""
    path: str
    own: Module | None = None
    """None if nothing was recorded for the path itself."""
    children: dict[str, Node] = field(default_factory=dict)

    @cached_property
    def _times(self) -> dict[Pass, float]:
        """Inclusive times, summed once: a tree has thousands of nodes, and does not change once it is read."""
        own = {part: self.own.part_us(part) if self.own is not None else 0.0 for part in PASSES}
        return {part: own[part] + sum(child._times[part] for child in self.children.values()) for part in PASSES}

    def part_us(self, part: Pass) -> float:
        """Inclusive time of one pass."""
        return self._times[part]

    @property
    def busy_us(self) -> float:
        """Inclusive time of all passes."""
        return sum(self._times.values())

    @property
    def own_us(self) -> float:
        """Exclusive time of all passes."""
        return self.own.busy_us if self.own is not None else 0.0

    @property
    def kind(self) -> OwnerKind:
        """What it is; a path between modules counts as one of them, and what lies around groups as their optimizer."""
        if self.own is not None:
            return self.own.kind
        below = {child.kind for child in self.children.values()}
        return "optimizer" if "optimizer" in below else "module"

    @property
    def class_name(self) -> str:
        """The module's class; empty if it is none."""
        return self.own.class_name if self.own is not None else ""

    @property
    def numbered(self) -> str:
        """What numbers of its name count: `*` of `7`, `LlamaMLP_*` of torch's `LlamaMLP_7`; empty if none does."""
        return numbered(self.name, self.class_name)

    def walk(self) -> Iterator[Node]:
        """This node and all below it, parents first."""
        yield self
        for child in self.children.values():
            yield from child.walk()


def summed(work: Iterable[OwnedWork]) -> list[OwnedWork]:
    """Pieces of the same operator, kernel and pass as one, largest first."""
    sums: dict[tuple[str, str, Pass], tuple[int, float]] = {}
    for each in work:
        calls, us = sums.get((each.operator, each.kernel, each.part), (0, 0.0))
        sums[each.operator, each.kernel, each.part] = (calls + each.calls, us + each.busy_us)
    added = [
        OwnedWork(operator=operator, kernel=kernel, part=part, calls=calls, busy_us=us)
        for (operator, kernel, part), (calls, us) in sums.items()
    ]
    return sorted(added, key=lambda each: -each.busy_us)


def numbered(name: str, class_name: str | None = None) -> str:
    """What numbers of a name count: `*` of `7`, `LlamaMLP_*` of torch's `LlamaMLP_7`; empty if none does.

    Torch names a module that it has no name for by its class and a number. Without the class, any name that begins as
    classes do counts as one.
    """
    if name.isdecimal():
        return "*"
    begin, _, number = name.rpartition("_")
    looks_like_one = begin.isidentifier() and begin.lstrip("_")[:1].isupper()
    is_class = looks_like_one if class_name is None else begin == class_name
    return f"{begin}_*" if begin and is_class and number.isdecimal() else ""


def starred(path: str) -> str:
    """A path with `*` in place of its numbers: `layers.*.mlp`."""
    return ".".join(numbered(name) or name for name in path.split("."))


def names_of(path: str) -> list[str]:
    """The parts of a path, each a level of the tree; the last of many has all the rest (DEEPEST)."""
    return path.split(".", DEEPEST) if path else []


def tree(modules: Sequence[Module]) -> Node:
    """The tree of the rows of kind `module` and `compiled`, by path; the top has the empty path."""
    top = Node("", "")
    for module in modules:
        if module.kind not in ("module", "compiled"):
            continue
        node, path = top, ""
        for name in names_of(module.path):
            path = f"{path}.{name}" if path else name
            node = node.children.setdefault(name, Node(name, path))
        node.own = module
    return top


def is_block(node: Node, siblings: Iterable[Node]) -> bool:
    """Whether a module is one of a row of them: `7` in `layers.7`; by torch's names, beside others of its class."""
    if not node.numbered or node.numbered == "*":
        return bool(node.numbered)
    return sum(other.numbered == node.numbered for other in siblings) > 1


def has_modules(rows: Sequence[Module]) -> bool:
    """Whether any owner is a module or a compiled region, and not only optimizers, regions or nothing."""
    return any(row.kind in ("module", "compiled") for row in rows)


def owned_share(modules: Sequence[Module]) -> float | None:
    """The share of all time, 0 to 1, that has an owner at the depth of a block or deeper. None if there is no time.

    Such owners are a block (see `is_block`) and whatever is below it, a module without modules below it, a compiled
    region, an optimizer, and a collective that runs on a thread of its own. What a module above the blocks does itself
    has none, nor has what belongs to another region or to nothing.
    """
    total = sum(module.busy_us for module in modules)
    if not total:
        return None
    outside = sum(module.busy_us for module in modules if module.kind == "optimizer" or _is_collective(module))
    return min((outside + _owned_us(tree(modules), False)) / total, 1.0)


def _is_collective(module: Module) -> bool:
    return module.kind == "region" and module.path.startswith(COLLECTIVES)


def _owned_us(node: Node, within: bool) -> float:
    """Of a node and all below it; `within` says whether it is a block, or inside one."""
    children = list(node.children.values())
    below = sum(_owned_us(child, within or is_block(child, children)) for child in children)
    return below + (node.own_us if within or not children else 0.0)
