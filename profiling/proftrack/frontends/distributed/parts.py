"""What each rank leaves of a run, gathered into one folder and compared.

FOLDER/trace/NAME.cycle1.rank0.pt.trace.json.gz, ...rank1...
       record.json             of rank 0
       ranks.json              the ranks side by side, and what that means
       ranks/1.record.json     of the others
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from proftrack import record as records
from proftrack.analysis.ranks import Part, in_company, join
from proftrack.frontends.distributed.team import RANKS, Team
from proftrack.measures.collectives import Collective
from proftrack.record import Record
from proftrack.record.ranks import Joint
from proftrack.recorder import analysed, write

if TYPE_CHECKING:
    from proftrack.capture.result import Capture
    from proftrack.experiment import Experiment
    from proftrack.record.figures import Flag

SUMMARY = "ranks.json"


def keep_part(team: Team, captured: Capture, asked: Experiment, folder: Path) -> Record:
    """Another rank: analyse, and put trace and record into the folder of rank 0. Its traces are in `folder`/ranks/N."""
    analysis = analysed(captured, asked, code=asked.path.parent)
    own = part_folder(folder, team.rank)
    (own / "collectives.json").write_bytes(msgspec.json.encode(analysis.collectives))
    records.save(analysis.record, own / "record.json.part")
    (own / "record.json.part").replace(own / "record.json")
    team.done()
    return analysis.record


def keep_all(
    team: Team,
    captured: Capture,
    asked: Experiment,
    folder: Path,
    flags: Sequence[Flag] = (),
    *,
    joined: bool = False,
) -> tuple[Record, Joint]:
    """Rank 0: analyse, wait for the others, compare, write the run folder. Returns its record and the comparison.

    `joined`: those that take part, and not all of the launch.
    """
    analysis = analysed(captured, asked, code=asked.path.parent)
    others = team.wait_for_others(joined=joined)
    parts = [Part(rank=0, record=analysis.record, collectives=list(analysis.collectives))]
    parts += [_gather(folder, rank) for rank in others]
    joint = join(parts)
    (folder / SUMMARY).write_bytes(msgspec.json.format(msgspec.json.encode(joint), indent=1) + b"\n")
    for part in parts[1:]:
        told_of_others = records.dump(in_company(part.record, part.rank, joint))
        (folder / RANKS / f"{part.rank}.record.json").write_bytes(told_of_others)
    run = analysis.record.run
    assert run is not None  # a capture's record has one
    of_these = "" if len(parts) == team.size else f", of which {len(parts)} were recorded"
    told = msgspec.structs.replace(
        run, notes=[*run.notes, f"One of {team.size} ranks{of_these}, rank 0's figures.", *joint.findings]
    )
    record = in_company(analysis.record, 0, joint)
    record = msgspec.structs.replace(record, run=told, quality=[*record.quality, *flags])
    whole = analysis._replace(record=record)
    return write(whole, folder, code=asked.path.parent), joint


def part_folder(folder: Path, rank: int) -> Path:
    """Where a rank other than 0 keeps what is its own."""
    return folder / RANKS / str(rank)


def _gather(folder: Path, rank: int) -> Part:
    """A rank's part: its traces go beside rank 0's, its record stays as ranks/N.record.json."""
    own = part_folder(folder, rank)
    for trace in sorted((own / "trace").glob("*.gz")):
        shutil.move(trace, folder / "trace" / trace.name)
    record = records.load(own / "record.json")
    found = msgspec.json.decode((own / "collectives.json").read_bytes(), type=list[tuple[str, float, float]])
    shutil.move(own / "record.json", folder / RANKS / f"{rank}.record.json")
    shutil.rmtree(own)
    return Part(rank=rank, record=record, collectives=[Collective(*each) for each in found])
