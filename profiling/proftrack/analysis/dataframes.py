"""`proftrack.analyze(...)`: traces in a notebook, their tables as pandas DataFrames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from msgspec import Struct

from proftrack.analysis import trace_files
from proftrack.analysis.pipeline import Analysis, analyze_traces
from proftrack.analysis.trace_files import TraceFiles
from proftrack.record import Record
from proftrack.record.columns import columns_of, values_of
from proftrack.record.figures import Kernel, Op, Region, Step
from proftrack.record.owners import ModuleTime, rows
from proftrack.record.ranks import Joint

if TYPE_CHECKING:
    import pandas as pd


class AnalyzedTrace:
    """A trace's record, and its tables as DataFrames (times in microseconds, as column names say).

    record    everything that `proftrack analyze --json -` prints
    verdict   regime, cause, confidence, evidence, advice
    rank      None for a single trace that does not state its rank
    ops       name, category, calls, self_cpu_time_us, cpu_time_us, self_cuda_time_us, cuda_time_us
    kernels   name, kind, calls, total_us, mean_us, min_us, max_us, share, limit, blocks, occupancy_waves, ...
    steps     step, host_us, self_cpu_time_us, self_cuda_time_us, gpu_events, kernels, launches
    regions   name, calls, cpu_time_us, gpu_busy_us, launches
    modules   path, kind, class, calls, busy_us, inclusive_us, share, forward_us, backward_us, recompute_us, ...
    events    one row per complete event: ts_ns, dur_ns (integers), name, category, kind, pid, tid, device, stream, ...
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self.record: Record = analysis.record
        self.verdict = analysis.record.verdict
        self.rank = analysis.rank

    def __repr__(self) -> str:
        return f"<proftrack trace: {self.verdict.summary}>"

    @property
    def ops(self) -> pd.DataFrame:
        """Host rows by name, largest self CUDA time first."""
        return _frame(self.record.ops, Op)

    @property
    def kernels(self) -> pd.DataFrame:
        """GPU work by name, largest first."""
        return _frame(self.record.kernels, Kernel)

    @property
    def steps(self) -> pd.DataFrame:
        """Recorded steps."""
        return _frame(self.record.per_step, Step)

    @property
    def regions(self) -> pd.DataFrame:
        """record_function regions."""
        return _frame(self.record.regions, Region)

    @property
    def modules(self) -> pd.DataFrame:
        """Exclusive times of modules, optimizers and regions over the typical steps, largest first.

        `inclusive_us` and `share` are with the modules below; see `proftrack.record.modules.Module`.
        """
        return _frame(rows(self.record.modules), ModuleTime)

    @property
    def events(self) -> pd.DataFrame:
        """The event table; see `proftrack.trace.parquet.COLUMNS` for what each column means.

        Memory instants, counters and flows are only in a run's events.parquet.
        """
        from proftrack.trace.parquet import complete_to_arrow

        frame: pd.DataFrame = complete_to_arrow(self._analysis.tables).to_pandas()
        return frame


class AnalyzedRanks:
    """Several traces as the ranks of one run.

    ranks     one AnalyzedTrace per rank, in rank order; each verdict takes the other ranks into account
    joint     the comparison of the ranks, as `proftrack analyze --json -` prints it; None for one rank
    left_out  JSON files of a folder that are not traces
    """

    def __init__(self, ranks: Sequence[AnalyzedTrace], joint: Joint | None, left_out: Sequence[Path]) -> None:
        self.ranks = list(ranks)
        self.joint = joint
        self.left_out = list(left_out)

    def __repr__(self) -> str:
        says = " ".join(f.text for f in self.joint.findings) if self.joint else self.ranks[0].verdict.summary
        return f"<proftrack ranks: {says}>"


# A type checker cannot know whether a path names a folder, so the result may be used as either type.
@overload
def analyze(  # type: ignore[overload-overlap]  # a str is also an Iterable[str]
    path: str | PathLike[str],
    *,
    step_time_us: float | None = ...,
    salvage: bool = ...,
    max_bytes: int | None = ...,
    rank_from: str | None = ...,
    processes: int = ...,
    captured_in: Iterable[str | PathLike[str]] = ...,
) -> AnalyzedTrace | Any: ...
@overload
def analyze(
    path: Iterable[str | PathLike[str]],
    *,
    step_time_us: float | None = ...,
    salvage: bool = ...,
    max_bytes: int | None = ...,
    rank_from: str | None = ...,
    processes: int = ...,
    captured_in: Iterable[str | PathLike[str]] = ...,
) -> AnalyzedRanks: ...
def analyze(
    path: str | PathLike[str] | Iterable[str | PathLike[str]],
    *,
    step_time_us: float | None = None,
    salvage: bool = False,
    max_bytes: int | None = None,
    rank_from: str | None = None,
    processes: int = 1,
    captured_in: Iterable[str | PathLike[str]] = (),
) -> AnalyzedTrace | AnalyzedRanks:
    """Read, measure and judge torch.profiler traces (.json or .json.gz).

    A file returns an AnalyzedTrace. A folder or several paths are taken as the ranks of one run and return
    AnalyzedRanks.

    `step_time_us` is the step time without the profiler; without it the verdict rests on the traces' own times.
    `max_bytes` limits the JSON inside a file (default 8 GiB, and 250 times the file's size). `rank_from` is a regular
    expression whose one group matches the rank in a file name. `processes` above 1 requires a main module that can be
    imported again (`if __name__ == "__main__"`). `captured_in` names traces that hold the captures of the CUDA graphs
    which these traces replay: they tell the operators of the replayed kernels.
    Raises TraceError if a file cannot be read (`salvage` reads its intact part), UsageError if `step_time_us` is not a
    valid step time or ranks and files do not match, NotFoundError if one of several paths does not exist.
    """
    paths = [Path(path)] if isinstance(path, (str, PathLike)) else [Path(item) for item in path]
    is_file = isinstance(path, (str, PathLike)) and not paths[0].is_dir()
    left_out: list[Path] = []
    analyzed = analyze_traces(
        TraceFiles(paths, frozenset()) if is_file else trace_files.find(paths),
        step_time_us=step_time_us,
        salvage=salvage,
        max_bytes=max_bytes,
        rank_from=rank_from,
        processes=processes,
        on_left_out=left_out.append,
        captured_in=[Path(item) for item in captured_in],
    )
    traces = [AnalyzedTrace(analysis) for analysis in analyzed.ranks]
    return traces[0] if is_file else AnalyzedRanks(traces, analyzed.joint, left_out)


def _frame(items: Sequence[Struct], row_type: type[Struct]) -> pd.DataFrame:
    """One DataFrame row for each item; an empty frame still has its columns."""
    import pandas as pd

    frame: pd.DataFrame = pd.DataFrame([values_of(item) for item in items], columns=columns_of(row_type))
    return frame


__all__ = ["AnalyzedRanks", "AnalyzedTrace", "analyze"]
