"""Each file and folder name of a run folder, and of the folder of a batch, once."""

from __future__ import annotations

from typing import NamedTuple

RECORD = "record.json"
TRACES = "trace"
KEY_AVERAGES = "tables/key_averages.txt"
OPS, KERNELS = TABLES = ("tables/ops.json", "tables/kernels.json")
EVENTS = "events.parquet"
REPORT = "report.html"
PLOTS = "plots"
DIFF = "git.diff"

REQUIRED = (RECORD, KEY_AVERAGES, *TABLES, EVENTS)
"""Without these, and the traces that its record names, a folder is not whole, but for what the record says it lacks."""
MADE_AGAIN = (EVENTS, PLOTS, REPORT, DIFF)
"""What a run can do without, in the order in which it is given up: pictures are drawn again from the record."""

RANKS = "ranks"
"""Folder of the other ranks' parts: N/ while rank N is at work, N.record.json afterwards."""
RANKS_SUMMARY = "ranks.json"
COLLECTIVES = "collectives.json"
"""Of a rank's part, until all are gathered."""

LOGGED = "logged.json"
"""To which stores the folder was logged. Ours, not an artifact."""
LOCK = ".lock"
"""Held by the process that is at work on the folder. Hidden names are no artifacts."""
GITIGNORE = ".gitignore"


def part_record(rank: int) -> str:
    """The record of a rank other than 0, in its whole run folder."""
    return f"{RANKS}/{rank}.{RECORD}"


# ---- the folder of a sweep, or of variants ---------------------------------------------------------------------------

BATCH = "group.json"
LOGS = "logs"
"""NAME.txt: what the processes of a part printed."""
PROCESSES = "processes"
"""Of variants in processes of their own: what each of them leaves, until it has been taken in."""


class BatchNames(NamedTuple):
    """What a batch of one kind calls its folders and files."""

    parts: str
    """Folder of the run folders."""
    result: str
    text: str
    table: str
    plot: str


SWEEP = BatchNames("points", "sweep.json", "sweep.md", "tables/sweep.json", "plots/sweep.png")
VARIANTS = BatchNames("runs", "variants.json", "variants.md", "tables/variants.json", "plots/variants.png")
