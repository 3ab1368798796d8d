"""`proftrack.analyze(path)`: a trace in a notebook, its tables as pandas DataFrames."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from proftrack.analysis.pipeline import Analysis, analyze_trace
from proftrack.record import Record
from proftrack.record.figures import Kernel, Op, Region, Step

if TYPE_CHECKING:
    import pandas as pd


class AnalyzedTrace:
    """A trace's record, and its tables as DataFrames (times in microseconds, as their columns say).

    record    everything `proftrack analyze --json -` prints
    verdict   regime, cause, confidence, evidence, advice
    ops       name, category, calls, self_cpu_time_us, cpu_time_us, self_cuda_time_us, cuda_time_us
    kernels   name, kind, calls, total_us, mean_us, min_us, max_us, share, limit, blocks, flops, bytes, roofline_us, ...
    steps     step, host_us, self_cpu_time_us, self_cuda_time_us, gpu_events, kernels, launches
    regions   name, calls, cpu_time_us, gpu_busy_us, launches
    events    one row an event: ts_ns, dur_ns (integers), name, category, kind, pid, tid, device, stream, ...
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self.record: Record = analysis.record
        self.verdict = analysis.record.verdict

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
    def events(self) -> pd.DataFrame:
        """The event table; see events.parquet.COLUMNS for what each column means."""
        from proftrack.trace.parquet import to_arrow

        frame: pd.DataFrame = to_arrow(self._analysis.tables).to_pandas()
        return frame


def analyze(
    path: str | PathLike[str],
    *,
    step_time_us: float | None = None,
    salvage: bool = False,
    max_bytes: int | None = None,
) -> AnalyzedTrace:
    """Read, measure and judge a torch.profiler trace (.json or .json.gz).

    `step_time_us` is the step time without the profiler; without it the verdict rests on the trace's own times.
    `max_bytes` bounds the JSON inside the file (default 8 GiB, and 250 times the file's size).
    Raises TraceError where the file cannot be read; `salvage` reads what is whole of it. Raises UsageError where
    `step_time_us` is no time of a step.
    """
    return AnalyzedTrace(analyze_trace(Path(path), step_time_us=step_time_us, salvage=salvage, max_bytes=max_bytes))


def _frame(rows: Sequence[Struct], row_type: type[Struct]) -> pd.DataFrame:
    """A row each; without any the columns are still there."""
    import pandas as pd

    frame: pd.DataFrame = pd.DataFrame(
        [msgspec.to_builtins(row) for row in rows], columns=list(row_type.__struct_encode_fields__)
    )
    return frame


__all__ = ["AnalyzedTrace", "analyze"]
