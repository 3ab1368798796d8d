"""What owns time, as pages show it: in trees, alike ones summed, at the depth of blocks, found by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from proftrack.record.modules import Module, Node, OwnedWork, OwnerKind, Pass, is_block, summed, tree

LARGE_BLOCK = 0.2
"""A block with a larger share of all time is looked into: a model of three stages has none at the depth of its work."""


def forest(modules: Sequence[Module]) -> list[Node]:
    """All owners as trees: the modules, each optimizer with its groups, each region, and what nothing owns.

    If the outermost module is known it is the first tree; else there is one for each module at the top.
    """
    top = tree(modules)
    out = [top] if top.own is not None else list(top.children.values())
    optimizers: dict[str, Node] = {}
    for module in modules:
        if module.kind == "optimizer":
            name, _, group = module.path.partition(".")
            node = optimizers.setdefault(name, Node(name, name))
            node = node.children.setdefault(group, Node(group, module.path)) if group else node
            node.own = module
    others = [Node(each.path, each.path, each) for each in modules if each.kind in ("region", "none")]
    return [*out, *optimizers.values(), *others]


def walk(nodes: Sequence[Node]) -> Iterator[Node]:
    """The nodes and all below them, parents first."""
    for node in nodes:
        yield from node.walk()


def in_order(nodes: Sequence[Node]) -> list[Node]:
    """Numbered ones by number, since that is how they run; else the largest first."""
    if nodes and all(node.name.isdecimal() for node in nodes):
        return sorted(nodes, key=lambda node: int(node.name))
    return sorted(nodes, key=lambda node: -node.busy_us)


# ---- alike ones summed -----------------------------------------------------------------------------------------------


@dataclass
class Group:
    """Nodes that are alike, `layers.*.mlp` of 32 layers; or a single one."""

    pattern: str
    """Their path, with `*` for what differs."""
    nodes: list[Node]
    children: list[Group] = field(default_factory=list)

    @property
    def class_name(self) -> str:
        """Their class; empty if they are no modules."""
        return self.nodes[0].class_name

    def part_us(self, part: Pass) -> float:
        """Inclusive time of one pass."""
        return sum(node.part_us(part) for node in self.nodes)

    @property
    def busy_us(self) -> float:
        """Inclusive time of all passes."""
        return sum(node.busy_us for node in self.nodes)

    @property
    def own_us(self) -> float:
        """Exclusive time of all passes."""
        return sum(node.own_us for node in self.nodes)

    def walk(self) -> Iterator[Group]:
        """This group and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


def folded(nodes: Sequence[Node], above: str = "") -> list[Group]:
    """The nodes and all below them, with numbered ones of one class summed. Largest first."""
    alike: dict[tuple[str, str, str], list[Node]] = {}
    for node in nodes:
        key = (node.numbered, node.class_name) if node.numbered else (node.name, "")
        alike.setdefault((node.kind, *key), []).append(node)
    groups = []
    for (_, name, _), members in alike.items():
        same = len({node.name for node in members}) == 1
        last = members[0].name if same else name
        pattern = members[0].path if len(members) == 1 else f"{above}.{last}" if above else last
        below = [child for node in members for child in node.children.values()]
        groups.append(Group(pattern, members, folded(below, pattern)))
    return sorted(groups, key=lambda group: -group.busy_us)


# ---- at the depth of blocks ------------------------------------------------------------------------------------------


def blocks(nodes: Sequence[Node]) -> list[Node]:
    """The owners at the depth at which people work, largest first; together they have all time.

    Blocks and modules without modules below them; blocks of over LARGE_BLOCK of all time are divided into what is below
    them. What a divided module does itself, and what one above the blocks does, is a node without children.
    """
    least = LARGE_BLOCK * sum(node.busy_us for node in nodes)
    out = [found for node in nodes for found in _blocks(node, nodes, least, False)]
    return sorted((node for node in out if node.busy_us), key=lambda node: -node.busy_us)


def _blocks(node: Node, siblings: Sequence[Node], least: float, within: bool) -> Iterator[Node]:
    within = within or is_block(node, siblings)
    if not node.children or (within and node.busy_us <= least):
        yield node
        return
    children = list(node.children.values())
    yield Node(node.name, node.path, node.own)
    for child in children:
        yield from _blocks(child, children, least, within)


# ---- by name ---------------------------------------------------------------------------------------------------------


def paths(name: str, *, or_their_end: bool = False) -> re.Pattern[str]:
    """What matches in full the paths (or the end of them, from a name on) that a name given by the user stands for.

    `*` stands for any part of one name, `**` for names at any depth: `layers.*.mlp`, `**.down_proj`.
    """
    wild = {"**": ".*", "*": "[^.]*"}
    pattern = "".join(wild.get(part, re.escape(part)) for part in re.split(r"(\*\*|\*)", name))
    return re.compile(rf"(?:.*\.)?{pattern}" if or_their_end else pattern, re.DOTALL)


def matching(modules: Sequence[Module], name: str) -> list[Node]:
    """The owners that a name stands for: a path, the end of one, or a class; the first of these that any has.

    In a path, `*` and `**` stand for others (see `paths`). A class may be in parentheses.
    """
    nodes = [node for node in walk(forest(modules)) if node.own is not None or node.children]
    if not name:
        return []
    for wanted in (paths(name), paths(name, or_their_end=True)):
        if found := [node for node in nodes if wanted.fullmatch(node.path)]:
            return found
    return [node for node in nodes if name in (node.class_name, f"({node.class_name})")]


def outermost(nodes: Sequence[Node]) -> list[Node]:
    """Those that are not inside another one: together, no time of theirs counts twice."""
    inside = {id(below) for node in nodes for below in node.walk() if below is not node}
    return [node for node in nodes if id(node) not in inside]


class Pieces(Struct, frozen=True):
    """The largest pieces of GPU work of several owners, as one list."""

    work: list[OwnedWork]
    missing_us: float
    """Time of the owners that is in none of them."""


def largest(nodes: Sequence[Node]) -> Pieces:
    """The pieces of the nodes and all below them, alike ones summed, largest first."""
    work = summed(each for node in walk(nodes) if node.own is not None for each in node.own.largest)
    known = sum(each.busy_us for each in work)
    whole = sum(node.busy_us for node in nodes)
    return Pieces(work, max(whole - known, 0.0))


# ---- as a table ------------------------------------------------------------------------------------------------------


class ModuleTime(Struct, frozen=True, kw_only=True):
    """A row of the table of modules. Microseconds over the typical steps, exclusive but for the inclusive ones."""

    path: str
    kind: OwnerKind
    class_name: str = msgspec.field(name="class")
    calls: int
    busy_us: float
    inclusive_us: float
    """With all below it."""
    share: float
    """The inclusive time's, of all time."""
    forward_us: float
    backward_us: float
    recompute_us: float
    optimizer_us: float
    other_us: float
    communication_us: float
    copies_us: float
    host_us: float
    largest: str
    """Its largest piece: operator and kernel."""


def rows(modules: Sequence[Module]) -> list[ModuleTime]:
    """The table of modules, largest first as they are."""
    whole = {id(node.own): node.busy_us for node in walk(forest(modules))}
    total = sum(module.busy_us for module in modules)
    return [_row(module, whole.get(id(module), module.busy_us), total) for module in modules]


def _row(module: Module, inclusive_us: float, total: float) -> ModuleTime:
    most = module.largest[0] if module.largest else None
    return ModuleTime(
        path=module.path,
        kind=module.kind,
        class_name=module.class_name,
        calls=module.calls,
        busy_us=module.busy_us,
        inclusive_us=inclusive_us,
        share=inclusive_us / total if total else 0.0,
        forward_us=module.forward_us,
        backward_us=module.backward_us,
        recompute_us=module.recompute_us,
        optimizer_us=module.optimizer_us,
        other_us=module.other_us,
        communication_us=module.communication_us,
        copies_us=module.copies_us,
        host_us=module.host_us,
        largest=" ".join(filter(None, (most.operator, most.kernel))) if most is not None else "",
    )
