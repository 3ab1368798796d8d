"""A comparison as a page: the headline, the times, what explains the change, what else differs; and a gate on it."""

from __future__ import annotations

from proftrack.compare.gate import NOISE, Gate
from proftrack.compare.headline import named, parts
from proftrack.compare.limits import Check
from proftrack.compare.module_limits import PREFIX
from proftrack.compare.results import (
    CommitRange,
    Comparison,
    Count,
    Counted,
    Different,
    ModuleChange,
    ModuleWork,
    Row,
    Side,
    TimeChange,
)
from proftrack.report.document import Block, Column, Document, Items, Lead, Table, Tone
from proftrack.report.pages.times import legend
from proftrack.text import brief, changes, counted, difference, duration, figure, moment, number, percent, short_time

_TONES: dict[str, Tone] = {"improved": "good", "regressed": "bad", "inconclusive": "unclear", "no difference": "plain"}
_OUTCOMES: dict[str, Tone] = {"pass": "good", "fail": "bad", "inconclusive": "unclear"}
_MARKS = {"pass": "pass", "fail": "FAIL", "inconclusive": "?"}
_NAMES = {"step_time_us": "T  step time", "gpu_busy_per_step_us": "B  GPU busy"}
_PARTS = {"gpu": "GPU", "idle": "idle", "host": "host", "profiler": "profiler"}
_LEAST = 0.0005
"""Share of the step time below which rows are combined."""
_MOST = 14
_HASH = 12


def page(comparison: Comparison) -> Document:
    """The full comparison."""
    blocks: list[Block] = [
        Lead(comparison.headline, _TONES[comparison.word]),
        Items("Compared", [_side("baseline", comparison.baseline), _side("candidate", comparison.candidate)]),
        _times(comparison),
        Items("Why", [comparison.step_time.reason]),
        _counts(comparison.counts),
        _modules(comparison),
        Items("Modules", _module_notes(comparison)),
        _rows(comparison),
        _counters(comparison.counters),
        _host(comparison),
        _changed(comparison.changed),
        *_commits(comparison.commits),
        Items("Compared despite these differences", [f"{d.name}: {d.before} and {d.after}" for d in comparison.across]),
        Items("Notes", comparison.notes),
    ]
    return Document(f"proftrack compare: {comparison.word}", blocks)


def _side(noun: str, side: Side) -> str:
    parts = [f"{noun}: {side.name}"]
    if side.run_id:
        parts.append(f"run {side.run_id}")
    if side.commit:
        parts.append(f"commit {side.commit[:_HASH]}{' with uncommitted changes' if side.dirty else ''}")
    if side.branch:
        parts.append(f"branch {side.branch}")
    if side.started_ns:
        parts.append(moment(side.started_ns))
    parts.append(f"{side.regime} ({side.confidence} confidence)")
    if side.runs > 1:
        parts.append(f"{side.runs} runs")
    return ", ".join(parts)


def _times(comparison: Comparison) -> Table:
    changes = [comparison.step_time, *([comparison.busy] if comparison.busy else [])]
    idle = _idle(comparison)
    rows = [_time(change) for change in changes] + ([idle] if idle else [])
    basis = "without the profiler" if comparison.basis == "unprofiled" else "in the traces"
    return Table(
        f"Per step ({basis})",
        ("time", "before", "after", "change", "95 % interval", "result"),
        rows,
        note=legend(["T", "B"]) if comparison.busy else legend(["T"]),
        folded=False,
    )


def _time(change: TimeChange) -> tuple[str, ...]:
    bounds = (change.interval.low, change.interval.high) if change.interval else ()
    ratio, *interval = changes(change.ratio, *bounds)
    return (
        _NAMES.get(change.metric, change.metric),
        duration(change.before_us),
        duration(change.after_us),
        ratio,
        " to ".join(interval) or "-",
        change.word,
    )


def _idle(comparison: Comparison) -> tuple[str, ...] | None:
    busy, time = comparison.busy, comparison.step_time
    if busy is None:
        return None
    before, after = time.before_us - busy.before_us, time.after_us - busy.after_us
    return ("   T - B", duration(before), duration(after), _signed(after - before), "-", "-")


def _signed(us: float) -> str:
    return f"{'+' if us > 0 else '-' if us < 0 else ''}{duration(abs(us))}"


def _counts(counts: list[Count]) -> Table:
    rows = [
        (f"{count.name} per step", number(count.before), number(count.after), _delta(count))
        for count in counts
        if count.before or count.after
    ]
    return Table("Counts", ("count", "before", "after", "change"), rows, folded=False)


def _delta(count: Count) -> str:
    change = count.after - count.before
    return "same" if not change else ("+" if change > 0 else "-") + number(abs(change))


def _modules(comparison: Comparison) -> Table:
    """Modules that changed, as deep as the change is; largest first."""
    rows = [
        (
            named(change),
            duration(change.before_us) if change.status != "added" else "-",
            duration(change.after_us) if change.status != "gone" else "-",
            _signed(change.change_us),
            ", ".join(f"{part} {short_time(us)}" for part, us in parts(change)),
            "; ".join([*_identity(change), *map(_module_work, change.work)]),
        )
        for change in comparison.modules
    ]
    time = "GPU time" if comparison.busy else "Self CPU time"
    return Table(
        "Modules that changed",
        (
            Column(label="module", kind="code"),
            Column(label="before"),
            Column(label="after"),
            Column(label="change"),
            Column(label="of it", kind="text"),
            Column(label="what changed most", kind="text"),
        ),
        rows,
        note=f"{time} in a typical step of the traces, with the modules inside. Named as deep as the change is.",
        folded=False,
        below=5,
    )


def _identity(change: ModuleChange) -> list[str]:
    """What it was before, if it was something else."""
    facts = [f"class {change.old_class} -> {change.class_name}"] if change.old_class else []
    facts += [f"was {change.old_path}"] if change.old_path else []
    return facts + {"added": ["new"], "gone": ["gone"], "rebuilt": ["made of other modules"]}.get(change.status, [])


def _module_work(work: ModuleWork) -> str:
    name = f"{work.operator} ({brief(work.kernel, 40)})" if work.operator and work.kernel else work.operator
    calls = "" if _near(work.calls_before, work.calls_after) else f", {_numbers(work.calls_before, work.calls_after)}"
    return f"{name or brief(work.kernel, 60)} {_signed(work.change_us)}{calls}"


def _near(a: float, b: float) -> bool:
    return abs(a - b) < 0.01 * max(a, b)


def _numbers(before: float, after: float) -> str:
    return f"{number(before)} -> {number(after)} calls"


def _module_notes(comparison: Comparison) -> list[str]:
    same = comparison.module_rows and not comparison.modules
    return [*comparison.module_notes, *(["No module changed by more than noise."] if same else [])]


def _rows(comparison: Comparison) -> Table:
    """The contributions, largest first; small ones are combined so that the column still adds up."""
    time = comparison.step_time
    least = _LEAST * max(time.before_us, time.after_us)
    shown = [row for row in comparison.rows if abs(row.change_us) >= least][:_MOST]
    small = comparison.rows[len(shown) :]
    rows = [_row(row) for row in shown]
    if small:
        rows.append(_sum(counted(len(small), "other"), small))
    total = _sum("T  step time", comparison.rows)
    return Table(
        "Where the change comes from",
        (Column(label="part", kind="word"), "name", "before", "after", "contributes", "calls per step"),
        [*rows, total],
        numbers=2,
        note="Contributions add up to the change in step time; those of the GPU add up to the change in B.",
        most=_MOST + 2,
    )


def _row(row: Row) -> tuple[str, ...]:
    return (
        f"{_PARTS[row.part]} {row.status}",
        _what(row),
        duration(row.before_us),
        duration(row.after_us),
        _signed(row.change_us),
        _calls(row),
    )


def _what(row: Row) -> str:
    if row.part != "gpu":
        return row.name
    name = f"{brief(row.old_name, 40)} -> {brief(row.name, 40)}" if row.old_name else brief(row.name, 60)
    shapes = f" {row.shapes}" if row.shapes else ""
    where = f" ({row.operator}{shapes})" if row.operator else ""
    return f"{name}{where}{f': {row.note}' if row.note else ''}"


def _calls(row: Row) -> str:
    if not row.calls_before and not row.calls_after:
        return ""
    before, after = number(row.calls_before), number(row.calls_after)
    return before if before == after else f"{before} -> {after}"


def _sum(name: str, rows: list[Row]) -> tuple[str, ...]:
    before, after = sum(row.before_us for row in rows), sum(row.after_us for row in rows)
    return ("", name, duration(before), duration(after), _signed(after - before), "")


def _counters(counters: list[Counted]) -> Table:
    rows = [(f"{row.name}, of {row.of}" if row.of else row.name, *_both(row)) for row in counters]
    note = "Use of a unit is counted without the profiler, and is that while the GPU is busy."
    return Table("Hardware counters", ("counter", "before", "after", "change"), rows, note=note, folded=False)


def _both(row: Counted) -> tuple[str, str, str]:
    sides = [
        "absent" if value is None else percent(value) if row.of else figure(row.metric, value)
        for value in (row.before, row.after)
    ]
    if row.change is None:
        return sides[0], sides[1], "-"
    relative = changes(row.after / row.before)[0] if row.before and row.after is not None else "-"
    return sides[0], sides[1], f"{100 * row.change:+.1f} points" if row.of else relative


def _host(comparison: Comparison) -> Table:
    rows = [
        (
            row.name,
            row.status,
            f"{number(row.calls_before)} -> {number(row.calls_after)}",
            f"{duration(row.self_before_us)} -> {duration(row.self_after_us)}",
        )
        for row in comparison.host
    ]
    return Table(
        "Calls on the host that changed in number",
        ("operator or call", "", "calls per step", "self CPU per step, profiled"),
        rows,
        numbers=2,
        code=True,
    )


def _changed(changed: list[Different]) -> Table:
    rows = [(d.name, d.before or "-", d.after or "-") for d in changed]
    return Table("Other differences", ("name", "before", "after"), rows, numbers=3, most=20)


def _commits(span: CommitRange | None) -> list[Block]:
    if span is None:
        return []
    head = f"{span.before[:_HASH]}..{span.after[:_HASH]}"
    if not span.known:
        return [Items("Commits", [f"{head} (this repository does not have both)"])]
    lines = [f"{commit.hash[:_HASH]} {commit.subject}" for commit in span.commits]
    more = [f"and {span.more} more"] if span.more else []
    summary = f": {span.summary}" if span.summary else ""
    return [Items(f"Commits {head}{summary}", [*lines, *more] or ["none: the candidate's commit is not a later one"])]


# ---- a gate ----------------------------------------------------------------------------------------------------------


def gate_page(gate: Gate) -> Document:
    """A gate for CI: the outcome, the limits, and the comparison behind it."""
    compared = [f"candidate: {gate.candidate}", f"baseline: {gate.baseline or 'none'}", f"policy: {gate.policy}"]
    rows = [_limit(check) for check in gate.checks]
    limits = Table(
        "Limits", ("", "metric", "limit", "reason", "baseline", "candidate"), rows, numbers=4, folded=False, below=3
    )
    comparison = page(gate.comparison).blocks if gate.comparison else []
    lead = Lead(f"{gate.outcome.upper()}: {gate.reason}", _OUTCOMES[gate.outcome])
    return Document(f"proftrack gate: {gate.outcome}", [lead, Items("Checked", compared), limits, *comparison])


def _limit(check: Check) -> tuple[str, ...]:
    mark = _MARKS[check.outcome] if check.counted else "not counted"
    return (mark, check.name, check.limit, check.reason, _value_of(check, check.before), _value_of(check, check.after))


def _value_of(check: Check, value: float | None) -> str:
    if check.name.startswith(PREFIX):
        return duration(value)
    return difference(value) if check.name == NOISE and value is not None else figure(check.name, value)
