"""Where a logged run is: the store, the run, its traces, and how to look at it. Local paths are absolute."""

from __future__ import annotations

from proftrack.tracking import store as stores
from proftrack.tracking import views
from proftrack.tracking.faults import public
from proftrack.tracking.store import Store


def lines(store: Store, experiment_id: str, run_id: str, artifact_uri: str) -> list[str]:
    """Lines for the terminal, no credentials in them."""
    found = [
        f"Store   {store.public}",
        f"Run     {run_id}",
        f"Traces  {_shown(artifact_uri)}/trace",
    ]
    command = store.open_command()
    if command is not None:
        found.append(f"Open    {command}")
        found.append(f"        then {store.run_url(experiment_id, run_id)}")
    elif store.is_server:
        found.append(f"Open    {store.run_url(experiment_id, run_id)}")
    if command is not None or store.is_server:
        found.append(f"Compare {views.address(store, experiment_id)}")
    return found


def _shown(artifact_uri: str) -> str:
    """The folder where there is one: a URI is percent-encoded and cannot be pasted into a shell."""
    return str(stores.local_folder(artifact_uri) or public(artifact_uri).rstrip("/"))
