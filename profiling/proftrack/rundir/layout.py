"""The file and folder names of run folders and batch folders, each defined once."""

from __future__ import annotations

from typing import NamedTuple

RECORD = "record.json"
TRACES = "trace"
KEY_AVERAGES = "tables/key_averages.txt"
OPS, KERNELS = TABLES = ("tables/ops.json", "tables/kernels.json")
MODULES = "tables/modules.json"
"""Only if the trace tells of modules, a backward pass or an optimizer."""
EVENTS = "events.parquet"
REPORT = "report.html"
PLOTS = "plots"
DIFF = "git.diff"

REQUIRED = (RECORD, KEY_AVERAGES, *TABLES, EVENTS)
"""A complete folder has these and the traces that its record names, except for what the record says was left out."""
MADE_AGAIN = (EVENTS, PLOTS, REPORT, DIFF)
"""What a run does not need, in the order in which it is left out: pictures can be drawn again from the record."""

RANKS = "ranks"
"""Folder for the parts of the other ranks: N/ while rank N is at work, N.record.json afterwards."""
RANKS_SUMMARY = "ranks.json"
COLLECTIVES = "collectives.json"
"""In a rank's part, until all parts are gathered."""

LOGGED = "logged.json"
"""The stores that the folder was logged to. For proftrack only, not an artifact."""
LOCK = ".lock"
"""Locked by the process that works on the folder. Files with hidden names are not artifacts."""
GITIGNORE = ".gitignore"


def part_record(rank: int) -> str:
    """The record of a rank other than 0, in a complete run folder."""
    return f"{RANKS}/{rank}.{RECORD}"


# ---- the folder of a sweep, or of variants ---------------------------------------------------------------------------

BATCH = "group.json"
LOGS = "logs"
"""NAME.txt: what the processes of a part printed."""
PROCESSES = "processes"
"""For variants in separate processes: what each process leaves, until it has been read."""


class BatchNames(NamedTuple):
    """Names of the folders and files of one kind of batch."""

    parts: str
    """Folder that contains the run folders."""
    result: str
    text: str
    table: str
    plot: str


SWEEP = BatchNames("points", "sweep.json", "sweep.md", "tables/sweep.json", "plots/sweep.png")
VARIANTS = BatchNames("runs", "variants.json", "variants.md", "tables/variants.json", "plots/variants.png")
