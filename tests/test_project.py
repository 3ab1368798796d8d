"""What holds the project together: entry points, pins, the flow of imports, and a source root that is no package."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from proftrack.cli import COMMANDS
from proftrack.cli import store as cli_store
from proftrack.store import connect as stores

if sys.version_info >= (3, 11):
    import tomllib

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "profiling" / "proftrack"

# The flow, from what is needed first: a module imports what stands before it, never what stands after it.
FLOW = (
    "errors",
    "untrusted",
    "names",
    "text",
    "files",
    "redact",
    "threads",
    "record",
    "git",
    "process",
    "signals",
    "trace",
    "experiment",
    "rundir",
    "capture",
    "measures",
    "verdict",
    "compare",
    "report",
    "analysis",
    "store",
    "recorder",
    "doctor",
    "frontends",
    "integrations",
    "cli",
)
ONLY_IN = {"torch": {"capture", "experiment"}, "mlflow": {"store"}, "matplotlib": {"report"}}


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent != PACKAGE or path.stem[:2] != "__"]


def stage(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Absolute names of all that a file imports, wherever in it; what only type checkers see is left out."""
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            waiting.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        waiting.extend(ast.iter_child_nodes(node))


def test_every_stage_stands_in_the_flow() -> None:
    assert {stage(path) for path in modules()} <= set(FLOW)


CONTENTS = re.compile(r"^ *(\w+(?:, \w+)*) {2,}[^|\n]+$", re.MULTILINE)
"""A line of a package's table of contents: modules, two blanks or more, their purpose. Not of a table (with |)."""


def packages() -> list[Path]:
    return [path.parent for path in sorted(PACKAGE.glob("*/**/__init__.py"))]


@pytest.mark.parametrize("package", packages(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_packages_table_of_contents_names_its_modules(package: Path) -> None:
    """The table is the paragraph of the docstring that names any of them."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    inside = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/__init__.py")}
    for paragraph in text.split("\n\n"):
        named = {name for line in CONTENTS.findall(paragraph) for name in line.split(", ")}
        if named & inside:
            assert named == inside - {"__init__"}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    here = stage(path)
    for name in imported(path):
        top, _, rest = name.partition(".")
        assert here in ONLY_IN.get(top, {here}), f"{path} imports {name}"
        other = rest.partition(".")[0]
        if top == "proftrack" and other in FLOW:
            assert FLOW.index(other) <= FLOW.index(here), f"{path} imports {name}: against the flow"


WRITERS = {
    # What a run's life changes, and who may: everybody else says what is recorded, and the recorder does it.
    "proftrack.recorder.write": {"recorder", "frontends/sweep/stages.py"},  # the latter loads it before it is needed
    "proftrack.store.upload": {"recorder", "store"},
    "proftrack.store.session": {"recorder", "store"},
    "proftrack.store.batch": {"recorder", "store"},
}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_recorder_opens_writes_and_uploads_runs(path: Path) -> None:
    here = {stage(path), path.relative_to(PACKAGE).as_posix()}
    for name in imported(path):
        for writer, allowed in WRITERS.items():
            assert not f"{name}.".startswith(f"{writer}.") or here & allowed, f"{path} imports {name}"


def test_no_module_imports_itself_in_a_circle() -> None:
    """Nor by an import within a function, which only puts it off."""
    files = {path.relative_to(PACKAGE.parent).with_suffix(""): path for path in modules()}
    paths = {".".join(name.parts).removesuffix(".__init__"): path for name, path in files.items()}
    needs = {name: {module_of(each, paths) for each in imported(path)} - {name, None} for name, path in paths.items()}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def module_of(name: str, known: Collection[str]) -> str | None:
    """The module that `import name`, or a part of it, reads; None for one that is not of this package."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


# ---- the source root -------------------------------------------------------------------------------------------------


def test_the_source_root_is_no_package() -> None:
    """Python 3.15 has a `profiling` package that cProfile, and so torch.compile, is reached through."""
    assert not (ROOT / "profiling" / "__init__.py").exists()


def test_a_profiling_package_of_the_standard_library_wins(tmp_path: Path) -> None:
    """Even where the project's root comes first on the path, as it does in a session started there."""
    package = tmp_path / "profiling"
    package.mkdir()
    (package / "__init__.py").write_text("who = 'the standard library'\n")
    code = (
        "import sys; sys.path[:0] = [sys.argv[1]]; sys.path.append(sys.argv[2]); import profiling; print(profiling.who)"
    )
    for first, last in ((ROOT, tmp_path), (tmp_path, ROOT)):
        shown = subprocess.run(
            [sys.executable, "-c", code, str(first), str(last)], capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout
        assert shown == "the standard library\n"


def test_it_runs_without_an_install(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    for folder, path in ((ROOT, "profiling"), (tmp_path, str(ROOT / "profiling"))):
        done = subprocess.run(
            [sys.executable, path, "--help"], capture_output=True, text=True, check=True, cwd=folder, env=environment
        )
        assert done.stdout.startswith("Usage: proftrack")


# ---- entry points and pins -------------------------------------------------------------------------------------------


def project() -> dict[str, Any]:
    if sys.version_info < (3, 11):
        pytest.skip("tomllib is new in Python 3.11")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def mlproject() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "MLproject").read_text(encoding="utf-8")))


def conda() -> tuple[list[str], list[Requirement]]:
    dependencies = yaml.safe_load((ROOT / "conda.yaml").read_text(encoding="utf-8"))["dependencies"]
    plain = [each for each in dependencies if isinstance(each, str)]
    (pip,) = [each["pip"] for each in dependencies if isinstance(each, dict)]
    return plain, [Requirement(line) for line in pip]


def test_mlproject_declares_the_experiment_alone() -> None:
    """MLflow logs every declared parameter before we start, and params cannot be changed."""
    main = mlproject()["entry_points"]["main"]
    assert main["parameters"] == {"experiment": {"type": "string", "default": "matmul_add"}}
    assert main["command"] == "python profiling run {experiment}"
    assert mlproject()["conda_env"] == "conda.yaml"


def test_mlproject_calls_commands_that_exist() -> None:
    names = {name for name, _, _ in COMMANDS}
    for entry in mlproject()["entry_points"].values():
        python, root, command, *_ = entry["command"].split()
        assert (python, root) == ("python", "profiling")
        assert command in names


def test_mlprojects_comment_names_settings_that_exist() -> None:
    from proftrack import experiment

    text = (ROOT / "MLproject").read_text(encoding="utf-8")
    given = dict(re.findall(r"-P (\w+)=([^\s}]+)", text))
    assert {"n", "dtype", "active", "min_seconds", "device"} <= set(given)
    experiment.load(str(ROOT / "experiments" / "matmul_add.yaml"), given)


def test_python_is_pinned_in_full() -> None:
    """MLflow's virtualenv manager hands it to pyenv."""
    (python,) = [each for each in conda()[0] if each.startswith("python=")]
    assert re.fullmatch(r"python=3\.\d+\.\d+", python)


def test_every_dependency_is_pinned_and_nothing_else() -> None:
    wanted = {(each := Requirement(line)).name: each for line in project()["project"]["dependencies"]}
    extras = project()["project"]["optional-dependencies"]
    optional = {Requirement(line).name for name in ("nvidia", "experiments") for line in extras[name]}
    pins = conda()[1]
    assert {pin.name for pin in pins} == set(wanted) | optional
    for pin in pins:
        (exact,) = pin.specifier
        assert exact.operator == "=="
        if pin.name in wanted:
            assert wanted[pin.name].specifier.contains(exact.version), pin


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_one_pin_a_dependency_on_every_python(python: str) -> None:
    environment = {"python_version": python}
    names = [pin.name for pin in conda()[1] if pin.marker is None or pin.marker.evaluate(environment)]
    assert len(names) == len(set(names))
    assert set(names) == {pin.name for pin in conda()[1]}


def test_the_tools_are_pinned_and_are_those_of_pyproject() -> None:
    extras = project()["project"]["optional-dependencies"]
    wanted = {Requirement(line).name for name in ("test", "dev", "callbacks") for line in extras[name]}
    wanted -= {pin.name for pin in conda()[1]}
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    assert {pin.name for pin in pins} == wanted
    assert all(str(pin.specifier).startswith("==") for pin in pins)


def test_make_takes_its_pins_from_conda_yaml() -> None:
    """The line of the Makefile that reads them, run as make runs it."""
    (line,) = re.findall(r"@(sed -n .*) conda\.yaml >", (ROOT / "Makefile").read_text(encoding="utf-8"))
    shown = subprocess.run(
        ["bash", "-c", line.replace("$$", "$") + " conda.yaml"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert [str(Requirement(each)) for each in shown.splitlines()] == [str(pin) for pin in conda()[1]]


def test_make_profile_calls_mlflow_run() -> None:
    def dry(*words: str) -> str:
        command = ["make", "--dry-run", "--no-print-directory", "profile", *words]
        environment = {name: value for name, value in os.environ.items() if name not in ("N", "PARAMS", "EXPERIMENT")}
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
        return " ".join(done.stdout.splitlines()[-1].split())

    assert dry("N=64").endswith('.venv/bin/mlflow run . --env-manager local --experiment-id "$id" -P n=64')
    assert dry().endswith("-P n=4096")
    assert dry("N=64", "PARAMS=dtype=float32 active=5").endswith("-P n=64 -P 'dtype=float32' -P 'active=5'")
    assert dry("EXPERIMENT=/a b/own.yaml").endswith("-P experiment='/a b/own.yaml'")


@pytest.mark.parametrize(
    ("given", "name"), [("e.yaml", "modèle 7/../x"), ("train.py:build", "train"), ("pkg.steps:one", "steps.one")]
)
def test_make_profile_names_mlflows_experiment_after_ours(
    given: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "e.yaml").write_text('name: "modèle 7/../x"\nworkload: e.py:build\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    cli_store.command([f"--experiment-id={given}"], standalone_mode=False)
    shown = capsys.readouterr().out.strip()
    assert stores.connect(stores.resolve()).get_experiment(shown).name == name


def test_the_console_script() -> None:
    try:
        importlib.metadata.distribution("proftrack")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("proftrack is not installed here")
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="proftrack")
    assert script.value == "proftrack.cli:main"
