"""Measure variants, judge them, and write and log the results."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from proftrack.errors import UsageError
from proftrack.frontends.batch.group import new_group, part_key, resolve, shared
from proftrack.frontends.batch.result import fill
from proftrack.frontends.batch.shown import Outcome
from proftrack.frontends.variants import isolate, judge, measure, shown
from proftrack.frontends.variants.changes import changes
from proftrack.frontends.variants.measure import Measured
from proftrack.frontends.variants.names import Variant
from proftrack.frontends.variants.result import Entry, Variants
from proftrack.names import file_name
from proftrack.record import Record
from proftrack.record.figures import launches_per_step
from proftrack.recorder import Batch, Destination, refusals_noted
from proftrack.report import markdown
from proftrack.report.progress import progress
from proftrack.rundir.batch import Group, Part
from proftrack.store import keys

if TYPE_CHECKING:
    from proftrack.recorder.life import Say

IN_TURNS = "in one process, in turns"
ISOLATED = "in fresh processes, in turns"


def group_of(variants: Sequence[Variant]) -> Group:
    """The group of a set of variants. Raises UsageError if there is nothing to compare."""
    if len(variants) < 2:
        raise UsageError(
            f"--variants {variants[0].name}: a single variant has nothing to be compared with", "name at least two"
        )
    base, names = variants[0].experiment, [variant.name for variant in variants]
    return new_group(
        "variants",
        base,
        _differing(variants),
        name=f"{base.name} variants: {', '.join(names)}",
        parent_params={"variants": ",".join(names)},
    )


def _differing(variants: Sequence[Variant]) -> list[str]:
    return sorted({key for variant in variants for key in variant.changes})


def run(
    reference: str,
    requested: Sequence[Variant],
    destination: Destination,
    *,
    given: Mapping[str, str],
    sets: Sequence[str],
    rounds: int,
    isolated: bool,
    say: Say,
) -> Outcome:
    """Measure the variants in turns, judge, keep and log them. Measurements are kept even if a later step fails.

    `reference`, `given` and `sets` are the arguments from which `names.variants` made the variants. `say` gets a
    sentence about what was kept if this ends early. Raises what `recorder.Batch` raises.
    """
    with refusals_noted(mlflow=destination.mlflow):
        batch = Batch(group_of(requested), destination)
    shown_by = progress()

    def folder_of(variant: Variant) -> Path:
        return batch.folder_for(file_name(variant.name))

    with batch.living(say):
        if isolated:
            measured = isolate.measure(
                requested, folder_of, shown_by, reference=reference, given=given, sets=sets, work=batch.folder
            )
        else:
            measured = measure.measure(requested, folder_of, shown_by, rounds=rounds)
        variants = _judged(requested, measured, batch.group, ISOLATED if isolated else IN_TURNS)
        for result, entry in zip(measured, variants.entries, strict=True):
            _keep(batch, result, entry)
        _write(variants, batch)
    return Outcome(shown.page(variants), batch.leave(), batch.group.error)


def _judged(requested: Sequence[Variant], measured: Sequence[Measured], group: Group, how: str) -> Variants:
    base = requested[0].experiment
    first = next((result.record for result in measured if result.record is not None), None)
    common = shared(base, _differing(requested))
    if first is not None:
        common = resolve(group, common, first)
    variants = Variants(
        experiment=base.name,
        title=base.name + "".join(f" {key}={value}" for key, value in common.items()),
        device=group.tags.get(keys.DEVICE_TAG, ""),
        mode=base.timing.mode,
        how=how,
        entries=[_entry(result, first) for result in measured],
    )
    judge.judge(variants)
    return variants


def _keep(batch: Batch, result: Measured, entry: Entry) -> None:
    part = Part(key=part_key(result.variant.recorded), name=entry.name)
    if result.folder is not None:
        batch.keep(part, result.folder)
        entry.run_id = part.run_id
    part.error = entry.error
    batch.put(part)


def _entry(result: Measured, first: Record | None) -> Entry:
    """A variant's figures, and how its GPU work differs from the first variant's record."""
    entry = Entry(
        name=result.variant.name,
        changes=result.variant.changes,
        status=result.status,
        error=result.error,
        outputs=result.outputs,
        round_us=result.round_us,
    )
    if result.compilation is not None and result.compilation.compiled:
        entry.compiled = result.compilation
    if result.record is not None:
        _fill(entry, result.record)
        if first is not None and result.record is not first:
            entry.kernel_changes = changes(first, result.record)
    return entry


def _fill(entry: Entry, record: Record) -> None:
    fill(entry, record)
    entry.step_time_us = statistics.median(entry.round_us)
    timing, steps = record.timing, record.typical_steps
    if steps and record.totals.gpu_events:
        entry.kernels_per_step = sum(step.kernels for step in steps) / len(steps)
        entry.launches_per_step = launches_per_step(steps)
    if timing is not None:
        entry.first_step_us, entry.build_us = timing.first_step_time_us, timing.build_time_us


def _write(variants: Variants, batch: Batch) -> None:
    """Write the files about all variants, and the tags and metrics of the parent run."""
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
