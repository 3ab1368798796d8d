"""A cycle's trace on disk: exported by torch, counted, compressed, given its name.

The count comes from the file itself, since that is what is kept and judged. It is taken by searching the text in
pieces: a trace may have a million rows and more, and names with quotes can make it invalid JSON, so it is not decoded
here.
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
_OVERLAP = 512  # longer than any row's start that is searched for
_COMPRESSION = 6  # torch takes 9: three times as long for a file two per cent smaller
_STEP = re.compile(rb'"name"\s*:\s*"ProfilerStep#(\d+)"')
_GPU_WORK = re.compile(rb'"cat"\s*:\s*"(?:kernel|gpu_memcpy|gpu_memset)"', re.IGNORECASE)
_LAUNCH = re.compile(
    rb'"name"\s*:\s*"(?:(?:cuda|cu|hip)(?:Ext)?(?:Module)?(?:Launch(?!HostFunc)|GraphLaunch|Memcpy|Memset)\w*)"'
)


class Counts(Struct):
    """What a trace holds, as far as capture must know."""

    steps: set[int]
    """Numbers of the ProfilerStep rows."""
    gpu_work: int = 0
    launches: int = 0


def file_name(experiment: str, cycle: int, rank: int | None = None) -> str:
    """Name of the trace of one cycle, counted from 1, of one rank of several."""
    return f"{names.file_name(experiment)}.cycle{cycle}{'' if rank is None else f'.rank{rank}'}.pt.trace.json.gz"


def region_name(experiment: str) -> str:
    """The experiment's name as the steps' record_function region has it.

    Quotes, backslashes, control and non-ASCII characters become `_`: torch writes names into the trace unescaped (or,
    from 2.13 on, as `unknown`).
    """
    return re.sub(r'[^ -~]|["\\]', "_", experiment)


def export(save: Callable[[str], None], target: Path) -> Counts:
    """Have `save` write a plain trace, count its rows, and leave it compressed at `target`, whole or not at all.

    Raises CaptureError where it cannot be written.
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
    """`save`, after which the row of a step that was not over has another name: nobody must take it for a step."""

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
        counts.launches += sum(1 for match in _LAUNCH.finditer(piece) if match.end() > fresh_from)
        last = piece
    if not last.rstrip().endswith(b"}"):
        raise OSError("torch wrote only a part of it: is the disk full?")
    return counts


def _pieces(source: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """The file in pieces that begin with the end of the piece before; matches that end in it were counted already."""
    tail = b""
    while fresh := source.read(_PIECE):
        yield tail + fresh, len(tail)
        tail = (tail + fresh)[-_OVERLAP:]
