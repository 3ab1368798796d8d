"""The modules as tiles of an icicle: as wide as their time, a level of the tree below the other.

    whole step
    forward                | backward                            | optimizer
    LlamaForCausalLM       | LlamaForCausalLM            | clip  | AdamW
    layers        |lm_head | layers                    |lm_|     | group 0
    0  |1  |2  |3 |        | 0     |1     |2     |3    |   |

A tile that its children do not fill has the rest itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from proftrack.record import Record
from proftrack.record.modules import PASSES, Node, OwnedWork, Pass
from proftrack.record.owners import forest, in_order
from proftrack.report.document import Share
from proftrack.text import brief, duration, percent, plain

MOST_TILES = 4_000
"""The largest are kept: a model of 2,000 modules that is trained has three times as many."""
MOST_DRAWN = 400
_LEAST_DRAWN = 0.001
"""Of the picture that needs no script: narrower tiles are left out."""
_NAME, _KERNEL = 120, 70
NO_OWNER = "no owner"


class Tile(Struct, frozen=True, kw_only=True):
    """A rectangle of the icicle. Microseconds per step, if there are steps; start and share: of the whole, 0 to 1."""

    name: str
    part: Pass | None
    """None for the whole step."""
    node: Node | None
    """None for the whole step, and for a whole pass."""
    parent: int
    """Index of the tile above; -1 for the whole step."""
    depth: int
    start: float
    share: float
    us: float
    own_us: float
    """Without what is below it."""

    @property
    def style(self) -> str:
        """Its fill in the palette."""
        return f"pass-{self.part or 'all'}"

    @property
    def hint(self) -> str:
        """All about it in one line."""
        path = self.node.path if self.node is not None else ""
        whose = f"{plain(path or self.name, _NAME)} in {self.part}" if self.node is not None else self.name
        return f"{whose}: {duration(self.us)}, {percent(self.share)}"


class Tiles(Struct, frozen=True):
    """An icicle; parents come before their children."""

    what: str
    """What the widths are: "GPU time" or "self CPU time"."""
    per: str
    """ " per step"; empty if there are no steps."""
    tiles: list[Tile]
    steps: int
    left_out: int
    """How many tiles are too small to be kept."""

    @property
    def depth(self) -> int:
        """Number of levels."""
        return 1 + max(tile.depth for tile in self.tiles)

    @property
    def passes(self) -> list[Share]:
        """The level below the whole step."""
        return [
            Share(
                style=tile.style,
                label=tile.name,
                value=duration(tile.us),
                start=100 * tile.start,
                share=100 * tile.share,
            )
            for tile in self.tiles
            if tile.depth == 1
        ]

    @property
    def drawn(self) -> list[Tile]:
        """Those of a picture that cannot be zoomed into."""
        wide = sorted((tile for tile in self.tiles if tile.share >= _LEAST_DRAWN), key=lambda tile: -tile.share)
        return wide[:MOST_DRAWN]


def tiles(record: Record) -> Tiles | None:
    """The icicle of a record's modules; None if it has none, or they took no time."""
    roots, steps = in_order(forest(record.modules)), record.steps_of_modules
    whole = sum(node.busy_us for node in roots)
    if not whole:
        return None
    found = [_Found("whole step" if record.typical_steps else "all", None, None, -1, 0, whole)]
    for part in PASSES:
        us = sum(node.part_us(part) for node in roots)
        if us:
            found.append(_Found(part, part, None, 0, 1, us))
            _add(found, roots, part, len(found) - 1)
    kept = _largest(found)
    return Tiles(what(record), per(record), _placed(kept, whole, steps), steps, len(found) - len(kept))


def what(record: Record) -> str:
    """What the times in `Record.modules` are."""
    return "GPU time" if record.totals.gpu_events else "self CPU time"


def per(record: Record) -> str:
    """How a time of modules goes on in a sentence."""
    return " per step" if record.typical_steps else ""


class _Found(Struct):
    """A tile without its place."""

    name: str
    part: Pass | None
    node: Node | None
    parent: int
    depth: int
    us: float


def _add(found: list[_Found], nodes: Sequence[Node], part: Pass, parent: int) -> None:
    """Add the nodes that have time in a pass below a tile, each with all that is below it."""
    depth = found[parent].depth + 1
    for node in nodes:
        us = node.part_us(part)
        if us > 0:
            found.append(_Found(label(node), part, node, parent, depth, us))
            _add(found, in_order(list(node.children.values())), part, len(found) - 1)


def label(node: Node) -> str:
    """What a node is called below the one that it is in."""
    return node.name or node.class_name or (NO_OWNER if node.kind == "none" else "model")


def _largest(found: list[_Found]) -> list[_Found]:
    """The largest, in the order given. None is larger than its parent, so that no tile loses the one above it."""
    if len(found) <= MOST_TILES:
        return found
    order = sorted(range(len(found)), key=lambda i: -found[i].us)  # of equal ones the parent, which comes first
    kept = sorted(order[:MOST_TILES])
    now = {before: after for after, before in enumerate(kept)}
    for i in kept:
        found[i].parent = now.get(found[i].parent, -1)
    return [found[i] for i in kept]


def _placed(found: list[_Found], whole: float, steps: int) -> list[Tile]:
    """Each tile right of the one before it in its parent."""
    out: list[Tile] = []
    free: list[float] = []
    for each in found:
        start = free[each.parent] if each.parent >= 0 else 0.0
        share = each.us / whole
        if each.parent >= 0:
            free[each.parent] += share
        free.append(start)
        out.append(
            Tile(
                name=each.name,
                part=each.part,
                node=each.node,
                parent=each.parent,
                depth=each.depth,
                start=start,
                share=share,
                us=each.us / steps,
                own_us=_own_us(each) / steps,
            )
        )
    return out


def _own_us(found: _Found) -> float:
    own = found.node.own if found.node is not None else None
    return own.part_us(found.part) if own is not None and found.part is not None else 0.0


def data(icicle: Tiles) -> dict[str, Any]:
    """What the page's script draws: tiles as columns, and what is said of their owners. Microseconds per step."""
    names: dict[str, int] = {}
    owners: dict[int, int] = {}
    rows: list[Any] = []

    def index(name: str) -> int:
        return names.setdefault(plain(name, 3 * _NAME), len(names))

    def owner(node: Node | None) -> int:
        if node is None:
            return -1
        if id(node) not in owners:
            owners[id(node)] = len(owners)
            rows.append(_owner(node, icicle.steps, index))
        return owners[id(node)]

    return {
        "what": icicle.what,
        "per": icicle.per,
        "parts": PASSES,
        "name": [index(tile.name) for tile in icicle.tiles],
        "part": [PASSES.index(tile.part) if tile.part else -1 for tile in icicle.tiles],
        "parent": [tile.parent for tile in icicle.tiles],
        "us": [_rounded(tile.us) for tile in icicle.tiles],
        "own": [_rounded(tile.own_us) for tile in icicle.tiles],
        "owner": [owner(tile.node) for tile in icicle.tiles],
        "owners": rows,
        "names": list(names),
    }


def _owner(node: Node, steps: int, index: Callable[[str], int]) -> list[Any]:
    """Path, class, calls, time by pass, largest pieces of work."""
    own = node.own
    calls = _rounded(own.calls / steps) if own is not None else 0
    times = [_rounded(node.part_us(part) / steps) for part in PASSES]
    work = [_work(each, steps, index) for each in own.largest] if own is not None else []
    return [index(node.path or label(node)), index(about(node)), calls, times, work]


def _work(work: OwnedWork, steps: int, index: Callable[[str], int]) -> list[Any]:
    part, calls, us = PASSES.index(work.part), _rounded(work.calls / steps), _rounded(work.busy_us / steps)
    return [index(work.operator), index(brief(work.kernel, _KERNEL)), part, calls, us]


def _rounded(value: float) -> float:
    """To a tenth of a nanosecond; a whole number is an integer, which is shorter in JSON."""
    value = round(value, 4)
    return int(value) if value == int(value) else value


def about(node: Node) -> str:
    """A module's class; of anything else, what it is."""
    if node.kind == "module":
        return node.class_name
    return {"compiled": "compiled region", "none": ""}.get(node.kind, node.kind)
