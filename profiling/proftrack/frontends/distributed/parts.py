"""The parts that all ranks leave of a run, gathered into one and compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from proftrack.analysis.ranks import Part, in_company, join
from proftrack.measures.collectives import Collective
from proftrack.record.ranks import Joint
from proftrack.rundir import parts

if TYPE_CHECKING:
    from proftrack.analysis.pipeline import Analysis
    from proftrack.frontends.distributed.team import Team


def gathered(team: Team, analysis: Analysis, folder: Path, *, joined: bool = False) -> tuple[Analysis, Joint]:
    """Rank 0: wait for the others, take their parts into `folder`, compare. Gives rank 0's analysis in their company.

    `joined`: those that take part, and not all of the launch. Raises CaptureError where a part never comes.
    """
    others = team.wait_for_others(joined=joined)
    everybody = [Part(rank=0, record=analysis.record, collectives=list(analysis.collectives))]
    everybody += [_part(folder, rank) for rank in others]
    joint = join(everybody)
    parts.write_joint(folder, joint, {part.rank: in_company(part.record, part.rank, joint) for part in everybody[1:]})
    of_these = "" if len(everybody) == team.size else f", of which {len(everybody)} were recorded"
    note = f"One of {team.size} ranks{of_these}, rank 0's figures."
    record = in_company(analysis.record, 0, joint)
    assert record.run is not None  # a capture's record has one
    run = msgspec.structs.replace(record.run, notes=[*record.run.notes, note, *joint.findings])
    return analysis._replace(record=msgspec.structs.replace(record, run=run)), joint


def _part(folder: Path, rank: int) -> Part:
    record, collectives = parts.gather_part(folder, rank)
    return Part(rank=rank, record=record, collectives=[Collective(*each) for each in collectives])
