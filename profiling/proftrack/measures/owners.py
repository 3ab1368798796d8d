"""Whose each host row is, and in which pass: the module, optimizer or region around it, through autograd if need be.

    main      |------------- nn.Module: layers.0 (Block) -------------|      |- Optimizer.step#AdamW.step -|
                 aten::mm (7)   |- nn.Module: layers.0.act (GELU) -|            aten::_foreach_add_
                                   aten::gelu (8)
    backward      |-- evaluate_function: GeluBackward0 (8) --|  |-- evaluate_function: MmBackward0 (7) --|
                      aten::gelu_backward                           aten::mm    aten::mm

The innermost marker around a row owns it: a module's call, a compiled region, an optimizer, else a region. A node of
autograd's graph leads further: its number names the operator that made it, and what owns that one owns the node. A node
without a number (it adds up a parameter's gradient) belongs to the one before it on its thread.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from proftrack.measures.autograd import EVALUATE, forward_rows
from proftrack.measures.markers import COMPILED_REGION, PART_OF_OPTIMIZER, Marks, Role, find_marks
from proftrack.measures.nesting import Forest
from proftrack.record.modules import PASSES, OwnerKind, Pass
from proftrack.trace.categories import MODULE, PARAMETER_GROUP, Kind
from proftrack.trace.codes import grouped
from proftrack.trace.table import NONE, Bools, Codes, EventTable, Ints


class Owner(NamedTuple):
    """What owns time; see `record.modules.Module` for the fields."""

    kind: OwnerKind
    path: str = ""
    class_name: str = ""

    @property
    def shown(self) -> str:
        """The path of a module, compiled region or optimizer, empty for others; of the outermost module, whose path is
        empty, the class in parentheses, as in the name of its region."""
        if self.kind in ("region", "none"):
            return ""
        return self.path or (f"({self.class_name})" if self.class_name else "")


NOBODY = 0
"""Code of the owner of kind "none"."""


class Owners(NamedTuple):
    """The owners of a trace's host rows. `code` and `part` are parallel to the event table."""

    named: list[Owner]
    code: Codes
    """Index into `named`; NOBODY for all that is not on the host."""
    part: npt.NDArray[np.int8]
    """Index into PASSES."""
    calls: Ints
    """Rows that are a forward call of a module, compiled region or region, or a step of an optimizer."""

    def of_launches(self, launch: Ints) -> Codes:
        """The owner of the work that these rows launched; NOBODY where there is none (NONE)."""
        return np.where(launch == NONE, np.int32(NOBODY), self.code[launch])

    def parts_of_launches(self, launch: Ints) -> npt.NDArray[np.int8]:
        """The pass of that work."""
        return np.where(launch == NONE, np.int8(_part("other")), self.part[launch])


def find_owners(table: EventTable, forest: Forest, *, regions_alone: bool = False) -> Owners | None:
    """The owner and the pass of each host row; None if no row marks a module, a backward pass, an optimizer or a
    compiled region, unless regions are enough.

    `forest`: the nested host rows. Nothing is asked of steps or of GPU work: a launch has the owner of its row.
    """
    marks = find_marks(table, forest, regions_alone=regions_alone)
    if marks is None:
        return None
    named, owner = _named(table, marks)
    forward = forward_rows(table)
    owner, part = _resolved(table, marks, owner, forward)
    code = np.full(len(table), NOBODY, dtype=np.int32)
    parts = np.full(len(table), _part("other"), dtype=np.int8)
    rows, around = marks.forest.rows, np.where(marks.inner == NONE, marks.region, marks.inner)
    code[rows] = np.where(around == NONE, NOBODY, owner[around])
    parts[rows] = np.where(around == NONE, _part("other"), part[around])
    makers = marks.forest.position_of(len(table))[forward[forward != NONE]]
    forwards = rows[_within(marks.forest, makers[makers != NONE])]
    parts[forwards[parts[forwards] == _part("other")]] = _part("forward")
    return Owners(named, code, parts, rows[_calls(table, marks, owner, part)])


def _part(name: Pass) -> int:
    return PASSES.index(name)


# ---- their names -----------------------------------------------------------------------------------------------------

_HOOKED = re.compile(r"^(?:(.*) )?\(([^()]*)\)$", re.DOTALL)
"""What follows MODULE in the name of a region of capture's: path and class."""
_NUMBER = re.compile(r"_[0-9]+$")


def _named(table: EventTable, marks: Marks) -> tuple[list[Owner], Codes]:
    """All owners, and for each position that marks a module, compiled region, optimizer or region, its owner's code."""
    codes = {Owner("none"): NOBODY}
    owner = np.full(len(marks.role), NOBODY, dtype=np.int32)
    for name in (_name_modules, _name_compiled, _name_optimizers, _name_groups, _name_regions):
        at, group, owners = name(table, marks, owner, list(codes))
        owner[at] = np.array([codes.setdefault(each, len(codes)) for each in owners], dtype=np.int32)[group]
    return list(codes), owner


_Named = tuple[Ints, Ints, list[Owner]]
"""Positions, the group of each, and the owner of each group."""


def _names_at(table: EventTable, marks: Marks, *roles: Role) -> tuple[Ints, Ints, list[str]]:
    """Positions with these roles, the number of each one's name, and the names."""
    at = np.flatnonzero(np.isin(marks.role, roles))
    codes, group = np.unique(table.name[marks.forest.rows[at]], return_inverse=True)
    return at, group.reshape(-1), [table.names[code] for code in codes.tolist()]


def _name_modules(table: EventTable, marks: Marks, owner: Codes, named: list[Owner]) -> _Named:
    at, group, names = _names_at(table, marks, Role.MODULE)
    texts = [name.removeprefix(MODULE) for name in names]
    rows = marks.forest.rows[at]
    if len(at) and table.kind[rows[0]] == Kind.PYTHON:
        return at, group, [Owner("module", *each) for each in _from_stacks(table, marks, at, group, texts)]
    parts = [(match[1] or "", match[2]) if (match := _HOOKED.match(text)) else (text, "") for text in texts]
    several = len({kind for path, kind in parts if not path}) > 1
    return at, group, [Owner("module", path or (kind if several else ""), kind) for path, kind in parts]


def _from_stacks(table: EventTable, marks: Marks, at: Ints, group: Ints, names: list[str]) -> list[tuple[str, str]]:
    """Path and class of each module, by how their calls nest: torch numbers the modules of each class.

    A module's first call says where it is, but not one of the backward pass, where it is alone.
    """
    forest = marks.forest
    order = np.lexsort((at, forest.start[at], marks.node[at] != NONE))
    first = np.zeros(len(names), dtype=np.int64)
    first[group[order[::-1]]] = order[::-1]
    group_of = np.full(len(forest.rows), NONE, dtype=np.int64)
    group_of[at] = group
    is_module = marks.role == Role.MODULE
    parent = forest.nearest(forest.parent[at[first]], is_module)
    apart = (parent != NONE) & (marks.node[np.maximum(parent, 0)] != marks.node[at[first]])
    parents = np.where((parent == NONE) | apart, NONE, group_of[np.maximum(parent, 0)]).tolist()
    one_root = parents.count(NONE) == 1
    paths: dict[int, str] = {}
    called = np.lexsort((at[first], forest.start[at[first]], marks.node[at[first]] != NONE))
    for module in called.tolist():  # parents were called before
        around = paths.get(parents[module], "")
        is_root = one_root and parents[module] == NONE
        paths[module] = "" if is_root else f"{around}.{names[module]}".lstrip(".")
    return [(paths[module], _NUMBER.sub("", name)) for module, name in enumerate(names)]


def _name_compiled(table: EventTable, marks: Marks, owner: Codes, named: list[Owner]) -> _Named:
    """A CompiledFunction has no number of its own, but the region around it has."""
    forest, rows = marks.forest, marks.forest.rows
    at = np.flatnonzero(marks.role == Role.COMPILED)
    around = np.where(forest.parent[at] == NONE, NONE, marks.inner[forest.parent[at]])
    module = forest.nearest(around, marks.role == Role.MODULE)
    numbers = {code: _number(table.names[code]) for code in np.unique(table.name[rows[at]]).tolist()}
    alone = np.array([numbers[code] == "" for code in table.name[rows[at]].tolist()], dtype=bool)
    outer = alone & (around != NONE) & (marks.role[around] == Role.COMPILED)
    name = table.name[rows[np.where(outer, around, at)]]
    path = np.where(module == NONE, NOBODY, owner[module])
    first, group = grouped((path, name))
    owners = []
    for outside, code in zip(path[first].tolist(), name[first].tolist(), strict=True):
        parts = (named[outside].path, f"compiled {_number(table.names[code])}".rstrip())
        owners.append(Owner("compiled", ".".join(filter(None, parts))))
    return at, group, owners


def _is_compiled_backward(name: str) -> bool:
    """Whether it is a region of compiled autograd, which runs a whole backward pass."""
    return _number(name).startswith("!")


def _number(name: str) -> str:
    match = COMPILED_REGION.match(name)
    return match[1] or "" if match else ""


def _name_optimizers(table: EventTable, marks: Marks, owner: Codes, named: list[Owner]) -> _Named:
    at, group, names = _names_at(table, marks, Role.OPTIMIZER)
    classes = [match[1] if (match := PART_OF_OPTIMIZER.match(name)) else name for name in names]
    return at, group, [Owner("optimizer", each, each) for each in classes]


def _name_groups(table: EventTable, marks: Marks, owner: Codes, named: list[Owner]) -> _Named:
    at = np.flatnonzero(marks.role == Role.GROUP)
    above = marks.forest.nearest(marks.forest.parent[at], marks.role == Role.OPTIMIZER)
    outside, name = np.where(above == NONE, NOBODY, owner[above]), table.name[marks.forest.rows[at]]
    first, group = grouped((outside, name))
    owners = []
    for around, code in zip(outside[first].tolist(), name[first].tolist(), strict=True):
        optimizer = named[around].class_name
        number = table.names[code].removeprefix(PARAMETER_GROUP)
        parts = (optimizer, f"group {number}" if number.isdigit() else number)
        owners.append(Owner("optimizer", ".".join(filter(None, parts)), optimizer))
    return at, group, owners


def _name_regions(table: EventTable, marks: Marks, owner: Codes, named: list[Owner]) -> _Named:
    at, group, names = _names_at(table, marks, Role.REGION, Role.COLLECTIVE)
    return at, group, [Owner("region", name) for name in names]


# ---- what they own ---------------------------------------------------------------------------------------------------


def _within(forest: Forest, positions: Ints) -> Bools:
    """Which positions are one of these, or below one."""
    count = len(forest.rows) + 1
    opened = np.bincount(positions, minlength=count) - np.bincount(forest.last[positions], minlength=count)
    return np.asarray(np.cumsum(opened[:-1]) > 0)


def _resolved(table: EventTable, marks: Marks, owner: Codes, forward: Ints) -> tuple[Codes, npt.NDArray[np.int8]]:
    """Owner and pass of each position that marks something, nodes included."""
    role, node = marks.role, marks.node
    nodes = np.flatnonzero(role == Role.BACKWARD)
    owner = owner.copy()
    owner[nodes] = _owners_of_nodes(table, marks, nodes, owner, forward)
    again = np.flatnonzero(role == Role.RECOMPUTED)
    owner[again] = owner[node[again]]
    part = np.full(len(role), _part("other"), dtype=np.int8)
    calls = (role == Role.MODULE) | (role == Role.COMPILED)
    part[calls] = _part("forward")
    part[calls & (node != NONE)] = _part("recompute")
    part[(role == Role.COMPILED) & table.named(_is_compiled_backward)[marks.forest.rows]] = _part("backward")
    part[again] = _part("recompute")
    part[nodes] = _part("backward")
    part[(role == Role.OPTIMIZER) | (role == Role.GROUP)] = _part("optimizer")
    return owner, part


def _owners_of_nodes(table: EventTable, marks: Marks, nodes: Ints, owner: Codes, forward: Ints) -> Codes:
    """The owner of each node: that of its forward operator; if it has no number, that of the node before it; else that
    of the node around it.

    If the forward operator ran in a node, too, as part of it or once more, that one tells.
    """
    forest, count = marks.forest, len(nodes)
    rows = forest.rows[nodes]
    index = np.full(len(forest.rows), NONE, dtype=np.int64)
    index[nodes] = np.arange(count)
    evaluated = _evaluated(table, forest)[nodes]
    forward = forward[evaluated]
    at = np.where(forward == NONE, NONE, forest.position_of(len(table))[forward])
    at = np.where((at != NONE) & (table.ts[forward] < table.ts[rows]), at, NONE)
    known = at != NONE
    mark = np.where(known, marks.inner[at], NONE)
    role = np.where(mark == NONE, np.int8(Role.NOTHING), marks.role[mark])
    nested = (role == Role.BACKWARD) | (role == Role.RECOMPUTED)
    region = np.where(known, marks.region[at], NONE)
    holder = np.where(mark == NONE, region, mark)
    found = np.where(known & ~nested & (holder != NONE), owner[holder], NOBODY)
    around = forest.nearest(forest.parent[nodes], marks.role == Role.BACKWARD)
    around = np.where(around == NONE, NONE, index[around])
    before = _before(table, nodes, rows, around, table.sequence[evaluated] != NONE)
    inherits = np.where(before == NONE, around, before)
    inherits = np.where(known, np.where(nested, index[marks.node[at]], NONE), inherits)
    # Each leads to one that began earlier; what leads to none is its own end, and each round doubles the distance.
    end = np.where(inherits == NONE, np.arange(count), inherits)
    while not np.array_equal(further := end[end], end):
        end = further
    return found[end].astype(np.int32)


def _evaluated(table: EventTable, forest: Forest) -> Ints:
    """For each position its row; for one that evaluates a node, the row within that is the node and has its number.

    Torch gives the outer row the number of the first row within, which may be a hook's.
    """
    code_of = {name: code for code, name in enumerate(table.names)}
    inside = [code_of.get(name[len(EVALUATE) :], NONE) if name.startswith(EVALUATE) else NONE for name in table.names]
    name = table.name[forest.rows]
    child = np.flatnonzero(forest.parent != NONE)
    child = child[np.array(inside, dtype=np.int64)[name[forest.parent[child]]] == name[child]]
    rows: Ints = forest.rows.copy()
    rows[forest.parent[child]] = forest.rows[child]
    return rows


def _before(table: EventTable, nodes: Ints, rows: Ints, around: Ints, numbered: Bools) -> Ints:
    """For each node without a number the last one before it that has one, on the same thread and within the same node;
    or NONE."""
    order = np.lexsort((nodes, around, table.thread[rows]))
    thread, outer, leads = table.thread[rows][order], around[order], numbered[order]
    starts = np.ones(len(order), dtype=bool)
    starts[1:] = (thread[1:] != thread[:-1]) | (outer[1:] != outer[:-1])
    first = np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
    last = np.maximum.accumulate(np.where(leads, np.arange(len(order)), NONE))
    out = np.full(len(order), NONE, dtype=np.int64)
    out[order] = np.where((last < first) | leads, NONE, order[last])
    return out


def _calls(table: EventTable, marks: Marks, owner: Codes, part: npt.NDArray[np.int8]) -> Ints:
    """Positions of the calls that count: forward ones, and an optimizer's steps without what else it does."""
    forest, role = marks.forest, marks.role
    steps = table.named(lambda name: name.startswith("Optimizer.step#"))[forest.rows]
    call = ((role == Role.MODULE) | (role == Role.COMPILED)) & (part == _part("forward"))
    call |= (role == Role.GROUP) | ((role == Role.OPTIMIZER) & steps) | ((role >= Role.REGION) & (marks.inner == NONE))
    at = np.flatnonzero(call)
    outer = np.where(forest.parent[at] == NONE, NONE, marks.inner[forest.parent[at]])
    same = (role[at] == Role.COMPILED) & (outer != NONE) & (owner[at] == owner[outer])
    return np.asarray(at[~same])
