"""What signals do to a run: real processes, since handlers, exit codes and the death of a parent are the matter.

The profiled part is replaced by a wait: what is tested is everything around it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from calls import PATIENCE_S
from stores import mlflow_runs

from proftrack import signals
from proftrack.store import connect, lifecycle

if TYPE_CHECKING:
    from mlflow import MlflowClient

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="signals and parents as POSIX has them"),
]

# `proftrack run` with a wait in place of the capture; the file says when it waits.
DRIVER = """
import hashlib, os, pathlib, signal, sys, threading, time
sys.path[:0] = {path!r}
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in a shell's background inherit that it is ignored
from proftrack import signals
from proftrack.cli import main
from proftrack.errors import BudgetError
from proftrack.frontends import experiment

def wait(asked, folder, *_, **__):
    pathlib.Path({waiting!r}).write_text(str(os.getpid()))
    if asked.params["over"]:
        threading.Timer(0.1, signals.abort, [BudgetError("too long; make it shorter")]).start()
    if asked.params["how"] == "native":
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # no bytecode runs, the GIL is free, as in a hung kernel
    time.sleep(600)

experiment.measured = wait
main(["run", *sys.argv[1:]])
"""


class Bench:
    """A working directory with an experiment, a project and a driver in it."""

    def __init__(self, folder: Path, client: MlflowClient) -> None:
        self.folder = folder
        self.client = client
        self.waiting = folder / "waiting"
        (folder / "wait.yaml").write_text("workload: wait.py:build\nparams: {how: python, over: false}\n")
        (folder / "driver.py").write_text(DRIVER.format(path=sys.path, waiting=str(self.waiting)))
        self.project(f'"{sys.executable}" driver.py {{experiment}}')

    def project(self, command: str) -> None:
        parameters = "    parameters: {experiment: {default: wait.yaml}}\n"
        text = f"name: wait\nentry_points:\n  main:\n{parameters}    command: '{command}'\n"
        (self.folder / "MLproject").write_text(text)

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for_child(self, process: subprocess.Popen[str]) -> int:
        """The pid of the process that waits where it would profile."""
        until(lambda: (self.waiting.is_file() and self.waiting.read_text()) or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        return int(self.waiting.read_text())

    def run(self) -> Any:
        (found,) = mlflow_runs()
        return found


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)


@pytest.fixture
def bench(tmp_path: Path, store_uri: str) -> Bench:
    folder = tmp_path / "bench"
    folder.mkdir()
    return Bench(folder, connect.connect(connect.resolve()))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_alone_a_signal_makes_the_run_killed(bench: Bench, number: signal.Signals, code: int) -> None:
    process = bench.start("driver.py", "wait.yaml")
    os.kill(bench.wait_for_child(process), number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert errors == f"proftrack: stopped by {number.name}\n"
    found = bench.run()
    assert found.info.status == "KILLED"
    assert found.data.tags["proftrack.ended_by"] == number.name
    assert not Path(os.environ["PROFTRACK_SPOOL"]).exists(), "an empty run folder was left"


def test_without_mlflow_nothing_half_is_left(bench: Bench) -> None:
    process = bench.start("driver.py", "wait.yaml", "--no-mlflow")
    os.kill(bench.wait_for_child(process), signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (143, "proftrack: stopped by SIGTERM\n")
    assert not Path(os.environ["PROFTRACK_SPOOL"]).exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_native_code_runs(bench: Bench, number: signal.Signals, code: int) -> None:
    """No handler of Python's can run then; the process ends at once, and the run gets its status all the same."""
    process = bench.start("driver.py", "wait.yaml", "--how", "native")
    os.kill(bench.wait_for_child(process), number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (code, f"proftrack: stopped by {number.name}\n")
    found = bench.run()
    assert (found.info.status, found.data.tags["proftrack.ended_by"]) == ("KILLED", number.name)
    assert not Path(os.environ["PROFTRACK_SPOOL"]).exists(), "an empty run folder was left"


def test_native_code_has_no_grace() -> None:
    """Ctrl-C inside a step of minutes: a second is what a user waits."""
    assert signals.STUCK_S + signals._POLL_SIGNALLED_S < 1 < signals.GRACE_S


@pytest.mark.parametrize("how", ["python", "native"])
def test_what_outlasts_its_budget_is_a_failed_run(bench: Bench, how: str) -> None:
    process = bench.start("driver.py", "wait.yaml", "--how", how, "--over", "true")
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (1, "proftrack: too long; make it shorter\n")
    found = bench.run()
    assert found.info.status == "FAILED"
    assert found.data.tags["proftrack.error"] == "too long; make it shorter"
    assert not Path(os.environ["PROFTRACK_SPOOL"]).exists(), "an empty run folder was left"


def test_outside_of_a_run_there_is_nothing_to_end() -> None:
    assert not signals.abort(KeyError())


def test_what_sigkill_leaves_is_closed_by_the_next_start(bench: Bench) -> None:
    process = bench.start("driver.py", "wait.yaml")
    os.kill(bench.wait_for_child(process), signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    left = bench.run()
    assert left.info.status == "RUNNING"
    assert lifecycle.close_dead_runs(connect.resolve(), bench.client) == [left.info.run_id]
    assert bench.run().info.status == "FAILED"


def mlflow_run(bench: Bench, *params: str) -> subprocess.Popen[str]:
    asked = [word for param in params for word in ("-P", param)]
    return bench.start("-m", "mlflow", "run", ".", "--env-manager", "local", *asked)


def test_under_mlflow_run_a_signal_to_the_child(bench: Bench) -> None:
    process = mlflow_run(bench)
    os.kill(bench.wait_for_child(process), signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    found = bench.run()
    assert (found.info.status, found.data.tags["proftrack.ended_by"]) == ("FAILED", "SIGTERM")


@pytest.mark.parametrize("command", ["{python} driver.py {{experiment}}", "{python} driver.py {{experiment}}; exit $?"])
def test_under_mlflow_run_a_signal_to_the_parent(bench: Bench, command: str) -> None:
    """MLflow (3.17) leaves its child running and its run RUNNING; the child sees it and ends both.

    Also with a shell in between, which outlives MLflow (its virtualenv manager starts `source ... && ...`).
    """
    bench.project(command.format(python=sys.executable))
    process = mlflow_run(bench)
    bench.wait_for_child(process)
    process.terminate()
    process.communicate(timeout=PATIENCE_S)  # the child holds the pipes: it has ended too
    found = bench.run()
    assert (found.info.status, found.data.tags["proftrack.ended_by"]) == ("KILLED", "parent exit")


def test_under_mlflow_run_a_refusal_makes_the_run_failed(bench: Bench) -> None:
    process = mlflow_run(bench, "how=1", "unknown=2")
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    (sentence,) = [line for line in errors.splitlines() if line.startswith("proftrack: ")]
    assert "unknown parameter unknown=2" in sentence
    found = bench.run()
    assert found.info.status == "FAILED"
    assert sentence.endswith(found.data.tags["proftrack.error"])


def test_a_forked_child_has_its_own_signals() -> None:
    """A DataLoader's worker that is stopped must not stop the run, nor end its MLflow run."""
    code = f"""
import os, signal, sys, time
sys.path[:0] = {sys.path!r}
from proftrack.signals import Interrupted, Interrupts
with Interrupts():
    ready, say = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(say, b"x")
        time.sleep(60)
        os._exit(1)
    os.read(ready, 1)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM, status
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    except Interrupted as stop:
        print(stop.reason, stop.exit_code)
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
"""
    # Python 3.12 and later warn of a fork beside threads, which a program's own fork would be.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr, done.returncode) == ("SIGTERM 143\n", "", 0)


NESTED = """
import os, signal, sys, threading, time
sys.path[:0] = {path!r}
from proftrack.signals import Interrupts

signal.signal(signal.SIGINT, signal.default_int_handler)

with Interrupts(lambda error: print("outer", error, flush=True)):
    with Interrupts(lambda error: print("inner", error, flush=True)) as inner:
        with inner.shield():  # a slow store is being written to
            {in_time}
        print("raised too late", flush=True)
"""


def nested(in_time: str) -> subprocess.CompletedProcess[str]:
    code = NESTED.format(path=sys.path, in_time=in_time)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_block_within_a_block_has_the_grace_of_one() -> None:
    """The outer block's thread hears of the signal; that the inner's handler has, too, it must know."""
    done = nested("os.kill(os.getpid(), signal.SIGINT); time.sleep(1.5); print('written', flush=True)")
    assert done.stdout == "written\n"
    assert "Interrupted: SIGINT" in done.stderr


def test_a_process_that_is_stuck_ends_every_block_innermost_first() -> None:
    done = nested(
        "import hashlib; threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start(); "
        "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"
    )
    assert (done.returncode, done.stdout) == (130, "inner SIGINT\nouter SIGINT\n")


SWALLOWING = """
import sys, threading, time
sys.path[:0] = {path!r}
from proftrack.errors import BudgetError
from proftrack import signals

try:
    with signals.Interrupts():
        threading.Timer(0.1, signals.abort, [BudgetError("too long")]).start()
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                pass
except BudgetError as error:
    print(error)
"""


def test_no_except_of_a_workload_swallows_an_abort() -> None:
    code = SWALLOWING.format(path=sys.path)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "too long\n")
