"""Whose each piece of GPU work is, against a slow reading of random traces, row by row."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import BACKWARD, MAIN, TraceBuilder

from proftrack.measures import measure

EVALUATE = "autograd::engine::evaluate_function: "
UNKNOWN = 1
"""A number below those of all operators: of an operator before recording began."""


@dataclass
class Row:
    """A host row, and what runs in it."""

    kind: str
    name: str = ""
    number: int | None = None
    parent: Row | None = None
    before: Row | None = None
    """Of a node, the one before it on its thread and in the same node."""
    children: list[Row] = field(default_factory=list)
    start: int = 0
    end: int = 0
    correlation: int = 0

    def above(self) -> Iterator[Row]:
        row = self.parent
        while row is not None:
            yield row
            row = row.parent

    def below(self) -> Iterator[Row]:
        for child in self.children:
            yield child
            yield from child.below()


class Program:
    """A random program: a forward pass, an optimizer, and nodes of a backward pass on a thread of their own."""

    def __init__(self, data: st.DataObject) -> None:
        self.data, self.clock, self.number, self.launches = data, 0, 10, 0
        self.operators: dict[int, Row] = {}
        self.whole = ""
        """The name of a region that holds all that the step does on its thread: it says no more than the step."""
        self.main: list[Row] = []
        self.backward: list[Row] = []
        for _ in range(self.several(1, 4)):
            self.main.append(self.forward(None, depth=0))
        for _ in range(self.several(0, 6)):
            self.backward.append(self.node(None, self.backward, depth=0))
        if self.choice(True, False):
            self.main.append(self.optimizer())
        rows = [row for row in self.main if row.kind != "launch"]
        if len(rows) == 1 and rows[0].kind == "region":
            self.whole = rows[0].name

    def choice(self, *values: object) -> object:
        return self.data.draw(st.sampled_from(values))

    def several(self, least: int, most: int) -> int:
        return self.data.draw(st.integers(least, most))

    def tick(self) -> int:
        self.clock += 10
        return self.clock

    def opened(self, parent: Row | None, kind: str, name: str = "", number: int | None = None) -> Row:
        row = Row(kind, name, number, parent, start=self.tick())
        if parent is not None:
            parent.children.append(row)
        return row

    def launch(self, parent: Row | None) -> Row:
        row = self.opened(parent, "launch")
        self.launches += 1
        row.correlation = self.launches
        row.end = self.tick()
        return row

    def operator(self, parent: Row | None, *, numbered: bool) -> Row:
        if numbered:
            self.number += 1
        row = self.opened(parent, "operator", "aten::mm", self.number if numbered else None)
        if numbered:
            self.operators[self.number] = row
        for _ in range(self.several(0, 2)):
            self.launch(row)
        row.end = self.tick()
        return row

    def forward(self, parent: Row | None, depth: int) -> Row:
        kinds = ["operator", "launch", *(["module", "region", "compiled"] if depth < 3 else [])]
        kind = self.choice(*kinds)
        if kind == "launch":
            return self.launch(parent)
        if kind == "operator":
            return self.operator(parent, numbered=bool(self.choice(True, False)))
        row = self.opened(parent, str(kind), f"{self.choice('a', 'b')}")
        for _ in range(self.several(0, 3)):
            self.forward(row, depth + 1)
        row.end = self.tick()
        return row

    def node(self, parent: Row | None, siblings: list[Row], depth: int) -> Row:
        number = self.choice(None, UNKNOWN, *self.operators)
        row = self.opened(parent, "node", "MmBackward0", number)  # type: ignore[arg-type]
        row.before = siblings[-1] if siblings else None
        inner = self.opened(row, "inner", "MmBackward0", number)  # type: ignore[arg-type]
        nested: list[Row] = []
        for _ in range(self.several(0, 3)):
            kind = self.choice("launch", "operator", "forward", *(["node"] if depth < 2 else []))
            if kind == "launch":
                self.launch(inner)
            elif kind == "operator":
                self.operator(inner, numbered=bool(self.choice(True, False)))
            elif kind == "forward":
                self.forward(inner, depth=1)
            else:
                nested.append(self.node(inner, nested, depth + 1))
        inner.end = self.tick()
        if self.choice(True, False):
            self.launch(row)  # adds gradients up
        row.end = self.tick()
        return row

    def optimizer(self) -> Row:
        row = self.opened(None, "optimizer")
        for _ in range(self.several(0, 2)):
            inner = self.opened(row, str(self.choice("group", "compiled")), "0")
            self.launch(inner)
            inner.end = self.tick()
        self.launch(row)
        row.end = self.tick()
        return row

    # -- the trace

    def write(self) -> TraceBuilder:
        trace = TraceBuilder().step(1, at=0, dur=self.tick())
        for thread, rows in ((MAIN, self.main), (BACKWARD, self.backward)):
            for row in rows:
                for each in (row, *row.below()):
                    self._write(trace, each, thread)
        return trace

    def _write(self, trace: TraceBuilder, row: Row, thread: int) -> None:
        where = {"at": row.start, "dur": row.end - row.start, "thread": thread}
        numbered = {} if row.number is None else {"Sequence_number": row.number, "Fwd_thread_id": 0}
        of_node = {} if row.number is None else {"Sequence_number": row.number, "Fwd_thread_id": 1}
        if row.kind == "launch":
            trace.launch(correlation=row.correlation, **where)
        elif row.kind == "operator":
            trace.op(row.name, **numbered, **where)
        elif row.kind == "module":
            trace.op(f"nn.Module: {row.name} (Block)", **where)
        elif row.kind == "compiled":
            trace.op(f"Torch-Compiled Region: {row.name}", **where)
        elif row.kind == "node":
            trace.op(EVALUATE + row.name, **of_node, **where)
        elif row.kind == "inner":
            trace.op(row.name, **of_node, **where)
        else:
            names = {"region": row.name, "optimizer": "Optimizer.step#SGD.step"}
            trace.region(names.get(row.kind, f"proftrack: parameter group {row.name}"), **where)


# -- the slow reading


def marker(row: Row) -> Row | None:
    """The innermost row at or above that owns what it holds."""
    for each in (row, *row.above()):
        if each.kind in ("module", "optimizer", "group", "node"):
            return each
        if each.kind == "compiled" and not inside_other(each):
            return each
        if each.kind in ("operator", "compiled") and recomputed(each):
            return each
    return None


def outer(row: Row) -> Row | None:
    return next((each for each in row.above() if each.kind in ("module", "optimizer", "group", "node")), None)


def inside_other(compiled: Row) -> bool:
    around = outer(compiled)
    return around is not None and around.kind in ("optimizer", "group", "node")


def recomputed(row: Row) -> bool:
    around = outer(row)
    if around is None or around.kind != "node":
        return False
    if row.kind == "compiled":
        return any(each.number is not None and each.kind == "operator" for each in row.below())
    if row.number is None or any(each.kind == "compiled" and recomputed(each) for each in row.above()):
        return False
    inner = next(each for each in row.above() if each.kind == "inner")
    last = [each for each in inner.children if each.kind != "launch"][-1]
    return inner.number is not None and not (last.kind == "operator" and last.number is not None)


def owner(row: Row, program: Program) -> tuple[str, str]:
    """Kind and path."""
    mark = marker(row)
    if mark is None:
        regions = (each for each in (row, *row.above()) if each.kind == "region" and each.name != program.whole)
        region = next(regions, None)
        return ("region", region.name) if region is not None else ("none", "")
    names = {
        "module": ("module", mark.name),
        "optimizer": ("optimizer", "SGD"),
        "group": ("optimizer", f"SGD.group {mark.name}"),
    }
    if mark.kind in names:
        return names[mark.kind]
    if mark.kind == "node":
        return of_node(mark, program)
    around = outer(mark)
    if recomputed(mark):
        assert around is not None
        return of_node(around, program)
    return "compiled", f"{around.name}.compiled {mark.name}" if around is not None else f"compiled {mark.name}"


def of_node(node: Row, program: Program) -> tuple[str, str]:
    if node.number in program.operators:
        return owner(program.operators[node.number], program)
    before = node.before if node.number is None else None
    while before is not None and before.number is None:
        before = before.before
    if before is not None:
        return of_node(before, program)
    around = next((each for each in node.above() if each.kind == "node"), None)
    return of_node(around, program) if around is not None else ("none", "")


def part(row: Row, program: Program) -> str:
    mark = marker(row)
    if mark is None:
        gone_back_to = {
            each.number for root in program.backward for each in (root, *root.below()) if each.kind == "node"
        }
        operators = [each for each in (row, *row.above()) if each.kind == "operator"]
        return "forward" if any(each.number in gone_back_to for each in operators if each.number) else "other"
    if mark.kind == "node":
        return "backward"
    if mark.kind in ("optimizer", "group"):
        return "optimizer"
    again = mark.kind == "operator" or any(each.kind == "node" for each in mark.above())
    return "recompute" if again else "forward"


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_any_work_has_the_owner_that_a_slow_reading_finds(data: st.DataObject) -> None:
    program = Program(data)
    trace = program.write()
    busy: dict[int, list[int]] = defaultdict(list)
    rows = [each for row in (*program.main, *program.backward) for each in (row, *row.below())]
    for row in rows:
        if row.kind == "launch":
            at, dur = row.start + program.several(1, 30), program.several(0, 40)
            trace.kernel(at=at, dur=dur, correlation=row.correlation, stream=100 + row.correlation)
            for moment in range(at, at + dur):
                busy[moment].append(row.correlation)
    expected: Counter[tuple[str, str, str]] = Counter()
    by_launch = {row.correlation: row for row in rows if row.kind == "launch"}
    for running in busy.values():
        for correlation in running:
            row = by_launch[correlation]
            key = (*owner(row, program), part(row, program))
            expected[key] += 1 / len(running)  # type: ignore[assignment]  # Counter may hold floats
    found = measure(trace.table())
    if not by_launch:
        return
    assert sum(row.busy_us for row in found.modules) == pytest.approx(found.busy_us if found.modules else 0, abs=1e-3)
    if found.modules:
        parts = ("forward", "backward", "recompute", "optimizer", "other")
        times = {(row.kind, row.path, name): row.part_us(name) for row in found.modules for name in parts}  # type: ignore[arg-type]
        assert {key: us for key, us in times.items() if us} == pytest.approx(dict(expected))
        assert sum(row.host_us for row in found.modules) == pytest.approx(found.per_step[0].self_cpu_time_us)
