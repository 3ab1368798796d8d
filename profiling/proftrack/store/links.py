"""The lines printed about a run: its report, store and traces, and how to open them. Local paths are absolute.

Each line is a label of eight columns and a value. Paths and addresses are never broken; a long command is continued
with backslashes, ready to be pasted.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from proftrack.store import columns, compat, keys
from proftrack.store.address import Store, public

SHORT_ID = 8
"""Digits of a run id that commands accept in place of the full id."""
_BELOW = " " * 8


def lines(store: Store, experiment_id: str, run_id: str, artifact_uri: str, *, profile: bool = True) -> list[str]:
    """Lines about a logged run, without credentials; `profile`: whether it holds a report and traces of its own."""
    artifacts = _shown(artifact_uri)
    out = [*_report(artifacts, run_id)] if profile else []
    out += [f"Store   {store.public}", f"Run     {run_id}"]
    out += [f"Traces  {artifacts}/{keys.TRACES}"] if profile else []
    command = store.open_command()
    if command is not None:
        first, *rest = _continued(command)
        out += [f"Open    {first}", *(f"{_BELOW}  {part}" for part in rest)]
        out.append(f"{_BELOW}then {store.run_url(experiment_id, run_id)}")
    elif store.is_server:
        out.append(f"Open    {store.run_url(experiment_id, run_id)}")
    if command is not None or store.is_server:
        out.append(f"Compare {columns.address(store, experiment_id)}")
    return out


def kept(folder: Path, *, profile: bool = True) -> list[str]:
    """Lines about a folder that was not logged."""
    quoted = shlex.quote(str(folder))
    report = [f"Report  {folder / keys.REPORT}"] if (folder / keys.REPORT).is_file() else []
    commands = [*report, *_commands(quoted)] if profile else []
    return [*commands, f"Kept    {folder}", f"Log it  proftrack sync {quoted}"]


def _report(artifacts: str, run_id: str) -> list[str]:
    """The path of report.html, if it is on this machine, and the commands that show the run."""
    report = Path(artifacts) / keys.REPORT
    short = run_id[:SHORT_ID]
    if report.is_file():
        return [f"Report  {report}", *_commands(short)]
    return [f"Report  proftrack report {short}  # fetches it", *_commands(short)[1:]]


def _commands(run: str) -> list[str]:
    return [
        f"{_BELOW}proftrack report {run}  # writes it here, or -o FILE",
        f"{_BELOW}proftrack open {run}  # its trace in Perfetto's UI",
    ]


def _continued(command: str) -> list[str]:
    """A shell command, one line per option."""
    parts: list[list[str]] = [[]]
    for word in shlex.split(command):
        if word.startswith("--"):
            parts.append([])
        parts[-1].append(word)
    *most, last = map(shlex.join, parts)
    return [*(f"{part} \\" for part in most), last]


def _shown(artifact_uri: str) -> str:
    """The local folder, if it is one: a URI is percent-encoded and cannot be pasted into a shell."""
    return str(compat.local_folder(artifact_uri) or public(artifact_uri).rstrip("/"))
