"""A comparison in one line: the word, the step times, and the main causes.

Certain causes come before likely ones: changed launches, waits and kernels are facts of the traces even if the step
time is within the noise.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from proftrack.compare.results import Count, Counted, Different, HostRow, ModuleChange, Row, TimeChange
from proftrack.compare.why import LAUNCHES, WAITS, reads_back
from proftrack.text import changes, counted, listed, number, percent, short_name, short_time

_CAUSES = {
    "input": "waiting for data",
    "host": "host work that launches nothing",
    "dispatch": "launch time",
    "synchronization": "idle time after waits for the GPU",
    "allocator": "allocating device memory",
    "profiler": "the profiler's own work",
    "startup": "start-up",
    "queued": "the device's delay in starting work",
    "unknown": "idle time of unknown cause",
}
NEGLIGIBLE = 0.01
"""A part below this share of the step time is not a cause."""
SUBSTANTIAL = 0.1
FAR_MORE = 2.0
"""A cause with more than this times the change of a module comes before it."""
LEAST_PASS = 0.1
"""A pass with less of a module's change is not named."""
MOVED = 0.1
"""A unit of the GPU whose use changed by less is not named: counters repeat within 0.005, but are divided by B / T."""


class Cause(Struct, frozen=True, kw_only=True):
    """Something that changed, and its effect on the step time."""

    us: float
    text: str
    certain: bool
    """Whether it is a count or a name, which have no noise, and not a duration."""


class Findings(Struct, frozen=True, kw_only=True):
    """The input of the headline."""

    time: TimeChange
    rows: Sequence[Row]
    counts: Sequence[Count]
    counters: Sequence[Counted]
    host: Sequence[HostRow]
    modules: Sequence[ModuleChange] = ()
    tried: Sequence[Different]
    """What was changed on purpose: variant parameters and keys allowed by --across."""
    profiled: bool
    same_data: bool


def headline(findings: Findings) -> str:
    """The headline; names in it are not escaped yet."""
    causes = _chosen(findings)
    text = _times(findings)
    if findings.same_data:
        return f"{text}: both are the same measurement."
    if findings.tried:
        tried = ", ".join(f"{fact.name} {_given(fact.before)} -> {_given(fact.after)}" for fact in findings.tried[:3])
        causes = [tried, *causes]
    causes += _moved(findings.counters)
    return f"{text}: {'; '.join(causes)}." if causes else f"{text}: no cause stands out in the traces."


def _given(value: str | None) -> str:
    return "absent" if value is None else value


def _times(findings: Findings) -> str:
    time = findings.time
    where = " in the traces" if findings.profiled else ""
    line = f"{time.word.capitalize()}{where}: step time {_from_to(time.before_us, time.after_us)}"
    if time.interval is None:
        return f"{line} ({', '.join(changes(time.ratio))})"
    ratio, low, high = changes(time.ratio, time.interval.low, time.interval.high)
    return f"{line} ({ratio}, 95 % interval {low} to {high})"


def _chosen(findings: Findings) -> list[str]:
    """The causes worth showing: those that push in the direction of the change; if it is unclear, only certain ones."""
    time = findings.time
    clear = time.word in ("improved", "regressed")
    least = NEGLIGIBLE * max(time.before_us, time.after_us)
    found = [c for c in causes(findings) if c.certain or abs(c.us) >= least]
    if not clear:
        found = [c for c in found if c.certain]
    pushing = [c for c in found if c.us * time.change_us > 0 and abs(c.us) >= least]
    ordered = sorted(pushing, key=lambda c: -abs(c.us)) + [c for c in found if c.certain and c not in pushing]
    texts = [c.text for c in ordered]
    if module := _module(findings, least if clear else 0.0):
        # The module's own kernels are causes, too: it comes after those only that are far more than it.
        larger = [c for c in ordered if clear and abs(c.us) > FAR_MORE * abs(module.change_us)]
        texts.insert(len(larger), where(module))
    return texts[:2]


def _module(findings: Findings, least: float) -> ModuleChange | None:
    """Where the change is: the module that changed most; unless `least` is 0, by so much and as the step did."""
    change = findings.time.change_us
    pushing = [m for m in findings.modules if not least or (m.change_us * change > 0 and abs(m.change_us) >= least)]
    return pushing[0] if pushing else None


def where(module: ModuleChange) -> str:
    """What became of a module: `layers.7.mlp takes 310 us longer, of it 240 us in backward (aten::addmm)`."""
    us = short_time(abs(module.change_us))
    operators = list(dict.fromkeys(work.operator or short_name(work.kernel) for work in module.work))[:2]
    by = f" ({', '.join(operators)})" if operators else ""
    if module.status in ("added", "gone"):
        return f"{named(module)} {_be(module)} {'new' if module.status == 'added' else 'gone'}, {us} a step{by}"
    longer = "longer" if module.change_us > 0 else "less"
    takes = f"{'take' if module.members > 1 else 'takes'} {us} {longer}"
    rebuilt = f"{_be(module)} made of other modules and " if module.status == "rebuilt" else ""
    shares = [f"{short_time(us)} in {part}" for part, us in parts(module)]
    of_it = f", of it {listed(shares)}" if shares else ""
    return f"{named(module)} {rebuilt}{takes}{of_it}{by}"


def _be(module: ModuleChange) -> str:
    return "are" if module.members > 1 else "is"


def named(module: ModuleChange) -> str:
    """The path, or what stands for it."""
    path = module.path or ("work of no module" if module.kind == "none" else "the outermost module")
    kind = {"optimizer": "optimizer ", "region": "region "}.get(module.kind, "")
    many = f" ({module.members} modules)" if module.members > 1 else ""
    itself = " itself" if module.itself else ""
    return f"{kind}{path}{many}{itself}"


def parts(module: ModuleChange) -> list[tuple[str, float]]:
    """The passes that make up the change, largest first; empty if it has only one pass that any could mistake."""
    pushing = [(part, us) for part, us in module.parts.items() if us * module.change_us > 0]
    known = [(part, abs(us)) for part, us in pushing if abs(us) >= LEAST_PASS * abs(module.change_us)]
    if [part for part, _ in known] in (["optimizer"], ["other"]) or list(module.parts) == ["forward"]:
        return []
    return sorted(known, key=lambda each: -each[1])


def _moved(counters: Sequence[Counted]) -> list[str]:
    """The unit of the GPU whose use changed most; a reason for other kernel times, with no part of its own in T."""
    moved = [row for row in counters if row.of and abs(row.change or 0.0) >= MOVED]
    if not moved:
        return []
    row = max(moved, key=lambda row: abs(row.change or 0.0))
    return [f"{row.name} {percent(row.before)} to {percent(row.after)} of {row.of}"]


def causes(findings: Findings) -> list[Cause]:
    """All causes, each with its part of the change."""
    idle = {row.name: row for row in findings.rows if row.part == "idle"}
    counts = {count.name: count for count in findings.counts}
    found: list[Cause] = []
    explained: set[str] = set()
    waits, launches = counts.get(WAITS), counts.get(LAUNCHES)
    if waits is not None and waits.before != waits.after:
        found.append(_waits(findings, waits, idle))
        explained |= {"synchronization", "dispatch"}
        # Reading a value back is also a copy: these launches belong to the waits.
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
    """Kernels that disappeared and others that appeared: a fused or rewritten step, counted as one cause."""
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
    statuses = ("added", "more calls") if grown else ("gone", "fewer calls")
    rows = [row for row in findings.rows if row.part == "gpu" and row.status in statuses]
    change += sum(row.change_us for row in rows)
    rows.sort(key=lambda row: -abs(row.calls_after - row.calls_before))
    names = list(dict.fromkeys(row.operator or short_name(row.name) for row in rows))[:2]
    text = f"{_amount(launches, 'launch')} a step"
    by = _by(", ".join(names))
    return Cause(us=change, text=f"{text} ({number(launches.before)} -> {number(launches.after)}){by}", certain=True)


def _by(names: str | None) -> str:
    return f", {names}" if names else ""


def _idle(row: Row, step_time_us: float) -> Cause:
    """A cause that appeared or disappeared entirely, and is substantial, is a fact of the traces despite any noise."""
    what = _CAUSES.get(row.name, row.name)
    if row.status == "gone":
        text = f"{what} disappeared, {short_time(row.before_us)} a step"
    elif row.status == "added":
        text = f"{what} appeared, {short_time(row.after_us)} a step"
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
        text = f"{name}{by} was {'added' if row.status == 'added' else 'removed'} ({amount} a step)"
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
