"""The experiments of the project, one step of each; build functions without a YAML file; whole programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from calls import call
from stores import mlflow_runs

from proftrack import experiment
from proftrack import record as records
from proftrack.capture.device import CpuDevice
from proftrack.capture.dtype import resolved
from proftrack.errors import UsageError, WorkloadError
from proftrack.experiment import workload
from proftrack.frontends.variants import names as variant_names

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "experiments"
ALL = sorted(path.stem for path in FOLDER.glob("*.yaml"))
SMALL = {
    "data_pipeline": {"batch": "2", "size": "8", "passes": "1"},
    "ddp": {"batch": "2", "width": "8", "layers": "1"},
    "linear": {"batch": "2", "features": "8"},
    "llm": {"tokens": "4", "layers": "1", "hidden": "16", "heads": "2", "vocab": "16", "dtype": "float32"},
    "matmul_add": {"n": "8"},
    "mlp": {"batch": "2", "width": "8", "layers": "2"},
}
CPU = torch.device("cpu")


def steps_of(name: str, count: int = 1, **params: str) -> list[Any]:
    """The results of some steps of a small version of an experiment."""
    asked = resolved(experiment.load(str(FOLDER / f"{name}.yaml"), {**SMALL[name], **params}), CpuDevice())
    with workload.open_step(workload.load(asked), CPU, asked.params) as step:
        return [step() for _ in range(count)]


# ---- the files -------------------------------------------------------------------------------------------------------


def test_the_whole_guide_is_there() -> None:
    assert set(ALL) == set(SMALL)
    assert {path.stem for path in FOLDER.glob("*.py")} == {*ALL, "shared"}


@pytest.mark.parametrize("name", ALL)
def test_each_says_what_it_is_with_parameters_and_a_sweep(name: str) -> None:
    found = experiment.load(str(FOLDER / f"{name}.yaml"))
    assert found.name == name
    assert 20 < len(found.description) < 400
    assert found.params and found.sweep
    assert all(len(points) > 2 for points in found.sweep.values())
    assert set(found.variants) <= {*found.variants}
    for values in found.variants.values():
        # What a variant changes may differ between runs that are compared.
        assert set(values) <= set(found.variant_params)
    document = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    assert document["workload"] == f"{name}.py:build"


@pytest.mark.parametrize("name", ALL)
def test_one_step_of_each(name: str) -> None:
    (result,) = steps_of(name)
    assert torch.isfinite(result.float()).all()


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("linear", {"passes": "forward-backward"}),
        ("mlp", {"optimizer": "for-loop"}),
        ("mlp", {"optimizer": "fused"}),
        ("data_pipeline", {"workers": "1"}),
        ("llm", {"phase": "prefill"}),
        ("llm", {"phase": "train"}),
        ("llm", {"cache": "static"}),
    ],
)
def test_what_their_parameters_choose(name: str, params: dict[str, str]) -> None:
    for result in steps_of(name, 2, **params):
        assert torch.isfinite(result.float()).all()


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("matmul_add", {"n": "0"}, "n=0 is not allowed; it must be 1 or more"),
        ("matmul_add", {"dtype": "float23"}, "dtype=float23 is not allowed"),
        ("matmul_add", {"compile": "fast"}, "compile=fast is not allowed"),
        (
            "linear",
            {"passes": "backward"},
            "passes=backward is not allowed; it must be one of forward, forward-backward",
        ),
        ("mlp", {"optimizer": "fussed"}, "did you mean fused"),
        ("data_pipeline", {"workers": "-1"}, "workers=-1 is not allowed"),
        ("llm", {"phase": "sleep"}, "phase=sleep is not allowed"),
        ("llm", {"hidden": "10", "heads": "4"}, "hidden=10 is not allowed with heads=4"),
        ("ddp", {"straggle_us": "-1"}, "straggle_us=-1 is not allowed"),
    ],
)
def test_values_that_cannot_be(name: str, params: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        steps_of(name, **params)
    assert words in str(refused.value)


def test_the_same_seed_is_the_same_step() -> None:
    for name in ("matmul_add", "linear", "mlp", "llm"):
        first, second, other = (steps_of(name, seed=seed)[0] for seed in ("1", "1", "2"))
        assert torch.equal(first, second), name
        assert not torch.equal(first, other), name


def test_a_linear_layers_gradient_is_what_the_book_says() -> None:
    """dL/dW = upstream^T x, which the step gives back."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 8, dtype=torch.float64)
    x, upstream = torch.randn(2, 8, dtype=torch.float64), torch.randn(2, 8, dtype=torch.float64)
    (gradient,) = steps_of("linear", passes="forward-backward", dtype="float64")
    torch.testing.assert_close(gradient, upstream.T @ x)
    (forward,) = steps_of("linear", dtype="float64")
    torch.testing.assert_close(forward, x @ layer.weight.T + layer.bias)


def test_the_optimizers_of_the_mlp_do_the_same() -> None:
    losses = {kind: steps_of("mlp", 5, optimizer=kind)[-1] for kind in ("for-loop", "foreach", "fused")}
    torch.testing.assert_close(losses["foreach"], losses["for-loop"], rtol=1e-5, atol=0)
    torch.testing.assert_close(losses["fused"], losses["for-loop"], rtol=1e-5, atol=0)
    assert losses["fused"] < steps_of("mlp")[0]  # it learns


def test_decoding_is_at_the_same_position_in_every_step_and_the_cache_does_not_matter() -> None:
    """More steps than the static cache has room for: each is taken back."""
    dynamic, static = (steps_of("llm", 20, cache=kind) for kind in ("dynamic", "static"))
    torch.testing.assert_close(dynamic[0], static[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dynamic[-1], dynamic[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(static[-1], static[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("phase", "tokens"), [("prefill", 6), ("decode", 2), ("train", 6)])
def test_a_language_model_says_how_many_tokens_a_step_handles(phase: str, tokens: int) -> None:
    """Two prompts of three tokens; a decoding step adds one to each."""
    params = {**SMALL["llm"], "phase": phase, "batch": "2", "tokens": "3"}
    asked = resolved(experiment.load(str(FOLDER / "llm.yaml"), params), CpuDevice())
    with workload.open_step(workload.load(asked), CPU, asked.params) as step:
        assert workload.tokens_of(step) == tokens


def test_what_must_not_be_captured_says_so() -> None:
    for name, params in [("data_pipeline", {}), ("llm", {"cache": "dynamic"})]:
        asked = resolved(experiment.load(str(FOLDER / f"{name}.yaml"), {**SMALL[name], **params}), CpuDevice())
        with workload.open_step(workload.load(asked), CPU, asked.params) as step:
            assert step.not_capturable  # type: ignore[attr-defined]


def test_the_variants_of_the_files_can_be_named() -> None:
    found = variant_names.variants(str(FOLDER / "mlp.yaml"), "for-loop,fused,fused+cuda-graph", {})
    assert found[2].changes == {"optimizer": "fused", "capturable": True}
    (graph,) = variant_names.variants(str(FOLDER / "llm.yaml"), "cuda-graph", {})
    assert graph.experiment.params["cache"] == "static" and graph.cuda_graph


def test_the_list_shows_them_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "broken.yaml").write_text("workload: [\n")
    (tmp_path / "experiments" / "mlp.yaml").write_text("workload: w.py:build\nparams: {hidden_one: 3}\n")
    monkeypatch.chdir(tmp_path)
    assert call("run", "--list") == 0
    shown = capsys.readouterr().out
    assert [name for name in ALL if f"{name}  " not in shown] == []
    assert "n=64,256,512,1024,2048,4096,8192" in shown
    assert "variants  for-loop" not in shown and "hidden_one=3" in shown  # the working directory's hides the project's
    assert "not valid YAML" in shown


# ---- code of the user's own, without a YAML file ---------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `mypkg` in the working directory, not installed."""
    folder = tmp_path / "project" / "mypkg"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "model.py").write_text(
        "import torch\n"
        "def build(device, n, scale=2.0, deep=False, callback=None):\n"
        "    x = torch.ones(n, device=device)\n"
        "    return lambda: x * scale\n"
    )
    (folder / "train.py").write_text(
        "import argparse, sys, torch\n"
        "from mypkg.model import build\n"
        "def one(model, optimizer):\n"
        "    optimizer.zero_grad(); model(torch.ones(1, 4)).sum().backward(); optimizer.step()\n"
        "def main():\n"
        "    parser = argparse.ArgumentParser()\n"
        "    parser.add_argument('--steps', type=int)\n"
        "    parser.add_argument('--fail', action='store_true')\n"
        "    given = parser.parse_args()\n"
        "    model = torch.nn.Linear(4, 4)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    for _ in range(given.steps): one(model, optimizer)\n"
        "    if given.fail: raise KeyError('loss')\n"
        "    print('trained', __name__)\n"
        "if __name__ == '__main__': main()\n"
    )
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr(sys, "path", sys.path[:])
    for name in [name for name in sys.modules if name.partition(".")[0] == "mypkg"]:
        monkeypatch.delitem(sys.modules, name)
    return folder


def test_a_build_function_of_a_package(package: Path) -> None:
    found = workload.described("mypkg.model:build", {"n": "4", "scale": "3", "active": "2"})
    assert (found.name, found.workload) == ("model", "mypkg.model:build")
    # `callback` has a default that is no plain value but null, `deep` a plain one.
    assert found.params == {"n": 4, "scale": 3.0, "deep": False, "callback": None}
    assert found.schedule.active == 2
    assert found.path == (package / "model.py").resolve()
    with workload.open_step(workload.load(found), CPU, found.params) as step:
        assert step().tolist() == [3.0] * 4


def test_a_build_function_of_a_file_anywhere(package: Path) -> None:
    found = workload.described(f"{package / 'model.py'}:build", {"n": "2"})
    assert (found.workload, found.path.parent) == ("model.py:build", package.resolve())
    with workload.open_step(workload.load(found), CPU, found.params) as step:
        assert step().tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("reference", "given", "kind", "words"),
    [
        ("mypkg.model:build", {}, UsageError, "needs a parameter n; give it with -P n="),
        ("mypkg.model:built", {"n": "1"}, UsageError, "there is no callable built; .*did you mean build"),
        ("mypkg.mode:build", {"n": "1"}, UsageError, "there is no module mypkg.mode"),
        ("nowhere.py:build", {"n": "1"}, UsageError, "there is no file"),
        ("mypkg.model:build", {"n": "1", "m": "2"}, UsageError, "unknown parameter m=2"),
        ("mypkg.train:one", {"model": "1", "optimizer": "2"}, UsageError, "takes no parameter device"),
    ],
)
def test_references_that_cannot_be(
    package: Path, reference: str, given: dict[str, str], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        workload.load(workload.described(reference, given))


def test_a_module_that_cannot_be_imported(package: Path) -> None:
    (package / "model.py").write_text("1 / 0\n")
    with pytest.raises(WorkloadError, match=r"importing mypkg\.model raised ZeroDivisionError"):
        workload.described("mypkg.model:build", {"n": "1"})


# ---- whole programs --------------------------------------------------------------------------------------------------


def proftrack(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "profiling"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "proftrack", "run", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        **options,
    )


SETTINGS = ["--device", "cpu", "--skip-first", "0", "--wait", "12", "--warmup", "1", "--active", "2"]


def test_a_module_runs_as_a_program_and_its_optimizers_steps_are_steps(package: Path, store_uri: str) -> None:
    done = proftrack(*SETTINGS, "-m", "mypkg.train", "--steps", "20")
    assert done.returncode == 0, done.stderr
    assert "trained __main__" in done.stdout
    (run,) = mlflow_runs()
    assert (run.info.status, run.data.params["arguments"]) == ("FINISHED", "--steps 20")
    assert run.data.tags["proftrack.experiment"] == "mypkg.train"
    assert run.data.metrics["recorded_steps"] == 2


def test_the_calls_of_a_function_can_be_the_steps(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = package.parent / "serve.py"
    script.write_text("from mypkg import train\nfor _ in range(20): train.build('cpu', 4)()\n")
    arguments = ["--no-mlflow", "--output", str(tmp_path / "o"), *SETTINGS, "--stop"]
    assert call("run", *arguments, "--step", "mypkg.train:build", str(script)) == 0
    record = records.load(tmp_path / "o" / "record.json")
    assert record.run is not None and record.run.experiment == "serve"
    assert record.window.steps == 2
    assert {op.name: op.calls for op in record.ops}["aten::ones"] == 2


def test_a_program_that_fails_shows_its_own_traceback(package: Path, store_uri: str) -> None:
    done = proftrack(*SETTINGS, "-m", "mypkg.train", "--steps", "20", "--fail")
    assert done.returncode == 1
    assert "KeyError: 'loss'" in done.stderr
    assert "train.py" in done.stderr and "program.py" not in done.stderr
    (run,) = mlflow_runs()
    assert run.info.status == "FAILED"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-m", "mypkg.none"], 2, "-m mypkg.none: no such module"),
        (["nothing.py"], 2, "nothing.py: no such file"),
        (["--step", "mypkg.train:none", "-m", "mypkg.train"], 2, "mypkg.train has no function none"),
        (["--step", "mypkg.train", "-m", "mypkg.train"], 2, "write it as package.module:function"),
        (["--stop"], 2, "--step and --stop need a program"),
        (["-m"], 2, "-m has no value"),
        (["--n", "3", "-m", "mypkg.train"], 2, "unknown parameter n=3"),
    ],
)
def test_programs_that_cannot_be(
    package: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    assert call("run", "--no-mlflow", *arguments) == code
    assert words in capsys.readouterr().err
    assert not (package.parent / "proftrack-runs").exists()
