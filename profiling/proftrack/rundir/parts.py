"""What each rank of a run leaves in the one run folder.

FOLDER/ranks/N/trace/*.gz           of rank N while it is at work
               collectives.json
               record.json          comes last: then the part is whole
       ranks/N.record.json          its record once all are gathered; its traces are in trace/ then
       ranks.json                   the ranks side by side, and what that means
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from proftrack import files
from proftrack import record as records
from proftrack.record import Record
from proftrack.record.ranks import Joint
from proftrack.rundir.layout import COLLECTIVES, RANKS, RANKS_SUMMARY, RECORD, TRACES, part_record

Call = tuple[str, float, float]
"""The fields of a Collective."""


def part_folder(folder: Path, rank: int) -> Path:
    """Where a rank other than 0 keeps what is its own."""
    return folder / RANKS / str(rank)


def write_part(own: Path, record: Record, collectives: Sequence[Call]) -> None:
    """Write what rank 0 needs of a rank whose traces are in `own` already. Raises OSError."""
    (own / COLLECTIVES).write_bytes(msgspec.json.encode(collectives))
    files.replace(own / RECORD, records.dump(record))


def gather_part(folder: Path, rank: int) -> tuple[Record, list[Call]]:
    """Move a rank's traces beside rank 0's and give its record and its collectives.

    Raises ProftrackError where its record cannot be read, OSError.
    """
    own = part_folder(folder, rank)
    for trace in sorted((own / TRACES).glob("*.gz")):
        shutil.move(trace, folder / TRACES / trace.name)
    record = records.load(own / RECORD)
    collectives = msgspec.json.decode((own / COLLECTIVES).read_bytes(), type=list[Call])
    shutil.rmtree(own)
    return record, collectives


def write_joint(folder: Path, joint: Joint, others: dict[int, Record]) -> None:
    """Write the comparison of all ranks, and the records of those other than 0. Raises OSError."""
    (folder / RANKS_SUMMARY).write_bytes(msgspec.json.format(msgspec.json.encode(joint), indent=1) + b"\n")
    for rank, record in others.items():
        (folder / part_record(rank)).write_bytes(records.dump(record))
