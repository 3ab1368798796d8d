"""A cycle's trace on disk: exported by torch, counted, compressed, named.

The count comes from the file itself, since that is what is kept and analyzed. The text is searched in pieces and not
decoded: a trace may have more than a million rows, and names with quotes can make it invalid JSON.
"""

from __future__ import annotations

import contextlib
import gzip
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from proftrack import names
from proftrack.errors import CaptureError

_PIECE = 4 << 20
_OVERLAP = 512  # longer than any text that is searched for
_COMPRESSION = 6  # torch uses 9, which takes three times as long for a file two per cent smaller
_STEP = re.compile(rb'"name"\s*:\s*"ProfilerStep#(\d+)"')
_GPU_WORK = re.compile(rb'"cat"\s*:\s*"(?:kernel|gpu_memcpy|gpu_memset)"', re.IGNORECASE)
_LAUNCH = re.compile(
    rb'"name"\s*:\s*"(?:(?:cuda|cu|hip)(?:Ext)?(?:Module)?(?:Launch(?!HostFunc)|GraphLaunch|Memcpy|Memset)\w*)"'
)


class Counts(Struct):
    """What capture must know about a trace's contents."""

    steps: set[int]
    """The step numbers in ProfilerStep rows."""
    gpu_work: int = 0
    launches: int = 0
    graph_launches: int = 0
    """Those of `launches` that replay a CUDA graph."""


def file_name(experiment: str, cycle: int, rank: int | None = None) -> str:
    """The trace's file name. `cycle` counts from 1; `rank` is given if there are several."""
    return f"{names.file_name(experiment)}.cycle{cycle}{'' if rank is None else f'.rank{rank}'}.pt.trace.json.gz"


def captured_name(experiment: str, rank: int | None = None) -> str:
    """The file name of the trace in which the steps' CUDA graphs are captured once more (`names.is_captured`)."""
    return f"{names.file_name(experiment)}.captured{'' if rank is None else f'.rank{rank}'}.pt.trace.json.gz"


def region_name(experiment: str) -> str:
    """The experiment's name as used for the steps' record_function region.

    Quotes, backslashes, control and non-ASCII characters become `_`: torch writes names into the trace unescaped (or,
    since 2.13, as `unknown`).
    """
    return re.sub(r'[^ -~]|["\\]', "_", experiment)


def export(save: Callable[[str], None], target: Path) -> Counts:
    """Write a plain trace with `save`, count its rows and compress it to `target`, completely or not at all.

    Raises CaptureError if it cannot be written.
    """
    plain = target.with_name(f".{target.name.removesuffix('.gz')}")
    packed = target.with_name(f".{target.name}")
    try:
        save(str(plain))
        with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=_COMPRESSION) as sink:
            counts = _count_and_copy(source, sink)
        packed.replace(target)
    except OSError as error:
        raise CaptureError(f"{target}: the trace cannot be written ({error.strerror or error})") from error
    finally:
        for leftover in (plain, packed):
            with contextlib.suppress(OSError):
                leftover.unlink()
    return counts


def without_step(save: Callable[[str], None], number: int) -> Callable[[str], None]:
    """`save`, followed by renaming the row of an unfinished step so that it does not count as a step."""

    def save_and_rename(path: str) -> None:
        save(path)
        plain, aside = Path(path), Path(f"{path}.part")
        with plain.open("rb") as source, aside.open("wb") as sink:
            for line in source:
                sink.write(line.replace(b'"ProfilerStep#%d"' % number, b'"unfinished step %d"' % number))
        aside.replace(plain)

    return save_and_rename


def _count_and_copy(source: BinaryIO, sink: gzip.GzipFile) -> Counts:
    counts = Counts(set())
    last = b""
    for piece, fresh_from in _pieces(source):
        sink.write(piece[fresh_from:])
        counts.steps.update(int(match[1]) for match in _STEP.finditer(piece))
        counts.gpu_work += sum(1 for match in _GPU_WORK.finditer(piece) if match.end() > fresh_from)
        launches = [match[0] for match in _LAUNCH.finditer(piece) if match.end() > fresh_from]
        counts.launches += len(launches)
        counts.graph_launches += sum(1 for launch in launches if b"GraphLaunch" in launch)
        last = piece
    if not last.rstrip().endswith(b"}"):
        raise OSError("torch wrote only part of it: is the disk full?")
    return counts


def _pieces(source: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """The file in pieces. Each starts with the end of the previous piece: matches inside it were already counted."""
    tail = b""
    while fresh := source.read(_PIECE):
        yield tail + fresh, len(tail)
        tail = (tail + fresh)[-_OVERLAP:]
