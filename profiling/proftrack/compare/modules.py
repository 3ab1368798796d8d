"""Which modules changed: each change is named as deep as it is, and only if it is more than noise.

    model                  +310 us      holds it, as everything above the change does
    layers                 +310 us
    layers.7               +310 us
    layers.7.mlp           +310 us      named: none of its children has the change to itself
    layers.7.mlp.gate_proj +110 us
    layers.7.mlp.up_proj   +105 us
    layers.7.mlp.down_proj  +95 us

From the top, the search goes down to the children that changed. It stops where most of them did, or none by itself.
Numbered siblings (`layers.0` to `layers.31`) that changed alike are one: `layers.*.mlp`; one that changed far more than
the others is named beside them.

Noise is taken from the two recordings themselves. Most modules did not change, so the spread of their ratios tells how
well two recordings agree, and its middle what all have in common: the clock. A change has to stand out whether or not
that common factor is taken off. What most of a model's time has in common (all layers, or one module that is most of
it) cannot be told from noise between processes in that way; it has to exceed their floor as well.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from proftrack.compare.module_tree import Cost, Pair, Piece, join, together
from proftrack.compare.results import ModuleChange, ModuleRow, Modules, ModuleWork
from proftrack.record import Record
from proftrack.record.modules import PASSES, has_modules, numbered, starred
from proftrack.record.timing import NORMAL

DEVIATIONS = 5.0
"""A change has to be this many standard deviations: some hundred modules are looked at."""
UNCERTAIN = 8
"""With n modules, 1 + this / n times as many, since their deviation is uncertain itself."""
Status = Literal["slower", "faster", "added", "gone", "rebuilt"]
LEAST_NOISE = 0.005
"""Two recordings can agree better by chance. With DEVIATIONS, a change is always more than 2.5 % of a module's time."""
WEAK_DEVIATIONS = 2.0
"""This many are enough for a part of something that certainly changed to share in the change."""
LEAST_PART, LEAST_PART_OF_CPU = 0.001, 0.01
"""Nor one whose change is less of all time; of the host's, where anything may come between, more."""
FEWEST = 4
"""With fewer modules than this on both sides, their spread says nothing of noise."""
BROAD, ALL_BROAD = 0.1, 0.5
"""Shares of all time. What takes more than the first, with most of what has the same path but for numbers, is judged by
the floor between processes; up to the second, the rest still tells how well the recordings agree."""
BROAD_FLOOR = 0.5
"""So much is enough even where the floor is higher, if the rest agrees."""
MOST_OF = 0.8
"""This share of the children's time, or of numbered siblings, is most of them; this share of a change is all of it."""
ALIKE = 3.0
"""Changes within this factor count as the same change."""
FEWEST_SIBLINGS = 3
MOST_WORK = 3
"""How many operators and kernels are named with a change."""


def compare_modules(before: Record, after: Record, floor: float) -> Modules:
    """Join the modules of both records, and name those that changed.

    `floor`: how far the GPU times (or, without a GPU, step times) of two recordings of the same code can be apart, as a
    fraction.
    """
    known = [has_modules(record.modules) for record in (before, after)]
    if not any(known):  # owners of other kinds then
        known = [bool(record.modules) for record in (before, after)]
    if not all(known):
        noun = "candidate" if known[0] else "baseline"
        text = f"Modules are not compared: the {noun} has none (profiler.modules, or an older version)."
        return Modules(notes=[text] if any(known) else [])
    if bool(before.times.gpu_busy_per_step_us) != bool(after.times.gpu_busy_per_step_us):
        return Modules(notes=["Modules are not compared: one side has GPU times, the other only the host's."])
    joined = join(before, after)
    on_gpu = bool(after.times.gpu_busy_per_step_us)
    noise = Noise(joined.top, floor)
    found = sorted(
        Search(joined.top, noise, LEAST_PART if on_gpu else LEAST_PART_OF_CPU).found,
        key=lambda node: (-(node.largest_us if _is_rebuilt(node) else abs(noise.change_us(node))), node.path),
    )
    changes = [_change(node) for node in found]
    rows = [_row(node, noise) for node in joined.top.walk() if node is not joined.top]
    return Modules(changes=changes, rows=rows, notes=joined.notes)


class Noise:
    """How well two recordings agree, apart from what changed."""

    def __init__(self, top: Pair, floor: float) -> None:
        self.floor = floor
        pairs = [(a.us, b.us) for node in top.walk() for a, b in [node.own] if a is not None and b is not None]
        times = np.array([(a, b) for a, b in pairs if a > 0 and b > 0]).reshape(-1, 2)
        self.known = len(times) >= FEWEST
        self.deviations = DEVIATIONS * (1 + UNCERTAIN / max(len(times), 1))
        self.common, self.relative, self.absolute_us = 1.0, LEAST_NOISE, 0.0
        self._seen: dict[int, float] = {}
        if self.known:
            self._measure(times)

    def _measure(self, times: np.ndarray) -> None:
        """From the half of the modules that agree best, which a change of less than the other half does not reach."""
        before, after = times.T
        logs = np.log(after / before)
        low, high = _shortest_half(logs, np.sqrt(np.sqrt(before)))
        middle, limit = (low + high) / 2, math.log1p(self.floor)
        self.common = math.exp(min(max(middle, -limit), limit))
        self.relative = max(NORMAL * (high - low) / 2, LEAST_NOISE)
        # Short work varies by more than its share of the long one's noise; this is what the relative part leaves.
        left = (after - before * math.exp(middle)) ** 2 - self.relative**2 * before * after
        self.absolute_us = NORMAL * math.sqrt(max(float(np.median(left)), 0.0))

    def variance(self, node: Pair) -> float:
        """Of the difference of a node's inclusive times, without what changed."""
        known = self._seen.get(id(node))
        if known is None:
            known = self._own(*node.own) + sum(self.variance(child) for child in node.children)
            self._seen[id(node)] = known
        return known

    def deviation_us(self, node: Pair) -> float:
        """Standard deviation of the difference of a node's inclusive times by noise alone."""
        return math.sqrt(self.variance(node) + (LEAST_NOISE * node.before_us) ** 2)

    def _own(self, before: Cost | None, after: Cost | None) -> float:
        a, b = (cost.us if cost is not None else 0.0 for cost in (before, after))
        steps = sum(cost.variance for cost in (before, after) if cost is not None)
        members = self.absolute_us**2 if a and b else 0.0
        return self.relative**2 * (a * b or max(a, b) ** 2) + members + steps

    def change_us(self, node: Pair) -> float:
        """The change that remains whether or not the common factor is taken off; 0 if the two disagree."""
        before, after = node.before_us, node.after_us
        raw = after - before
        rest = after - before * self.common if node.on_both else raw
        return min(raw, rest, key=abs) if raw * rest > 0 else 0.0


def _shortest_half(values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """The ends of the shortest interval that holds half of the weight."""
    order = np.argsort(values)
    values, weights = values[order], weights[order]
    above = np.cumsum(weights)
    below = above - weights
    last = np.searchsorted(above, below + above[-1] / 2 - 1e-9 * above[-1])
    first = np.flatnonzero(last < len(values))
    widths = values[last[first]] - values[first]
    best = first[np.argmin(widths)]
    return float(values[best]), float(values[last[best]])


class Search:
    """Finds the nodes to name."""

    def __init__(self, top: Pair, noise: Noise, least_part: float) -> None:
        self.noise = noise
        self.least_us = least_part * top.largest_us
        self._holds: dict[int, bool] = {}
        self._kept: list[Pair] = []  # nodes made here: their ids are keys above
        named: dict[tuple[str, str], list[Pair]] = defaultdict(list)
        for node in (node for child in top.children for node in self._within(child)):
            named[_like(node)].append(node)
        there = Counter(map(_like, top.walk()))
        self.found = [
            node
            for like, nodes in named.items()
            for node in nodes
            if _is_certain(node) or not self._may_be_noise([n for n in nodes if n.on_both], there[like], top.before_us)
        ]

    def _within(self, node: Pair) -> list[Pair]:
        """The changes within a node, each as deep as it is."""
        if not self._holds_change(node):
            return []
        if _is_certain(node):
            return [node]
        found, shared = self._shared(node)
        own = self._itself(node)
        parts = [part for part in [*own, *node.children] if id(part) not in shared]
        inside = {id(part): [part] if part.itself else self._within(part) for part in parts if self._holds_change(part)}
        named = found + [each for changes in inside.values() for each in changes]
        if not named or named == own or (own and found and _covers(named, node, own)):
            return [node]
        return [node] if not found and self._is_spread(node, parts, inside) else named

    def _holds_change(self, node: Pair) -> bool:
        """Whether a node changed, or anything below it."""
        known = self._holds.get(id(node))
        if known is None:
            known = self._changed(node) or any(self._holds_change(child) for child in node.children)
            self._holds[id(node)] = known
        return known

    def _changed(self, node: Pair) -> bool:
        change = abs(self.noise.change_us(node))
        if change < self.least_us:
            return False
        if not node.on_both:
            return True
        if not self.noise.known:
            return _beyond(node.before_us, node.after_us, self.noise.floor)
        deviation = self.noise.deviations * self.noise.deviation_us(node)
        return change > deviation

    def _share(self, node: Pair) -> float:
        """The change as a share of the time before."""
        return self.noise.change_us(node) / node.before_us if node.before_us else 0.0

    def _itself(self, node: Pair) -> list[Pair]:
        """A node without its children, if it has any."""
        if not node.children or node.own == (None, None):
            return []
        return [self._keep(Pair(node.name, node.path, node.kind, node.own, old_path=node.old_path, itself=True))]

    def _keep(self, node: Pair) -> Pair:
        self._kept += node.walk()
        return node

    def _is_spread(self, node: Pair, parts: Sequence[Pair], inside: dict[int, list[Pair]]) -> bool:
        """Whether most of a node changed in one direction, and no part of it has nearly all of the change.

        `inside`: what changed in each part. Of the other parts, those count that seem to have changed as well.
        """
        if _is_list(node):
            return False
        change = self.noise.change_us(node)
        sharing = {id(part): self._sharing(part, change, inside.get(id(part))) for part in parts}
        nodes = [each for changed in sharing.values() for each in changed]
        if sum(each.largest_us for each in nodes) < MOST_OF * sum(part.largest_us for part in parts):
            return False
        changes = [sum(abs(self.noise.change_us(each)) for each in changed) for changed in sharing.values()]
        certain = [abs(self._share(part)) for part in parts if id(part) in inside and sharing[id(part)]]
        alike = len(certain) > 1 and max(certain) < ALIKE * min(certain)
        return alike or max(changes) < MOST_OF * sum(changes)

    def _sharing(self, part: Pair, change_us: float, inside: list[Pair] | None) -> list[Pair]:
        """What in a part changed in the direction of `change_us`."""
        change = self.noise.change_us(part)
        if inside is None and abs(change) < WEAK_DEVIATIONS * self.noise.deviation_us(part):
            return []
        return [each for each in inside or [part] if self.noise.change_us(each) * change_us > 0 and each.on_both]

    def _shared(self, node: Pair) -> tuple[list[Pair], set[int]]:
        """What numbered children have in common, and the ids of those children."""
        found: list[Pair] = []
        done: set[int] = set()
        groups: dict[object, list[Pair]] = defaultdict(list)
        for child in node.children:
            if numbered(child.name) and child.on_both:
                kind = (
                    child.class_of(1),
                    starred(child.name),
                    frozenset(starred(each.name) for each in child.children),
                )
                groups[kind].append(child)
        for siblings in groups.values():
            alike = self._alike(siblings)
            if len(alike) < FEWEST_SIBLINGS:
                continue
            name = starred(alike[0].name)
            whole = self._keep(together(alike, f"{node.path}.{name}" if node.path else name))
            here = self._within(whole)
            if here:
                found += here
                done |= {id(child) for child in alike}
        return found, done

    def _alike(self, siblings: Sequence[Pair]) -> list[Pair]:
        """Siblings that may share what changed: all but those with far more change. Empty if only a few changed."""
        changed = [child for child in siblings if self._holds_change(child)]
        if 0 < len(changed) < MOST_OF * len(siblings):
            return []
        shares = {id(child): abs(self._share(child)) for child in siblings}
        most = ALIKE * float(np.median(list(shares.values())))
        odd = {id(child) for child in changed if shares[id(child)] > most}
        return [child for child in siblings if id(child) not in odd]

    def _may_be_noise(self, nodes: Sequence[Pair], there: int, whole_us: float) -> bool:
        """Whether what changed is so much of the model that only the floor between processes can tell.

        `nodes`: all that changed with the same path but for numbers, of `there` such nodes.
        """
        before, after = sum(node.before_us for node in nodes), sum(node.after_us for node in nodes)
        share = before / (whole_us or 1.0)
        if share <= BROAD or sum(node.members for node in nodes) * 2 <= there:
            return False
        floor = self.noise.floor if share > ALL_BROAD else min(self.noise.floor, BROAD_FLOOR)
        return not _beyond(before, after, floor)


def _like(node: Pair) -> tuple[str, str]:
    """What nodes share whose paths differ only by numbers."""
    return node.kind, starred(node.path)


def _is_certain(node: Pair) -> bool:
    """Whether it is new, gone or made of other modules, which is no noise however long it takes."""
    return not node.on_both or _is_rebuilt(node)


def _is_rebuilt(node: Pair) -> bool:
    """Whether most of a node is gone, and others came."""
    gone = sum(child.before_us for child in node.children if child.totals[1] is None)
    came = sum(child.after_us for child in node.children if child.totals[0] is None)
    return gone > node.before_us / 2 and came > node.after_us / 2


def _is_list(node: Pair) -> bool:
    """Whether a node is only a list of modules of one class, and no module itself."""
    classes = {child.class_of(1) for child in node.children}
    return node.own == (None, None) and all(numbered(child.name) for child in node.children) and len(classes) == 1


def _covers(named: Sequence[Pair], node: Pair, own: Sequence[Pair]) -> bool:
    """Whether only a node itself (`own`) and children of it were named, and these are most of its time."""
    parts = [each for each in named if each in own or each.path.rpartition(".")[0] == node.path]
    most = sum(each.largest_us for each in parts) >= MOST_OF * node.largest_us
    return most and len(parts) == len(named) and all(each in parts for each in own)


def _beyond(before: float, after: float, floor: float) -> bool:
    return after > before * (1 + floor) or before > after * (1 + floor)


# ---- results ---------------------------------------------------------------------------------------------------------


def _change(node: Pair) -> ModuleChange:
    before, after = node.parts(0), node.parts(1)
    classes = node.class_of(0), node.class_of(1)
    change = node.after_us - node.before_us
    return ModuleChange(
        path=node.path,
        kind=node.kind,
        class_name=classes[1] or classes[0],
        status=_status(node),
        before_us=node.before_us,
        after_us=node.after_us,
        parts={part: after[part] - before[part] for part in PASSES if after[part] != before[part]},
        itself=node.itself,
        members=node.members,
        old_path=node.old_path,
        old_class=classes[0] if classes[0] and classes[1] and classes[0] != classes[1] else "",
        work=_work(node.walk(), change),
    )


def _status(node: Pair) -> Status:
    if not node.on_both:
        return "added" if node.totals[0] is None else "gone"
    if _is_rebuilt(node):
        return "rebuilt"
    return "slower" if node.after_us > node.before_us else "faster"


def _work(nodes: Iterable[Pair], change: float) -> list[ModuleWork]:
    """The pieces of work that changed most in the direction of the change."""
    times: dict[Piece, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for node in nodes:
        sides = [own or Cost({}) for own in node.own]
        for piece in sides[0].pieces.keys() | sides[1].pieces.keys():
            for side, (us, calls) in enumerate(_both(piece, *sides)):
                times[piece][side] += us
                times[piece][2 + side] += calls
    found = [
        ModuleWork(
            operator=piece[0],
            kernel=piece[1],
            part=piece[2],
            before_us=before,
            after_us=after,
            calls_before=calls_before,
            calls_after=calls_after,
        )
        for piece, (before, after, calls_before, calls_after) in times.items()
    ]
    pushing = [work for work in found if work.change_us * change > 0]
    pushing.sort(key=lambda work: (-abs(work.change_us), work.operator, work.kernel))
    least = abs(change) * 0.05
    return [work for work in pushing if abs(work.change_us) >= least][:MOST_WORK]


def _both(piece: Piece, before: Cost, after: Cost) -> tuple[tuple[float, float], tuple[float, float]]:
    """Time and calls of a piece on both sides. What one side does not list may be there, and too short to be listed."""
    a, b = before.pieces.get(piece), after.pieces.get(piece)
    if a is None and b is not None:
        a = (min(before.unlisted_us, b[0]), b[1]) if before.unlisted_us else (0.0, 0.0)
    if b is None and a is not None:
        b = (min(after.unlisted_us, a[0]), a[1]) if after.unlisted_us else (0.0, 0.0)
    assert a is not None
    assert b is not None
    return a, b


def _row(node: Pair, noise: Noise) -> ModuleRow:
    own = [cost.us if cost is not None else None for cost in node.own]
    parts = [{part: us for part, us in node.parts(side).items() if us} for side in (0, 1)]
    return ModuleRow(
        path=node.path,
        kind=node.kind,
        class_name=node.class_of(1) or node.class_of(0),
        old_path=node.old_path,
        before_us=node.totals[0],
        after_us=node.totals[1],
        own_before_us=own[0],
        own_after_us=own[1],
        parts_before_us=parts[0],
        parts_after_us=parts[1],
        noise_us=2 * noise.deviation_us(node) if node.on_both else 0.0,
    )
