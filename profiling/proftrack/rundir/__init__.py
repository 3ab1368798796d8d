"""Run folders: what a run measured, complete on disk before any of it goes to a store.

    FOLDER/record.json
           trace/*.pt.trace.json.gz
           tables/key_averages.txt, ops.json, kernels.json
           tables/modules.json         if modules are known
           events.parquet
           report.html
           plots/*.png                 if matplotlib is installed
           git.diff                    only if the tree was dirty
           ranks.json, ranks/N.record.json     if the run has several ranks
           logged.json                 the stores this folder was logged to; for proftrack only, not an artifact

    layout    these names, defined once
    spool     creates, locks and removes folders; where runs without --output keep theirs
    read      which folders are complete, and which of their files belong in a store
    logged    which stores a folder was logged to
    parts     what each rank leaves for rank 0
    batch     the folder of a sweep or of variants, with a run folder for each part

`proftrack.recorder` writes them.
"""

from proftrack.rundir.layout import MODULES, RECORD, TABLES
from proftrack.rundir.logged import Logged, logged, note_logged
from proftrack.rundir.read import artifacts, find, holds_measurements, identity, load, read_bounded
from proftrack.rundir.spool import (
    LEAST_FREE_BYTES,
    SPOOL_VARIABLE,
    discard,
    free_space,
    locked,
    new_folder,
    spool_root,
    spooled,
)

__all__ = [
    "LEAST_FREE_BYTES",
    "MODULES",
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
