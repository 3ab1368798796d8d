"""A team's store on loopback for tests: PostgreSQL, MLflow's server with users, and a proxy that makes faults.

All of it is started by the scripts under deploy/, which a team would use. Nothing listens anywhere but on 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from calls import PATIENCE_S
from mlflow_server import LEAN
from stores import mlflow_runs

from proftrack.store import keys

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
ADMIN = ("admin", "an-admin-password")
ALICE = ("alice", "the-password-of-alice")
BOB = ("bob", "the-password-of-bob")


def missing(what: str, remedy: str = "scripts/install-test-tools.sh installs it") -> None:
    """Skip with the reason; a failure where CI promised to have everything."""
    text = f"{what}; {remedy}"
    if os.environ.get("CI") == "true":
        pytest.fail(text)
    pytest.skip(text)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def script(name: str, *arguments: str, **variables: str) -> str:
    """The output of a script under deploy/."""
    return subprocess.run(
        [str(DEPLOY / name), *arguments],
        env={**os.environ, **variables},
        check=True,
        timeout=PATIENCE_S,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.strip()


class Watch:
    """Runs a command should this process end without having called `off`: killed tests leave nothing behind either."""

    def __init__(self, *command: str) -> None:
        # In a session of its own: what ends the tests does not end it. Its stdin closes when we are gone.
        self._process = subprocess.Popen(
            ["sh", "-c", 'cat > /dev/null; exec "$@"', "watch", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def off(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        assert self._process.stdin is not None
        self._process.stdin.close()


# ---- PostgreSQL ------------------------------------------------------------------------------------------------------


class Postgres:
    """A private cluster in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = script("postgres.sh", "start", str(folder), str(self.port))
        self._watch = Watch(str(DEPLOY / "postgres.sh"), "stop", str(folder))

    def url_of(self, database: str) -> str:
        return f"{self.url.rsplit('/', 1)[0]}/{database}"

    def stop(self) -> None:
        self._watch.off()
        script("postgres.sh", "stop", str(self.folder))

    def restart(self) -> None:
        script("postgres.sh", "stop", str(self.folder))
        script("postgres.sh", "start", str(self.folder), str(self.port))

    def execute(self, statement: str, database: str = "mlflow") -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.url_of(database).replace("+psycopg", ""), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def direct(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Postgres:
    """A store without a server: clients of the database itself, artifacts in a folder that they share."""
    # MLflow has no lock for making the schema on PostgreSQL: it is made once, before anybody writes.
    if not postgres.execute("select 1 from pg_database where datname = 'direct'"):
        postgres.execute("create database direct")
        command = [sys.executable, "-m", "mlflow", "db", "upgrade", postgres.url_of("direct")]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    monkeypatch.chdir(tmp_path)  # artifacts go to ./mlruns
    monkeypatch.setenv("MLFLOW_TRACKING_URI", postgres.url_of("direct"))
    return postgres


def has_postgres() -> bool:
    return bool(shutil.which("initdb") or list(Path("/usr/lib/postgresql").glob("*/bin/initdb")))


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A temporary folder that another user may enter: PostgreSQL does not run as root. pytest's own are closed."""
    folder = Path(tempfile.mkdtemp(prefix="proftrack-team-"))
    try:
        folder.chmod(0o711)
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    if not has_postgres():
        missing("no PostgreSQL server here")
    pytest.importorskip("psycopg", reason="the driver psycopg is not installed")
    with open_folder() as folder:
        found = Postgres(folder / "db")
        try:
            yield found
        finally:
            found.stop()


# ---- MLflow's server -------------------------------------------------------------------------------------------------


class Server:
    """`mlflow server` with users, on a database, with its artifacts in a folder."""

    def __init__(self, database_url: str, folder: Path, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "server.log"
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")} | {
            "DATABASE_URL": database_url,
            "ARTIFACTS": str(folder / "artifacts"),
            "ADMIN_PASSWORD": ADMIN[1],
            "SECRET_KEY": "a secret of the tests",
            "PORT": str(self.port),
            "WORKERS": "1",
            "STATE": str(folder / "state"),
            "PYTHON": sys.executable,
            **LEAN,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(DEPLOY / "server.sh")], env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        self._watch = Watch("kill", "-KILL", "--", f"-{self._process.pid}")
        return self

    def wait(self) -> Server:
        """Until it answers."""
        end = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return self
            assert self._process is not None
            assert self._process.poll() is None, f"the server ended:\n{self.log.read_text()[-2000:]}"
            assert time.monotonic() < end, "the server does not answer"
            time.sleep(0.1)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it and all that it started."""
        if self._process is not None:
            self._watch.off()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(30)
            # The workers are not our children: wait until the port is free.
            end = time.monotonic() + PATIENCE_S
            while _listens(self.port) and time.monotonic() < end:
                time.sleep(0.05)
            self._process = None

    def ask(
        self, method: str, path: str, body: object = None, user: tuple[str, str] = ADMIN, version: str = "2.0"
    ) -> Any:
        """A request to the REST API, as a user."""
        request = urllib.request.Request(
            f"{self.url}/api/{version}/mlflow/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Content-Type": "application/json",
                "Authorization": "Basic " + b64encode(":".join(user).encode()).decode(),
            },
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.loads(answer.read() or b"{}")

    def add_user(self, user: tuple[str, str]) -> None:
        self.ask("POST", "users/create", {"username": user[0], "password": user[1]})

    def permit(self, user: tuple[str, str], experiment_id: str, permission: str) -> None:
        """Give a user a permission on an experiment (in MLflow before 3.17 by another path)."""
        try:
            body = {"resource_type": "experiment", "resource_id": experiment_id, "permission": permission}
            self.ask("POST", "users/permissions/grant", {**body, "username": user[0]}, version="3.0")
        except urllib.error.HTTPError:
            body = {"experiment_id": experiment_id, "username": user[0], "permission": permission}
            self.ask("POST", "experiments/permissions/create", body)

    def forbid(self, user: tuple[str, str], experiment_id: str) -> None:
        """Take every right to an experiment from a user (before MLflow 3.17 it knew no DENY)."""
        try:
            self.permit(user, experiment_id, "DENY")
        except urllib.error.HTTPError:
            self.permit(user, experiment_id, "NO_PERMISSIONS")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="session")
def team_server(postgres: Postgres) -> Iterator[Server]:
    """The team's server, with the users alice and bob."""
    pytest.importorskip("flask_wtf", reason="mlflow[auth] is not installed")
    with open_folder() as folder:
        server = Server(postgres.url, folder)
        try:
            server.start().wait()
            for user in (ALICE, BOB):
                server.add_user(user)
            yield server
        finally:
            server.end()


def as_user(monkeypatch: pytest.MonkeyPatch, url: str, user: tuple[str, str]) -> None:
    """What this user has in the environment; faults are answered quickly."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", user[0])
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", user[1])
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")


@pytest.fixture
def alice(team_server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The team's server, and alice's credentials in the environment."""
    as_user(monkeypatch, team_server.url, ALICE)
    return team_server


# ---- faults ----------------------------------------------------------------------------------------------------------


@dataclass
class Fault:
    """What the proxy does to a request whose `METHOD path` matches; `times` times, then no more."""

    kind: str
    """status: answers `code` itself. reset: no answer. cut_upload: the server gets a part of the body, the client no
    answer. lost_answer: the server gets all, the client no answer. delay: `seconds` before anything happens. call: only
    calls `then`."""
    match: str = ""
    times: int = 1
    code: int = 500
    seconds: float = 0.0
    then: Callable[[], None] = lambda: None
    """cut_upload: called when half of the body has gone to the server."""
    seen: list[str] = field(default_factory=list)


class FaultProxy:
    """An HTTP proxy on loopback, one request a connection, that fails as it is told."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream = upstream_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._main = threading.Thread(target=self._accept, name="fault-proxy")
        self._main.start()

    def add(self, *faults: Fault) -> None:
        with self._lock:
            self.faults += faults

    def close(self) -> None:
        self._stop.set()
        self._main.join(10)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            thread = threading.Thread(target=self._serve, args=(client,), name="fault-proxy-request", daemon=True)
            self._threads = [each for each in self._threads if each.is_alive()] + [thread]
            thread.start()

    def _take(self, request: str) -> Fault | None:
        with self._lock:
            self.requests.append(request)
            for fault in self.faults:
                if len(fault.seen) < fault.times and re.search(fault.match, request):
                    fault.seen.append(request)
                    return fault
        return None

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(60)
        with client, contextlib.suppress(OSError):
            head, body = _head(client)
            if not head:
                return
            line = head.split(b"\r\n", 1)[0].decode("latin-1")
            length = int((re.search(rb"\r\ncontent-length: *(\d+)", head, re.I) or [b"", b"0"])[1])
            fault = self._take(line.rsplit(" ", 1)[0])
            kind = fault.kind if fault else ""
            if fault and kind == "delay":
                self._stop.wait(fault.seconds)
            if fault and kind == "call":
                fault.then()
            if fault and kind == "status":
                _read(client, length - len(body))
                text = json.dumps({"error_code": "INTERNAL_ERROR", "message": "a fault"}).encode()
                answer = f"HTTP/1.1 {fault.code} Fault\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
                client.sendall(answer.encode() + text)
            elif kind == "reset":
                _reset(client)
            else:
                self._relay(client, head, body, length, fault)

    def _relay(self, client: socket.socket, head: bytes, body: bytes, length: int, fault: Fault | None) -> None:
        head = re.sub(rb"\r\nconnection: [^\r]*", b"", head, flags=re.I).replace(
            b"\r\n", b"\r\nConnection: close\r\n", 1
        )
        with socket.create_connection(("127.0.0.1", self._upstream), timeout=60) as server:
            server.sendall(head)
            sent = 0
            while True:
                if body:
                    server.sendall(body)
                    sent += len(body)
                if fault and fault.kind == "cut_upload" and sent >= length // 2:
                    fault.then()
                    _reset(server)
                    _reset(client)
                    return
                if sent >= length:
                    break
                body = client.recv(min(65536, length - sent))
                if not body:
                    return
            while piece := server.recv(65536):
                if not (fault and fault.kind == "lost_answer"):
                    client.sendall(piece)
            if fault and fault.kind == "lost_answer":
                _reset(client)


def _head(client: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(65536)
        if not piece:
            return b"", b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", body


def _read(client: socket.socket, size: int) -> None:
    while size > 0 and (piece := client.recv(min(65536, size))):
        size -= len(piece)


def _reset(connection: socket.socket) -> None:
    """Close with RST, as a process that was killed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.fixture
def proxy(alice: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """The way to the team's server leads through it; without faults it only passes on."""
    found = FaultProxy(alice.port)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", found.url)
    try:
        yield found
    finally:
        found.close()


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Callable[[int], None]]:
    """A file system of this size at `folder`; the answer is a function that gives it another one."""
    if os.geteuid() != 0:
        missing("a small disk is made by root alone", "run the tests as root, as CI does")
    folder.mkdir(parents=True, exist_ok=True)

    def mount(options: str) -> bool:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        return subprocess.run(command, check=False, capture_output=True, timeout=20).returncode == 0

    if not mount(f"size={megabytes}m"):
        missing("this machine lets nobody mount a small disk", "allow mount, as on CI")
    try:
        yield lambda size: None if mount(f"remount,size={size}m") else pytest.fail("cannot be remounted")
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=20)


# ---- what must be true afterwards ------------------------------------------------------------------------------------


def whole_once(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Assert that the server has the folder in exactly one run, FINISHED, every file the same; returns the run."""
    from proftrack import rundir
    from proftrack.store import connect

    as_user(monkeypatch, server.url, ADMIN)
    client = connect.connect(connect.resolve())
    found = mlflow_runs(keys.RECORD_TAG, rundir.identity(folder))
    assert [run.info.status for run in found] == ["FINISHED"]
    (run,) = found
    request = run.data.tags[keys.REQUEST_TAG]
    assert len(mlflow_runs(keys.REQUEST_TAG, request)) == 1
    location = server.folder / "artifacts" / run.info.artifact_uri.removeprefix("mlflow-artifacts:/")
    for relative in rundir.artifacts(folder):
        assert (location / relative).read_bytes() == (folder / relative).read_bytes(), relative
    assert len(client.get_metric_history(run.info.run_id, "self_cuda_time_per_step_us")) == 3
    assert run.data.tags["regime"] == "overhead-bound"
    assert run.data.tags["mlflow.note.content"]
    return run
