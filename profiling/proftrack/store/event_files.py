"""Kernels across runs: query the events.parquet of many runs in place.

Nothing is downloaded: a run's artifact location is turned into a path or URL that DuckDB, Dask and Spark can open. If a
server proxies artifacts, only the server knows where they are: set $PROFTRACK_ARTIFACTS to that place, as a mounted
folder or a bucket (the server's --artifacts-destination).
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
    """The events.parquet of each run, by run id: a path, or a URL such as s3://bucket/....

    Leaves out runs that have no such file or have it in a folder that is not on this machine.
    Raises UsageError if the place of a server's artifacts is needed but not known.
    """
    locations = {run.run_id: _location(run) for run in runs}
    return {run_id: file for run_id, file in locations.items() if "://" in file or Path(file).is_file()}


def kernels(experiment: str, *, like: str = "") -> pd.DataFrame:
    """All kernels whose name contains `like`, of all FINISHED runs of an experiment, by run and name.

    Columns: run_id, started (UTC), commit, name, calls, total_us, mean_us, min_us, max_us. Needs duckdb (the extra
    `query`).
    Raises NotFoundError if there is nothing to read, UsageError, StoreError.
    """
    import pandas as pd

    runs = cache.runs_of(Runs.connect(), experiment)
    files = locate(runs)
    if not files:
        raise NotFoundError(f"{experiment}: no run has an events.parquet readable from here", "see docs/team.md")
    described = pd.DataFrame(
        {"run_id": run.run_id, "started": pd.Timestamp(run.started_ms, unit="ms", tz="UTC"), "commit": run.commit}
        for run in runs
    )
    joined: pd.DataFrame = described.merge(read_kernels(files, like), on="run_id")
    ordered: pd.DataFrame = joined.sort_values(["started", "run_id", "total_us"], ascending=[True, True, False])
    return ordered


def read_kernels(files: Mapping[str, str], like: str = "") -> pd.DataFrame:
    """Kernels by run id and name, from files by run id. The columns of `kernels` without started and commit."""
    try:
        import duckdb
    except ImportError as error:
        raise UsageError(
            "querying kernels across runs needs DuckDB", "install it: pip install 'proftrack[query]'"
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
                f"run {run.run_id}: only the server knows where its artifacts are",
                f"set {ARTIFACTS_VARIABLE} to that folder as mounted here, or to the bucket (the server's "
                "--artifacts-destination)",
            )
        return "/".join([root.rstrip("/"), *_parts(uri.path), keys.EVENTS])
    if uri.scheme in ("", "file"):
        return "/".join([unquote(uri.path) if uri.scheme else run.artifact_uri, keys.EVENTS])
    if uri.scheme in _OPENED_BY_DUCKDB:
        return f"{run.artifact_uri.rstrip('/')}/{keys.EVENTS}"
    raise UsageError(f"{public(run.artifact_uri)}: DuckDB cannot open {uri.scheme} locations")


def _parts(path: str) -> list[str]:
    """The parts of a path below the root; a store that others write to must not point outside it."""
    parts = [part for part in path.split("/") if part]
    if ".." in parts:
        raise UsageError(
            f"{path}: points outside {ARTIFACTS_VARIABLE}; MLflow does not create such an artifact location"
        )
    return parts
