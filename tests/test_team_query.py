"""Kernels across runs, out of their events.parquet where they lie: DuckDB here, Dask on a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from run_folders import make_record, write_folder
from team import ROOT, Server, missing
from traces import TraceBuilder

from proftrack.errors import NotFoundError, UsageError
from proftrack.store import connect, event_files, sync
from proftrack.store.runs import StoredRun
from proftrack.trace.parquet import write_events


def folder_with_kernels(folder: Path, number: int, durations: dict[str, list[float]]) -> Path:
    """A run folder whose events are these kernels (microseconds), and an operator that is none."""
    record = make_record()
    facts = msgspec.structs.replace(record.run, experiment="queried", started_ns=number * 10**9)
    made = write_folder(folder, msgspec.structs.replace(record, run=facts))
    trace = TraceBuilder().step(0, at=0, dur=1000).row("cpu_op", "gemm_is_what_i_call", 1, 500)
    at = 10.0
    for name, each in durations.items():
        for duration in each:
            trace = trace.row("kernel", name, at, duration, thread=7, pid=0, device=0, stream=7)
            at += duration + 1
    write_events([trace.table()], made / "events.parquet")
    return made


@pytest.fixture
def two_runs(store_uri: str, tmp_path: Path) -> list[str]:
    found = connect.resolve()
    client = connect.connect(found)
    first = folder_with_kernels(tmp_path / "a", 1, {"gemm_64": [10, 30], "add": [5]})
    second = folder_with_kernels(tmp_path / "b", 2, {"GEMM_128": [7], "add": [2, 2, 2]})
    return [sync.sync_folder(found, client, folder).run_id for folder in (first, second)]


def test_kernels_of_all_runs(two_runs: list[str]) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed (extra query)")
    frame = event_files.kernels("queried", like="gemm")
    rows = frame[["run_id", "name", "calls", "total_us", "mean_us", "min_us", "max_us"]].to_numpy().tolist()
    assert rows == [
        [two_runs[0], "gemm_64", 2, 40.0, 20.0, 10.0, 30.0],
        [two_runs[1], "GEMM_128", 1, 7.0, 7.0, 7.0, 7.0],
    ]
    assert [moment.timestamp() for moment in frame["started"]] == [1.0, 2.0]
    everything = event_files.kernels("queried")
    assert everything.groupby("name")["calls"].sum().to_dict() == {"gemm_64": 2, "add": 4, "GEMM_128": 1}


def test_a_pattern_is_a_text_and_no_sql(two_runs: list[str]) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed (extra query)")
    for like, found in {"'; drop table named; --": set(), "%": set(), "_": {"gemm_64", "GEMM_128"}}.items():
        assert set(event_files.kernels("queried", like=like)["name"]) == found


def test_the_queries_of_the_page(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed (extra query)")
    trace = TraceBuilder().op("gemm", at=0, dur=900).kernel("gemm", at=1, dur=2000)
    trace.memory(8, at=1, Device_Id=-1, Total_Allocated=5_000_000, Total_Reserved=0)
    trace.memory(8, at=1, Device_Id=0, Total_Allocated=3_000_000, Total_Reserved=4_000_000)
    trace.memory(-8, at=2, Device_Id=0, Total_Allocated=2_000_000, Total_Reserved=4_000_000)
    file = tmp_path / "events.parquet"
    write_events([trace.table()], file)
    page = (ROOT / "docs" / "team.md").read_text(encoding="utf-8")
    kernels, memory = re.findall(r"```sql\n(.*?);\n```", page, re.DOTALL)
    found = [duckdb.sql(re.sub(r"'/srv[^']*'", f"'{file}'", query)).fetchall() for query in (kernels, memory)]
    assert found == [[("gemm", 1, 2.0)], [(str(file), 3.0, 4.0)]]
    assert duckdb.sql(f"select sum(dur_ns), count(dur_ns), count(*) from '{file}'").fetchall() == [(2_900_000, 2, 5)]


def test_nothing_to_read(store_uri: str) -> None:
    connect.connect(connect.resolve())
    with pytest.raises(NotFoundError, match=r"no run has an events\.parquet readable from here"):
        event_files.kernels("nothing")


def run_at(artifact_uri: str) -> StoredRun:
    return StoredRun(
        run_id="r",
        experiment_id="1",
        name="",
        status="FINISHED",
        started_ms=0,
        ended_ms=None,
        artifact_uri=artifact_uri,
    )


def test_where_files_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "events.parquet").write_bytes(b"")
    here = str(tmp_path / "a b" / "events.parquet")
    assert event_files.locate([run_at(str(tmp_path / "a b"))]) == {"r": here}
    assert event_files.locate([run_at((tmp_path / "a b").as_uri())]) == {"r": here}
    assert event_files.locate([run_at(str(tmp_path / "elsewhere"))]) == {}
    assert event_files.locate([run_at("s3://bucket/x/artifacts")]) == {"r": "s3://bucket/x/artifacts/events.parquet"}
    with pytest.raises(UsageError, match="DuckDB cannot open dbfs locations"):
        event_files.locate([run_at("dbfs:/x")])
    with pytest.raises(UsageError, match="set PROFTRACK_ARTIFACTS to that folder"):
        event_files.locate([run_at("mlflow-artifacts:/1/x/artifacts")])
    monkeypatch.setenv("PROFTRACK_ARTIFACTS", "s3://bucket/root/")
    assert event_files.locate([run_at("mlflow-artifacts:/1/x/artifacts")]) == {
        "r": "s3://bucket/root/1/x/artifacts/events.parquet"
    }
    with pytest.raises(UsageError, match="points outside PROFTRACK_ARTIFACTS"):
        event_files.locate([run_at("mlflow-artifacts:/../../x")])


@pytest.mark.slow
def test_runs_of_the_teams_server(alice: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed (extra query)")
    found = connect.resolve()
    folder = folder_with_kernels(tmp_path / "a", 1, {"only_here": [3]})
    done = sync.sync_folder(found, connect.connect(found), folder)
    monkeypatch.setenv("PROFTRACK_ARTIFACTS", str(alice.folder / "artifacts"))
    frame = event_files.kernels("queried", like="only_here")
    assert frame[["run_id", "name", "total_us"]].to_numpy().tolist() == [[done.run_id, "only_here", 3.0]]


def documented(document: str, word: str) -> str:
    """The Python example of a document that has this word in it."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    (code,) = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if word in code]
    return str(code)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_documented_dask_query_on_a_local_cluster(two_runs: list[str]) -> None:
    """The very lines of docs/team.md, with two worker processes."""
    try:
        from dask.distributed import LocalCluster
    except ImportError:
        missing("dask is not installed (extra test)")
    import dask

    dask.config.set({"distributed.worker.daemon": True})
    names: dict[str, Any] = {"experiment": "queried"}
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1", processes=True
    ) as cluster:
        names["scheduler"] = cluster.scheduler_address
        exec(documented("team.md", "dask.dataframe"), names)
    assert names["total_ns"].to_dict() == {"gemm_64": 40_000, "GEMM_128": 7_000, "add": 11_000}
