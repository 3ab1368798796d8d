"""Which host rows mark whose time it is: calls of modules, compiled regions, optimizers, nodes of autograd, regions.

ProfilerStep#2                                         no marker
  forward                                              REGION
    nn.Module: layers.0 (Block)                        MODULE
      Torch-Compiled Region: 0/0                       COMPILED
  autograd::engine::evaluate_function: MulBackward0    BACKWARD
    MulBackward0
      aten::mul (9)                                    RECOMPUTED: a number, though the node's own have none
      aten::mul
  Optimizer.step#AdamW.step                            OPTIMIZER
    proftrack: parameter group group 0                 GROUP
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from proftrack.measures.autograd import EVALUATE
from proftrack.measures.nesting import Forest, nest
from proftrack.record.modules import COLLECTIVES
from proftrack.trace.categories import MODULE, PARAMETER_GROUP, STEP, Kind, is_step
from proftrack.trace.table import NONE, Bools, EventTable, Ints


class Role(IntEnum):
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


PART_OF_OPTIMIZER = re.compile(r"^Optimizer\.(?:step|zero_grad)#(.+)\.(?:step|zero_grad)$", re.DOTALL)
COMPILED_REGION = re.compile(r"^(?:Torch-Compiled Region(?:: *(\S+))?|CompiledFunction)$")
_PATTERNS = (
    (Role.MODULE, re.compile(re.escape(MODULE))),
    (Role.BACKWARD, re.compile(re.escape(EVALUATE))),
    (Role.OPTIMIZER, PART_OF_OPTIMIZER),
    (Role.GROUP, re.compile(re.escape(PARAMETER_GROUP))),
    (Role.COMPILED, COMPILED_REGION),
    # Regions that are no program's: the profiler's steps, capture's own, Inductor's inside of compiled ones.
    (Role.NOTHING, re.compile(rf"{STEP}|proftrack: |## Call CompiledFxGraph")),
    (Role.COLLECTIVE, re.compile("|".join(COLLECTIVES))),
)
"""The roles of names; every other name is a region's, if its row is one."""
_BEGINNINGS = (MODULE, EVALUATE, "Optimizer.", "Torch-", "Compiled", STEP, "proftrack: ", "## Call", *COLLECTIVES)
"""How all names begin that one of these patterns may match."""
_ALLOWED: dict[Role, tuple[Kind, ...]] = {
    Role.MODULE: (Kind.MODULE,),
    Role.COMPILED: (Kind.CPU_OP, Kind.ANNOTATION),
    Role.OPTIMIZER: (Kind.CPU_OP, Kind.ANNOTATION),
    Role.GROUP: (Kind.CPU_OP, Kind.ANNOTATION),
    Role.BACKWARD: (Kind.CPU_OP,),
    Role.REGION: (Kind.ANNOTATION,),
    Role.COLLECTIVE: (Kind.ANNOTATION,),
}
"""The kinds of rows whose names give them a role."""


def _roles(table: EventTable, regions_alone: bool) -> npt.NDArray[np.int8] | None:
    """The role of each row; None if no row has more than a region's, unless `regions_alone` are enough."""
    of_name = np.fromiter(map(_role, table.names), dtype=np.int8, count=len(table.names))
    nodes_alone = not (of_name == Role.BACKWARD).any()  # as torch before 1.8 recorded them
    nodes = (table.sequence != NONE) & (table.forward_thread > 0) if nodes_alone else np.zeros(0, dtype=bool)
    if not regions_alone and not is_strong(of_name).any() and not nodes.any():
        return None
    allowed = np.zeros((len(Role), len(Kind)), dtype=bool)
    for role, kinds in _ALLOWED.items():
        allowed[role, list(kinds)] = True
    allowed[Role.MODULE, Kind.PYTHON] = not (table.kind == Kind.MODULE).any()
    roles = of_name[table.name]
    roles = np.where(allowed[roles, table.kind] & table.valid, roles, np.int8(Role.NOTHING))
    if nodes_alone:
        roles[nodes & table.valid & table.of_kind(Kind.CPU_OP)] = Role.BACKWARD
    return roles if regions_alone or is_strong(roles).any() else None


def _role(name: str) -> Role:
    if not name.startswith(_BEGINNINGS):
        return Role.REGION
    return next((role for role, pattern in _PATTERNS if pattern.match(name)), Role.REGION)


def is_strong(role: npt.NDArray[np.int8]) -> Bools:
    """Which roles own what they hold, whatever region is inside of them."""
    return np.asarray((role != Role.NOTHING) & (role < Role.REGION))


class Marks(NamedTuple):
    """The markers among the nested rows; all columns are parallel to `forest.rows`."""

    forest: Forest
    role: npt.NDArray[np.int8]
    inner: Ints
    """Position of the innermost marker at or above, regions left out; NONE if there is none."""
    region: Ints
    """Position of the innermost region at or above, or NONE."""
    node: Ints
    """Position of the innermost BACKWARD at or above, or NONE."""


def find_marks(table: EventTable, forest: Forest, *, regions_alone: bool = False) -> Marks | None:
    """The markers of a trace; None if it has only regions, unless they are enough. `forest`: the nested host rows.

    Where stacks were recorded, and modules not by capture, the modules' Python rows are nested among the host rows.
    """
    roles = _roles(table, regions_alone)
    if roles is None:
        return None
    from_stacks = (roles == Role.MODULE) & table.of_kind(Kind.PYTHON)
    if from_stacks.any():
        forest = nest(table, table.host | from_stacks)
    role = roles[forest.rows]
    node = innermost(forest, np.flatnonzero(role == Role.BACKWARD))
    role = _without_inner_compiled(table, forest, role)
    role[_recomputed(table, forest, role)] = Role.RECOMPUTED
    role[_whole_steps(table, forest, role)] = Role.NOTHING
    region = innermost(forest, np.flatnonzero(role == Role.REGION))
    role[(role == Role.COLLECTIVE) & (region != NONE)] = Role.NOTHING
    inner = innermost(forest, np.flatnonzero(is_strong(role)))
    return Marks(forest, role, inner, innermost(forest, np.flatnonzero(role >= Role.REGION)), node)


def innermost(forest: Forest, at: Ints) -> Ints:
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
    return np.asarray(np.repeat(np.concatenate([[NONE], holds]), length))


def _numbered(table: EventTable, forest: Forest, role: npt.NDArray[np.int8]) -> Bools:
    """Forward operators that may have made a node: with a number, but not of the backward pass."""
    rows = forest.rows
    numbered = (table.kind[rows] == Kind.CPU_OP) & (table.sequence[rows] != NONE)
    return np.asarray(numbered & (table.forward_thread[rows] <= 0) & (role != Role.BACKWARD))


def _without_inner_compiled(table: EventTable, forest: Forest, role: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """The roles where compiled regions inside of an optimizer or a node mark nothing: the time is the outer one's.

    Unless a node runs a region again that makes nodes: that one is RECOMPUTED.
    """
    role = role.copy()
    at = np.flatnonzero(role == Role.COMPILED)
    if not len(at):
        return role
    around = forest.nearest(forest.parent[at], is_strong(role) & (role != Role.COMPILED))
    outer = np.where(around == NONE, np.int8(Role.NOTHING), role[around])
    makes_nodes = forest.subtree_sums(_numbered(table, forest, role).astype(np.int64))[at] > 0
    role[at[outer == Role.BACKWARD]] = Role.NOTHING
    role[at[(outer == Role.BACKWARD) & makes_nodes]] = Role.RECOMPUTED
    role[at[(outer == Role.OPTIMIZER) | (outer == Role.GROUP)]] = Role.NOTHING
    return role


def _recomputed(table: EventTable, forest: Forest, role: npt.NDArray[np.int8]) -> Ints:
    """Positions of the forward operators that a node runs again, outside of any module.

    With `create_graph` a node's own operators have numbers, too; but then so has the last of them. What is recomputed
    is recomputed before the node does its own work, which has none.
    """
    inner = innermost(forest, np.flatnonzero(is_strong(role)))
    of_node = (inner != NONE) & (role[inner] == Role.BACKWARD)
    at = np.flatnonzero(_numbered(table, forest, role) & of_node)
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
    return np.asarray(at[~candidate[last_child[node]]])


def _whole_steps(table: EventTable, forest: Forest, role: npt.NDArray[np.int8]) -> Bools:
    """Regions that hold all that some step does: they say no more than the step, as the one that capture puts there."""
    rows = forest.rows
    at = np.flatnonzero((role == Role.REGION) & (forest.parent != NONE))
    at = at[table.named(is_step)[rows[forest.parent[at]]]]
    if not len(at):
        return np.zeros(len(rows), dtype=bool)
    held = forest.subtree_sums(table.of_kind(Kind.CPU_OP, Kind.ANNOTATION, Kind.MODULE)[rows].astype(np.int64))
    whole = at[held[at] + 1 == held[forest.parent[at]]]
    return np.asarray((role == Role.REGION) & np.isin(table.name[rows], table.name[rows[whole]]))
