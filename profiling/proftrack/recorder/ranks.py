"""What the ranks of one launch do for each other: rank 0 has folder and run, the others leave their parts there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from proftrack import process
from proftrack.record import Record
from proftrack.rundir import parts
from proftrack.signals import guarded
from proftrack.store import session

if TYPE_CHECKING:
    from proftrack.analysis.pipeline import Analysis
    from proftrack.record.figures import Flag


class Peers(process.Watched, Protocol):
    """The other ranks, as a run needs them; see `proftrack.frontends.distributed.team.Team`."""

    rank: int

    def announce(self, folder: Path, run_id: str | None) -> None:
        """Rank 0: where the others put what they measure, and which run it is for."""

    def place(self) -> tuple[Path, str | None]:
        """Another rank: the folder and the run that rank 0 has announced. Raises CaptureError."""

    def need_first(self) -> None:
        """Raise CaptureError where rank 0 does not take part."""

    def done(self) -> None:
        """This rank's part is in the folder."""

    def leads_now(self) -> bool:
        """Whether rank 0 is dead and this is the lowest rank that lives."""


class Part:
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
    part: Part | None = None

    def end(error: BaseException | None) -> None:
        if part is not None:
            part.end(error)

    with guarded(end, peers):
        part = Part(peers)
        return part.write(measure(part.own_folder))
