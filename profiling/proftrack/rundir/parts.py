"""What each rank of a run leaves in the shared run folder.

FOLDER/ranks/N/trace/*.gz           traces of rank N, while it is at work
               collectives.json
               record.json          written last: the part is then complete
       ranks/N.record.json          its record once all parts are gathered; its traces are then in trace/
       ranks.json                   the comparison of the ranks, and what follows from it
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from proftrack import files
from proftrack import record as records
from proftrack.record import Record
from proftrack.record.ranks import Collective, Joint
from proftrack.rundir.layout import COLLECTIVES, RANKS, RANKS_SUMMARY, RECORD, TRACES, part_record


def part_folder(folder: Path, rank: int) -> Path:
    """Folder for the part of a rank other than 0."""
    return folder / RANKS / str(rank)


def write_part(part: Path, record: Record, collectives: Sequence[Collective]) -> None:
    """Write what rank 0 needs from a rank whose traces are in the folder `part` already. Raises OSError."""
    (part / COLLECTIVES).write_bytes(msgspec.json.encode(collectives))
    files.replace(part / RECORD, records.dump(record))


def gather_part(folder: Path, rank: int) -> tuple[Record, list[Collective]]:
    """Move a rank's traces beside those of rank 0; returns its record and its collectives.

    Raises ProftrackError if the record cannot be read, OSError.
    """
    part = part_folder(folder, rank)
    for trace in sorted((part / TRACES).glob("*.gz")):
        shutil.move(trace, folder / TRACES / trace.name)
    record = records.load(part / RECORD)
    collectives = msgspec.json.decode((part / COLLECTIVES).read_bytes(), type=list[Collective])
    shutil.rmtree(part)
    return record, collectives


def write_joint(folder: Path, joint: Joint, others: dict[int, Record]) -> None:
    """Write the comparison of all ranks, and the records of the ranks other than 0. Raises OSError."""
    (folder / RANKS_SUMMARY).write_bytes(msgspec.json.format(msgspec.json.encode(joint), indent=1) + b"\n")
    for rank, record in others.items():
        (folder / part_record(rank)).write_bytes(records.dump(record))
