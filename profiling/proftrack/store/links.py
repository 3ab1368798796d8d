"""Where a run is: its report, the store, its traces, and how to look at them. Local paths are absolute.

A line is a label of eight columns and what it is about. Paths, addresses and commands are never broken; a long command
goes on with a backslash, ready to be pasted.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from proftrack.store import columns, compat, keys
from proftrack.store.address import Store, public

SHORT_ID = 8
"""Digits of a run id that commands take for the whole."""
_BELOW = " " * 8


def lines(store: Store, experiment_id: str, run_id: str, artifact_uri: str, *, profile: bool = True) -> list[str]:
    """Lines about a logged run, no credentials in them; `profile` says that it holds a report and traces of its own."""
    artifacts = _shown(artifact_uri)
    found = [*_report(artifacts, run_id)] if profile else []
    found += [f"Store   {store.public}", f"Run     {run_id}"]
    found += [f"Traces  {artifacts}/{keys.TRACES}"] if profile else []
    command = store.open_command()
    if command is not None:
        first, *rest = _continued(command)
        found += [f"Open    {first}", *(f"{_BELOW}  {part}" for part in rest)]
        found.append(f"{_BELOW}then {store.run_url(experiment_id, run_id)}")
    elif store.is_server:
        found.append(f"Open    {store.run_url(experiment_id, run_id)}")
    if command is not None or store.is_server:
        found.append(f"Compare {columns.address(store, experiment_id)}")
    return found


def kept(folder: Path, *, profile: bool = True) -> list[str]:
    """The same for a folder that was not logged."""
    quoted = shlex.quote(str(folder))
    report = [f"Report  {folder / keys.REPORT}"] if (folder / keys.REPORT).is_file() else []
    commands = [*report, *_commands(quoted)] if profile else []
    return [*commands, f"Kept    {folder}", f"Log it  proftrack sync {quoted}"]


def _report(artifacts: str, run_id: str) -> list[str]:
    """Where report.html is, if this machine has it, and the commands that show the run."""
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
    """A shell command, a line an option."""
    parts: list[list[str]] = [[]]
    for word in shlex.split(command):
        if word.startswith("--"):
            parts.append([])
        parts[-1].append(word)
    *most, last = map(shlex.join, parts)
    return [*(f"{part} \\" for part in most), last]


def _shown(artifact_uri: str) -> str:
    """The folder where there is one: a URI is percent-encoded and cannot be pasted into a shell."""
    return str(compat.local_folder(artifact_uri) or public(artifact_uri).rstrip("/"))
