"""Checks everything a good profile needs: the store, the disk, the GPU, the profiler; each problem with its remedy.

    for check in examine(): print(check.status, check.text, check.remedy)

Nothing is measured except the device's ceilings, and those only if they are not known yet. The checks are independent:
if one of them finds something missing (torch, MLflow, the network), the others still run.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from proftrack import __version__
from proftrack.errors import ProftrackError
from proftrack.text import counted, moment, plain, scaled

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from proftrack.capture.profiler_check import Probe
    from proftrack.store.address import Store

LEAST_TORCH, LEAST_MLFLOW = (2, 6), (3, 10)
SKEW_WARNING_S, SKEW_FAILURE_S = 5.0, 3600.0
DISK_WARNING_BYTES = 2 << 30
Status = Literal["ok", "note", "warning", "failed"]


class Check(Struct, frozen=True, kw_only=True):
    """One finding. `failed`: `run` cannot work; `warning`: something is lost or worse; `note`: for information."""

    name: str
    status: Status
    text: str
    remedy: str | None = None


def examine(*, repair: bool = False, recalibrate: bool = False) -> Iterator[Check]:
    """Run all checks, yielding each finding as it is made.

    `repair` ends as FAILED the runs that dead processes of this machine left RUNNING; `recalibrate` measures the
    device's ceilings again.
    """
    yield from _guarded("versions", _versions)
    yield from _guarded("store", lambda: _store(repair=repair))
    yield from _guarded("disk", _disk)
    yield from _guarded("spool", _spool)
    yield from _guarded("profiler", _profiler)
    yield from _guarded("ceilings", lambda: _ceilings(fresh=recalibrate))
    yield from _guarded("recorded", _recorded)


def _guarded(name: str, checks: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """The findings of `checks`; an exception becomes a finding too."""
    try:
        yield from checks()
    except ProftrackError as error:
        yield Check(name=name, status="failed", text=error.problem, remedy=error.remedy)
    except Exception as error:
        yield Check(name=name, status="failed", text=f"{type(error).__name__}: {plain(str(error), 300)}")


# ---- software --------------------------------------------------------------------------------------------------------


def _versions() -> Iterator[Check]:
    yield Check(
        name="versions",
        status="ok",
        text=f"proftrack {__version__}, Python {platform.python_version()}, {platform.system()}",
    )
    yield _package(
        "torch", LEAST_TORCH, "nothing can be profiled here; analyze, compare, report and sync work without it"
    )
    yield _package(
        "mlflow", LEAST_MLFLOW, "`run --no-mlflow` keeps runs in folders here; `sync` can log them elsewhere"
    )


def _package(name: str, least: tuple[int, int], without: str) -> Check:
    version = _version(name)
    if version is None:
        return Check(name="versions", status="warning", text=f"no {name}: {without}", remedy=f"pip install {name}")
    if _numbers(version) < least:
        wanted = f"{name}>={least[0]}.{least[1]}"
        return Check(
            name="versions", status="failed", text=f"{name} {version} is too old", remedy=f"pip install '{wanted}'"
        )
    return Check(name="versions", status="ok", text=f"{name} {version}")


def _version(name: str) -> str | None:
    """The version of an installed, importable package, without importing it; None if there is none."""
    try:
        return importlib.metadata.version(name) if importlib.util.find_spec(name) is not None else None
    except (ImportError, ValueError):  # PackageNotFoundError is an ImportError
        return None


def _numbers(version: str) -> tuple[int, int]:
    major, _, rest = version.partition(".")
    return int(major), int(rest.partition(".")[0] or 0)


# ---- the store -------------------------------------------------------------------------------------------------------


def _store(*, repair: bool) -> Iterator[Check]:
    if _version("mlflow") is None:
        return
    from proftrack.store import connect as stores
    from proftrack.store import health

    store = stores.resolve()
    if store.database is not None and not store.database.is_file():
        yield Check(name="store", status="note", text=f"{store.public}: does not exist yet; the first run creates it")
        return
    if store.is_server:
        yield from _server(store)
    client = stores.connect(store)
    yield Check(name="store", status="ok", text=f"{store.public}: reachable, and this user can read it")
    written = health.try_to_write(store, client)
    left = f"; this user cannot remove {' and '.join(written.stays)}, so that stays" if written.stays else ""
    yield Check(name="store", status="ok", text=f"writing a tag and an artifact works{left}")
    yield _dead(store, client, repair=repair)


def _server(store: Store) -> Iterator[Check]:
    from proftrack.store import health

    server, client = health.ask_server(store), _version("mlflow") or "0"
    if server.version is None:
        yield Check(name="store", status="note", text=f"{store.public}: the server does not report its version")
    elif _numbers(server.version) < LEAST_MLFLOW:
        remedy = f"upgrade it to {LEAST_MLFLOW[0]}.{LEAST_MLFLOW[1]} or newer (docs/team.md)"
        yield Check(name="store", status="warning", text=f"the server is MLflow {server.version}", remedy=remedy)
    elif _numbers(server.version)[0] != _numbers(client)[0]:
        text = f"the server is MLflow {server.version}, but this machine has {client}"
        yield Check(name="store", status="warning", text=text, remedy="use the same major version on both")
    else:
        yield Check(name="store", status="ok", text=f"the server is MLflow {server.version}")
    if server.skew_s is not None:
        yield _clock(server.skew_s)


def _clock(skew_s: float) -> Check:
    text = f"the server's clock is {abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'behind'}"
    if abs(skew_s) <= SKEW_WARNING_S:
        return Check(name="clock", status="ok", text="the server's clock and this machine's agree")
    remedy = "synchronise both by NTP: runs are ordered by the clocks of the machines that recorded them"
    return Check(name="clock", status="warning" if abs(skew_s) < SKEW_FAILURE_S else "failed", text=text, remedy=remedy)


def _dead(store: Store, client: MlflowClient, *, repair: bool) -> Check:
    from proftrack.store import lifecycle

    if repair:
        closed = counted(
            len(lifecycle.close_dead_runs(store, client)), "run of a dead process was", "runs of dead processes were"
        )
        return Check(name="runs", status="ok", text=f"{closed} ended as FAILED")
    left = [run.run_id for run in lifecycle.dead_runs(store, client)]
    if left:
        running = counted(len(left), "run of a dead process is", "runs of dead processes are")
        text = f"{running} still RUNNING: {', '.join(left[:3])}{' ...' if left[3:] else ''}"
        remedy = "proftrack doctor --repair ends them as FAILED, and so does the next run"
        return Check(name="runs", status="warning", text=text, remedy=remedy)
    return Check(name="runs", status="ok", text="no run of a dead process is still RUNNING")


# ---- this machine ----------------------------------------------------------------------------------------------------


def _disk() -> Iterator[Check]:
    from proftrack import rundir

    folders = {"the spool": rundir.spool_root()}
    if _version("mlflow") is not None:
        from proftrack.store import connect as stores

        root = stores.resolve().artifact_root
        folders |= {"the store's artifacts": root} if root else {}
    for what, folder in folders.items():
        existing, free = rundir.free_space(folder)
        text = f"{scaled(float(free), 'B')} free for {what} in {folder}"
        status: Status = "ok"
        elsewhere = f"name another folder with {rundir.SPOOL_VARIABLE}" if what == "the spool" else "use another store"
        remedy = None
        if not os.access(existing, os.W_OK):
            status, remedy = "failed", f"make it writable for this user, or {elsewhere}"
            text += ", which is not writable"
        elif free < DISK_WARNING_BYTES:
            status = "failed" if free < rundir.LEAST_FREE_BYTES else "warning"
            remedy = f"free some space, or {elsewhere}"
        yield Check(name="disk", status=status, text=text, remedy=remedy)


def _spool() -> Iterator[Check]:
    from proftrack import rundir

    spooled = rundir.spooled()
    if spooled.waiting:
        size = scaled(float(spooled.waiting_bytes), "B")
        text = f"{counted(len(spooled.waiting), 'run')} ({size}) not logged yet in {spooled.waiting[0].parent}"
        yield Check(name="spool", status="warning", text=text, remedy="proftrack sync")
    if spooled.unfinished:
        traces = ", ".join(str(path / "trace") for path in spooled.unfinished[:3])
        text = f"{counted(len(spooled.unfinished), 'run')} left traces but no record: {traces}"
        remedy = "read them with proftrack analyze TRACE, or delete them"
        yield Check(name="spool", status="note", text=text, remedy=remedy)
    if not (spooled.waiting or spooled.unfinished):
        yield Check(name="spool", status="ok", text="no run is waiting to be logged")


def _profiler() -> Iterator[Check]:
    if _version("torch") is None:
        return
    from proftrack.capture.profiler_check import probe

    seen = probe()
    for note in seen.notes:
        yield Check(name="profiler", status="warning", text=note)
    if seen.error is not None:
        yield Check(name="profiler", status="failed", text=seen.error, remedy=seen.remedy)
    elif not seen.operators:
        text = "torch's profiler ran but recorded no operator"
        yield Check(
            name="profiler", status="failed", text=text, remedy="reinstall torch; this build has no working Kineto"
        )
    elif seen.device == "cpu":
        yield Check(name="profiler", status="ok", text=f"{seen.name}: operators are recorded; this is a CPU, not a GPU")
    elif not seen.kernels:
        yield Check(
            name="profiler",
            status="failed",
            text=f"{seen.name}: {seen.launches} launches but no kernels were recorded, so the GPU cannot be measured",
            remedy=(
                "end other profilers (nsys, ncu, DCGM), check that torch finds CUPTI of its own CUDA version "
                "(LD_LIBRARY_PATH), and in a container allow profiling (--cap-add=SYS_ADMIN, or the driver's "
                "NVreg_RestrictProfilingToAdminUsers=0)"
            ),
        )
    else:
        text = f"{seen.name}: kernels are recorded ({seen.seconds:.1f} s to start the profiler)"
        yield Check(name="profiler", status="ok", text=text)
    if seen.injected:
        text = f"{' and '.join(seen.injected)} is set: another profiler attaches to every process started here"
        yield Check(name="profiler", status="warning", text=text, remedy="start proftrack outside nsys and ncu")
    if not seen.has_clocks:
        text = "NVML does not answer: the GPU's clocks, throttling and other processes are not recorded"
        yield Check(name="profiler", status="warning", text=text, remedy="pip install nvidia-ml-py")
    if seen.error is None:
        yield _counters(seen)


def _counters(seen: Probe) -> Check:
    if seen.device == "cpu":
        return Check(name="counters", status="note", text="no hardware counters and no energy: they are those of GPUs")
    energy = "energy is measured" if seen.has_energy else "energy is not measured"
    missing = seen.missing_counters
    if missing is None:
        return Check(name="counters", status="ok", text=f"the GPU's hardware counters are read; {energy}")
    text = f"no hardware counters: {missing.why}; {energy}"
    return Check(name="counters", status="warning" if missing.remedy else "note", text=text, remedy=missing.remedy)


def _ceilings(*, fresh: bool) -> Iterator[Check]:
    if _version("torch") is None:
        return
    from proftrack.capture.profiler_check import ceilings

    limits = ceilings(fresh=fresh)
    rates = ", ".join(f"{name} {scaled(rate, 'FLOP/s')}" for name, rate in limits.flops_per_s.items())
    memory, at = scaled(limits.bytes_per_s, "B/s"), moment(limits.measured_ns)
    text = f"{limits.device}: {rates}; memory {memory}; measured {at}"
    yield Check(name="ceilings", status="note", text=text, remedy="proftrack doctor --recalibrate measures them again")


# ---- what leaves this machine ----------------------------------------------------------------------------------------


def _recorded() -> Iterator[Check]:
    from proftrack.capture.environment import recorded_variables
    from proftrack.git import NO_DIFF_VARIABLE, git_diff, git_state

    variables = recorded_variables(os.environ)
    listed = ", ".join(f"{name}={plain(value, 60)}" for name, value in variables.items()) or "none is set"
    yield Check(name="recorded", status="note", text=f"environment variables: {listed}")
    state = git_state(Path.cwd())
    if state is None:
        yield Check(name="recorded", status="note", text="Git: this folder is in no repository with a commit")
        return
    at = f"commit {state.commit[:12]}, branch {state.branch or 'none'}, remote {state.remote or 'none'}"
    yield Check(name="recorded", status="note", text=f"Git: {plain(at, 300)}")
    if state.dirty:
        diff = git_diff(Path.cwd(), 1_000_000)
        text = (
            f"git.diff of {scaled(float(len(diff.encode())), 'B')}"
            if diff is not None
            else f"no git.diff ({NO_DIFF_VARIABLE})"
        )
        yield Check(
            name="recorded",
            status="note",
            text=f"uncommitted changes: {text}",
            remedy="pass --no-diff to keep them on this machine",
        )
