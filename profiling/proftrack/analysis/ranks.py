"""Compares the ranks of one run, and adds to each rank's verdict what only the comparison shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
from msgspec import Struct

from proftrack.analysis import waiting
from proftrack.analysis.waiting import NOTABLE, Late, Waiting
from proftrack.record import Record
from proftrack.record.ranks import Collective, Finding, Joint, RankFigures
from proftrack.record.verdict import Evidence
from proftrack.text import counted, difference, listed, short_time
from proftrack.verdict.advice import about_exposed

MOSTLY = 0.5
"""From this share of its time in collectives on, a rank counts as waiting."""
SMALLEST = 0.001
"""Below this difference of step times no figure is said: it would be 0.0 %."""
_LISTED = 10


class Part(Struct, frozen=True, kw_only=True):
    """One rank's record and its collectives, in order."""

    rank: int
    record: Record
    collectives: Sequence[Collective]
    assumed: bool = False
    """Neither the trace nor its name states this rank; see `numbered`."""
    stated: int | None = None
    """The rank that the trace itself states, where a pattern gave it another."""
    world: int | None = None
    """How many ranks the run had, if that is known."""
    stage: str | None = None
    """The stage whose traces these are, if the file names tell several stages apart."""
    files: list[str] = []
    """The traces' names, if the record's own do not tell them apart."""

    @property
    def partial(self) -> bool:
        """Whether the trace was read only in part."""
        return any(flag.code == "partial_file" for flag in self.record.quality)


class _Comparison(NamedTuple):
    """The ranks of one stage."""

    ranks: list[RankFigures]
    slowest: int | None
    waited_for: int | None
    spread: float | None
    findings: list[Finding]
    one_step: bool
    once: list[Late]
    """Waits that do not recur."""
    in_turns: list[list[int]]


def join_ranks(parts: Sequence[Part], left_out: Sequence[Finding] = ()) -> tuple[list[Record], Joint]:
    """Compare the ranks of one run; `left_out` is what there is to say of traces that are no ranks.

    Returns the record of each part, in the order of `parts` and with a verdict that takes the other ranks into account,
    and the comparison. The parts of different stages are compared separately.
    """
    stages = sorted({part.stage for part in parts}, key=lambda stage: stage or "")
    comparisons = {stage: _compare([part for part in parts if part.stage == stage]) for stage in stages}
    records = [_with_waiting(part.record, part.rank, comparisons[part.stage]) for part in parts]
    findings = [*left_out, *_apart(stages)]
    for stage, comparison in comparisons.items():
        findings += comparison.findings if len(stages) == 1 else [_of_stage(f, stage) for f in comparison.findings]
    alone = comparisons[stages[0]] if len(stages) == 1 else None
    late = {comparison.waited_for for comparison in comparisons.values()}
    return records, Joint(
        ranks=[figures for comparison in comparisons.values() for figures in comparison.ranks],
        slowest_rank=alone.slowest if alone else None,
        waited_for_rank=late.pop() if len(late) == 1 else None,
        spread=alone.spread if alone else None,
        findings=findings,
    )


def join(parts: Sequence[Part]) -> Joint:
    """The ranks' figures side by side, and the findings."""
    return join_ranks(parts)[1]


def _apart(stages: Sequence[str | None]) -> list[Finding]:
    if len(stages) == 1:
        return []
    named = [stage or "none" for stage in stages]
    text = f"The traces are of {len(stages)} stages ({_listed(named)}), which are compared separately."
    return [Finding("stages", text)]


def _of_stage(finding: Finding, stage: str | None) -> Finding:
    return Finding(finding.code, f"{stage or 'Without a stage'}: {finding.text}")


def _compare(parts: Sequence[Part]) -> _Comparison:
    parts = sorted(parts, key=lambda part: part.rank)
    missing = _missing(parts)
    whole = [part for part in parts if not part.partial]
    seen = _seen(whole)
    found = Waiting() if missing or len(seen) < 2 else waiting.find(seen)
    ranks = [_figures(part, found) for part in parts]
    roots = set(found.waits_for.values())
    waited_for = roots.pop() if len(roots) == 1 else None
    timed = {r.rank: r.step_time_us for r in ranks if r.step_time_us and not r.partial}
    spread = round(max(timed.values()) / min(timed.values()) - 1, 5) if len(timed) > 1 else None
    findings = [*_step_times(spread, len(timed)), *_waits(found, ranks)]
    if not missing:
        findings += _not_compared(found, ranks)
    return _Comparison(
        ranks=ranks,
        slowest=waited_for if waited_for is not None else None if found.late else _slowest(ranks),
        waited_for=waited_for,
        spread=spread,
        findings=[*findings, *_left_out(parts, missing, ranks)],
        one_step=any(late.how == "one step" for late in found.late),
        once=[late for late in found.late if late.how in ("first step", "once")],
        in_turns=found.in_turns,
    )


def _with_waiting(record: Record, rank: int, comparison: _Comparison) -> Record:
    """The record, whose verdict says if most of its time in collectives is waiting for another rank.

    By its own trace a waiting rank may be communication-bound, but changing its communication would not help it.
    """
    figures = {rank_figures.rank: rank_figures for rank_figures in comparison.ranks}
    own = figures[rank]
    communication = own.communication_us or 0.0
    waiting_us = min(own.waiting_us or 0.0, communication)
    if not communication or waiting_us < MOSTLY * communication or (told := _told(own, figures, comparison)) is None:
        return record
    if record.verdict.regime != "communication-bound":
        instead = (
            f"{short_time(waiting_us)} of the {short_time(communication)} per step in collectives are waiting for "
            f"{told.whom}: overlapping them gains little. {told.look}"
        )
        advice = [instead if about_exposed(a) else a for a in record.verdict.advice]
        return msgspec.structs.replace(record, verdict=msgspec.structs.replace(record.verdict, advice=advice))
    summary = record.verdict.summary.rstrip(".")
    verdict = msgspec.structs.replace(
        record.verdict,
        cause=told.cause or record.verdict.cause,
        summary=f"{summary}, and {waiting_us / communication:.0%} of that is waiting for {told.whom}.",
        evidence=[
            *record.verdict.evidence,
            Evidence(
                name="waiting_us",
                value=waiting_us,
                unit="us",
                text=f"{waiting_us:.0f} us of the {communication:.0f} us per step in collectives exceeds what the rank "
                "that arrives last in each spends there.",
            ),
        ],
        advice=[
            told.look,
            "While they wait, overlapping collectives, sending less data or a faster network gains little.",
        ],
    )
    return msgspec.structs.replace(record, verdict=verdict)


class _Told(NamedTuple):
    """What a rank is told that mostly waits in its collectives."""

    whom: str
    """Whom it waits for."""
    look: str
    """What to do, instead of overlapping collectives."""
    cause: str | None = None


def _told(own: RankFigures, figures: Mapping[int, RankFigures], comparison: _Comparison) -> _Told | None:
    """None if the comparison says of this rank that it does not wait notably."""
    if own.waits_for is not None:
        late = figures[own.waits_for]
        whom = f"rank {late.rank}"
        look = f"Look at {whom}, which other ranks wait for; on its own it is {late.regime}."
        if comparison.one_step:
            look = (
                f"Record several steps: in one, {whom} may only have started later. If other ranks wait for it in all "
                f"of them, look at {whom}; on its own it is {late.regime}."
            )
        return _Told(whom, look, whom)
    for late_once in comparison.once:
        if own.rank in late_once.waiters:
            when = "in one step only" if late_once.how == "once" else "in the beginning only"
            return _Told(f"rank {late_once.rank} {when}", "Record more steps: most of them may hold no such wait.")
    if any(own.rank in group for group in comparison.in_turns):
        look = (
            "Look for work that differs between ranks from step to step (the lengths of inputs, loading data), not at "
            "the network."
        )
        return _Told("other ranks, in turns", look)
    return None


def _seen(parts: Sequence[Part]) -> list[waiting.Seen]:
    """What is compared of each rank: in typical steps, as far as all ranks have recorded them."""
    recorded = [{step.step for step in part.record.per_step} for part in parts]
    common = frozenset.intersection(*map(frozenset, recorded)) if recorded else frozenset()
    out = []
    for part in parts:
        typical = [step.step for step in part.record.typical_steps]
        all_steps = [step.step for step in part.record.per_step]
        counted = [n for n in typical if n in common] or [n for n in all_steps if n in common] or typical
        numbers = frozenset(counted) if counted else None
        out.append(waiting.Seen(part.rank, part.collectives, part.record.step_time_us, max(len(counted), 1), numbers))
    return out


def _figures(part: Part, found: Waiting) -> RankFigures:
    record = part.record
    typical = {step.step for step in record.typical_steps}
    own = [c for c in part.collectives if not typical or c.step in typical]
    exposed = [c.exposed_us for c in own if c.exposed_us is not None]
    steps = record.window.typical_steps
    waiting_us = found.waiting_us.get(part.rank)
    return RankFigures(
        rank=part.rank,
        stage=part.stage,
        files=part.files or [f.name for f in record.source.files],
        regime=record.verdict.regime,
        steps=record.window.steps,
        outlier_steps=record.window.outlier_steps,
        step_time_us=record.step_time_us,
        gpu_busy_us=record.times.gpu_busy_per_step_us,
        communication_us=round(sum(c.duration_us for c in own) / steps, 3) if part.collectives else None,
        exposed_communication_us=round(sum(exposed) / steps, 3) if exposed else None,
        waiting_us=round(waiting_us, 3) if waiting_us is not None else None,
        waits_for=found.waits_for.get(part.rank),
        partial=part.partial,
        reasons=record.verdict.reasons if record.verdict.regime == "inconclusive" else [],
    )


def _slowest(ranks: Sequence[RankFigures]) -> int | None:
    """The rank with the most time of its own in a step, if the ranks differ notably.

    Ranks that wait for each other have steps of one length, and which is the longest is noise. Where it is unknown how
    much of a step is waiting, so is this.
    """
    timed = [r for r in ranks if r.step_time_us and not r.partial]
    if any(r.communication_us and r.waiting_us is None for r in timed):
        return None
    own = {r.rank: (r.step_time_us or 0.0) - (r.waiting_us or 0.0) for r in timed}
    if len(own) < 2 or max(own.values()) < (1 + NOTABLE) * min(own.values()):
        return None
    slowest = max(own, key=own.__getitem__)
    return None if any(r.rank == slowest and r.waits_for is not None for r in ranks) else slowest


# ---- what is missing -------------------------------------------------------------------------------------------------


def _missing(parts: Sequence[Part]) -> list[tuple[int, int]]:
    """The ranks of the run of which there is no trace, as ranges from first to last: a name may state any number."""
    present = sorted({part.rank if part.stated is None else part.stated for part in parts})
    worlds = [part.world for part in parts if part.world is not None]
    groups = {(c.members, c.size) for part in parts for c in part.collectives}
    members = [rank + 1 for ranks, _ in groups for rank in ranks or ()]
    said = max([*worlds, *members, *(size for _, size in groups if size is not None)], default=0)
    if said == len(present) and all(part.stated is None for part in parts):
        return []  # they are numbered otherwise, from 1 for example
    needed = max(present[-1] + 1, said)
    edges = [-1, *present, needed]
    return [(before + 1, after - 1) for before, after in pairwise(edges) if after - before > 1]


def _left_out(parts: Sequence[Part], missing: Sequence[tuple[int, int]], ranks: Sequence[RankFigures]) -> list[Finding]:
    """Findings about ranks that are missing, not compared, or assumed."""
    out = []
    partial = [str(part.rank) for part in parts if part.partial]
    if partial:
        traces, were, are = ("trace of rank", "was", "is") if len(partial) == 1 else ("traces of ranks", "were", "are")
        text = f"The {traces} {_listed(partial)} {were} read only in part and {are} left out of the comparison"
        unknown = any(r.communication_us and r.waiting_us is None for r in ranks if not r.partial)
        text += ", so who waits for whom is unknown." if unknown and not missing else "."
        out.append(Finding("partial_ranks", text))
    if missing:
        one = len(missing) == 1 and missing[0][0] == missing[0][1]
        text = (
            f"There is no trace of {'rank' if one else 'ranks'} {_ranges(missing)}, so who waits for whom is unknown."
        )
        out.append(Finding("missing_ranks", text))
    assumed = sum(part.assumed for part in parts)
    if assumed:
        ranks_are = "rank of 1 trace is" if assumed == 1 else f"ranks of {assumed} traces are"
        out.append(Finding("assumed_ranks", f"The {ranks_are} assumed from the order of the file names."))
    return out


def _ranges(ranges: Sequence[tuple[int, int]]) -> str:
    """3, 5 and 6, or 8 to 12."""
    texts: list[str] = []
    for first, last in ranges:
        texts += [f"{first} to {last}"] if last - first > 1 else [str(rank) for rank in range(first, last + 1)]
    return _listed(texts)


def _listed(items: Sequence[str]) -> str:
    """a, b and c; of many the first ones, and more."""
    return listed(items if len(items) <= _LISTED else [*items[:_LISTED], "more"])


# ---- findings from comparing -----------------------------------------------------------------------------------------


def _step_times(spread: float | None, timed: int) -> list[Finding]:
    if spread is None:
        return []
    by = f"{'up to ' if timed > 2 else ''}{difference(spread)}" if spread >= SMALLEST else "less than 0.1 %"
    return [Finding("step_times", f"Step times of the {timed} ranks differ by {by}.")]


def _waits(found: Waiting, ranks: Sequence[RankFigures]) -> list[Finding]:
    """Who waits for whom, or that nobody does."""
    out = []
    for root in dict.fromkeys(found.waits_for.values()):
        waiters = [r for r in ranks if r.waits_for == root]
        one_step = any(late.how == "one step" for late in found.late if late.rank == root)
        out.append(_one_step(root, waiters, ranks) if one_step else _waited_for(root, waiters, ranks))
    out += [_not_again(late) for late in found.late if late.how in ("first step", "once")]
    for group in found.in_turns:
        least = min(r.waiting_us or 0.0 for r in ranks if r.rank in group)
        text = f"{_subject(group)} wait for each other in turns, each at least {short_time(least)} per step."
        out.append(Finding("wait_in_turns", text))
    if not out and found.waiting_us and not _much_is_open(found, ranks):
        out.append(Finding("no_waiting", "No rank waits notably for another: time in collectives is transfer."))
    return out


def _waited_for(root: int, waiters: Sequence[RankFigures], ranks: Sequence[RankFigures]) -> Finding:
    worst = max(waiters, key=lambda r: r.waiting_us or 0.0)
    regime = next(r.regime for r in ranks if r.rank == root)
    text = (
        f"{_who(waiters, ranks)} for rank {root}: rank {worst.rank} spends {short_time(worst.waiting_us or 0.0)} per "
        f"step waiting in collectives. Look at rank {root} ({regime} on its own), not at the network."
    )
    return Finding("waited_for", text)


def _one_step(root: int, waiters: Sequence[RankFigures], ranks: Sequence[RankFigures]) -> Finding:
    worst = max(waiters, key=lambda r: r.waiting_us or 0.0)
    text = (
        f"{_who(waiters, ranks)} for rank {root}: rank {worst.rank} spends {short_time(worst.waiting_us or 0.0)} "
        f"waiting in collectives. Rank {root} may be slower or may only have started later: one step shows no more "
        "than that."
    )
    return Finding("one_step", text)


def _not_again(late: Late) -> Finding:
    waiters, longest = sorted(late.waiters), short_time(max(late.waiters.values()))
    waits = f"waits {longest}" if len(waiters) == 1 else f"wait up to {longest}"
    waits = f"{_subject(waiters)} {waits} for rank {late.rank}"
    if late.how == "first step":
        first = "collective" if late.step is None else "step"
        text = f"{waits} in the first recorded {first} only: rank {late.rank} started later, and that is all it shows."
        return Finding("started_late", text)
    where = "in one collective" if late.step is None else f"in ProfilerStep#{late.step}"
    return Finding("waited_once", f"{waits} {where} only, so rank {late.rank} is not slow in general.")


def _who(waiters: Sequence[RankFigures], ranks: Sequence[RankFigures]) -> str:
    compared = sum(not r.partial for r in ranks)
    if len(waiters) == compared - 1:
        return "The other ranks wait"
    return f"{_subject([r.rank for r in waiters])} {'waits' if len(waiters) == 1 else 'wait'}"


def _subject(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    return f"Ranks {_listed([str(rank) for rank in ranks])}"


def _much_is_open(found: Waiting, ranks: Sequence[RankFigures]) -> bool:
    """Whether a rank spends notable time waiting, or in collectives that could not be compared."""
    compared = [r for r in ranks if not r.partial]
    return any(_open_us(r, found) + (r.waiting_us or 0.0) > NOTABLE * (r.step_time_us or 0.0) for r in compared)


def _open_us(rank: RankFigures, found: Waiting) -> float:
    return found.not_compared_us.get(rank.rank, 0.0) + found.between_two_us.get(rank.rank, 0.0)


def _not_compared(found: Waiting, ranks: Sequence[RankFigures]) -> list[Finding]:
    """Why some or all collectives could not be compared."""
    out = []
    if found.unknown:
        text = (
            "The traces do not state which process group each collective belongs to, so who waits for whom is unknown."
        )
        out.append(Finding("groups_unknown", text))
    if found.counts is not None:
        fewest, most = found.counts
        text = f"The ranks recorded different numbers of collectives ({fewest} to {most})."
        out.append(Finding("different_counts", text))
    if found.steps:
        steps = _listed([f"{first} to {last}" if last > first else str(first) for first, last in found.steps])
        out.append(Finding("different_steps", f"The ranks recorded different steps ({steps}), which do not compare."))
    two = {r.rank: found.between_two_us.get(r.rank, 0.0) for r in ranks}
    notable = [r for r in ranks if two[r.rank] > NOTABLE * (r.step_time_us or float("inf"))]
    if notable:
        most_of = max(notable, key=lambda r: two[r.rank])
        text = (
            f"{counted(len(notable), 'rank')} {'spends' if len(notable) == 1 else 'spend'} time in kernels that send "
            f"and receive, rank {most_of.rank} {short_time(two[most_of.rank])} per step: that is between two ranks at "
            "a time and not compared. A stage of a pipeline waits there for its neighbours."
        )
        out.append(Finding("point_to_point", text))
    return out
