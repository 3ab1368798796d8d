"""The modules of both records as one tree of pairs, joined by path.

    path            before      after
    layers          -           -           a path between modules has no time of its own
    layers.7        12 us       12 us       what is left of it without its children
    layers.7.mlp    620 us      930 us
    AdamW.group 0   410 us      410 us      optimizers, regions and what nothing owns stand beside the modules

Times are those of a typical step. Paths that differ only by what comes before them (`model.layers.7` and `layers.7`)
are joined, and so are siblings of one class that were given another name. Below a module that is compiled on one side
only, nothing is known there: its whole subtree becomes one pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from proftrack.record import Record
from proftrack.record.modules import MOST_PIECES, PASSES, Module, OwnedWork, OwnerKind, Pass, names_of, starred
from proftrack.text import listed, percent

_JOINED = 0.9
"""Paths are joined without their prefixes if that joins this share of the time that had no partner."""
_HIDDEN = 0.5
"""Compiled on one side only: at least this share of the module's time on the other side is in modules missing here."""

Piece = tuple[str, str, Pass]
"""Operator, kernel, pass."""


@dataclass(frozen=True)
class Cost:
    """What an owner took on one side, without the modules in it. Microseconds in a typical step."""

    parts: dict[Pass, float]
    variance: float = 0.0
    """As the steps differ; 0 if that is unknown."""
    class_name: str = ""
    pieces: dict[Piece, tuple[float, float]] = field(default_factory=dict)
    """Time and calls of the largest pieces of its work."""
    unlisted_us: float = 0.0
    """The most that a piece can have taken that is not listed."""

    @property
    def us(self) -> float:
        """All passes."""
        return sum(self.parts.values())

    def __add__(self, other: Cost) -> Cost:
        """Both as one."""
        pieces = dict(self.pieces)
        for piece, (us, calls) in other.pieces.items():
            known = pieces.get(piece, (0.0, 0.0))
            pieces[piece] = (known[0] + us, known[1] + calls)
        return Cost(
            {part: self.parts[part] + other.parts[part] for part in PASSES},
            self.variance + other.variance,
            self.class_name or other.class_name,
            pieces,
            self.unlisted_us + other.unlisted_us,
        )


@dataclass(eq=False)
class Pair:
    """A node of the joined tree. Not to be changed once a total was read."""

    name: str
    path: str
    kind: OwnerKind = "module"
    own: tuple[Cost | None, Cost | None] = (None, None)
    """Before and after; None if that side has nothing for the path itself."""
    children: list[Pair] = field(default_factory=list)
    old_path: str = ""
    """The path before, if it was another one."""
    members: int = 1
    """How many nodes it stands for: siblings are put together to see what they share."""
    itself: bool = False
    """Whether it is a node without its children."""

    @cached_property
    def totals(self) -> tuple[float | None, float | None]:
        """Inclusive times before and after; None on a side without the node."""
        return self._total(0), self._total(1)

    def _total(self, side: int) -> float | None:
        own = self.own[side]
        known = [own.us] if own is not None else []
        known += [us for child in self.children if (us := child.totals[side]) is not None]
        return sum(known) if known else None

    @property
    def before_us(self) -> float:
        """Inclusive time before; 0 if it was not there."""
        return self.totals[0] or 0.0

    @property
    def after_us(self) -> float:
        """Inclusive time after; 0 if it is gone."""
        return self.totals[1] or 0.0

    @property
    def largest_us(self) -> float:
        """The larger of both."""
        return max(self.before_us, self.after_us)

    @property
    def on_both(self) -> bool:
        """Whether both sides have it."""
        return None not in self.totals

    def class_of(self, side: int) -> str:
        """Its class on one side; empty if it is unknown."""
        own = self.own[side]
        return own.class_name if own is not None else ""

    def parts(self, side: int) -> dict[Pass, float]:
        """Inclusive times by pass."""
        costs = [own for node in self.walk() if (own := node.own[side]) is not None]
        return {part: sum(cost.parts[part] for cost in costs) for part in PASSES}

    def walk(self) -> Iterator[Pair]:
        """This node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass
class Joined:
    """Both trees as one."""

    top: Pair
    """Not a module itself: its children are the outermost modules, optimizers, regions, and what nothing owns."""
    notes: list[str] = field(default_factory=list)


def join(before: Record, after: Record) -> Joined:
    """Join the rows of both records."""
    old, new = _costs(before), _costs(after)
    notes = []
    prefixes = _prefixes(_paths(old), _paths(new))
    if prefixes is not None:
        stripped = [f"`{prefix}.` of the {noun}" for prefix, noun in zip(prefixes, _SIDES, strict=True) if prefix]
        notes.append(f"Modules are joined without {listed(stripped)}.")
        old, new = _without(old, prefixes[0]), _without(new, prefixes[1])
    top = Pair("", "", "none", children=_children(_Side.of(old), _Side.of(new)))
    notes += [_collapse(top, *each) for each in _compiled(top)]
    renamed = [node for node in top.walk() if node.old_path]
    if renamed:
        first = renamed[0]
        more = f" and {len(renamed) - 1} more" if len(renamed) > 1 else ""
        notes.append(f"Joined although renamed: {first.old_path} is now {first.path}{more}.")
    return Joined(top, notes)


_SIDES: tuple[Literal["baseline"], Literal["candidate"]] = ("baseline", "candidate")
_Costs = dict[tuple[OwnerKind, str], Cost]


def _costs(record: Record) -> _Costs:
    steps = max(record.window.typical_steps, 1)
    out: _Costs = {}
    for module in record.modules:
        key = (module.kind, module.path)
        cost = _cost(module, steps)
        out[key] = out[key] + cost if key in out else cost
    return out


def _cost(module: Module, steps: int) -> Cost:
    """A row in a typical step; if that is unknown, or not even most steps have the work, in the mean of the steps."""
    typical = module.typical_us or module.busy_us / steps
    share = typical / module.busy_us if module.busy_us else 0.0
    pieces: dict[Piece, tuple[float, float]] = {}
    for work in module.largest:
        us, calls = pieces.get(_piece(work), (0.0, 0.0))
        pieces[_piece(work)] = (us + work.busy_us * share, calls + work.calls / steps)
    full = len(module.largest) >= MOST_PIECES
    return Cost(
        {part: module.part_us(part) * share for part in PASSES},
        (module.deviation_us or 0.0) ** 2 / steps,
        module.class_name,
        pieces,
        min((us for us, _ in pieces.values()), default=0.0) if full else 0.0,
    )


def _piece(work: OwnedWork) -> Piece:
    return work.operator, work.kernel, work.part


# ---- prefixes --------------------------------------------------------------------------------------------------------


def _paths(costs: _Costs) -> dict[tuple[str, ...], float]:
    """Paths of modules as their names, with their time."""
    return {tuple(names_of(path)): cost.us for (kind, path), cost in costs.items() if kind in ("module", "compiled")}


def _prefixes(old: dict[tuple[str, ...], float], new: dict[tuple[str, ...], float]) -> tuple[str, str] | None:
    """What to take off the paths of both sides so that they have partners; None if nothing does it."""
    left = [[path for path in paths if path not in others] for paths, others in ((old, new), (new, old))]
    if not left[0] or not left[1]:
        return None
    common = [_common(paths) for paths in left]
    tries = [(i, j) for i in range(len(common[0]) + 1) for j in range(len(common[1]) + 1) if i or j]
    for i, j in sorted(tries, key=sum):
        a, b = ({path[cut:] for path in paths} for path_set, cut, paths in ((old, i, left[0]), (new, j, left[1])))
        if _share(left[0], old, b, i) >= _JOINED and _share(left[1], new, a, j) >= _JOINED:
            return ".".join(common[0][:i]), ".".join(common[1][:j])
    return None


def _common(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    first, last = min(paths), max(paths)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same]


def _share(
    left: Sequence[tuple[str, ...]], times: dict[tuple[str, ...], float], others: set[tuple[str, ...]], cut: int
) -> float:
    """The share of the time of `left` that finds a partner without the first `cut` names."""
    whole = sum(times[path] for path in left)
    found = sum(times[path] for path in left if path[cut:] in others or not path[cut:])
    return found / whole if whole else 0.0


def _without(costs: _Costs, prefix: str) -> _Costs:
    """The rows with a prefix taken off their paths."""
    out: _Costs = {}
    for (kind, path), cost in costs.items():
        short = path
        if kind in ("module", "compiled") and prefix and f"{path}.".startswith(f"{prefix}."):
            short = path[len(prefix) + 1 :]
        out[kind, short] = out[kind, short] + cost if (kind, short) in out else cost
    return out


# ---- one tree --------------------------------------------------------------------------------------------------------


@dataclass
class _Side:
    """The tree of one side."""

    name: str
    path: str
    kind: OwnerKind = "module"
    own: Cost | None = None
    children: dict[tuple[str, str], _Side] = field(default_factory=dict)
    """By kind of tree and name."""

    @classmethod
    def of(cls, costs: _Costs) -> _Side:
        top = cls("", "", "none")
        for (kind, path), cost in costs.items():
            group: OwnerKind = "module" if kind == "compiled" else kind
            # The outermost module has the empty path, and all modules are below it.
            node = top._child(group, "", "") if group == "module" or not path else top
            whole = ""
            for name in _split(kind, path):
                whole = f"{whole}.{name}" if whole else name
                node = node._child(group, name, whole)
            node.own, node.kind = cost, kind
        return top

    def _child(self, group: OwnerKind, name: str, path: str) -> _Side:
        return self.children.setdefault((group, name), _Side(name, path, group))

    @property
    def sort(self) -> str:
        """What it keeps when it is renamed: its class; of a compiled region that it is one, whatever its number."""
        return "compiled" if self.kind == "compiled" else self.own.class_name if self.own is not None else ""


def _split(kind: OwnerKind, path: str) -> Sequence[str]:
    if kind == "region":
        return [path]  # its name, in which a dot is only a dot
    return names_of(path)


def _children(old: _Side | None, new: _Side | None) -> list[Pair]:
    """The children of both, paired by name; then by sort, where one name is gone and another came."""
    before, after = (dict(side.children) if side is not None else {} for side in (old, new))
    pairs = [(before.pop(key, None), child) for key, child in after.items()]
    for index, (mine, other) in enumerate(pairs):
        if mine is None and other is not None and (key := _renamed(other, before, pairs)) is not None:
            pairs[index] = (before.pop(key), other)
    return [_pair(a, b) for a, b in [*pairs, *((child, None) for child in before.values())]]


def _renamed(
    new: _Side, gone: dict[tuple[str, str], _Side], pairs: Sequence[tuple[_Side | None, _Side | None]]
) -> tuple[str, str] | None:
    """The child that this one was before: the only one of its sort that is gone, if it is the only one that came."""
    alike = [key for key, child in gone.items() if new.sort and child.sort == new.sort]
    came = [b for a, b in pairs if a is None and b is not None and b.sort == new.sort]
    return alike[0] if len(alike) == len(came) == 1 else None


def _pair(old: _Side | None, new: _Side | None) -> Pair:
    shown = new or old
    assert shown is not None
    return Pair(
        name=shown.name,
        path=shown.path,
        kind=shown.kind,
        own=(old.own if old else None, new.own if new else None),
        children=_children(old, new),
        old_path=old.path if old and new and old.name != new.name else "",
    )


# ---- compiled on one side --------------------------------------------------------------------------------------------


def _compiled(top: Pair) -> list[tuple[Pair, int]]:
    """Modules in which a compiled region hides on one side what are modules on the other, outermost first."""
    found: list[tuple[Pair, int]] = []

    def visit(node: Pair) -> None:
        for side in (0, 1):
            regions = [c for c in node.children if c.kind == "compiled" and c.totals[1 - side] is None]
            if any(c.totals[side] is not None for c in regions) and _hidden(node, side) >= _HIDDEN:
                found.append((node, side))
                return
        for child in node.children:
            visit(child)

    visit(top)
    return found


def _hidden(node: Pair, side: int) -> float:
    """The share of the other side's time that is in modules which this side lacks."""
    other = 1 - side
    whole = node.totals[other]
    return _missing(node, side) / whole if whole else 0.0


def _missing(node: Pair, side: int) -> float:
    if node.totals[side] is None:
        return node.totals[1 - side] or 0.0
    return sum(_missing(child, side) for child in node.children)


def _collapse(top: Pair, node: Pair, side: int) -> str:
    """Make a subtree one pair. Returns the sentence that says so."""
    regions = sum(child.totals[side] or 0.0 for child in node.children if child.kind == "compiled")
    share = percent(regions / (node.totals[side] or 1.0))
    node.own = (_sum_of(node, 0), _sum_of(node, 1))
    node.children = []
    for each in top.walk():
        each.__dict__.pop("totals", None)
    where = f" in {node.path}" if node.path else ""
    return (
        f"Modules{where} are not comparable: in the {_SIDES[side]}, compiled regions own {share} of the time there, "
        "of which no module is known."
    )


def _sum_of(node: Pair, side: int) -> Cost | None:
    whole = _added(each.own[side] for each in node.walk())
    return replace(whole, class_name=node.class_of(side)) if whole is not None else None


# ---- siblings as one -------------------------------------------------------------------------------------------------


def together(nodes: Sequence[Pair], path: str) -> Pair:
    """Siblings as one node: their times are added, and so are those of their children of equal names."""
    groups: dict[str, list[Pair]] = {}
    for node in nodes:
        for child in node.children:
            # Numbers of a ModuleList are equal in all siblings; those of torch's stacks count through the model.
            name = child.name if child.name.isdecimal() else starred(child.name)
            groups.setdefault(name, []).append(child)
    first = nodes[0]
    return Pair(
        name=path.rpartition(".")[2],
        path=path,
        kind=first.kind,
        own=(_added(n.own[0] for n in nodes), _added(n.own[1] for n in nodes)),
        children=[together(group, f"{path}.{name}") for name, group in groups.items()],
        members=sum(node.members for node in nodes),
    )


def _added(costs: Iterator[Cost | None]) -> Cost | None:
    known = [cost for cost in costs if cost is not None]
    whole = known[0] if known else None
    for cost in known[1:]:
        assert whole is not None
        whole = whole + cost
    return whole
