"""Joins the stages: reads, measures and judges traces, makes one record per rank, and compares the ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from numbers import Real
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from proftrack import __version__
from proftrack.analysis.pool import Measured, read_and_measure
from proftrack.analysis.ranks import Part, join_ranks
from proftrack.analysis.trace_files import TraceFiles, beside
from proftrack.errors import TraceError, UsageError
from proftrack.measures import Measures, combine, measure, recorded_captures
from proftrack.measures.captures import Captures
from proftrack.record import Rates, Record, RunFacts, Source, SourceFile, Times
from proftrack.record.ceilings import StepWork
from proftrack.record.environment import DeviceFacts, Environment
from proftrack.record.ranks import Collective, Finding, Joint
from proftrack.redact import scrub_all
from proftrack.trace.groups import world_size
from proftrack.trace.ranks import (
    below_common,
    by_tensor_parallel,
    kinds_of,
    numbered,
    rank_of,
    stages_of,
    stated_rank,
    worker_of,
)
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
    stage: str | None = None
    """The stage whose traces these are (EXTEND, DECODE), if the file names tell several stages apart."""


class JointAnalysis(NamedTuple):
    """The ranks of one run, and their comparison."""

    ranks: list[Analysis]
    joint: Joint | None
    """None if there is only one rank, and nothing to say of other traces."""


def analyze_trace(
    path: Path,
    *,
    step_time_us: float | None = None,
    salvage: bool = False,
    max_bytes: int | None = None,
    captured_in: Sequence[Path] = (),
) -> Analysis:
    """Read, measure and judge one trace. `captured_in`: as in `analyze_traces`.

    Raises TraceError if it cannot be read or has no events, UsageError if `step_time_us` is not a valid step time.
    """
    files = TraceFiles([path], frozenset(), tuple(beside(path)))
    [analysis] = analyze_traces(
        files, step_time_us=step_time_us, salvage=salvage, max_bytes=max_bytes, captured_in=captured_in
    ).ranks
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
    captured_in: Sequence[Path] = (),
) -> JointAnalysis:
    """Read, measure and judge the traces of one run's ranks: one record per rank, combining its cycles.

    Ranks come from `rank_from` (a regular expression on file names, or on paths below the folder that all files are
    in), else from the traces, else from the names of files and folders. Files without a rank that one process wrote
    (HOST_PID.TIME...) are its cycles; each other file is a record of its own, numbered with a free rank. Files of
    several stages (EXTEND, DECODE) are records of their own as well. A trace without GPU work beside some that have it
    is a coordinator's and gives no record. `on_left_out` is called for each file of a folder that is JSON but not a
    trace. At most `processes` processes read at once (see `read_and_measure`). `captured_in`: traces, or folders of
    them, that hold the captures of the CUDA graphs that these replay; those that a run left beside its own are used
    anyway.
    Raises TraceError if a trace cannot be read or a file in `captured_in` holds no capture, NotFoundError if there is
    no such file, UsageError if ranks and files do not match, no trace replays a graph of `captured_in` or
    `step_time_us` is not a valid step time.
    """
    step_time_us = _checked_step_time(step_time_us)
    measured = read_and_measure(
        files,
        salvage=salvage,
        max_bytes=max_bytes,
        processes=processes,
        on_left_out=on_left_out,
        captured_in=captured_in,
    )
    if captured_in and not any(each.measures.graphs for each in measured):
        problem = f"--captured-in {captured_in[0]}: {files.paths[0]} replays no CUDA graph"
        raise UsageError(problem, "leave it out, or name the trace that replays the graph as TRACE")
    names = below_common([each.trace.path for each in measured])
    members, coordinators = _without_coordinators(measured, names)
    cycles: defaultdict[_Member, list[Measured]] = defaultdict(list)
    for member, each in zip(_members(members, names, rank_from), members, strict=True):
        cycles[member].append(each)
    analyses = [_analyzed(member, of_rank, step_time_us) for member, of_rank in cycles.items()]
    return _joined(analyses, names, [_coordinator(names[each.trace.path]) for each in coordinators])


class _Member(NamedTuple):
    """Whose trace a file is."""

    stage: str | None
    rank: int | None
    worker: str
    """The process, if the rank is unknown."""


def _members(measured: Sequence[Measured], names: dict[Path, PurePath], rank_from: str | None) -> list[_Member]:
    paths = [names[each.trace.path] for each in measured]
    shared = Counter(path.name for path in paths)
    stated = [_distributed_rank(each.trace.table) for each in measured]
    ranks = [
        rank_of(path, rank, rank_from, shared_name=shared[path.name] > 1)
        for path, rank in zip(paths, stated, strict=True)
    ]
    stages = stages_of(paths)
    if not any(rank is not None for rank in ranks):
        ranks = by_tensor_parallel([(path.name, stages[path]) for path in paths])
    kinds = [stages[path] for path in paths]
    if not any(kinds):
        kinds = kinds_of(list(zip(paths, ranks, strict=True)))
    return [
        _Member(kind, rank, worker_of(path) if rank is None else "")
        for path, kind, rank in zip(paths, kinds, ranks, strict=True)
    ]


def _distributed_rank(table: EventTable) -> int | None:
    return stated_rank((table.meta.distributed or {}).get("rank"))


def _without_coordinators(
    measured: Sequence[Measured], names: dict[Path, PurePath]
) -> tuple[list[Measured], list[Measured]]:
    """The traces of ranks, and those of processes that only direct them: without GPU work beside some that have it."""
    with_work = {worker_of(names[each.trace.path]) for each in measured if each.measures.totals.gpu_events}
    ranks: list[Measured] = []
    coordinators: list[Measured] = []
    for each in measured:
        idle = not each.measures.totals.gpu_events and not each.measures.totals.launches
        directs = with_work and idle and worker_of(names[each.trace.path]) not in with_work
        (coordinators if directs else ranks).append(each)
    return ranks, coordinators


def _coordinator(path: PurePath) -> Finding:
    text = (
        f"{path.as_posix()} has no GPU work, the others do: it is the trace of a coordinator and not of a rank. It is "
        "left out; analyze it alone."
    )
    return Finding("coordinator", text)


def _joined(ranks: Sequence[Analysis], names: dict[Path, PurePath], left_out: Sequence[Finding]) -> JointAnalysis:
    """Several ranks compared; unknown ranks take the free numbers, in the order of their names."""
    if len(ranks) == 1 and not left_out:
        return JointAnalysis([*ranks], None)
    numbers = _numbers(ranks)
    ranks = [analysis._replace(rank=number, rank_is_assumed=assumed) for analysis, number, assumed in numbers]
    shared = Counter(path.name for analysis in ranks for path in analysis.paths)
    parts = [
        Part(
            rank=analysis.rank or 0,
            record=analysis.record,
            collectives=analysis.collectives,
            assumed=analysis.rank_is_assumed,
            stated=_distributed_rank(analysis.tables[0]),
            world=world_size(analysis.tables[0].meta.distributed),
            stage=analysis.stage,
            files=[names[path].as_posix() if shared[path.name] > 1 else path.name for path in analysis.paths],
        )
        for analysis in ranks
    ]
    records, joint = join_ranks(parts, left_out)
    return JointAnalysis(
        [analysis._replace(record=record) for analysis, record in zip(ranks, records, strict=True)], joint
    )


def _numbers(ranks: Sequence[Analysis]) -> list[tuple[Analysis, int, bool]]:
    """Each analysis with its rank, and whether that is assumed; in the order of stages and ranks."""
    out: list[tuple[Analysis, int, bool]] = []
    for stage in sorted({analysis.stage for analysis in ranks}, key=lambda stage: stage or ""):
        of_stage = sorted((a for a in ranks if a.stage == stage), key=lambda a: str(a.paths[0]))
        given = numbered([analysis.rank for analysis in of_stage])
        each = [(a, number, a.rank is None) for a, number in zip(of_stage, given, strict=True)]
        out += sorted(each, key=lambda item: item[1])
    return out


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


def _analyzed(member: _Member, cycles: list[Measured], step_time_us: float | None) -> Analysis:
    """One rank's record, from its cycles in order of time."""
    cycles = sorted(cycles, key=lambda c: c.trace.table.started_ns)
    traces = [cycle.trace for cycle in cycles]
    _reject_overlap(traces)
    measures = combine([cycle.measures for cycle in cycles])
    judged = judge(measures, Context(step_time_us=step_time_us))
    record = _record(measures, judged, traces, environment=_environment(traces[0]))
    return _analysis(record, traces, measures)._replace(rank=member.rank, stage=member.stage)


def _analysis(record: Record, traces: list[Trace], measures: Measures) -> Analysis:
    tables, paths = [trace.table for trace in traces], [trace.path for trace in traces]
    return Analysis(record, tables, measures.collectives, paths)


def _reject_overlap(traces: list[Trace]) -> None:
    """Cycles of one process do not overlap: traces that do come from two processes with the same rank."""
    for before, after in pairwise(traces):
        if after.table.started_ns < before.table.started_ns + int(before.table.end[before.table.valid].max(initial=0)):
            one, other = (
                path.name if before.path.name != after.path.name else path for path in (before.path, after.path)
            )
            raise UsageError(
                f"{one} and {other} have the same rank but overlap in time",
                "name the ranks with --rank-from, or analyze the traces separately",
            )


def analyze_capture(capture: Capture, experiment: Experiment, environment: Environment) -> Analysis:
    """Read, measure and judge the results of a capture: every cycle's trace, and the unprofiled timing."""
    traces = [read(cycle.trace) for cycle in capture.cycles]
    captures, unread = _captures(capture)
    capture = msgspec.structs.replace(capture, notes=[*capture.notes, *unread])
    measures = combine([measure(t.table, capture.ceilings, captures) for t in traces])
    context = Context(
        timing=capture.timing,
        ceilings=capture.ceilings,
        work=capture.work,
        gpu=capture.gpu,
        counters=capture.counters,
        all_threads=capture.all_threads,
    )
    judged = judge(measures, context)
    run = _run_facts(capture, experiment, environment)
    record = _record(measures, judged, traces, environment=environment, run=run, capture=capture)
    return _analysis(record, traces, measures)


def _captures(capture: Capture) -> tuple[list[Captures], list[str]]:
    """What names the kernels of a run's graphs, and a note on each file that cannot be read: the run is worth more."""
    captures, notes = [], []
    for path in capture.captured:
        try:
            captures.append(recorded_captures(path.name, read(path).table))
        except TraceError as error:
            notes.append(f"Nothing names the kernels of CUDA graphs: {error.problem}.")
    return captures, notes


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
        counters=capture.counters if capture else None,
        cpu=measures.cpu,
        sites=measures.sites,
        modules=measures.modules,
        graphs=measures.graphs,
        quality=[*measures.flags, *judged.flags],
        verdict=judged.verdict,
    )


def _work(capture: Capture | None, measures: Measures) -> StepWork | None:
    context = Context(work=capture.work if capture else None)
    work = context.work_of(measures)
    if work is None:
        return None
    return msgspec.structs.replace(work, uncounted_share=round(context.uncounted_share(measures), 4))


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
        tokens_per_step=capture.tokens_per_step,
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
