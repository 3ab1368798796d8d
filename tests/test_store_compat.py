"""What is used of MLflow beyond its documented interface is there, and other threads are left alone."""

from __future__ import annotations

import ast
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from proftrack.store import compat, connect, quiet
from proftrack.store.quiet import quiet as in_quiet

PACKAGE = Path(compat.__file__).parent.parent
DOCUMENTED = {
    "mlflow",
    "mlflow.MlflowClient",
    "mlflow.entities",
    "mlflow.exceptions.MlflowException",
}


def elsewhere(call: Any) -> Any:
    """What a call gives in a thread that knows nothing of this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "default", "chosen"),
    [
        (compat.RETRIES_VARIABLE, 7, 1),
        (compat.TIMEOUT_VARIABLE, 120, 15),
        (compat.PROGRESS_VARIABLE, True, False),
        (compat.NO_URLS_VARIABLE, False, True),
    ],
)
def test_a_setting_is_this_threads_alone(name: str, default: Any, chosen: Any) -> None:
    from mlflow import environment_variables

    variable = getattr(environment_variables, name)
    with compat.settings(**{name: chosen}):
        assert variable.get() == chosen
        assert elsewhere(variable.get) == default
        assert name not in os.environ
    assert variable.get() == default


def test_settings_nest_and_come_back() -> None:
    with compat.settings(**{compat.TIMEOUT_VARIABLE: 15, compat.RETRIES_VARIABLE: 1}):
        with compat.settings(**{compat.TIMEOUT_VARIABLE: 500}):
            assert (compat.setting(compat.TIMEOUT_VARIABLE), compat.setting(compat.RETRIES_VARIABLE)) == (500, 1)
        assert compat.setting(compat.TIMEOUT_VARIABLE) == 15
    with pytest.raises(ZeroDivisionError), compat.settings(**{compat.TIMEOUT_VARIABLE: 15}):
        raise ZeroDivisionError
    assert compat.setting(compat.TIMEOUT_VARIABLE) == 120


def test_what_the_environment_says_is_read_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with compat.settings(**{compat.TIMEOUT_VARIABLE: 15}):
        pass
    monkeypatch.setenv(compat.TIMEOUT_VARIABLE, "33")
    assert compat.setting(compat.TIMEOUT_VARIABLE) == 33


def test_requests_are_made_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow looks at the settings in each request: what it hands to its HTTP session is ours."""
    from mlflow.utils import rest_utils

    asked: list[Any] = []

    def session(method: str, url: str, max_retries: int, *_: Any, timeout: int, **__: Any) -> None:
        asked.append((method, url, max_retries, timeout))

    monkeypatch.setattr(rest_utils, "_get_http_response_with_retries", session)
    with compat.settings(**{compat.RETRIES_VARIABLE: 1, compat.TIMEOUT_VARIABLE: 15}):
        compat.get("http://127.0.0.1:9", "/version")
    compat.get("http://127.0.0.1:9", "/version")
    assert asked == [
        ("GET", "http://127.0.0.1:9/version", 1, 15),
        ("GET", "http://127.0.0.1:9/version", 7, 120),
    ]


# ---- quiet -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlflow", "mlflow.store.db.utils", "alembic.runtime.migration"])
def test_loggers_are_quiet_in_this_thread_alone(name: str) -> None:
    logger, seen = logging.getLogger(name), []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    level = logger.level
    try:
        with in_quiet():
            logger.error("here")
            elsewhere(lambda: logger.error("in a training"))
            assert logger.level == level
        logger.error("afterwards")
    finally:
        logger.removeHandler(handler)
    assert seen == ["in a training", "afterwards"]


def test_of_retries_one_line_is_left(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(quiet, "_waited", [])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@example.invalid:5000")
    retries = logging.getLogger("urllib3.connectionpool")
    with in_quiet():
        for left in (2, 1, 0):
            retries.warning("Retrying (total=%d) after connection broken", left)
    assert [record.getMessage() for record in caplog.records] == [
        "proftrack: the store does not answer (example.invalid:5000); trying again"
    ]
    retries.warning("Retrying (total=9) after connection broken")
    assert "total=9" in caplog.text


# ---- the rest --------------------------------------------------------------------------------------------------------


def test_the_schema_is_made_where_it_is_missing(tmp_path: Path) -> None:
    import sqlalchemy

    uri = f"sqlite:///{tmp_path / 'x.db'}"
    compat.make_schema(uri, str(tmp_path / "artifacts"))
    engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool)
    assert {"runs", "experiments", "metrics"} <= set(sqlalchemy.inspect(engine).get_table_names())


def test_artifacts_anywhere_are_written_listed_and_removed(tmp_path: Path, store_uri: str) -> None:
    (tmp_path / "a.txt").write_text("x", encoding="ascii")
    kept = compat.artifacts_at(str(tmp_path / "kept"), store_uri)
    kept.log_artifact(str(tmp_path / "a.txt"), "below")
    assert [(item.path, item.file_size) for item in kept.list_artifacts("below")] == [("below/a.txt", 1)]
    kept.delete_artifacts("below")
    assert kept.list_artifacts() == []


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("/a b/c", "/a b/c"),
        ("file:///a%20b/c", "/a b/c"),
        ("s3://bucket/c", None),
        ("mlflow-artifacts:/1", None),
    ],
)
def test_local_folders_of_locations(location: str, folder: str | None) -> None:
    assert compat.local_folder(location) == (Path(folder) if folder else None)


def test_names_that_mlflow_makes_up(store_uri: str) -> None:
    run = connect.connect(connect.resolve()).create_run("0")
    assert compat.is_generated(run.info.run_name)
    for name in ("matmul_add", "useful", "my-run-90", ""):
        assert not compat.is_generated(name)


def test_nothing_else_of_the_package_uses_what_mlflow_does_not_document() -> None:
    used = set()
    for path in PACKAGE.rglob("*.py"):
        if path == Path(compat.__file__):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                used |= {(path.name, each.name) for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                used |= {(path.name, f"{node.module}.{each.name}") for each in node.names}
            elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("mlflow._"):
                used.add((path.name, ast.unparse(node)))
    of_mlflow = {(path, name) for path, name in used if name.partition(".")[0] == "mlflow"}
    assert {
        (path, name) for path, name in of_mlflow if name not in DOCUMENTED and not name.startswith("mlflow.entities.")
    } == set()
