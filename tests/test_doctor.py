"""`proftrack doctor`: each fault is found and has its remedy, and nothing is left behind in the store."""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import calls
import msgspec
import pytest
from stores import mlflow_runs
from team import BOB, Fault, FaultProxy, Server, as_user, free_port

from proftrack import doctor, process, rundir
from proftrack.capture import profiler_check as probing
from proftrack.capture.counters import Missing
from proftrack.capture.profiler_check import Probe
from proftrack.record.ceilings import Ceilings
from proftrack.store import connect, health, keys, lifecycle

KNOWN = Ceilings(device="A CPU", flops_per_s={"float32": 2e11}, bytes_per_s=3e10, measured_ns=1_700_000_000_000_000_000)


@pytest.fixture(autouse=True)
def no_measuring(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Ceilings take seconds; the answer here is how often they were asked for, and whether anew."""
    asked: list[bool] = []

    def ceilings(*, fresh: bool) -> Ceilings:
        asked.append(fresh)
        return KNOWN

    monkeypatch.setattr(probing, "ceilings", ceilings)
    return asked


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what a profile gives here."""

    def gives(**changes: Any) -> None:
        found = Probe(device="cuda", name="A GPU", notes=[], operators=1, launches=1, kernels=1)
        monkeypatch.setattr(probing, "probe", lambda: msgspec.structs.replace(found, **changes))

    gives()
    return gives


def findings(**options: bool) -> dict[str, list[doctor.Check]]:
    found: dict[str, list[doctor.Check]] = {}
    for check in doctor.examine(**options):
        found.setdefault(check.name, []).append(check)
    return found


def worst(checks: list[doctor.Check]) -> doctor.Check:
    return max(checks, key=lambda check: ("ok", "note", "warning", "failed").index(check.status))


call = partial(calls.call, "doctor")


# ---- all is well -----------------------------------------------------------------------------------------------------


def test_all_is_well(store_uri: str, profiler: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    client = connect.connect(connect.resolve())
    before = [each.experiment_id for each in client.search_experiments()]
    assert call() == 0
    shown = capsys.readouterr().out
    assert f"ok   store     {store_uri}: reachable" in shown
    assert "writing a tag and an artifact works\n" in shown
    assert "A GPU: kernels are recorded" in shown
    assert "float32 200 GFLOP/s; memory 30.0 GB/s; measured 2023-11-14" in shown
    assert "FAIL" not in shown
    assert [each.experiment_id for each in client.search_experiments()] == before
    assert mlflow_runs() == []
    root = connect.resolve().artifact_root
    assert root is not None
    assert [path for path in root.rglob("*") if path.is_file()] == []


@pytest.mark.slow
def test_a_real_profile_on_this_machine(store_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    connect.connect(connect.resolve())
    assert call("--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {check["status"] for check in found} <= {"ok", "note", "warning"}
    (said, *_) = [check["text"] for check in found if check["name"] == "profiler"]
    assert "are recorded" in said


@pytest.mark.gpu
def test_a_real_profile_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    found = probing.probe()
    assert (found.device, found.error) == ("cuda", None)
    assert min(found.operators, found.launches, found.kernels) >= 1


@pytest.mark.parametrize(
    ("known", "status", "text"),
    [
        (
            {"has_counters": True, "has_energy": True},
            "ok",
            "the GPU's hardware counters are read; energy is measured",
        ),
        (
            {"has_energy": True, "missing_counters": Missing("this GPU has none", by_nature=True)},
            "note",
            "no hardware counters: this GPU has none; energy is measured",
        ),
        (
            {"missing_counters": Missing("the package nvidia-ml-py is not installed", "pip install it")},
            "warning",
            "no hardware counters: the package nvidia-ml-py is not installed; energy is not measured",
        ),
    ],
)
def test_it_says_whether_there_are_counters_and_why_not(
    store_uri: str, profiler: Callable[..., None], known: dict[str, Any], status: str, text: str
) -> None:
    profiler(**known)
    (said,) = findings()["counters"]
    assert (said.status, said.text) == (status, text)
    assert (said.remedy is not None) == (status == "warning")


def test_a_cpu_has_no_counters(store_uri: str, profiler: Callable[..., None]) -> None:
    profiler(device="cpu")
    (said,) = findings()["counters"]
    assert (said.status, said.text) == ("note", "no hardware counters and no energy: they are those of GPUs")


def test_counters_of_a_device_that_cannot_be_profiled_are_not_said_to_be_read(
    store_uri: str, profiler: Callable[..., None]
) -> None:
    profiler(error="CUDA does not start", remedy="restart")
    assert "counters" not in findings()


def test_recalibrate(store_uri: str, profiler: Callable[..., None], no_measuring: list[bool]) -> None:
    findings()
    findings(recalibrate=True)
    assert no_measuring == [False, True]


def test_json(store_uri: str, profiler: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    profiler(kernels=0)
    assert call("--json") == 1
    found = msgspec.json.decode(capsys.readouterr().out, type=list[doctor.Check])
    assert [check.name for check in found if check.status == "failed"] == ["profiler"]
    assert all(check.remedy for check in found if check.status in ("failed", "warning"))


# ---- the store -------------------------------------------------------------------------------------------------------


def test_a_store_that_is_not_there_is_not_made(
    profiler: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/none.db")
    (check,) = findings()["store"]
    assert (check.status, "the first run creates it" in check.text) == ("note", True)
    assert list(tmp_path.glob("none.db*")) == []


def test_a_server_that_does_not_answer(profiler: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    found = findings()
    check = worst(found["store"])
    assert (check.status, check.remedy) == ("failed", "start it, or check MLFLOW_TRACKING_URI")
    assert {"disk", "spool", "profiler", "recorded"} <= set(found)  # the others are made all the same


@pytest.mark.slow
def test_the_teams_server(alice: Server, profiler: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings()
    assert {check.status for check in [*found["store"], *found["clock"]]} == {"ok"}
    assert any("the server is MLflow" in check.text for check in found["store"])

    # In a named experiment nothing is made, and nothing stays.
    client = connect.connect(connect.resolve())
    experiment = connect.experiment_for(connect.resolve(), client, "for the doctor")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "for the doctor")
    assert worst(findings()["store"]).status == "ok"
    assert client.search_runs([experiment]) == []
    assert keys.PROBE_TAG not in client.get_experiment(experiment).tags
    place = alice.folder / "artifacts" / experiment
    assert [path for path in place.rglob("*") if path.is_file()] == []

    # bob may not write there; with EDIT he may, and cannot remove what he wrote.
    as_user(monkeypatch, alice.url, BOB)
    check = worst(findings()["store"])
    assert check.status == "failed"
    assert "this user does not have permission (HTTP 403)" in check.text
    assert "for EDIT" in (check.remedy or "")
    alice.permit(BOB, experiment, "EDIT")
    check = findings()["store"][-1]
    assert check.status == "ok"
    assert "this user cannot remove" in check.text
    as_user(monkeypatch, alice.url, ("bob", "wrong"))
    check = worst(findings()["store"])
    assert "(HTTP 401)" in check.text
    assert "MLFLOW_TRACKING_PASSWORD" in (check.remedy or "")


@pytest.mark.slow
def test_a_server_that_takes_no_artifacts(
    proxy: FaultProxy, profiler: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    proxy.add(Fault("status", "PUT .*probe.txt", 10, 503))
    check = worst(findings()["store"])
    assert (check.status, "could not be given an artifact" in check.text) == ("failed", True)


@pytest.mark.parametrize(
    ("skew_s", "status", "says"),
    [
        (0.4, "ok", "agree"),
        (-4.0, "ok", "agree"),
        (61.0, "warning", "61 s ahead"),
        (-90.0, "warning", "90 s behind"),
        (7200.0, "failed", "7200 s ahead"),
    ],
)
def test_the_clock(skew_s: float, status: str, says: str) -> None:
    check = doctor._clock(skew_s)
    assert (check.status, says in check.text) == (status, True)
    assert (check.remedy is None) == (status == "ok")


@pytest.mark.parametrize(
    ("version", "status"), [("3.17.2", "ok"), ("2.9.1", "warning"), ("4.0.0", "warning"), (None, "note")]
)
def test_versions_of_the_server(version: str | None, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "ask_server", lambda _: health.Server(version=version, skew_s=None))
    monkeypatch.setattr(doctor, "_version", lambda _: "3.17.2")
    address = connect.Store(uri="http://h", public="http://h", given="http://h")
    assert [check.status for check in doctor._server(address)] == [status]


def test_runs_of_dead_processes(store_uri: str, profiler: Callable[..., None]) -> None:
    """Reported; ended with --repair; a living one's never."""
    client = connect.connect(connect.resolve())
    here = process.this_process()
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    dead = msgspec.structs.replace(here, pid=child.pid, started="1")
    left = client.create_run("0", tags=lifecycle.owner_tags_of(dead)).info.run_id
    alive = client.create_run("0", tags=lifecycle.owner_tags_of(here)).info.run_id
    (check,) = findings()["runs"]
    assert (check.status, left in check.text) == ("warning", True)
    assert "--repair" in (check.remedy or "")
    assert client.get_run(left).info.status == "RUNNING"
    (check,) = findings(repair=True)["runs"]
    assert (check.status, check.text) == ("ok", "1 run of a dead process was ended as FAILED")
    assert client.get_run(left).info.status == "FAILED"
    assert client.get_run(alive).info.status == "RUNNING"
    assert worst(findings()["runs"]).status == "ok"


# ---- disk and spool --------------------------------------------------------------------------------------------------


def test_a_full_disk(store_uri: str, profiler: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    for free, status in ((1 << 20, "failed"), (1 << 30, "warning"), (1 << 40, "ok")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: type("Usage", (), {"free": free}))
        assert {check.status for check in findings()["disk"]} == {status}


def test_what_waits_in_the_spool(
    store_uri: str, profiler: Callable[..., None], run_folder: Callable[..., Path]
) -> None:
    root = rundir.spool_root()
    root.mkdir(parents=True)
    run_folder("waits").rename(root / "waits")
    (root / "traces" / "trace").mkdir(parents=True)
    (root / "traces" / "trace" / "x.pt.trace.json.gz").write_bytes(b"x")
    checks = findings()["spool"]
    assert [check.status for check in checks] == ["warning", "note"]
    assert (checks[0].text.startswith("1 run ("), checks[0].remedy) == (True, "proftrack sync")
    assert "left traces but no record" in checks[1].text
    # A run that is at work holds its folder: it is no leftover.
    with rundir.locked(root / "traces"):
        assert [check.status for check in findings()["spool"]] == ["warning"]
    rundir.note_logged(root / "waits", rundir.Logged(store="s", run_id="r", complete=True))
    assert [check.status for check in findings()["spool"]] == ["note"]


# ---- profiler and software -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({}, "ok", "kernels are recorded"),
        ({"device": "cpu", "kernels": 0}, "ok", "this is a CPU, not a GPU"),
        ({"kernels": 0}, "failed", "1 launches but no kernels were recorded"),
        ({"operators": 0}, "failed", "recorded no operator"),
        (
            {"error": "the GPU cannot be used (out of memory): check nvidia-smi"},
            "failed",
            "cannot be used (out of memory)",
        ),
        ({"notes": ["This machine has NVIDIA's driver, but torch finds no GPU."]}, "warning", "NVIDIA's driver"),
        ({"injected": ["CUDA_INJECTION64_PATH"]}, "warning", "another profiler attaches to every process"),
        ({"has_clocks": False}, "warning", "NVML does not answer"),
    ],
)
def test_the_profiler(
    changes: dict[str, Any], status: str, says: str, store_uri: str, profiler: Callable[..., None]
) -> None:
    profiler(**changes)
    check = worst(findings()["profiler"])
    assert (check.status, says in check.text) == (status, True)


def test_without_torch_the_rest_is_looked_at(store_uri: str) -> None:
    with without("torch"):
        found = findings()
    (check,) = [check for check in found["versions"] if "torch" in check.text]
    assert (check.status, check.remedy) == ("warning", "pip install torch")
    assert "profiler" not in found
    assert worst(found["store"]).status == "ok"


def test_without_mlflow_the_rest_is_looked_at(profiler: Callable[..., None]) -> None:
    with without("mlflow"):
        found = findings()
    assert any("no mlflow: `run --no-mlflow` keeps runs in folders" in check.text for check in found["versions"])
    assert "store" not in found
    assert worst(found["profiler"]).status == "ok"
    assert worst(found["disk"]).status != "failed"


@contextlib.contextmanager
def without(name: str) -> Iterator[None]:
    """As if a package were not installed."""
    find_spec, real_import = importlib.util.find_spec, builtins.__import__

    def refuse(module: str, *arguments: Any, **named: Any) -> Any:
        if module.partition(".")[0] == name:
            raise ModuleNotFoundError(f"No module named '{name}'")
        return real_import(module, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda each, *more: None if each == name else find_spec(each, *more))
        patch.setattr(builtins, "__import__", refuse)
        yield


def test_versions_that_are_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda _: "2.5.1")
    check = doctor._package("torch", doctor.LEAST_TORCH, "")
    assert (check.status, check.remedy) == ("failed", "pip install 'torch>=2.6'")


def test_a_fault_that_nobody_foresaw_is_a_finding(
    store_uri: str, profiler: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("odd\x1b[2J")

    monkeypatch.setattr(rundir, "spooled", fail)
    (check,) = findings()["spool"]
    assert (check.status, "\x1b" in check.text) == ("failed", False)


# ---- what is recorded ------------------------------------------------------------------------------------------------


def test_what_leaves_this_machine(
    store_uri: str, profiler: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("HF_TOKEN", "s3cr3t")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    subprocess.run([*git, "remote", "add", "origin", "https://me:s3cr3t@h/x"], check=True)
    (tmp_path / "x").write_text("1\n")
    subprocess.run([*git, "add", "x"], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    (tmp_path / "x").write_text("2\n")
    monkeypatch.chdir(tmp_path)
    text = "\n".join(check.text for check in findings()["recorded"])
    assert "NCCL_DEBUG=INFO" in text
    assert "branch main, remote https://h/x" in text
    assert "uncommitted changes: git.diff of" in text
    assert "s3cr3t" not in text
    monkeypatch.setenv("PROFTRACK_NO_DIFF", "1")
    assert "no git.diff (PROFTRACK_NO_DIFF)" in findings()["recorded"][-1].text
