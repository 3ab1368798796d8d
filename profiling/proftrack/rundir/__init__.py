"""Run folders: what a run measured, kept whole on disk before anything of it goes to a store.

    FOLDER/record.json
           trace/*.pt.trace.json.gz
           tables/key_averages.txt, ops.json, kernels.json
           events.parquet
           report.html
           plots/*.png                 where matplotlib is installed
           git.diff                    only where the tree was dirty
           ranks.json, ranks/N.record.json     of a run of several ranks
           logged.json                 to which stores this folder was logged; ours, not an artifact

    layout    each of these names, once
    spool     where new folders are made, and where runs without --output keep theirs
    lock      one process at a time
    read      which folders are whole, and what of them belongs into a store
    logged    where a folder was logged to
    parts     what each rank leaves
    batch     the folder of a sweep or of variants, with a run folder for each part

`proftrack.recorder` writes them.
"""

from proftrack.rundir.layout import RECORD, TABLES
from proftrack.rundir.lock import locked
from proftrack.rundir.logged import Logged, logged, note_logged
from proftrack.rundir.read import artifacts, find, holds_measurements, identity, load, read_bounded
from proftrack.rundir.spool import (
    LEAST_FREE_BYTES,
    SPOOL_VARIABLE,
    discard,
    free_space,
    new_folder,
    spool_root,
    spooled,
)

__all__ = [
    "LEAST_FREE_BYTES",
    "RECORD",
    "SPOOL_VARIABLE",
    "TABLES",
    "Logged",
    "artifacts",
    "discard",
    "find",
    "free_space",
    "holds_measurements",
    "identity",
    "load",
    "locked",
    "logged",
    "new_folder",
    "note_logged",
    "read_bounded",
    "spool_root",
    "spooled",
]
