"""Variants from their names to the parent run's last status."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from proftrack.errors import UsageError
from proftrack.frontends.sweep.code import key_of, part_key, surroundings
from proftrack.frontends.sweep.keeping import InFolder, InStore
from proftrack.frontends.variants import judge, result, shown
from proftrack.frontends.variants.changes import changes
from proftrack.frontends.variants.measure import Measured
from proftrack.frontends.variants.names import Variant
from proftrack.frontends.variants.result import Compiled, Entry, Outputs, Variants
from proftrack.names import file_name
from proftrack.rundir import run_folders
from proftrack.store import keys
from proftrack.store.batch import Group, Part, save

FILE = "variants.json"
RUNS = "runs"
IN_TURNS = "in one process, in turns"
ISOLATED = "in fresh processes, in turns"


def new_group(asked: Sequence[Variant]) -> Group:
    """The group of a set of variants."""
    base = asked[0].experiment
    differing = sorted({key for variant in asked for key in variant.changes})
    facts = surroundings(base)
    git = facts.git
    return Group(
        kind="variants",
        key=key_of(base, differing, facts),
        experiment=base.name,
        name=f"{base.name} variants: {', '.join(variant.name for variant in asked)}",
        params={
            "experiment": base.name,
            **{key: str(value) for key, value in base.params.items() if key not in differing},
            "variants": ",".join(variant.name for variant in asked),
        },
        tags={
            keys.DEVICE_TAG: facts.device.name if facts.device else "",
            **({keys.COMMIT_TAG: git.commit, keys.DIRTY_TAG: str(git.dirty).lower()} if git else {}),
        },
    )


def run(
    asked: Sequence[Variant],
    folder: Path,
    group: Group,
    keeping: InFolder | InStore,
    measure: Callable[[Callable[[Variant], Path]], list[Measured]],
    *,
    isolated: bool,
) -> Variants:
    """Measure, judge, keep and log. What was measured is kept, whatever fails afterwards."""
    base = asked[0].experiment
    found = Variants(
        experiment=base.name,
        title=_title(base.name, base.params, group),
        device=group.tags.get(keys.DEVICE_TAG, ""),
        mode=base.timing.mode,
        how=ISOLATED if isolated else IN_TURNS,
    )
    with run_folders.locked(folder):  # a sync would discard what is being measured
        measured = measure(lambda variant: folder / RUNS / file_name(variant.name))
    first = next((each.record for each in measured if each.record is not None), None)
    if first is not None and first.run is not None:  # by then it is known what `auto` became
        found.title = _title(base.name, first.run.params, group)
    for each in measured:
        entry = _entry(each)
        if first is not None and each.record is not None and each.record is not first:
            entry.kernel_changes = changes(first, each.record)
        found.entries.append(entry)
    judge.judge(found)
    for each, entry in zip(measured, found.entries, strict=True):
        part = Part(key=part_key(each.variant.recorded), name=entry.name)
        if each.folder is not None:
            part.folder = each.folder.relative_to(folder).as_posix()
            save(folder, group)
            part.run_id = entry.run_id = keeping.done(part, each.folder)
        part.error = entry.reason or None
        group.put(part)
        save(folder, group)
    _say(found, folder, group)
    return found


def _title(name: str, params: dict[str, Any], group: Group) -> str:
    """The experiment with the parameters that all variants share."""
    return name + "".join(f" {key}={value}" for key, value in params.items() if key in group.params)


def need_two(asked: Sequence[Variant]) -> None:
    """Raise UsageError where there is nothing to compare."""
    if len(asked) < 2:
        raise UsageError(f"--variants {asked[0].name}: one variant has nothing to be held against; name at least two")


def _entry(each: Measured) -> Entry:
    entry = Entry(name=each.variant.name, changes=each.variant.changes, reason=each.reason, round_us=each.round_us)
    entry.status = each.status  # type: ignore[assignment]  # its three words
    if each.compilation is not None and each.compilation.compiled:
        c = each.compilation
        entry.compiled = Compiled(
            graphs=c.graphs,
            graph_breaks=c.graph_breaks,
            break_reasons=c.break_reasons,
            recompiles=c.recompiles,
            cudagraph_skips=c.cudagraph_skips,
            cache_hits=c.cache_hits,
        )
    if each.outputs is not None:
        o = each.outputs
        error = o.error if o.error is None or o.error < float("inf") else None
        entry.outputs = Outputs(equal=o.equal, error=error, tolerance=o.tolerance, text=o.text)
    if each.record is not None:
        _figures(entry, each)
    return entry


def _figures(entry: Entry, each: Measured) -> None:
    from proftrack.frontends.sweep.result import busy_of

    record = each.record
    assert record is not None
    timing, steps = record.timing, record.per_step
    entry.step_time_us = statistics.median(each.round_us)
    entry.busy_us, entry.roofline_us = busy_of(record), record.times.roofline_time_us
    entry.regime, entry.confidence = record.verdict.regime, record.verdict.confidence
    if steps and record.totals.gpu_events:
        entry.kernels_per_step = sum(step.kernels for step in steps) / len(steps)
        entry.launches_per_step = sum(step.launches for step in steps) / len(steps)
    if timing is not None:
        entry.first_step_us, entry.build_us = timing.first_step_time_us, timing.build_time_us


def _say(found: Variants, folder: Path, group: Group) -> None:
    """The files about all variants, and what the parent run gets of them."""
    failed = [entry for entry in found.entries if entry.status == "failed"]
    result.save(found, folder / FILE)
    shown.write(found, folder)
    group.note = shown.markdown(found)
    group.tags |= {keys.WINNER_TAG: found.winner or "none", **shown.tags(found)}
    group.metrics = {"variants": len(found.entries), "failed_variants": len(failed)}
    best = next((entry for entry in found.entries if entry.name == found.winner), None)
    if best is not None and best.versus_first is not None:
        group.metrics["winner_speedup"] = 1 / best.versus_first.ratio
    if failed:
        group.error = f"{len(failed)} of {len(found.entries)} variants failed; {failed[0].name}: {failed[0].reason}"
    elif not found.measured:
        group.error = f"no variant could be measured; {found.entries[0].name}: {found.entries[0].reason}"
    group.ended_ns = time.time_ns()
    save(folder, group)
