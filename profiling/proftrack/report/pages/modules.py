"""Whose time it is: the modules of a record, as a section, a block, a few lines, and one of them alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from proftrack.record import Record
from proftrack.record.modules import PASSES, Module, Node, Pass, has_modules, owned_share
from proftrack.record.owners import Group, blocks, folded, forest, largest, outermost
from proftrack.report.document import (
    Block,
    Cell,
    Chips,
    Column,
    Document,
    Icicle,
    Lead,
    Paragraph,
    Section,
    Table,
    code,
)
from proftrack.report.pages.environment import title
from proftrack.report.tiles import NO_OWNER, about, per, tiles, what
from proftrack.text import brief, counted, duration, listed, number, percent, plain

MOST, FEW = 10, 5
_ROWS = 40
_BELOW, _WORK = 40, 15
_IN_SENTENCE = 4
_NAME, _CLASS, _KERNEL, _REASON, _REASONS = 90, 30, 60, 200, 2
_LOOKED_INTO = 0.25
"""In a short table, an owner with a larger share is followed by the largest ones below it."""
_SHOWN_BELOW, _LEAST_BELOW = 3, 0.05
_LEAST_SUMMED, _MOST_OF_ALL = 0.001, 0.9
_COLUMNS: dict[Pass, str] = {
    "forward": "the part of it in forward",
    "backward": "the part of it in backward",
    "recompute": "the part of it in a forward that activation checkpointing runs again during backward",
    "optimizer": "the part of it in an optimizer's step",
}


# ---- the section of the report ---------------------------------------------------------------------------------------


def section(record: Record) -> Section | None:
    """The icicle, and the modules at the depth of blocks as a table; None without any."""
    icicle = tiles(record)
    if icicle is None:
        return Section("Modules", graphs(record), "modules") if record.graphs else None
    roots = forest(record.modules)
    at_depth = [_alone(node) for node in blocks(roots)]
    of = "B, the GPU's busy time" if icicle.what == "GPU time" else "the self CPU time"
    backward = has_modules(record.modules) and any(module.backward_us for module in record.modules)
    follows = " Backward work belongs to the module whose forward it follows from." if backward else ""
    lines: list[Block] = [
        Paragraph(f"All of {of} by owner. {_owned(record)}{follows}", "muted"),
        *graphs(record),
        Icicle("", icicle),
        Section("Summed over modules that are alike", [_table(record, _summed(roots), _ROWS)]),
        Section("At the depth of blocks", [_table(record, at_depth, _covering(at_depth))]),
    ]
    return Section("Modules", lines, "modules")


def _owned(record: Record) -> str:
    if not has_modules(record.modules):
        why, remedy = without_modules(record)
        return f"{_capital(why)}: {remedy}."
    return f"{percent(owned_share(record.modules))} of {what(record)} has an owner at the depth of a block or deeper."


def without_modules(record: Record) -> tuple[str, str]:
    """Why a record has no modules, and what to do to see them."""
    marked = record.run.profiler.get("modules") if record.run is not None else None
    if marked:
        problem = "no module was called in the recorded steps"
        return problem, "call the model, not its `forward`, or put `record_function` around its parts"
    if marked is not None:
        return "modules were not marked (profiler.modules is false)", "measure again with `--modules true`"
    remedy = "record it with `proftrack run` or `proftrack.profile()`, or with torch.profiler's with_stack=True"
    return "the trace has no modules", remedy


def _alone(node: Node) -> Group:
    return Group(node.path, [node])


def _covering(groups: Sequence[Group]) -> int:
    """How many of the first groups have most of the time."""
    least, count = _MOST_OF_ALL * sum(group.busy_us for group in groups), 0
    while least > 0 and count < min(len(groups), _ROWS):
        least -= groups[count].busy_us
        count += 1
    return count


def _summed(roots: Sequence[Node]) -> list[Group]:
    """The groups from the depth of blocks on, without the smallest; largest first."""
    groups = [group for top in _at_depth(folded(roots)) for group in top.walk()]
    least = _LEAST_SUMMED * sum(node.busy_us for node in roots)
    return sorted((group for group in groups if group.busy_us > least), key=lambda group: -group.busy_us)


def _table(record: Record, groups: Sequence[Group], most: int, heading: str = "", within: str = "") -> Table:
    """A row for each group; the columns of passes are those that take time, if there are several."""
    parts = [part for part in _COLUMNS if any(group.part_us(part) for group in groups)]
    parts = parts if len(parts) > 1 else []
    steps, whole = record.steps_of_modules, sum(module.busy_us for module in record.modules) or 1.0
    more = [name for name in ("communication", "copies") if any(_sum(g, f"{name}_us") for g in groups)]
    columns = [
        Column(
            label="module" if has_modules(record.modules) else "owner",
            kind="code",
            hint="* stands for a number; what is no module is named as what it is",
            keeps_end=True,
        ),
        Column(label="share", hint=f"share of {what(record)}, with all modules below it"),
        Column(label=per(record).strip() or "time", hint=f"the same{per(record)}"),
        *(Column(label=part, hint=_COLUMNS[part]) for part in parts),
        Column(label="itself", hint="without the modules below it"),
        *(Column(label=name, hint="the part of its time, with all below it") for name in more),
        Column(label="calls", hint=f"calls of all of them{per(record)}"),
        Column(label="class", kind="word"),
    ]
    cells = [
        [
            _cut(name_of(group, within), _NAME),
            Cell(text=percent(group.busy_us / whole), value=group.busy_us / whole),
            _time(group.busy_us / steps),
            *(_time(group.part_us(part) / steps) for part in parts),
            _time(group.own_us / steps),
            *(_time(_sum(group, f"{name}_us") / steps) for name in more),
            _calls(group, steps),
            _cut(about(group.nodes[0]), _CLASS),
        ]
        for group in groups[:most]
    ]
    left = groups[most:]
    rest = percent(sum(group.busy_us for group in left) / whole) if left else ""
    note = f"{counted(len(left), 'more row')}, {rest} of the time, in record.json." if left else ""
    return Table(heading, columns, cells, note=note, most=most, folded=False, sortable=True, cut=len(left))


def _cut(name: str, limit: int) -> Cell:
    return Cell(text=plain(name, limit), hint=plain(name, 6 * limit) if len(name) > limit else "")


def name_of(group: Group, within: str = "") -> str:
    """The pattern, and how many there are of it; of modules within another one, without the path of that."""
    node = group.nodes[0]
    name = (
        (group.pattern.removeprefix(f"{within}.") if within else group.pattern)
        or node.class_name
        or (NO_OWNER if node.kind == "none" else "model")
    )
    return f"{name} ({len(group.nodes)})" if len(group.nodes) > 1 else name


def _time(us: float) -> Cell:
    return Cell(text=duration(us) if us else "-", value=us)


def _calls(group: Group, steps: int) -> Cell:
    calls = sum(node.own.calls for node in group.nodes if node.own is not None) / steps
    return Cell(text=number(calls) if calls else "-", value=calls)


def _sum(group: Group, name: str) -> float:
    """A figure of a row, of the group with all below it."""
    return sum(float(getattr(own, name)) for own in _rows(group.nodes))


def _rows(nodes: Sequence[Node]) -> Iterator[Module]:
    return (each.own for node in nodes for each in node.walk() if each.own is not None)


# ---- short forms -----------------------------------------------------------------------------------------------------


def block(record: Record, most: int = MOST, *, passes: bool = True) -> list[Block]:
    """The largest owners at the depth of blocks, alike ones summed, below the passes; nothing without modules."""
    icicle = tiles(record)
    if icicle is None:
        return graphs(record)
    heading = (
        f"Modules ({_owned(record).rstrip('.')})"
        if has_modules(record.modules)
        else f"Owners ({without_modules(record)[0]})"
    )
    shown = _table(record, _few(record, most), most)
    wanted = ("module", "owner", "class", "share", "per step", "time", *_COLUMNS)
    at = [i for i, column in enumerate(shown.columns) if column.label in wanted]
    rows_ = [[row[i] for i in at] for row in shown.cells]
    table = Table(heading, [shown.columns[i] for i in at], rows_, most=most, folded=False)
    several = passes and len(icicle.passes) > 1
    by_pass: list[Block] = [Icicle(f"{_capital(icicle.what)}{icicle.per}, by pass", icicle)]
    return [*(by_pass if several else []), table, *graphs(record)]


def _few(record: Record, most: int) -> list[Group]:
    """The largest groups at the depth of blocks; a large one is followed by the largest below it."""
    roots = forest(record.modules)
    whole = sum(node.busy_us for node in roots)
    out: list[Group] = []
    for group in sorted(_at_depth(folded(roots)), key=lambda group: -group.busy_us):
        below = [child for child in group.children if child.busy_us > _LEAST_BELOW * whole]
        out += [group, *below[: _SHOWN_BELOW if group.busy_us > _LOOKED_INTO * whole else 0]]
    return out[:most]


def _at_depth(groups: Sequence[Group]) -> Iterator[Group]:
    """Groups of several, single blocks, and those without children; what is above them with its own time only."""
    for group in groups:
        if len(group.nodes) > 1 or group.nodes[0].numbered == "*" or not group.children:
            if group.busy_us:
                yield group
            continue
        node = group.nodes[0]
        if node.own_us:
            yield _alone(Node(node.name, node.path, node.own))
        yield from _at_depth(group.children)


def lines(record: Record) -> list[Block]:
    """The same in sentences: what share the passes and the largest owners have."""
    icicle = tiles(record)
    if icicle is None:
        return graphs(record)
    whole = sum(module.busy_us for module in record.modules)
    groups = sorted(_at_depth(folded(forest(record.modules))), key=lambda group: -group.busy_us)[:_IN_SENTENCE]
    owners = [f"{code(plain(name_of(group), _KERNEL))} {percent(group.busy_us / whole)}" for group in groups]
    passes = [f"{part.label} {percent(part.share / 100)}" for part in icicle.passes]
    by_pass = f" By pass: {listed(passes)}." if len(passes) > 1 else ""
    owner = "module" if has_modules(record.modules) else "owner"
    said = f"{_capital(icicle.what)} by {owner}: {listed(owners)}.{by_pass}"
    return [Paragraph(said), *graphs(record)]


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def graphs(record: Record) -> list[Block]:
    """How many of the replayed CUDA graphs are named and from where, and why the others are not; in one line."""
    named = [graph for graph in record.graphs if graph.named]
    left = [graph for graph in record.graphs if not graph.named]
    if not record.graphs:
        return []
    count = counted(len(record.graphs), "replayed CUDA graph")
    said = []
    if named:
        captures = sorted({plain(graph.capture, _NAME) for graph in named if graph.capture})
        source = f" by the capture in {listed([code(name) for name in captures])}" if captures else ""
        said.append(f"The work of {f'{len(named)} of {count}' if left else count} is named{source}.")
    if left:
        said.append(f"{f'That of {len(left)}' if named else f'The work of {count}'} has no operators.")
        reasons = dict.fromkeys(f"{plain(graph.problem, _REASON).rstrip('.')}." for graph in left if graph.problem)
        said += list(reasons)[:_REASONS]
    return [Paragraph(" ".join(said))]


# ---- one module ------------------------------------------------------------------------------------------------------


def one(record: Record, nodes: Sequence[Node], name: str, rank: int | None = None) -> Document:
    """The owners that a name stands for, summed and each; what is below them; their operators and kernels."""
    steps, whole = record.steps_of_modules, sum(module.busy_us for module in record.modules)
    group = Group(nodes[0].path if len(nodes) == 1 else name, outermost(nodes))
    share = group.busy_us / whole if whole else 0.0
    prefix = "" if rank is None else f"rank {rank}: "
    classes = sorted({about(node) for node in nodes} - {""})
    parts = [(part, duration(group.part_us(part) / steps)) for part in PASSES if group.part_us(part)]
    on_gpu = ["host"] if record.totals.gpu_events else []
    figures = [("itself", group.own_us)] if any(node.children for node in nodes) else []
    figures += [(word, _sum(group, f"{word}_us")) for word in ("communication", "copies", *on_gpu)]
    calls = sum(node.own.calls for node in group.nodes if node.own is not None) / steps
    chips = [*parts, *((word, duration(us / steps)) for word, us in figures if us)]
    chips += [("calls", number(calls))] if calls else []
    below = folded([child for node in group.nodes for child in node.children.values()])
    shown: list[Block] = [
        Lead(
            f"{prefix}{plain(name_of(group), _NAME)}: {duration(group.busy_us / steps)}{per(record)}, "
            f"{percent(share)} of {what(record)}"
        ),
        Chips([*(("", plain(word, _NAME)) for word in classes[:3]), *chips]),
    ]
    if len(nodes) > 1:
        ordered = sorted(nodes, key=lambda node: -node.busy_us)
        shown.append(_table(record, [_alone(node) for node in ordered], _BELOW, "Each"))
    inside = [inner for top in below for inner in top.walk() if inner.busy_us]
    shown.append(_table(record, inside, _BELOW, "Below it", group.pattern))
    shown.append(_work(record, group))
    return Document(title(record), shown)


def _work(record: Record, group: Group) -> Table:
    found, whole, steps = largest(group.nodes), group.busy_us, record.steps_of_modules
    with_kernels = any(each.kernel for each in found.work)
    heads = [
        Column(label="operator", kind="text"),
        *([Column(label="GPU work", kind="code")] if with_kernels else []),
        Column(label="pass", kind="word"),
        Column(label="calls", hint=per(record).strip()),
        Column(label=per(record).strip() or "time"),
        Column(label="share", hint="of the module's time"),
    ]
    cells = [
        [
            Cell(text=plain(each.operator, _NAME) or "-"),
            *([Cell(text=brief(each.kernel, _KERNEL) or "-")] if with_kernels else []),
            Cell(text=each.part),
            Cell(text=number(each.calls / steps), value=each.calls / steps),
            _time(each.busy_us / steps),
            Cell(text=percent(each.busy_us / whole) if whole else "-", value=each.busy_us),
        ]
        for each in found.work[:_WORK]
    ]
    rest = found.missing_us + sum(each.busy_us for each in found.work[_WORK:])
    note = f"The other {duration(rest / steps)} are smaller pieces: of each module, the record has the largest only."
    partial = whole and rest / whole >= 0.0005
    return Table("Operators and kernels", heads, cells, note=note if partial else "", most=_WORK, folded=False)
