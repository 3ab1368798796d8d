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
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from proftrack.measures.autograd import EVALUATE, forward_rows
from proftrack.measures.nesting import Forest, nest
from proftrack.record.modules import PASSES, OwnerKind, Pass
from proftrack.trace.categories import MODULE, PARAMETER_GROUP, Kind, is_step
from proftrack.trace.codes import grouped
from proftrack.trace.table import NONE, Bools, Codes, EventTable, Ints


class Owner(NamedTuple):
    """What owns time; see `record.modules.Module` for the fields."""

    kind: OwnerKind
    path: str = ""
    class_name: str = ""

    @property
    def shown(self) -> str:
        """Its path; for the outermost module the class in parentheses, as in the name of its region."""
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


def find_owners(table: EventTable, forest: Forest) -> Owners | None:
    """The owner and the pass of each host row; None if no row marks a module, a backward pass, an optimizer or a
    compiled region.

    `forest`: the nested host rows. Nothing is asked of steps or of GPU work: a launch has the owner of its row.
    """
    roles = _roles(table)
    if roles is None:
        return None
    from_stacks = (roles == _MODULE) & table.of_kind(Kind.PYTHON)
    if from_stacks.any():
        forest = nest(table, table.host | from_stacks)
    marks = _marks(table, forest, roles[forest.rows])
    named, owner = _named(table, marks)
    owner, part = _resolved(table, marks, owner)
    code = np.full(len(table), NOBODY, dtype=np.int32)
    parts = np.full(len(table), _part("other"), dtype=np.int8)
    around = np.where(marks.inner == NONE, marks.region, marks.inner)
    code[forest.rows] = np.where(around == NONE, NOBODY, owner[around])
    parts[forest.rows] = np.where(around == NONE, _part("other"), part[around])
    return Owners(named, code, parts, forest.rows[_calls(table, marks, owner, part)])


def _part(name: Pass) -> int:
    return PASSES.index(name)


# ---- rows that mark something ----------------------------------------------------------------------------------------


class _Role(IntEnum):
    """What a row marks. The first few own what they hold; a region only does so outside of them."""

    NOTHING = 0
    MODULE = 1
    COMPILED = 2
    OPTIMIZER = 3
    GROUP = 4
    BACKWARD = 5
    """A node that autograd's engine evaluates."""
    RECOMPUTED = 6
    """A forward operator that runs within a node because what the node needs was not kept."""
    REGION = 7
    COLLECTIVE = 8
    """A region that torch itself puts around a collective: the program's own says more."""


_MODULE = _Role.MODULE
_OPTIMIZER = re.compile(r"^Optimizer\.(?:step|zero_grad)#(.+)\.(?:step|zero_grad)$", re.DOTALL)
_COMPILED = re.compile(r"^(?:Torch-Compiled Region(?:: *(\S+))?|CompiledFunction)$")
_COLLECTIVE = re.compile(r"^(?:nccl|rccl|gloo|mpi|ucc|xccl|hccl|c10d):")
_SAYS_NOTHING = ("proftrack: ", "## Call CompiledFxGraph")
"""How the names of regions begin that are no program's: capture's own, and Inductor's inside of compiled regions."""
_ALLOWED: dict[_Role, tuple[Kind, ...]] = {
    _Role.MODULE: (Kind.MODULE,),
    _Role.COMPILED: (Kind.CPU_OP, Kind.ANNOTATION),
    _Role.OPTIMIZER: (Kind.CPU_OP, Kind.ANNOTATION),
    _Role.GROUP: (Kind.CPU_OP, Kind.ANNOTATION),
    _Role.BACKWARD: (Kind.CPU_OP,),
    _Role.REGION: (Kind.ANNOTATION,),
    _Role.COLLECTIVE: (Kind.ANNOTATION,),
}
"""The kinds of rows whose names give them a role."""


def _roles(table: EventTable) -> npt.NDArray[np.int8] | None:
    """The role of each row; None if no row has more than a region's."""
    of_name = np.fromiter(map(_role, table.names), dtype=np.int8, count=len(table.names))
    nodes_alone = not (of_name == _Role.BACKWARD).any()  # as torch before 1.8 recorded them
    nodes = (table.sequence != NONE) & (table.forward_thread > 0) if nodes_alone else np.zeros(0, dtype=bool)
    if not _is_strong(of_name).any() and not nodes.any():
        return None
    allowed = np.zeros((len(_Role), len(Kind)), dtype=bool)
    for role, kinds in _ALLOWED.items():
        allowed[role, list(kinds)] = True
    allowed[_MODULE, Kind.PYTHON] = not (table.kind == Kind.MODULE).any()
    roles = of_name[table.name]
    roles = np.where(allowed[roles, table.kind] & table.valid, roles, np.int8(_Role.NOTHING))
    if nodes_alone:
        roles[nodes & table.valid & table.of_kind(Kind.CPU_OP)] = _Role.BACKWARD
    return roles if _is_strong(roles).any() else None


def _role(name: str) -> _Role:
    if name.startswith(MODULE):
        return _MODULE
    if name.startswith(EVALUATE):
        return _Role.BACKWARD
    if name.startswith("Optimizer.") and _OPTIMIZER.match(name):
        return _Role.OPTIMIZER
    if name.startswith(PARAMETER_GROUP):
        return _Role.GROUP
    if name.startswith(("Torch-Compiled", "CompiledFunction")) and _COMPILED.match(name):
        return _Role.COMPILED
    if is_step(name) or name.startswith(_SAYS_NOTHING):
        return _Role.NOTHING
    return _Role.COLLECTIVE if _COLLECTIVE.match(name) else _Role.REGION


def _is_strong(role: npt.NDArray[np.int8]) -> Bools:
    """Which roles own what they hold, whatever region is inside of them."""
    return (role != _Role.NOTHING) & (role < _Role.REGION)


class _Marks(NamedTuple):
    """The markers among the nested rows; all columns are parallel to `forest.rows`."""

    forest: Forest
    role: npt.NDArray[np.int8]
    inner: Ints
    """Position of the innermost marker at or above, regions left out; NONE if there is none."""
    region: Ints
    """Position of the innermost region at or above, or NONE."""
    node: Ints
    """Position of the innermost BACKWARD at or above, or NONE."""


def _marks(table: EventTable, forest: Forest, role: npt.NDArray[np.int8]) -> _Marks:
    node = _innermost(forest, np.flatnonzero(role == _Role.BACKWARD))
    role = _without_inner_compiled(table, forest, role)
    role[_recomputed(table, forest, role)] = _Role.RECOMPUTED
    role[_whole_steps(table, forest, role)] = _Role.NOTHING
    region = _innermost(forest, np.flatnonzero(role == _Role.REGION))
    role[(role == _Role.COLLECTIVE) & (region != NONE)] = _Role.NOTHING
    regions = np.flatnonzero(role >= _Role.REGION)
    return _Marks(forest, role, _innermost(forest, np.flatnonzero(_is_strong(role))), _innermost(forest, regions), node)


def _innermost(forest: Forest, at: Ints) -> Ints:
    """For each position, the innermost of these positions that is at or above it; NONE if none is."""
    count = len(forest.rows)
    if not len(at):
        return np.full(count, NONE, dtype=np.int64)
    wanted = np.zeros(count, dtype=bool)
    wanted[at] = True
    around = forest.nearest(forest.parent[at], wanted)
    points = np.concatenate([at, forest.last[at]])
    holds = np.concatenate([at, around])
    # Where several begin or end at once, those that end come first, from the inside out.
    order = np.lexsort((np.concatenate([np.full(len(at), count), -at]), points))
    points, holds = points[order], holds[order]
    length = np.diff(points, prepend=0, append=count)
    return np.repeat(np.concatenate([[NONE], holds]), length)


def _numbered(table: EventTable, forest: Forest, role: npt.NDArray[np.int8]) -> Bools:
    """Forward operators that may have made a node: with a number, but not of the backward pass."""
    rows = forest.rows
    return (
        (table.kind[rows] == Kind.CPU_OP)
        & (table.sequence[rows] != NONE)
        & (table.forward_thread[rows] <= 0)
        & (role != _Role.BACKWARD)
    )


def _without_inner_compiled(table: EventTable, forest: Forest, role: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """The roles where compiled regions inside of an optimizer or a node mark nothing: the time is the outer one's.

    Unless a node runs a region again that makes nodes: that one is RECOMPUTED.
    """
    role = role.copy()
    at = np.flatnonzero(role == _Role.COMPILED)
    if not len(at):
        return role
    around = forest.nearest(forest.parent[at], _is_strong(role) & (role != _Role.COMPILED))
    outer = np.where(around == NONE, np.int8(_Role.NOTHING), role[around])
    makes_nodes = forest.subtree_sums(_numbered(table, forest, role).astype(np.int64))[at] > 0
    role[at[outer == _Role.BACKWARD]] = _Role.NOTHING
    role[at[(outer == _Role.BACKWARD) & makes_nodes]] = _Role.RECOMPUTED
    role[at[(outer == _Role.OPTIMIZER) | (outer == _Role.GROUP)]] = _Role.NOTHING
    return role


def _recomputed(table: EventTable, forest: Forest, role: npt.NDArray[np.int8]) -> Ints:
    """Positions of the forward operators that a node runs again, outside of any module.

    With `create_graph` a node's own operators have numbers, too; but then so has the last of them. What is recomputed
    is recomputed before the node does its own work, which has none.
    """
    inner = _innermost(forest, np.flatnonzero(_is_strong(role)))
    at = np.flatnonzero(_numbered(table, forest, role) & (inner != NONE))
    at = at[role[inner[at]] == _Role.BACKWARD]
    if not len(at):
        return at
    rows = forest.rows
    is_node = (table.forward_thread[rows] > 0) & (table.sequence[rows] != NONE) & (table.kind[rows] == Kind.CPU_OP)
    is_node &= ~table.named(lambda name: name.startswith(EVALUATE))[rows]
    node = forest.nearest(forest.parent[at], is_node)
    within = (node != NONE) & (node >= inner[at])
    at, node = at[within], node[within]
    candidate = np.zeros(len(rows), dtype=bool)
    candidate[at] = True
    children = np.flatnonzero(~table.of_kind(Kind.RUNTIME, Kind.DRIVER)[rows] & (forest.parent != NONE))
    last_child = np.full(len(rows), NONE, dtype=np.int64)
    last_child[forest.parent[children]] = children  # of several the last
    return at[~candidate[last_child[node]]]


def _whole_steps(table: EventTable, forest: Forest, role: npt.NDArray[np.int8]) -> Bools:
    """Regions that hold all that some step does: they say no more than the step, as the one that capture puts there."""
    rows = forest.rows
    at = np.flatnonzero((role == _Role.REGION) & (forest.parent != NONE))
    at = at[table.named(is_step)[rows[forest.parent[at]]]]
    if not len(at):
        return np.zeros(len(rows), dtype=bool)
    held = forest.subtree_sums(table.of_kind(Kind.CPU_OP, Kind.ANNOTATION, Kind.MODULE)[rows].astype(np.int64))
    whole = at[held[at] + 1 == held[forest.parent[at]]]
    return (role == _Role.REGION) & np.isin(table.name[rows], table.name[rows[whole]])


# ---- their names -----------------------------------------------------------------------------------------------------

_HOOKED = re.compile(r"^(?:(.*) )?\(([^()]*)\)$", re.DOTALL)
"""What follows MODULE in the name of a region of capture's: path and class."""
_NUMBER = re.compile(r"_[0-9]+$")


def _named(table: EventTable, marks: _Marks) -> tuple[list[Owner], Codes]:
    """All owners, and for each position that marks a module, compiled region, optimizer or region, its owner's code."""
    codes = {Owner("none"): NOBODY}
    owner = np.full(len(marks.role), NOBODY, dtype=np.int32)
    for name in (_name_modules, _name_compiled, _name_optimizers, _name_groups, _name_regions):
        at, group, owners = name(table, marks, owner, list(codes))
        owner[at] = np.array([codes.setdefault(each, len(codes)) for each in owners], dtype=np.int32)[group]
    return list(codes), owner


_Named = tuple[Ints, Ints, list[Owner]]
"""Positions, the group of each, and the owner of each group."""


def _names_at(table: EventTable, marks: _Marks, *roles: _Role) -> tuple[Ints, Ints, list[str]]:
    """Positions with these roles, the number of each one's name, and the names."""
    at = np.flatnonzero(np.isin(marks.role, roles))
    codes, group = np.unique(table.name[marks.forest.rows[at]], return_inverse=True)
    return at, group.reshape(-1), [table.names[code] for code in codes.tolist()]


def _name_modules(table: EventTable, marks: _Marks, owner: Codes, named: list[Owner]) -> _Named:
    at, group, names = _names_at(table, marks, _MODULE)
    texts = [name.removeprefix(MODULE) for name in names]
    rows = marks.forest.rows[at]
    if len(at) and table.kind[rows[0]] == Kind.PYTHON:
        return at, group, [Owner("module", *each) for each in _from_stacks(table, marks, at, group, texts)]
    parts = [(match[1] or "", match[2]) if (match := _HOOKED.match(text)) else (text, "") for text in texts]
    several = len({kind for path, kind in parts if not path}) > 1
    return at, group, [Owner("module", path or (kind if several else ""), kind) for path, kind in parts]


def _from_stacks(table: EventTable, marks: _Marks, at: Ints, group: Ints, names: list[str]) -> list[tuple[str, str]]:
    """Path and class of each module, by how their calls nest: torch numbers the modules of each class.

    A module's first call says where it is, but not one of the backward pass, where it is alone.
    """
    forest = marks.forest
    order = np.lexsort((at, forest.start[at], marks.node[at] != NONE))
    first = np.zeros(len(names), dtype=np.int64)
    first[group[order[::-1]]] = order[::-1]
    group_of = np.full(len(forest.rows), NONE, dtype=np.int64)
    group_of[at] = group
    is_module = marks.role == _MODULE
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


def _name_compiled(table: EventTable, marks: _Marks, owner: Codes, named: list[Owner]) -> _Named:
    """A CompiledFunction has no number of its own, but the region around it has."""
    forest, rows = marks.forest, marks.forest.rows
    at = np.flatnonzero(marks.role == _Role.COMPILED)
    around = np.where(forest.parent[at] == NONE, NONE, marks.inner[forest.parent[at]])
    module = forest.nearest(around, marks.role == _MODULE)
    numbers = {code: _number(table.names[code]) for code in np.unique(table.name[rows[at]]).tolist()}
    alone = np.array([numbers[code] == "" for code in table.name[rows[at]].tolist()], dtype=bool)
    outer = alone & (around != NONE) & (marks.role[around] == _Role.COMPILED)
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
    match = _COMPILED.match(name)
    return match[1] or "" if match else ""


def _name_optimizers(table: EventTable, marks: _Marks, owner: Codes, named: list[Owner]) -> _Named:
    at, group, names = _names_at(table, marks, _Role.OPTIMIZER)
    classes = [match[1] if (match := _OPTIMIZER.match(name)) else name for name in names]
    return at, group, [Owner("optimizer", each, each) for each in classes]


def _name_groups(table: EventTable, marks: _Marks, owner: Codes, named: list[Owner]) -> _Named:
    at = np.flatnonzero(marks.role == _Role.GROUP)
    above = marks.forest.nearest(marks.forest.parent[at], marks.role == _Role.OPTIMIZER)
    outside, name = np.where(above == NONE, NOBODY, owner[above]), table.name[marks.forest.rows[at]]
    first, group = grouped((outside, name))
    owners = []
    for around, code in zip(outside[first].tolist(), name[first].tolist(), strict=True):
        optimizer = named[around].class_name
        parts = (optimizer, table.names[code].removeprefix(PARAMETER_GROUP))
        owners.append(Owner("optimizer", ".".join(filter(None, parts)), optimizer))
    return at, group, owners


def _name_regions(table: EventTable, marks: _Marks, owner: Codes, named: list[Owner]) -> _Named:
    at, group, names = _names_at(table, marks, _Role.REGION, _Role.COLLECTIVE)
    return at, group, [Owner("region", name) for name in names]


# ---- what they own ---------------------------------------------------------------------------------------------------


def _resolved(table: EventTable, marks: _Marks, owner: Codes) -> tuple[Codes, npt.NDArray[np.int8]]:
    """Owner and pass of each position that marks something, nodes included."""
    role, node = marks.role, marks.node
    nodes = np.flatnonzero(role == _Role.BACKWARD)
    owner = owner.copy()
    owner[nodes] = _owners_of_nodes(table, marks, nodes, owner)
    again = np.flatnonzero(role == _Role.RECOMPUTED)
    owner[again] = owner[node[again]]
    part = np.full(len(role), _part("other"), dtype=np.int8)
    calls = (role == _MODULE) | (role == _Role.COMPILED)
    part[calls] = _part("forward")
    part[calls & (node != NONE)] = _part("recompute")
    part[(role == _Role.COMPILED) & table.named(_is_compiled_backward)[marks.forest.rows]] = _part("backward")
    part[again] = _part("recompute")
    part[nodes] = _part("backward")
    part[(role == _Role.OPTIMIZER) | (role == _Role.GROUP)] = _part("optimizer")
    return owner, part


def _owners_of_nodes(table: EventTable, marks: _Marks, nodes: Ints, owner: Codes) -> Codes:
    """The owner of each node: that of its forward operator, else that of the node before it, else of that around it.

    If the forward operator ran in a node, too, as part of it or once more, that one tells.
    """
    forest, count = marks.forest, len(nodes)
    rows = forest.rows[nodes]
    index = np.full(len(forest.rows), NONE, dtype=np.int64)
    index[nodes] = np.arange(count)
    forward = forward_rows(table)[rows]
    at = np.where(forward == NONE, NONE, forest.position_of(len(table))[forward])
    at = np.where((at != NONE) & (table.ts[forward] < table.ts[rows]), at, NONE)
    known = at != NONE
    mark = np.where(known, marks.inner[at], NONE)
    role = np.where(mark == NONE, np.int8(_Role.NOTHING), marks.role[mark])
    nested = (role == _Role.BACKWARD) | (role == _Role.RECOMPUTED)
    region = np.where(known, marks.region[at], NONE)
    holder = np.where(mark == NONE, region, mark)
    found = np.where(known & ~nested & (holder != NONE), owner[holder], NOBODY)
    around = forest.nearest(forest.parent[nodes], marks.role == _Role.BACKWARD)
    around = np.where(around == NONE, NONE, index[around])
    before = _before(table, forest, nodes, around, known)
    inherits = np.where(before == NONE, around, before)
    inherits = np.where(known, np.where(nested, index[marks.node[at]], NONE), inherits)
    # Each leads to one that began earlier; what leads to none is its own end, and each round doubles the distance.
    end = np.where(inherits == NONE, np.arange(count), inherits)
    while not np.array_equal(further := end[end], end):
        end = further
    return found[end].astype(np.int32)


def _before(table: EventTable, forest: Forest, nodes: Ints, around: Ints, known: Bools) -> Ints:
    """For each node the last one before it that is `known`, on the same thread and within the same node; or NONE.

    A number higher than the one before begins another backward pass: autograd's numbers fall during each.
    """
    rows = forest.rows[nodes]
    order = np.lexsort((nodes, around, table.thread[rows]))
    thread, outer, number = table.thread[rows][order], around[order], table.sequence[rows][order]
    starts = np.ones(len(order), dtype=bool)
    starts[1:] = (thread[1:] != thread[:-1]) | (outer[1:] != outer[:-1])
    first = np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
    numbered = _last(number != NONE, first, before=True)
    rises = (number != NONE) & (numbered != NONE) & (number > number[numbered])
    leads = known[order] | rises
    last = _last(leads, first, before=False)
    out = np.full(len(order), NONE, dtype=np.int64)
    out[order] = np.where((last == NONE) | ~known[order][last] | leads, NONE, order[last])
    return out


def _last(flag: Bools, first: Ints, *, before: bool) -> Ints:
    """For each place the last one with the flag, not before its group's `first`; NONE if there is none."""
    last = np.maximum.accumulate(np.where(flag, np.arange(len(flag)), NONE))
    if before:
        last = np.concatenate([[NONE], last[:-1]])
    return np.where(last >= first, last, NONE)


def _calls(table: EventTable, marks: _Marks, owner: Codes, part: npt.NDArray[np.int8]) -> Ints:
    """Positions of the calls that count: forward ones, and an optimizer's steps without what else it does."""
    forest, role = marks.forest, marks.role
    steps = table.named(lambda name: name.startswith("Optimizer.step#"))[forest.rows]
    call = ((role == _MODULE) | (role == _Role.COMPILED)) & (part == _part("forward"))
    call |= (role == _Role.GROUP) | (role >= _Role.REGION) | ((role == _Role.OPTIMIZER) & steps)
    at = np.flatnonzero(call)
    outer = np.where(forest.parent[at] == NONE, NONE, marks.inner[forest.parent[at]])
    same = (role[at] == _Role.COMPILED) & (outer != NONE) & (owner[at] == owner[outer])
    return at[~same]
