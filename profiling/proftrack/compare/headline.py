"""A comparison in one line: the word, the step times, and the cause that weighs most.

What is certain comes before what is likely: launches, waits and kernels that changed are facts of the traces even where
the step time is within the noise.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from proftrack.compare.results import Count, Different, HostRow, Row, TimeChange
from proftrack.compare.why import LAUNCHES, WAITS, reads_back
from proftrack.text import changes, counted, number, short_name, short_time

_CAUSES = {
    "input": "waiting for data",
    "host": "host work that launches nothing",
    "dispatch": "the time to launch",
    "synchronization": "idling behind waits for the GPU",
    "allocator": "allocating device memory",
    "profiler": "the profiler's own work",
    "queued": "the device's own delay in starting work",
    "unknown": "idle time without a known cause",
}
NEGLIGIBLE = 0.01
"""Share of the step time below which a part is no cause."""
SUBSTANTIAL = 0.1


class Cause(Struct, frozen=True, kw_only=True):
    """Something that changed, and what it did to the step time."""

    us: float
    text: str
    certain: bool
    """A count or a name, not a duration: no noise."""


class Findings(Struct, frozen=True, kw_only=True):
    """What the line is made of."""

    time: TimeChange
    rows: Sequence[Row]
    counts: Sequence[Count]
    host: Sequence[HostRow]
    tried: Sequence[Different]
    """Variant parameters and keys allowed by --across: what was changed on purpose."""
    profiled: bool
    same_data: bool


def headline(findings: Findings) -> str:
    """One line, names in it not yet escaped."""
    causes = _chosen(findings)
    text = _times(findings)
    if findings.same_data:
        return f"{text}: both are the same measurement."
    if findings.tried:
        tried = ", ".join(f"{each.name} {each.before} -> {each.after}" for each in findings.tried[:3])
        causes = [tried, *causes]
    return f"{text}: {'; '.join(causes[:3])}." if causes else f"{text}: the traces show no cause that stands out."


def _times(findings: Findings) -> str:
    time = findings.time
    where = " in the traces" if findings.profiled else ""
    line = f"{time.word.capitalize()}{where}: step time {_from_to(time.before_us, time.after_us)}"
    if time.interval is None:
        return f"{line} ({', '.join(changes(time.ratio))})"
    ratio, low, high = changes(time.ratio, time.interval.low, time.interval.high)
    return f"{line} ({ratio}, 95 % interval {low} to {high})"


def _chosen(findings: Findings) -> list[str]:
    """The causes worth the line: those that push the way the time went; certain ones only where it is not clear."""
    time = findings.time
    clear = time.word in ("improved", "regressed")
    least = NEGLIGIBLE * max(time.before_us, time.after_us)
    found = [c for c in causes(findings) if c.certain or abs(c.us) >= least]
    if not clear:
        found = [c for c in found if c.certain]
    pushing = [c for c in found if c.us * time.change_us > 0 and abs(c.us) >= least]
    ordered = sorted(pushing, key=lambda c: -abs(c.us)) + [c for c in found if c.certain and c not in pushing]
    return [c.text for c in ordered[:2]]


def causes(findings: Findings) -> list[Cause]:
    """All that changed, each with its part of the change."""
    idle = {row.name: row for row in findings.rows if row.part == "idle"}
    counts = {count.name: count for count in findings.counts}
    found: list[Cause] = []
    explained: set[str] = set()
    waits, launches = counts.get(WAITS), counts.get(LAUNCHES)
    if waits is not None and waits.before != waits.after:
        found.append(_waits(findings, waits, idle))
        explained |= {"synchronization", "dispatch"}
        # A value that is read back is a copy, too: those launches are the waits' own.
        if launches is not None and 0 < abs(launches.after - launches.before) <= abs(waits.after - waits.before):
            launches = None
    if launches is not None and not launches.varies and launches.before != launches.after:
        found.append(_launches(findings, launches, idle))
        explained.add("dispatch")
    longer = max(findings.time.before_us, findings.time.after_us)
    found += [_idle(row, longer) for name, row in idle.items() if name not in explained and row.status != "same"]
    rows = [row for row in findings.rows if row.part in ("gpu", "host")]
    replaced = _replaced(rows)
    if replaced is not None:
        found.append(replaced)
        rows = [row for row in rows if row.status not in ("added", "gone")]
    elif "dispatch" in explained:
        rows = [row for row in rows if row.status not in ("added", "gone", "more calls", "fewer calls")]
    return found + [cause for row in rows if (cause := _row(row)) is not None]


def _replaced(rows: Sequence[Row]) -> Cause | None:
    """Kernels that went and others that came: a fused or rewritten step, weighed as one."""
    gone = [row for row in rows if row.part == "gpu" and row.status == "gone"]
    added = [row for row in rows if row.part == "gpu" and row.status == "added"]
    if not gone or not added:
        return None
    before, after = sum(row.before_us for row in gone), sum(row.after_us for row in added)
    text = f"{_listed(gone)} replaced by {_listed(added)} ({_from_to(before, after)} a step)"
    return Cause(us=after - before, text=text, certain=True)


def _listed(rows: Sequence[Row]) -> str:
    ordered = sorted(rows, key=lambda row: -max(row.before_us, row.after_us))
    names = list(dict.fromkeys(short_name(row.name) for row in ordered))
    return " + ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _waits(findings: Findings, waits: Count, idle: dict[str, Row]) -> Cause:
    change = sum(idle[name].change_us for name in ("synchronization", "dispatch") if name in idle)
    by = reads_back(list(findings.host))
    text = f"{_amount(waits, 'wait')} for the GPU a step"
    return Cause(us=change, text=f"{text} ({number(waits.before)} -> {number(waits.after)}){_by(by)}", certain=True)


def _launches(findings: Findings, launches: Count, idle: dict[str, Row]) -> Cause:
    change = idle["dispatch"].change_us if "dispatch" in idle else 0.0
    grown = launches.after > launches.before
    wanted = ("added", "more calls") if grown else ("gone", "fewer calls")
    rows = [row for row in findings.rows if row.part == "gpu" and row.status in wanted]
    change += sum(row.change_us for row in rows)
    rows.sort(key=lambda row: -abs(row.calls_after - row.calls_before))
    names = list(dict.fromkeys(row.operator or short_name(row.name) for row in rows))[:2]
    text = f"{_amount(launches, 'launch')} a step"
    by = _by(", ".join(names))
    return Cause(us=change, text=f"{text} ({number(launches.before)} -> {number(launches.after)}){by}", certain=True)


def _by(names: str | None) -> str:
    return f", {names}" if names else ""


def _idle(row: Row, step_time_us: float) -> Cause:
    """A cause that came or went altogether, and is no trifle, is a fact of the traces whatever the times say."""
    what = _CAUSES.get(row.name, row.name)
    if row.status == "gone":
        text = f"{what} went away, {short_time(row.before_us)} a step"
    elif row.status == "added":
        text = f"{what} came in, {short_time(row.after_us)} a step"
    else:
        text = f"{what} {'grew' if row.change_us > 0 else 'shrank'} ({_from_to(row.before_us, row.after_us)} a step)"
    certain = row.status in ("gone", "added") and abs(row.change_us) >= SUBSTANTIAL * step_time_us
    return Cause(us=row.change_us, text=text, certain=certain)


def _row(row: Row) -> Cause | None:
    name = row.name if row.part == "host" else short_name(row.name)
    by = f" ({row.operator})" if row.operator else ""
    times = f"{_from_to(row.before_us, row.after_us)} a step"
    if row.status == "renamed":
        text = f"{row.operator or row.name}: {short_name(row.old_name)} -> {name}, {row.note} ({times})"
        return Cause(us=row.change_us, text=text, certain=True)
    if row.status in ("slower", "faster"):
        return Cause(us=row.change_us, text=f"{name}{by} is {row.status} ({times})", certain=False)
    if row.status in ("added", "gone"):
        amount = short_time(row.after_us or row.before_us)
        text = f"{name}{by} {'was added' if row.status == 'added' else 'is gone'} ({amount} a step)"
        return Cause(us=row.change_us, text=text, certain=row.part == "gpu")
    if row.status in ("more calls", "fewer calls"):
        return Cause(us=row.change_us, text=f"{row.status} of {name}{by} ({times})", certain=False)
    return None


def _amount(count: Count, noun: str) -> str:
    """3 more launches, 1 fewer wait."""
    more = "more" if count.after > count.before else "fewer"
    return counted(abs(count.after - count.before), f"{more} {noun}")


def _from_to(before_us: float, after_us: float) -> str:
    return f"{short_time(before_us)} -> {short_time(after_us)}"
