"""Joins the stages: reads, measures and judges traces, makes one record per rank, and compares the ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from proftrack import __version__
from proftrack.analysis.pool import Measured, read_and_measure
from proftrack.analysis.ranks import Part, join_ranks
from proftrack.analysis.trace_files import TraceFiles
from proftrack.errors import UsageError
from proftrack.measures import Measures, combine, measure
from proftrack.measures.collectives import Collective
from proftrack.record import Rates, Record, RunFacts, Source, SourceFile, Times
from proftrack.record.ceilings import StepWork
from proftrack.record.environment import DeviceFacts, Environment
from proftrack.record.ranks import Joint
from proftrack.redact import scrub_all
from proftrack.trace.ranks import numbered, rank_of, stated_rank, worker_of
from proftrack.trace.reader import Trace, read
from proftrack.trace.table import EventTable
from proftrack.verdict.context import Context
from proftrack.verdict.judge import Judgement, judge

if TYPE_CHECKING:
    from proftrack.capture.result import Capture  # not at run time: it loads YAML, which traces do not need
    from proftrack.experiment import Experiment

_COSTLY_OPTIONS = ("record_shapes", "with_stack", "profile_memory")
LONGEST_STEP_US = 1e12
"""A step of more than eleven days means that the units are mistaken."""


class Analysis(NamedTuple):
    """A record, and what it was made from."""

    record: Record
    tables: list[EventTable]
    """One per cycle, in order of time."""
    collectives: Sequence[Collective] = ()
    paths: Sequence[Path] = ()
    """The trace files, one per cycle."""
    rank: int | None = None
    """Known for all traces that are analyzed together; for a single trace it may be unknown."""
    rank_is_assumed: bool = False
    """Neither the trace nor its name states the rank: it is a number that no other trace has."""


class JointAnalysis(NamedTuple):
    """The ranks of one run, and their comparison."""

    ranks: list[Analysis]
    joint: Joint | None
    """None if there is only one rank."""


def analyze_trace(
    path: Path, *, step_time_us: float | None = None, salvage: bool = False, max_bytes: int | None = None
) -> Analysis:
    """Read, measure and judge one trace.

    Raises TraceError if it cannot be read or has no events, UsageError if `step_time_us` is not a valid step time.
    """
    files = TraceFiles([path], frozenset())
    [analysis] = analyze_traces(files, step_time_us=step_time_us, salvage=salvage, max_bytes=max_bytes).ranks
    return analysis


def analyze_traces(
    files: TraceFiles,
    *,
    step_time_us: float | None = None,
    salvage: bool = False,
    max_bytes: int | None = None,
    rank_from: str | None = None,
    processes: int = 1,
    on_left_out: Callable[[Path], object] = lambda path: None,
) -> JointAnalysis:
    """Read, measure and judge the traces of one run's ranks: one record per rank, combining its cycles.

    Ranks come from `rank_from` (a regular expression on file names), else from the traces, else from their names.
    Files without a rank that one process wrote (HOST_PID.TIME...) are its cycles; each other file is a record of its
    own, numbered with a free rank. `on_left_out` is called for each file of a folder that is JSON but not a trace. At
    most `processes` processes read at once (see `read_and_measure`).
    Raises TraceError if a trace cannot be read, UsageError if ranks and files do not match or `step_time_us` is not a
    valid step time.
    """
    step_time_us = _checked_step_time(step_time_us)
    cycles: dict[int | str, list[Measured]] = defaultdict(list)
    for measured in read_and_measure(
        files, salvage=salvage, max_bytes=max_bytes, processes=processes, on_left_out=on_left_out
    ):
        distributed = measured.trace.table.meta.distributed or {}
        rank = rank_of(measured.trace.path, stated_rank(distributed.get("rank")), rank_from)
        cycles[worker_of(measured.trace.path) if rank is None else rank].append(measured)
    ranks = [_analyzed(key, of_rank, step_time_us) for key, of_rank in cycles.items()]
    return _joined(sorted(ranks, key=lambda a: (a.rank is None, a.rank or 0, str(a.paths[0]))))


def _joined(ranks: list[Analysis]) -> JointAnalysis:
    """Several ranks compared; unknown ranks take the free numbers, in the order of their names."""
    if len(ranks) == 1:
        return JointAnalysis(ranks, None)
    numbers = numbered([analysis.rank for analysis in ranks])
    parts = [
        Part(rank=number, record=analysis.record, collectives=analysis.collectives, assumed=analysis.rank is None)
        for number, analysis in zip(numbers, ranks, strict=True)
    ]
    records, joint = join_ranks(parts)
    compared = [
        analysis._replace(record=record, rank=part.rank, rank_is_assumed=part.assumed)
        for analysis, part, record in zip(ranks, parts, records, strict=True)
    ]
    return JointAnalysis(compared, joint)


def _checked_step_time(value: Any) -> float | None:
    """A step time from the command line or from Python, as a float. Raises UsageError if it is not valid."""
    if value is None:
        return None
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if is_number and 0 < value <= LONGEST_STEP_US:
        return float(value)
    raise UsageError(
        f"step_time_us: {repr(value)[:60]} is not a valid step time",
        f"give a number of microseconds above 0 and up to {LONGEST_STEP_US:.0e}",
    )


def _analyzed(key: int | str, cycles: list[Measured], step_time_us: float | None) -> Analysis:
    """One rank's record, from its cycles in order of time."""
    cycles = sorted(cycles, key=lambda c: c.trace.table.started_ns)
    traces = [cycle.trace for cycle in cycles]
    _reject_overlap(traces)
    measures = combine([cycle.measures for cycle in cycles])
    judged = judge(measures, Context(step_time_us=step_time_us))
    record = _record(measures, judged, traces, environment=_environment(traces[0]))
    return _analysis(record, traces, measures, rank=key if isinstance(key, int) else None)


def _analysis(record: Record, traces: list[Trace], measures: Measures, rank: int | None = None) -> Analysis:
    tables, paths = [trace.table for trace in traces], [trace.path for trace in traces]
    return Analysis(record, tables, measures.collectives, paths, rank)


def _reject_overlap(traces: list[Trace]) -> None:
    """Cycles of one process do not overlap: traces that do come from two processes with the same rank."""
    for before, after in pairwise(traces):
        if after.table.started_ns < before.table.started_ns + int(before.table.end[before.table.valid].max(initial=0)):
            raise UsageError(
                f"{before.path.name} and {after.path.name} have the same rank but overlap in time",
                "name the ranks with --rank-from, or analyze the traces separately",
            )


def analyze_capture(capture: Capture, experiment: Experiment, environment: Environment) -> Analysis:
    """Read, measure and judge the results of a capture: every cycle's trace, and the unprofiled timing."""
    traces = [read(cycle.trace) for cycle in capture.cycles]
    measures = combine([measure(t.table, capture.ceilings) for t in traces])
    context = Context(
        timing=capture.timing,
        ceilings=capture.ceilings,
        work=capture.work,
        gpu=capture.gpu,
        all_threads=capture.all_threads,
    )
    judged = judge(measures, context)
    run = _run_facts(capture, experiment, environment)
    record = _record(measures, judged, traces, environment=environment, run=run, capture=capture)
    return _analysis(record, traces, measures)


def _record(
    measures: Measures,
    judged: Judgement,
    traces: list[Trace],
    *,
    environment: Environment,
    run: RunFacts | None = None,
    capture: Capture | None = None,
) -> Record:
    timing = capture.timing if capture else None
    return Record(
        source=Source(
            kind="trace" if capture is None else "run",
            proftrack_version=__version__,
            files=[SourceFile(name=t.path.name, bytes=t.file_bytes, events=t.events) for t in traces],
            profiler=_profiler_options(traces[0]),
        ),
        environment=environment,
        run=run,
        timing=timing,
        window=measures.window,
        totals=measures.totals,
        per_step=measures.per_step,
        ops=measures.ops,
        kernels=measures.kernels,
        regions=measures.regions,
        idle=measures.idle,
        split=measures.split,
        launch=measures.launch,
        devices=measures.devices,
        times=Times(
            step_time_us=timing.step_time_us if timing else judged.step_time_us,
            step_latency_us=timing.step_latency_us if timing else None,
            step_time_profiled_us=measures.step_time_profiled_us,
            step_time_all_steps_us=measures.step_time_all_steps_us,
            gpu_busy_per_step_us=measures.gpu_busy_per_step_us,
            roofline_time_us=judged.roofline_us,
        ),
        rates=_rates(capture, measures, judged),
        ceilings=capture.ceilings if capture else None,
        work=_work(capture, measures),
        gpu_state=capture.gpu if capture else None,
        cpu=measures.cpu,
        sites=measures.sites,
        modules=measures.modules,
        quality=[*measures.flags, *judged.flags],
        verdict=judged.verdict,
    )


def _work(capture: Capture | None, measures: Measures) -> StepWork | None:
    return Context(work=capture.work if capture else None).work_of(measures)


def _rates(capture: Capture | None, measures: Measures, judged: Judgement) -> Rates | None:
    """The rates that a step attained over T; only if T was measured without the profiler."""
    work, time = _work(capture, measures), judged.step_time_us
    if capture is None or capture.timing is None or work is None or not time:
        return None
    ceilings = capture.ceilings
    arithmetic = StepWork(flops_by_dtype=work.flops_by_dtype, bytes=None, source=work.source)
    least = arithmetic.roofline_time_us(ceilings) if ceilings else None
    return Rates(
        tflops=work.flops / time / 1e6 if work.flops else None,
        gbytes_per_s=work.bytes / time / 1e3 if work.bytes else None,
        mfu=least / time if least else None,
        mbu=work.bytes / ceilings.bytes_per_s * 1e6 / time if work.bytes and ceilings else None,
    )


def _run_facts(capture: Capture, experiment: Experiment, environment: Environment) -> RunFacts:
    """The settings of the run, and those that must be equal for another run to be comparable."""
    from proftrack.experiment import fingerprint

    # Records are shared: passwords are removed from URLs among the parameters.
    experiment = msgspec.structs.replace(experiment, params=scrub_all(experiment.params))
    device = environment.device.name if environment.device else capture.device
    digest, keys = fingerprint(experiment, device, cpu_threads=environment.cpu_threads)
    return RunFacts(
        experiment=experiment.name,
        params=experiment.params,
        variant_params=experiment.variant_params,
        schedule=msgspec.structs.asdict(experiment.schedule),
        profiler=msgspec.structs.asdict(experiment.profiler),
        fingerprint=digest,
        fingerprint_keys=keys,
        started_ns=capture.started_ns,
        ended_ns=capture.ended_ns,
        peak_memory_bytes=capture.peak_memory_bytes,
        notes=capture.notes,
        display_name=experiment.display_name,
    )


def _profiler_options(trace: Trace) -> dict[str, bool]:
    """Which of the profiler's costly options were on; a trace lists only those."""
    return {name: bool(trace.table.meta.fields.get(name)) for name in _COSTLY_OPTIONS}


def _environment(trace: Trace) -> Environment:
    """The environment that a trace describes."""
    meta = trace.table.meta
    used = [d for d in meta.device_properties if d.get("id") in set(trace.table.device.tolist())]
    device = None
    if used:
        first = used[0]
        major, minor = first.get("computeMajor"), first.get("computeMinor")
        device = DeviceFacts(
            type="cuda",
            name=str(first.get("name") or "unknown"),
            count=len(used),
            sm_count=first.get("numSms") if isinstance(first.get("numSms"), int) else None,
            memory_bytes=first.get("totalGlobalMem") if isinstance(first.get("totalGlobalMem"), int) else None,
            compute_capability=f"{major}.{minor}" if major is not None else None,
        )
    runtime = meta.fields.get("cuda_runtime_version")
    driver = meta.fields.get("cuda_driver_version")
    return Environment(device=device, cuda=_cuda(runtime), driver=None if driver is None else f"CUDA {_cuda(driver)}")


def _cuda(version: object) -> str | None:
    """13000 -> 13.0."""
    return f"{version // 1000}.{version % 1000 // 10}" if isinstance(version, int) else None
