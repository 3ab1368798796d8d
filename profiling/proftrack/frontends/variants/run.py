"""Variants from their measurement to the last file."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proftrack.errors import UsageError
from proftrack.frontends.batch.group import new_group, resolve, shared
from proftrack.frontends.batch.key import part_key
from proftrack.frontends.batch.result import fill
from proftrack.frontends.batch.shown import Outcome
from proftrack.frontends.variants import isolate, judge, measure, shown
from proftrack.frontends.variants.changes import changes
from proftrack.frontends.variants.measure import Measured
from proftrack.frontends.variants.names import Variant
from proftrack.frontends.variants.result import Entry, Variants
from proftrack.names import file_name
from proftrack.record import Record
from proftrack.recorder import Batch, Destination, refusals_noted
from proftrack.report import markdown
from proftrack.report.progress import progress
from proftrack.rundir.batch import Group, Part
from proftrack.store import keys

if TYPE_CHECKING:
    from proftrack.recorder.life import Say

IN_TURNS = "in one process, in turns"
ISOLATED = "in fresh processes, in turns"


def group_of(asked: Sequence[Variant]) -> Group:
    """The group of a set of variants. Raises UsageError where there is nothing to compare."""
    if len(asked) < 2:
        raise UsageError(f"--variants {asked[0].name}: one variant has nothing to be held against", "name at least two")
    base, names = asked[0].experiment, [variant.name for variant in asked]
    return new_group(
        "variants",
        base,
        _differing(asked),
        name=f"{base.name} variants: {', '.join(names)}",
        asked={"variants": ",".join(names)},
    )


def _differing(asked: Sequence[Variant]) -> list[str]:
    return sorted({key for variant in asked for key in variant.changes})


def run(
    reference: str,
    asked: Sequence[Variant],
    destination: Destination,
    *,
    given: Mapping[str, str],
    sets: Sequence[str],
    rounds: int,
    isolated: bool,
    say: Say,
) -> Outcome:
    """Measure the variants in turns, judge, keep and log them. What was measured is kept, whatever fails afterwards.

    `given` and `sets` are what the variants were made of. `say` gets a sentence about what is left where it ends before
    its time. Raises what `recorder.Batch` raises.
    """
    with refusals_noted(mlflow=destination.mlflow):
        batch = Batch(group_of(asked), destination)
    shown_by = progress()

    def folder_of(variant: Variant) -> Path:
        return batch.folder_for(file_name(variant.name))

    with batch.living(say):
        if isolated:
            measured = isolate.measure(
                asked, folder_of, shown_by, reference=reference, given=given, sets=sets, work=batch.folder
            )
        else:
            measured = measure.measure(asked, folder_of, shown_by, rounds=rounds)
        variants = _judged(asked, measured, batch.group, ISOLATED if isolated else IN_TURNS)
        for each, entry in zip(measured, variants.entries, strict=True):
            _keep(batch, each, entry)
        _write(variants, batch)
    return Outcome(shown.page(variants), batch.leave(), batch.group.error)


def _judged(asked: Sequence[Variant], measured: Sequence[Measured], group: Group, how: str) -> Variants:
    base = asked[0].experiment
    first = next((each.record for each in measured if each.record is not None), None)
    common = shared(base, _differing(asked))
    if first is not None:
        common = resolve(group, common, first)
    variants = Variants(
        experiment=base.name,
        title=_title(base.name, common),
        device=group.tags.get(keys.DEVICE_TAG, ""),
        mode=base.timing.mode,
        how=how,
        entries=[_entry(each, first) for each in measured],
    )
    judge.judge(variants)
    return variants


def _keep(batch: Batch, each: Measured, entry: Entry) -> None:
    part = Part(key=part_key(each.variant.recorded), name=entry.name)
    if each.folder is not None:
        batch.keep(part, each.folder)
        entry.run_id = part.run_id
    part.error = entry.error
    batch.put(part)


def _title(name: str, common: Mapping[str, Any]) -> str:
    """The experiment with the parameters that all variants share."""
    return name + "".join(f" {key}={value}" for key, value in common.items())


def _entry(each: Measured, first: Record | None) -> Entry:
    """A variant's figures, and what its GPU work has otherwise than that of the first one's record."""
    entry = Entry(
        name=each.variant.name,
        changes=each.variant.changes,
        status=each.status,
        error=each.error,
        outputs=each.outputs,
        round_us=each.round_us,
    )
    if each.compilation is not None and each.compilation.compiled:
        entry.compiled = each.compilation
    if each.record is not None:
        _fill(entry, each.record)
        if first is not None and each.record is not first:
            entry.kernel_changes = changes(first, each.record)
    return entry


def _fill(entry: Entry, record: Record) -> None:
    fill(entry, record)
    entry.step_time_us = statistics.median(entry.round_us)
    timing, steps = record.timing, record.per_step
    if steps and record.totals.gpu_events:
        entry.kernels_per_step = sum(step.kernels for step in steps) / len(steps)
        entry.launches_per_step = sum(step.launches for step in steps) / len(steps)
    if timing is not None:
        entry.first_step_us, entry.build_us = timing.first_step_time_us, timing.build_time_us


def _write(variants: Variants, batch: Batch) -> None:
    """The files about all variants, and what the parent run gets of them."""
    failed = [entry for entry in variants.entries if entry.status == "failed"]
    group = batch.group
    group.tags |= {keys.WINNER_TAG: variants.winner or "none", **shown.tags(variants)}
    group.metrics = {"variants": len(variants.entries), "failed_variants": len(failed)}
    best = next((entry for entry in variants.entries if entry.name == variants.winner), None)
    if best is not None and best.versus_first is not None:
        group.metrics["winner_speedup"] = 1 / best.versus_first.ratio
    batch.over(_what_failed(variants, failed))
    batch.write(variants, markdown.render(shown.page(variants)), shown.table(variants))


def _what_failed(variants: Variants, failed: Sequence[Entry]) -> str | None:
    if failed:
        return f"{len(failed)} of {len(variants.entries)} variants failed; {failed[0].name}: {failed[0].error}"
    if not variants.measured:
        return f"no variant could be measured; {variants.entries[0].name}: {variants.entries[0].error}"
    return None
