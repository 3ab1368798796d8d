"""Traces that hold the captures of CUDA graphs which other traces replay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from proftrack.analysis import trace_files
from proftrack.analysis.trace_files import TraceFiles
from proftrack.errors import NotATraceError, TraceError
from proftrack.measures import recorded_captures
from proftrack.measures.captures import Captures, has_captures
from proftrack.trace.categories import is_graph_launch
from proftrack.trace.ranks import rank_of, stated_rank
from proftrack.trace.reader import Trace, read

_REMEDY = "name a trace that was recorded while the graph was captured"


class CapturedIn:
    """Files with captures, each read when a trace that replays graphs first needs it."""

    def __init__(
        self, named: Iterable[Path], found: Sequence[Path], *, salvage: bool = False, max_bytes: int | None = None
    ) -> None:
        """`named` by the user: files, or folders of them; `found` beside the traces.

        Raises NotFoundError if one does not exist, UsageError if a folder has none or a file is named twice.
        """
        named = list(named)
        files = trace_files.find(named) if named else TraceFiles([], frozenset())
        self._must_hold = frozenset(files.paths) - files.from_folders
        self._paths = [*dict.fromkeys([*files.paths, *files.captured, *found])]
        self._salvage, self._max_bytes = salvage, max_bytes
        self._known: dict[Path, Captures | None] = {}

    def of(self, trace: Trace) -> list[Captures]:
        """The captures to look for the trace's graphs in: those of its own rank, if the files' names tell ranks.

        Empty if it replays no graph. Raises TraceError if a file cannot be read, or was named and holds no capture.
        """
        if not self._paths or not trace.table.named(is_graph_launch).any():
            return []
        found = [self._captures(path, trace) for path in self._of_rank(trace)]
        return [each for each in found if each is not None]

    def _of_rank(self, trace: Trace) -> list[Path]:
        rank = _rank(trace.path, stated_rank((trace.table.meta.distributed or {}).get("rank")))
        ranks = {path: _rank(path, None) for path in self._paths}
        mine = [path for path in self._paths if ranks[path] == rank]
        return mine if rank is not None and mine else self._paths

    def _captures(self, path: Path, trace: Trace) -> Captures | None:
        """None for what is no trace with captures but was not named, and for the trace itself, which has its own."""
        if path.exists() and trace.path.exists() and path.samefile(trace.path):
            self._check(path, has_captures(trace.table))
            return None
        if path not in self._known:
            self._known[path] = self._read(path)
        return self._known[path]

    def _read(self, path: Path) -> Captures | None:
        try:
            table = read(path, salvage=self._salvage, max_bytes=self._max_bytes).table
        except NotATraceError:
            if path in self._must_hold:
                raise
            return None
        self._check(path, has_captures(table))
        return recorded_captures(path.name, table)

    def _check(self, path: Path, holds: bool) -> None:
        if path in self._must_hold and not holds:
            raise TraceError(f"{path}: holds no capture of a CUDA graph (no cudaStreamBeginCapture)", _REMEDY)


def _rank(path: Path, stated: int | None) -> int | None:
    return rank_of(PurePath(path.parent.name, path.name), stated)
