"""What stands between here and a good profile: the store, the disk, the GPU, the profiler; each fault with its remedy.

    for check in examine(): print(check.status, check.text, check.remedy)

Nothing is measured but the device's ceilings, and those only where they are not known. Each check stands alone: what
one of them finds missing (no torch, no MLflow, no network) does not keep the others from being made.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from proftrack import __version__
from proftrack.errors import ProftrackError
from proftrack.text import counted, moment, plain, scaled

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from proftrack.store.address import Store

LEAST_TORCH, LEAST_MLFLOW = (2, 6), (3, 10)
SKEW_WARNING_S, SKEW_FAILURE_S = 5.0, 3600.0
DISK_WARNING_BYTES = 2 << 30
Status = Literal["ok", "note", "warning", "failed"]


class Check(Struct, frozen=True, kw_only=True):
    """One finding. `failed` keeps `run` from doing its work; a warning costs something; a note is for information."""

    name: str
    status: Status
    text: str
    remedy: str | None = None


def examine(*, repair: bool = False, recalibrate: bool = False) -> Iterator[Check]:
    """All checks, one after the other as they are made.

    `repair` ends as FAILED what dead processes of this machine left RUNNING; `recalibrate` measures the device's
    ceilings again.
    """
    yield from _guarded("versions", _versions)
    yield from _guarded("store", lambda: _store(repair=repair))
    yield from _guarded("disk", _disk)
    yield from _guarded("spool", _spool)
    yield from _guarded("profiler", _profiler)
    yield from _guarded("ceilings", lambda: _ceilings(fresh=recalibrate))
    yield from _guarded("recorded", _recorded)


def _guarded(name: str, checks: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """The checks; a fault that none of them foresaw is a finding too."""
    try:
        yield from checks()
    except ProftrackError as error:
        # Where the sentence is not in two parts yet, it is taken apart here.
        text, _, rest = error.problem.partition("; ") if error.remedy is None else (error.problem, "", "")
        yield Check(name=name, status="failed", text=text, remedy=error.remedy or rest or None)
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
    yield _package("mlflow", LEAST_MLFLOW, "`run --no-mlflow` keeps runs in folders here; `sync` logs them elsewhere")


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
    """Of an installed package that can be imported, without importing it."""
    try:
        found = importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        found = False
    try:
        return importlib.metadata.version(name) if found else None
    except importlib.metadata.PackageNotFoundError:
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
        yield Check(name="store", status="note", text=f"{store.public}: not there yet; the first run makes it")
        return
    if store.is_server:
        yield from _server(store)
    client = stores.connect(store)
    yield Check(name="store", status="ok", text=f"{store.public}: reachable, and this user may read it")
    written = health.try_to_write(store, client)
    stays = f"; {' and '.join(written.stays)} may not be removed by this user, and stays" if written.stays else ""
    yield Check(name="store", status="ok", text=f"written to and cleaned up, figures and artifacts{stays}")
    yield _dead(store, client, repair=repair)


def _server(store: Store) -> Iterator[Check]:
    from proftrack.store import health

    server, client = health.ask_server(store), _version("mlflow") or "0"
    if server.version is None:
        yield Check(name="store", status="note", text=f"{store.public}: the server does not tell its version")
    elif _numbers(server.version) < LEAST_MLFLOW:
        remedy = f"upgrade it to {LEAST_MLFLOW[0]}.{LEAST_MLFLOW[1]} or newer (docs/team.md)"
        yield Check(name="store", status="warning", text=f"the server is MLflow {server.version}", remedy=remedy)
    elif _numbers(server.version)[0] != _numbers(client)[0]:
        text = f"the server is MLflow {server.version}, this machine has {client}"
        yield Check(name="store", status="warning", text=text, remedy="use the same major version on both")
    else:
        yield Check(name="store", status="ok", text=f"the server is MLflow {server.version}")
    if server.skew_s is not None:
        yield _clock(server.skew_s)


def _clock(skew_s: float) -> Check:
    text = f"the server's clock is {abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'behind'}"
    if abs(skew_s) <= SKEW_WARNING_S:
        return Check(name="clock", status="ok", text="the server's clock and this machine's agree")
    remedy = "synchronise both by NTP: runs are ordered by the clocks of the machines that made them"
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
        running = counted(len(left), "run is RUNNING whose process is", "runs are RUNNING whose processes are")
        text = f"{running} gone: {', '.join(left[:3])}{' ...' if left[3:] else ''}"
        remedy = "proftrack doctor --repair; the next run does it too"
        return Check(name="runs", status="warning", text=text, remedy=remedy)
    return Check(name="runs", status="ok", text="no run of a dead process is RUNNING")


# ---- this machine ----------------------------------------------------------------------------------------------------


def _disk() -> Iterator[Check]:
    from proftrack import rundir

    folders = {"the spool": rundir.spool_root()}
    if _version("mlflow") is not None:
        from proftrack.store import connect as stores

        root = stores.resolve().artifact_root
        folders |= {"the store's artifacts": root} if root else {}
    for what, folder in folders.items():
        standing = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(standing).free
        text = f"{scaled(float(free), 'B')} free for {what} in {folder}"
        status: Status = "ok"
        mine = f"name another folder with {rundir.SPOOL_VARIABLE}" if what == "the spool" else "use another store"
        remedy = None
        if not os.access(standing, os.W_OK):
            status, remedy = "failed", f"make it writable for this user, or {mine}"
            text += ", which cannot be written"
        elif free < DISK_WARNING_BYTES:
            status = "failed" if free < rundir.LEAST_FREE_BYTES else "warning"
            remedy = f"free some, or {mine}"
        yield Check(name="disk", status=status, text=text, remedy=remedy)


def _spool() -> Iterator[Check]:
    from proftrack.store import health

    found = health.spooled()
    if found.waiting:
        size = scaled(float(found.waiting_bytes), "B")
        text = f"{counted(len(found.waiting), 'run')} ({size}) to be logged in {found.waiting[0].parent}"
        yield Check(name="spool", status="warning", text=text, remedy="proftrack sync")
    if found.unfinished:
        named = ", ".join(str(path / "trace") for path in found.unfinished[:3])
        text = f"{counted(len(found.unfinished), 'run')} left traces and no record: {named}"
        yield Check(name="spool", status="note", text=text, remedy="proftrack analyze TRACE reads them; or delete them")
    if not (found.waiting or found.unfinished):
        yield Check(name="spool", status="ok", text="nothing waits to be logged")


def _profiler() -> Iterator[Check]:
    if _version("torch") is None:
        return
    from proftrack.capture.profiler_check import probe

    found = probe()
    for note in found.notes:
        yield Check(name="profiler", status="warning", text=note)
    if found.error is not None:
        text, _, remedy = found.error.partition(": check ")
        yield Check(name="profiler", status="failed", text=text, remedy=f"check {remedy}" if remedy else None)
    elif not found.operators:
        text = "torch's profiler ran and recorded no operator"
        yield Check(
            name="profiler", status="failed", text=text, remedy="reinstall torch; this build has no working Kineto"
        )
    elif found.device == "cpu":
        yield Check(name="profiler", status="ok", text=f"{found.name}: operators are recorded; this is the CPU, no GPU")
    elif not found.kernels:
        yield Check(
            name="profiler",
            status="failed",
            text=f"{found.name}: {found.launches} launches and no kernel were recorded: the GPU cannot be measured",
            remedy=(
                "end other profilers (nsys, ncu, DCGM), look that torch finds CUPTI of its own CUDA version "
                "(LD_LIBRARY_PATH), and in a container allow profiling (--cap-add=SYS_ADMIN, or the driver's "
                "NVreg_RestrictProfilingToAdminUsers=0)"
            ),
        )
    else:
        text = f"{found.name}: kernels are recorded ({found.seconds:.1f} s to start the profiler)"
        yield Check(name="profiler", status="ok", text=text)
    yield from _beside_the_profiler(found.injected, has_clocks=found.has_clocks)


def _beside_the_profiler(injected: list[str], *, has_clocks: bool) -> Iterator[Check]:
    if injected:
        text = f"{' and '.join(injected)} is set: another profiler puts itself into every process started here"
        yield Check(name="profiler", status="warning", text=text, remedy="start proftrack outside of nsys and ncu")
    if not has_clocks:
        text = "NVML does not answer: clocks, throttling and neighbours of the GPU are not recorded"
        yield Check(name="profiler", status="warning", text=text, remedy="pip install nvidia-ml-py")


def _ceilings(*, fresh: bool) -> Iterator[Check]:
    if _version("torch") is None:
        return
    from proftrack.capture.profiler_check import ceilings

    found = ceilings(fresh=fresh)
    rates = ", ".join(f"{name} {scaled(rate, 'FLOP/s')}" for name, rate in found.flops_per_s.items())
    text = f"{found.device}: {rates}; memory {scaled(found.bytes_per_s, 'B/s')}; measured {moment(found.measured_ns)}"
    yield Check(name="ceilings", status="note", text=text, remedy="proftrack doctor --recalibrate measures them again")


# ---- what leaves this machine ----------------------------------------------------------------------------------------


def _recorded() -> Iterator[Check]:
    from proftrack.capture.environment import recorded_variables
    from proftrack.git import NO_DIFF_VARIABLE, git_diff, git_state

    variables = recorded_variables(os.environ)
    named = ", ".join(f"{name}={plain(value, 60)}" for name, value in variables.items()) or "none that is set"
    yield Check(name="recorded", status="note", text=f"environment variables: {named}")
    state = git_state(Path.cwd())
    if state is None:
        yield Check(name="recorded", status="note", text="Git: no repository with a commit here")
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
            name="recorded", status="note", text=f"uncommitted changes: {text}", remedy="--no-diff keeps them here"
        )
