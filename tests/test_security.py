"""Threats to a team's store and to those who read what others put there; docs/security.md has the model.

Secrets are looked for in everything that left the process: every text in the database, every artifact, every line
shown.
"""

from __future__ import annotations

import ast
import gzip
import http.server
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from calls import PATIENCE_S, call
from run_folders import make_record, replace_capture, write_folder
from team import ALICE, BOB, DEPLOY, ROOT, Postgres, Server, as_user

from proftrack import record as records
from proftrack import rundir
from proftrack.errors import NotFoundError, ProftrackError
from proftrack.git import git_diff
from proftrack.record import Record
from proftrack.redact import scrub, without_secrets
from proftrack.store import cache, connect, fields, session, sync
from proftrack.store.runs import Runs

PACKAGE = ROOT / "profiling" / "proftrack"
SECRETS = {
    "in a variable": "s3cr3t-in-a-variable",
    "in the remote": "s3cr3t-in-the-remote",
    "in a parameter": "s3cr3t-in-a-parameter",
    "in a query": "s3cr3t-in-a-query",
    "password": ALICE[1],
}


# ---- secrets of the one who profiles ---------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A user's experiment in a repository whose remote has a token in it."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "small.py").write_text(
        "def build(device, **_):\n    import torch\n    return lambda: torch.ones(8) + 1\n"
    )
    (folder / "small.yaml").write_text(
        "workload: small.py:build\nparams: {data: none}\n"
        "timing: {min_steps: 5, min_seconds: 0.01, max_seconds: 1}\ndevice: cpu\n"
    )
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run(
        [*git, "remote", "add", "origin", f"https://me:{SECRETS['in the remote']}@git.example.org/x"], check=True
    )
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    return folder


@pytest.mark.slow
def test_no_secret_reaches_the_store(team_server: Server, postgres: Postgres, repository: Path, tmp_path: Path) -> None:
    """A real run, with secrets wherever people have them, looked for in all that it left."""
    address = team_server.url.replace("http://", f"http://{ALICE[0]}:{ALICE[1]}@")
    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": address,
        "PROFTRACK_SPOOL": str(tmp_path / "spool"),
        "AWS_SECRET_ACCESS_KEY": SECRETS["in a variable"],
        "HF_TOKEN": SECRETS["in a variable"],
        "TORCHINDUCTOR_REMOTE_CACHE_URL": f"redis://:{SECRETS['in a variable']}@cache:1",
        "NCCL_SOCKET_IFNAME": "eth0",
    }
    data = f"s3://key:{SECRETS['in a parameter']}@bucket/x?access_token={SECRETS['in a query']}&part=1"
    kept = tmp_path / "kept"
    done = subprocess.run(
        [sys.executable, str(ROOT / "profiling"), "run", "small.yaml", "--data", data, "--output", str(kept)],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    everything = {"the terminal": done.stdout + done.stderr, "the database": dump(postgres)}
    for path in [*kept.rglob("*"), *(team_server.folder / "artifacts").rglob("*")]:
        if path.is_file():
            everything[str(path)] = unpacked(path).decode("utf-8", "replace")
    assert any("s3://bucket/x" in text for text in everything.values())  # the parameter is there, without its secrets
    assert "NCCL_SOCKET_IFNAME" in everything[str(kept / "record.json")]
    for where, text in everything.items():
        for what, secret in SECRETS.items():
            assert secret not in text, f"the secret {what} is in {where}"


def dump(postgres: Postgres) -> str:
    """Every text of every table of MLflow's own."""
    tables = postgres.execute("select tablename from pg_tables where schemaname = 'public'")
    return "\n".join(str(row) for (name,) in tables for row in postgres.execute(f'select * from "{name}"'))


def unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def test_what_mlflow_itself_records_of_a_remote_is_written_over(
    store_uri: str, run_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mlflow run` puts the remote's address into its tags as it is (3.17), before our process starts."""
    client = connect.connect(connect.resolve())
    remote = "https://me:s3cr3t@git.example.org/x.git"
    tags = {
        "mlflow.source.type": "PROJECT",
        "mlflow.source.git.repoURL": remote,
        "mlflow.gitRepoURL": remote,
        "mlflow.source.name": f"{remote}#sub",
        "mine": remote,
    }
    run_id = client.create_run("0", tags=tags).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    with pytest.raises(ProftrackError), session.keep(session.opening("x", "x")):
        found = client.get_run(run_id).data.tags
        assert found["mlflow.source.git.repoURL"] == found["mlflow.gitRepoURL"] == "https://git.example.org/x.git"
        assert found["mlflow.source.name"] == "https://git.example.org/x.git#sub"
        assert found["mine"] == remote  # not MLflow's: the user's own business
        raise ProftrackError("enough")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@host/x", "https://host/x"),
        ("postgresql+psycopg://me:p%40w@db:5432/x refused", "postgresql+psycopg://db:5432/x refused"),
        ("s3://b/x?X-Amz-Signature=abc&part=2", "s3://b/x?X-Amz-Signature=...&part=2"),
        ("https://h/x?a=1&access_token=abc", "https://h/x?a=1&access_token=..."),
        ("fail at https://u:pw/x@h/x, end", "fail at https://h/x, end"),
        ("https://host/path@v1 and https://h:80/x", "https://host/path@v1 and https://h:80/x"),
        ("https://h/x?monkey=see", "https://h/x?monkey=..."),  # rather too much than too little
        ("git@host:path and me@example.org", "git@host:path and me@example.org"),
    ],
)
def test_urls_lose_their_secrets(text: str, shown: str) -> None:
    assert scrub(text) == shown


def test_arguments_of_a_program_lose_their_secrets() -> None:
    given = "--epochs 1 --api-key sk-x --hf_token=abc --max-tokens 5 --password --lr 3 --key-dim 4".split()
    shown = "--epochs 1 --api-key ... --hf_token=... --max-tokens 5 --password --lr 3 --key-dim 4".split()
    assert without_secrets(given) == shown


def test_parameters_and_tags_lose_their_secrets(record: Record) -> None:
    facts = msgspec.structs.replace(record.run, params={"data": "https://me:pw@h/x"}, display_name="x https://me:pw@h")
    changed = msgspec.structs.replace(record, run=facts)
    assert fields.params(changed)["data"] == "https://h/x"
    assert fields.run_name(changed) == "x https://h"
    assert fields.bounded({"proftrack.error": "no answer from https://me:pw@h"})["proftrack.error"].endswith(
        "https://h"
    )


def test_the_diff_can_be_kept_here(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "small.py").write_text("a secret = 1\n")
    assert "a secret" in (git_diff(repository, 10_000) or "")
    monkeypatch.setenv("PROFTRACK_NO_DIFF", "1")
    assert git_diff(repository, 10_000) is None
    monkeypatch.setenv("PROFTRACK_NO_DIFF", "0")
    assert git_diff(repository, 10_000) is not None


def test_no_diff_as_an_option(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROFTRACK_NO_DIFF", "")  # put back afterwards: the option sets it for the process
    monkeypatch.chdir(repository)
    seen: list[str] = []

    def measure(_: object, folder: Path) -> Record:
        seen.append(os.environ["PROFTRACK_NO_DIFF"])
        write_folder(folder, make_record())
        return make_record()

    replace_capture(monkeypatch, measure)
    assert call("run", "small.yaml", "--no-mlflow", "--no-diff", "--output", str(tmp_path / "kept")) == 0
    assert seen == ["1"]


# ---- records, folders and stores that others made --------------------------------------------------------------------


def test_a_record_nested_without_end(tmp_path: Path) -> None:
    data = json.loads(records.dump(make_record()))
    text = json.dumps(data).replace('"params": {', '"params": {"deep": ' + "[" * 100_000 + "]" * 100_000 + ", ", 1)
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(ProftrackError, match="nested deeper than any record"):
        records.load(tmp_path / "record.json")


def test_a_record_too_large_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proftrack.record.saved.MAX_BYTES", 1000)
    records.save(make_record(), tmp_path / "record.json")
    with pytest.raises(ProftrackError, match="no record is larger than 1000"):
        records.load(tmp_path / "record.json")


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "..", "x/../../y"])
def test_a_record_that_names_files_elsewhere(name: str, run_folder: Callable[..., Path], record: Record) -> None:
    """Only files of the folder itself are ever looked for, or uploaded."""
    file = msgspec.structs.replace(record.source.files[0], name=name)
    folder = run_folder(
        "odd", msgspec.structs.replace(record, source=msgspec.structs.replace(record.source, files=[file]))
    )
    with pytest.raises(ProftrackError, match="incomplete, trace/"):
        rundir.load(folder)
    assert all(not path.is_absolute() and ".." not in path.parts for path in rundir.artifacts(folder))


@pytest.mark.parametrize(
    "name", ["..", ".", "../..", "/abs", "a/../../b", "x" * 3000, "\x00", "'; drop table runs; --", ""]
)
def test_an_experiments_name_that_is_a_path(
    name: str, store_uri: str, run_folder: Callable[..., Path], record: Record, tmp_path: Path
) -> None:
    """Artifacts of a local store lie in mlruns/, whatever a record calls its experiment; or it is refused."""
    facts = msgspec.structs.replace(record.run, experiment=name)
    folder = run_folder("odd", msgspec.structs.replace(record, run=facts))
    found = connect.resolve()
    try:
        done = sync.sync_folder(found, connect.connect(found), folder)
    except ProftrackError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 5000
        return
    root = tmp_path / "store" / "mlruns"
    assert Path(done.artifact_uri).resolve().is_relative_to(root.resolve())
    assert Path(done.artifact_uri).resolve().relative_to(root.resolve()).parts[1:]


def test_a_run_folders_links_are_not_followed(run_folder: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "record.json").write_text("{}")
    folder = run_folder("all/one")
    (folder.parent / "two").symlink_to(tmp_path / "secret")
    assert rundir.find(folder.parent) == [folder]
    (folder / "tables" / "more.json").symlink_to("/etc/passwd")
    with pytest.raises(ProftrackError, match="symbolic link"):
        rundir.artifacts(folder)


def test_a_folders_note_about_another_run_changes_nothing(
    store_uri: str, run_folder: Callable[..., Path], record: Record
) -> None:
    """logged.json of a folder from elsewhere may name any run; one with a record, or at work, is left alone."""
    found = connect.resolve()
    client = connect.connect(found)
    whole = sync.sync_folder(found, client, run_folder("mine"))
    running = client.create_run("0").info.run_id
    other = msgspec.structs.replace(record, run=msgspec.structs.replace(record.run, started_ns=5))
    for number, named in enumerate([whole.run_id, running, "0" * 32, "../../x", "' or 1"]):
        facts = msgspec.structs.replace(other.run, started_ns=number)
        folder = run_folder(f"theirs{number}", msgspec.structs.replace(record, run=facts))
        rundir.note_logged(folder, rundir.Logged(store=found.public, run_id=named, complete=False))
        done = sync.sync_folder(found, client, folder)
        assert done.did == "logged"
        assert done.run_id not in (whole.run_id, running)
    assert client.get_run(running).info.status == "RUNNING"


def test_a_store_that_names_artifacts_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may answer what it likes: nothing is written outside of the folder that was asked for."""
    with evil_server(["../../../../evil", "/etc/evil", "record.json/../../evil"]) as url:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        inside = tmp_path / "deep" / "inside"
        inside.mkdir(parents=True)
        run = Runs.connect().get("0" * 32)
        with pytest.raises(ProftrackError):
            Runs.connect().download(run, "record.json", inside)
    assert list(tmp_path.rglob("*evil*")) == []
    assert not Path("/etc/evil").exists()


class evil_server:
    """Enough of MLflow's REST API to hand out a run whose artifacts have these names."""

    def __init__(self, names: list[str]) -> None:
        info = {"run_id": "0" * 32, "run_uuid": "0" * 32, "experiment_id": "1", "status": "FINISHED", "start_time": 1}
        info |= {"lifecycle_stage": "active", "artifact_uri": "mlflow-artifacts:/1/x/artifacts", "run_name": "x"}
        files = {"files": [{"path": name, "is_dir": False, "file_size": 2} for name in names]}
        answers = {
            "runs/get": {"run": {"info": info, "data": {}}},
            "experiments/search": {"experiments": []},
            "artifacts": files,
        }

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = next((answer for part, answer in answers.items() if part in self.path), {})
                data = json.dumps(found).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.do_GET()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def test_events_that_unfold_to_millions_of_rows(tmp_path: Path) -> None:
    """Two million equal rows are a file of some kilobytes."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from proftrack.errors import TraceError
    from proftrack.trace.parquet import read_events

    bomb = tmp_path / "events.parquet"
    pq.write_table(pa.table({"ts_ns": np.zeros(2_000_000, dtype=np.int64)}), bomb, compression="zstd")
    assert bomb.stat().st_size < 50_000
    with pytest.raises(TraceError, match="expand to 2000000 rows"):
        read_events(bomb)


def test_an_experiment_file_runs_no_code(tmp_path: Path) -> None:
    from proftrack import experiment

    made = tmp_path / "made"
    (tmp_path / "odd.yaml").write_text(f"workload: !!python/object/apply:os.mkdir ['{made}']\n")
    with pytest.raises(ProftrackError) as caught:
        experiment.load(str(tmp_path / "odd.yaml"), {})
    assert "\n" not in str(caught.value)
    assert not made.exists()


FORBIDDEN = {
    "pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal",  # modules that run what they read
    "eval", "exec", "torch.load", "pandas.read_pickle", "pd.read_pickle", "yaml.load", "yaml.unsafe_load", "os.system",
}  # fmt: skip


def test_nothing_that_is_read_is_run() -> None:
    """No pickle in any form, no eval, no shell: by the names in the code."""
    from proftrack.experiment.file import _CommandLineLoader, _Loader

    assert issubclass(_Loader, yaml.SafeLoader)
    assert issubclass(_CommandLineLoader, yaml.SafeLoader)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").partition(".")[0]]
            elif isinstance(node, ast.Call):
                names = [ast.unparse(node.func)]
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert keywords.get("shell") != "True", f"{path}:{node.lineno}: a shell"
                assert keywords.get("allow_pickle") != "True", f"{path}:{node.lineno}: a pickle"
                if names == ["yaml.load"] and keywords.get("Loader") in ("_Loader", "_CommandLineLoader"):
                    names = []  # the safe loader, which also refuses keys that are given twice
            assert not FORBIDDEN & set(names), f"{path}:{getattr(node, 'lineno', 0)}: {names}"


# ---- who may see and do what on a team's server ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_one_may_not_read_is_not_shown(
    alice: Server, run_folder: Callable[..., Path], record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by search, not by id, and not out of the local cache once the permission is gone."""
    monkeypatch.setattr(cache, "WORTH_KEEPING", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "of alice, closed later")
    facts = msgspec.structs.replace(record.run, experiment="closed", started_ns=77)
    found = connect.resolve()
    done = sync.sync_folder(found, connect.connect(found), run_folder("x", msgspec.structs.replace(record, run=facts)))
    as_user(monkeypatch, alice.url, BOB)
    assert [run.run_id for run in cache.runs_of(Runs.connect(), "closed")] == [done.run_id]
    alice.forbid(BOB, done.experiment_id)
    assert Runs.connect().search({"proftrack.experiment": "closed"}) == []
    assert cache.runs_of(Runs.connect(), "closed") == []
    with pytest.raises(NotFoundError, match="that can be read here"):
        Runs.connect().get(done.run_id)


def test_the_cache_of_runs_is_for_its_user_alone(
    store_uri: str, run_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "WORTH_KEEPING", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = connect.resolve()
    sync.sync_folder(found, connect.connect(found), run_folder())
    cache.runs_of(Runs.connect(), "matmul_add")
    (file,) = (tmp_path / "cache").rglob("*.msgpack")
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0
    assert store_uri.encode() not in file.read_bytes()


@pytest.mark.slow
def test_no_password_is_among_the_arguments_of_the_server(team_server: Server, postgres: Postgres) -> None:
    """Every user of a machine sees those."""
    assert team_server._process is not None
    password = (postgres.folder / "password").read_text()
    group = os.getpgid(team_server._process.pid)
    seen = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) == group:
                arguments = (folder / "cmdline").read_bytes().decode()
                seen += 1
                assert password not in arguments
                assert "an-admin-password" not in arguments
        except (OSError, ProcessLookupError):
            continue
    assert seen >= 1


@pytest.mark.slow
def test_files_with_passwords_are_for_their_owner_alone(team_server: Server, postgres: Postgres) -> None:
    for file in (postgres.folder / "password", team_server.folder / "state" / "basic_auth.ini"):
        assert file.stat().st_mode & 0o077 == 0, file


@pytest.mark.slow
def test_the_database_listens_on_loopback_and_wants_a_password(postgres: Postgres) -> None:
    import psycopg

    assert postgres.execute("show listen_addresses") == [("127.0.0.1",)]
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"postgresql://mlflow@127.0.0.1:{postgres.port}/mlflow", passfile="/nonexistent").close()


def test_the_server_does_not_start_without_passwords(tmp_path: Path) -> None:
    complete = {
        "DATABASE_URL": "x",
        "ARTIFACTS": str(tmp_path),
        "ADMIN_PASSWORD": "long enough for it",
        "SECRET_KEY": "x",
    }
    for missing in complete:
        given = {name: value for name, value in complete.items() if name != missing}
        done = start_server(given)
        assert done.returncode == 2
        assert f"{missing} is not set" in done.stderr
    done = start_server({**complete, "ADMIN_PASSWORD": "short"})
    assert (done.returncode, "12 or more" in done.stderr) == (2, True)


def start_server(given: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(DEPLOY / "server.sh")],
        env={"PATH": os.environ["PATH"], **given},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def test_the_compose_file_publishes_one_port_on_loopback_and_holds_no_password() -> None:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    services = yaml.safe_load(text)["services"]
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert [port.partition(":")[0] for port in published] == ["${ADDRESS"]
    assert published[0].startswith("${ADDRESS:-127.0.0.1}:")
    for name in ("DB_PASSWORD", "ADMIN_PASSWORD", "SECRET_KEY"):
        assert f"${{{name}:?" in text, f"{name} has a default, or is not asked for"
    assert "privileged" not in text


# ---- the model and its tests -----------------------------------------------------------------------------------------


def named_tests(document: str) -> Iterator[tuple[str, str]]:
    """(file, test) for each `tests/x.py::test_y` in a document."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    yield from re.findall(r"`(tests/\w+\.py)::(test_\w+)`", text)


@pytest.mark.parametrize("document", ["security.md", "faults.md"])
def test_every_test_that_a_document_names_is_there(document: str) -> None:
    named = list(named_tests(document))
    assert len(named) > 10
    for file, test in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert test in functions, f"docs/{document} names {file}::{test}"


def test_every_threat_has_a_test() -> None:
    lines = (ROOT / "docs" / "security.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith(("| threat", "|---"))]
    assert len(rows) > 15
    assert [row for row in rows if "tests/" not in row] == []


def test_every_test_here_is_named_in_the_model() -> None:
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    here = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    about_documents = {
        "test_every_test_that_a_document_names_is_there",
        "test_every_threat_has_a_test",
        "test_every_test_here_is_named_in_the_model",
    }
    assert here - about_documents == {
        test for file, test in named_tests("security.md") if file == "tests/test_security.py"
    }


# ---- known vulnerabilities of what is installed ----------------------------------------------------------------------


def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("answers", "code", "strict", "says"),
    [
        ([None], 0, 1, "NOT DONE: the advisory service cannot be reached"),
        ([[{"name": "pip", "version": "24.0", "vulns": []}], []], 0, 0, "0 packages looked up, 0 known"),
        (
            [
                [{"name": "pip", "version": "24.0", "vulns": []}],
                [{"name": "x", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}],
            ],
            1,
            1,
            "x 1: PYSEC-1, fixed in 2",
        ),
    ],
)
def test_an_audit_that_was_not_done_is_no_clean_one(
    answers: list[Any], code: int, strict: int, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    module = audit()
    for options, expected in (([], code), (["--required"], strict)):
        given = iter(answers)
        monkeypatch.setattr(module, "audited", lambda *_, given=given: next(given))
        monkeypatch.setattr(sys, "argv", ["audit.py", *options])
        assert module.main() == expected
        assert says in capsys.readouterr().out


def test_audit_exceptions_have_reasons() -> None:
    lines = (ROOT / "audit-exceptions.txt").read_text(encoding="utf-8").splitlines()
    for line in (line for line in lines if line.strip() and not line.startswith("#")):
        identity, _, reason = line.partition(" ")
        assert re.fullmatch(r"(PYSEC|GHSA|CVE)-[\w-]+", identity)
        assert len(reason.split()) >= 5, f"{identity} has no reason"
