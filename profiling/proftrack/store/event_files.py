"""Kernels across runs: the events.parquet of many runs, read where they lie.

Nothing is downloaded: a run's artifact location is turned into a path or URL that DuckDB, Dask and Spark open. Of a
server with proxied artifacts only the server knows the place: $PROFTRACK_ARTIFACTS names it, as a mounted folder or a
bucket (what its --artifacts-destination says).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from proftrack.errors import NotFoundError, UsageError
from proftrack.store import cache, keys
from proftrack.store.address import public
from proftrack.store.runs import Runs, StoredRun

if TYPE_CHECKING:
    import pandas as pd

ARTIFACTS_VARIABLE = "PROFTRACK_ARTIFACTS"
_OPENED_BY_DUCKDB = ("s3", "gs", "gcs", "az", "abfss", "http", "https", "hf")
_KERNELS = """
    select run_id, name, count(*) as calls, sum(dur_ns) / 1e3 as total_us, avg(dur_ns) / 1e3 as mean_us,
           min(dur_ns) / 1e3 as min_us, max(dur_ns) / 1e3 as max_us
    from read_parquet($files, filename = 'file') join named using (file)
    where kind = 'kernel' and valid and contains(lower(name), lower($like))
    group by run_id, name order by run_id, total_us desc
"""


def locate(runs: Sequence[StoredRun]) -> dict[str, str]:
    """Where the events.parquet of each run lies, by run id: a path, or a URL such as s3://bucket/....

    Runs whose file was left out, or that lie in a folder which is not on this machine, are not in it.
    Raises UsageError where a server's place of artifacts is needed and not known.
    """
    found = {run.run_id: _location(run) for run in runs}
    return {run_id: file for run_id, file in found.items() if "://" in file or Path(file).is_file()}


def kernels(experiment: str, *, like: str = "") -> pd.DataFrame:
    """All kernels of all FINISHED runs of an experiment whose name contains `like`, by run and name.

    Columns: run_id, started (UTC), commit, name, calls, total_us, mean_us, min_us, max_us. Needs duckdb (the extra
    `query`).
    Raises NotFoundError where there is nothing to read, UsageError, StoreError.
    """
    import pandas as pd

    found = cache.runs_of(Runs.connect(), experiment)
    files = locate(found)
    if not files:
        raise NotFoundError(f"{experiment}: no run whose events.parquet can be read from here", "see docs/team.md")
    frame = read_kernels(files, like)
    known = pd.DataFrame(
        {"run_id": run.run_id, "started": pd.Timestamp(run.started_ms, unit="ms", tz="UTC"), "commit": run.commit}
        for run in found
    )
    both: pd.DataFrame = known.merge(frame, on="run_id")
    ordered: pd.DataFrame = both.sort_values(["started", "run_id", "total_us"], ascending=[True, True, False])
    return ordered


def read_kernels(files: Mapping[str, str], like: str = "") -> pd.DataFrame:
    """Kernels by run id and name, from files by run id. Columns as `kernels` has them, without started and commit."""
    try:
        import duckdb
    except ImportError as error:
        raise UsageError(
            "kernels across runs are read by DuckDB", "install it: pip install 'proftrack[query]'"
        ) from error
    import pandas as pd

    with duckdb.connect() as connection:
        connection.register("named", pd.DataFrame({"run_id": list(files), "file": list(files.values())}))
        answer: pd.DataFrame = connection.execute(_KERNELS, {"files": list(files.values()), "like": like}).df()
    return answer


def _location(run: StoredRun) -> str:
    uri = urlsplit(run.artifact_uri)
    if uri.scheme == "mlflow-artifacts":
        root = os.environ.get(ARTIFACTS_VARIABLE)
        if not root:
            raise UsageError(
                f"run {run.run_id}: its artifacts lie where the server keeps them",
                f"set {ARTIFACTS_VARIABLE} to that "
                "folder, as it is mounted here, or bucket (the server's --artifacts-destination)",
            )
        return "/".join([root.rstrip("/"), *_parts(uri.path), keys.EVENTS])
    if uri.scheme in ("", "file"):
        return "/".join([unquote(uri.path) if uri.scheme else run.artifact_uri, keys.EVENTS])
    if uri.scheme in _OPENED_BY_DUCKDB:
        return f"{run.artifact_uri.rstrip('/')}/{keys.EVENTS}"
    raise UsageError(f"{public(run.artifact_uri)}: DuckDB opens no {uri.scheme} locations")


def _parts(path: str) -> list[str]:
    """Of a path below the root; a store that others write to must not lead out of it."""
    parts = [part for part in path.split("/") if part]
    if ".." in parts:
        raise UsageError(
            f"{path}: leads out of {ARTIFACTS_VARIABLE}", "the run's artifact location is not MLflow's own"
        )
    return parts
