"""What the ranks of one launch do for each other: rank 0 owns folder and run, the others leave their parts there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from proftrack import process
from proftrack.record import Record
from proftrack.record.ranks import Joint
from proftrack.rundir import parts
from proftrack.signals import guarded
from proftrack.store import session

if TYPE_CHECKING:
    from proftrack.analysis.pipeline import Analysis
    from proftrack.record.figures import Flag


class Peers(process.Watched, Protocol):
    """What a run needs from the other ranks; see `proftrack.frontends.distributed.Team`."""

    rank: int
    size: int

    def announce(self, folder: Path, run_id: str | None) -> None:
        """Rank 0: tell the others where to put what they measure, and for which run."""

    def place(self) -> tuple[Path, str | None]:
        """Other ranks: the folder and the run that rank 0 announced. Raises CaptureError."""

    def need_first(self) -> None:
        """Raise CaptureError if rank 0 does not take part."""

    def done(self) -> None:
        """Announce that this rank's part is in the folder."""

    def wait_for_others(self, *, joined: bool = False) -> list[int]:
        """Rank 0: wait for the parts of all ranks, or of those that `joined`; the ranks. Raises CaptureError."""

    def leads_now(self) -> bool:
        """Whether rank 0 is dead and this is the lowest rank alive."""


class RankRecording:
    """What a rank other than 0 records: a part of rank 0's run, in rank 0's folder."""

    def __init__(self, peers: Peers) -> None:
        """Wait for rank 0's folder. Raises CaptureError if it never comes or is not visible from here."""
        self._peers = peers
        self.folder, self.run_id = peers.place()
        self.own_folder = parts.part_folder(self.folder, peers.rank)
        """Folder for this rank's traces."""

    def write(self, analysis: Analysis, flags: Sequence[Flag] = ()) -> Record:
        """Write this rank's part beside its traces, and announce it. Raises OSError."""
        parts.write_part(self.own_folder, analysis.record, analysis.collectives)
        self._peers.done()
        return analysis.record

    def log(self) -> None:
        """Nothing to log: rank 0 logs the run and says where it is."""

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks what ended this one."""
        self._peers.fail(error)

    def end(self, error: BaseException | None) -> None:
        """If rank 0 is dead, the lowest rank alive ends its run for it."""
        if error is not None and self.run_id is not None and self._peers.leads_now():
            session.end_for_another(self.run_id, str(error))

    @property
    def is_whole(self) -> bool:
        """Whether this rank has a complete run folder of its own: never."""
        return False


def take_part(peers: Peers, measure: Callable[[Path], Analysis]) -> Record:
    """The life of a rank other than 0: measure into the folder that rank 0 announces, and leave the part there.

    Raises what measuring raises, and CaptureError naming the rank if another one failed.
    """
    part: RankRecording | None = None

    def end(error: BaseException | None) -> None:
        if part is not None:
            part.end(error)

    with guarded(end, peers):
        part = RankRecording(peers)
        return part.write(measure(part.own_folder))


def gathered(peers: Peers, analysis: Analysis, folder: Path, *, joined: bool) -> tuple[Analysis, Joint]:
    """Rank 0: wait for the others, take their parts into `folder`, compare them; returns rank 0's analysis, joined.

    `joined`: only the ranks that take part, not all of the launch. Raises CaptureError if a part never comes.
    """
    from proftrack.analysis import ranks

    world = peers.size
    all_parts = [ranks.Part(rank=0, record=analysis.record, collectives=analysis.collectives, world=world)]
    for rank in peers.wait_for_others(joined=joined):
        record, collectives = parts.gather_part(folder, rank)
        all_parts.append(ranks.Part(rank=rank, record=record, collectives=collectives, world=world))
    (first, *others), joint = ranks.join_ranks(all_parts)
    parts.write_joint(folder, joint, {part.rank: each for part, each in zip(all_parts[1:], others, strict=True)})
    assert first.run is not None  # a capture's record has one
    recorded = "" if len(all_parts) == peers.size else f" ({len(all_parts)} recorded)"
    note = f"One of {peers.size} ranks{recorded}; the figures are those of rank 0."
    run = msgspec.structs.replace(first.run, notes=[*first.run.notes, note, *(f.text for f in joint.findings)])
    return analysis._replace(record=msgspec.structs.replace(first, run=run)), joint


@contextlib.contextmanager
def failures_shared(peers: Peers | None) -> Iterator[None]:
    """Tell the other ranks about any error that ends the block."""
    try:
        yield
    except BaseException as error:
        if peers is not None:
            peers.fail(error)
        raise
