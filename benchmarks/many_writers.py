"""Many processes log runs into one store at the same time; checks that every run is complete afterwards.

    python benchmarks/many_writers.py --processes 32 --runs 10            starts PostgreSQL and MLflow's server
    python benchmarks/many_writers.py --processes 6 --runs 1 --sqlite --times 20     a new sqlite file each time
    MLFLOW_TRACKING_URI=... python benchmarks/many_writers.py --here      the store of the environment

Each run is a stored record and a trace of 200 kB, distinguished by its times. Prints JSON; exits 1 if a run is not
there exactly once with all its files, or if a process failed."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "profiling"), str(ROOT / "tests")]

WRITER = """
import sys, time
from pathlib import Path
from proftrack.store import connect, lifecycle, sync
begin = time.monotonic()
found = connect.resolve()
client = connect.connect(found)
lifecycle.close_dead_runs(found, client)
for folder in sorted(Path(sys.argv[1]).iterdir()):
    assert sync.sync_folder(found, client, folder).did == "logged"
print(time.monotonic() - begin)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=32)
    parser.add_argument("--runs", type=int, default=10, help="runs per process")
    parser.add_argument("--times", type=int, default=1)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--sqlite", action="store_true", help="a new sqlite file each time")
    where.add_argument("--here", action="store_true", help="use the store of MLFLOW_TRACKING_URI")
    options = parser.parse_args()
    results = []
    for number in range(options.times):
        with a_store(options.sqlite, options.here), tempfile.TemporaryDirectory(prefix="proftrack-writers-") as folder:
            os.environ["MLFLOW_EXPERIMENT_NAME"] = f"writers {os.getpid()} {number}"
            results.append(write(options.processes, options.runs, Path(folder)))
    total = {name: sum(result[name] for result in results) for name in results[0]}
    total["seconds"] = round(total["seconds"], 1)
    print(
        json.dumps(
            {"processes": options.processes, "runs_each": options.runs, "times": options.times, **total}, indent=1
        )
    )
    sys.exit(bool(total["not_whole"] or total["failed_processes"]))


@contextlib.contextmanager
def a_store(sqlite: bool, here: bool) -> Iterator[None]:
    if here:
        yield
    elif sqlite:
        with tempfile.TemporaryDirectory(prefix="proftrack-store-") as folder:
            os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
            yield
    else:
        from team import ADMIN, Postgres, Server, open_folder

        with open_folder() as folder:
            postgres = Postgres(folder / "db")
            server = Server(postgres.url, folder / "server")
            try:
                server.start().wait()
                names = ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
                os.environ.update(zip(names, (server.url, *ADMIN), strict=True))
                yield
            finally:
                server.end()
                postgres.stop()


def write(processes: int, runs_each: int, folder: Path) -> dict[str, Any]:
    folders = [make(folder / f"{number:03}", number, runs_each) for number in range(processes)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    begin = time.monotonic()
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(each)], env=environment, stdout=subprocess.DEVNULL)
        for each in folders
    ]
    codes = [writer.wait(1500) for writer in writers]
    seconds = time.monotonic() - begin
    whole = sum(is_whole(each) for parent in folders for each in parent.iterdir())
    return {
        "whole": whole,
        "not_whole": processes * runs_each - whole,
        "failed_processes": sum(code != 0 for code in codes),
        "seconds": seconds,
    }


def make(folder: Path, process: int, count: int) -> Path:
    import msgspec
    from run_folders import TRACE, make_record, write_folder

    for number in range(count):
        record = make_record()
        facts = msgspec.structs.replace(record.run, started_ns=time.time_ns() + process * 1_000_000 + number)
        each = write_folder(folder / f"{number:03}", msgspec.structs.replace(record, run=facts))
        (each / "trace" / TRACE).write_bytes(os.urandom(200_000))
    return folder


def is_whole(folder: Path) -> bool:
    """Whether the store has this folder in one run, FINISHED, with every file in its size and every figure."""
    from proftrack import record as records
    from proftrack import rundir
    from proftrack.store import connect, fields, keys
    from proftrack.store.runs import search

    store = connect.resolve()
    client = connect.client_of(store)
    found = search(store, client, {keys.RECORD_TAG: rundir.identity(folder)})
    if [run.status for run in found] != ["FINISHED"]:
        return False
    (run,) = found
    listed = {}
    for below in (None, "trace", "tables"):
        listed |= {item.path: item.file_size for item in client.list_artifacts(run.run_id, below)}
    files = {path.as_posix(): (folder / path).stat().st_size for path in rundir.artifacts(folder)}
    record = records.load(folder / "record.json")
    figures = {point.key for point in fields.metrics(record)}
    return files.items() <= listed.items() and figures == set(run.metrics)


if __name__ == "__main__":
    main()
