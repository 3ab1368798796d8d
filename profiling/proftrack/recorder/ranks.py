"""What the ranks of one launch do for each other: rank 0 has folder and run, the others leave their parts there."""

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
    """The other ranks, as a run needs them; see `proftrack.frontends.distributed.team.Team`."""

    rank: int
    size: int

    def announce(self, folder: Path, run_id: str | None) -> None:
        """Rank 0: where the others put what they measure, and which run it is for."""

    def place(self) -> tuple[Path, str | None]:
        """Another rank: the folder and the run that rank 0 has announced. Raises CaptureError."""

    def need_first(self) -> None:
        """Raise CaptureError where rank 0 does not take part."""

    def done(self) -> None:
        """This rank's part is in the folder."""

    def wait_for_others(self, *, joined: bool = False) -> list[int]:
        """Rank 0: the ranks whose parts are there: all, or those that have `joined`. Raises CaptureError."""

    def leads_now(self) -> bool:
        """Whether rank 0 is dead and this is the lowest rank that lives."""


class RankRecording:
    """What another rank than 0 records: a part of rank 0's run, in its folder."""

    def __init__(self, peers: Peers) -> None:
        """Wait for rank 0's folder. Raises CaptureError where it never comes, or cannot be seen from here."""
        self._peers = peers
        self.folder, self.run_id = peers.place()
        self.own_folder = parts.part_folder(self.folder, peers.rank)
        """Where this rank's traces go."""

    def write(self, analysis: Analysis, flags: Sequence[Flag] = ()) -> Record:
        """Put this rank's part beside its traces, and say so. Raises OSError."""
        parts.write_part(self.own_folder, analysis.record, analysis.collectives)
        self._peers.done()
        return analysis.record

    def log(self) -> None:
        """Rank 0 does, and says where all is."""

    def fail(self, error: BaseException) -> None:
        """Let the others know what ended this rank."""
        self._peers.fail(error)

    def end(self, error: BaseException | None) -> None:
        """Where rank 0 is dead, the lowest rank that lives ends its run for it."""
        if error is not None and self.run_id is not None and self._peers.leads_now():
            session.end_for_another(self.run_id, str(error))

    @property
    def is_whole(self) -> bool:
        """Whether this rank has a run folder of its own that is worth a word: never."""
        return False


def take_part(peers: Peers, measure: Callable[[Path], Analysis]) -> Record:
    """The life of another rank than 0: measure into the folder that rank 0 announces, and leave the part there.

    Raises what measuring raises; CaptureError naming the rank where another one failed.
    """
    part: RankRecording | None = None

    def end(error: BaseException | None) -> None:
        if part is not None:
            part.end(error)

    with guarded(end, peers):
        part = RankRecording(peers)
        return part.write(measure(part.own_folder))


def gathered(peers: Peers, analysis: Analysis, folder: Path, *, joined: bool) -> tuple[Analysis, Joint]:
    """Rank 0: wait for the others, take their parts into `folder`, compare. Gives rank 0's analysis in their company.

    `joined`: those that take part, and not all of the launch. Raises CaptureError where a part never comes.
    """
    from proftrack.analysis import ranks
    from proftrack.measures.collectives import Collective

    everybody = [ranks.Part(rank=0, record=analysis.record, collectives=list(analysis.collectives))]
    for rank in peers.wait_for_others(joined=joined):
        record, collectives = parts.gather_part(folder, rank)
        everybody.append(ranks.Part(rank=rank, record=record, collectives=[Collective(*each) for each in collectives]))
    (own, *others), joint = ranks.join_ranks(everybody)
    parts.write_joint(folder, joint, {part.rank: each for part, each in zip(everybody[1:], others, strict=True)})
    assert own.run is not None  # a capture's record has one
    of_these = "" if len(everybody) == peers.size else f", of which {len(everybody)} were recorded"
    note = f"One of {peers.size} ranks{of_these}, rank 0's figures."
    run = msgspec.structs.replace(own.run, notes=[*own.run.notes, note, *joint.findings])
    return analysis._replace(record=msgspec.structs.replace(own, run=run)), joint


@contextlib.contextmanager
def heard(peers: Peers | None) -> Iterator[None]:
    """Whatever ends this rank in the block, the others hear of it."""
    try:
        yield
    except BaseException as error:
        if peers is not None:
            peers.fail(error)
        raise
