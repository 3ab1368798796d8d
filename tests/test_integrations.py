"""The callbacks in real trainings of transformers and Lightning on the CPU; models of a few weights, nothing loaded."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stores import mlflow_runs

import proftrack
from proftrack.errors import UsageError
from proftrack.frontends.loop import ProfileWarning
from proftrack.record import Record
from proftrack.record.figures import EXCLUDED_REGION, Region

torch = pytest.importorskip("torch")

SHORT = {"wait": 12, "warmup": 1, "active": 2}
QUIET: dict[str, Any] = {"calibrate": False, "quiet": True}
NO_STORE: dict[str, Any] = {**QUIET, "mlflow": False}


def regions(record: Record, name: str) -> Region:
    """The region of that name; there must be one."""
    (found,) = [region for region in record.regions if region.name == name]
    return found


def all_runs() -> dict[str, Any]:
    return {run.info.run_id: run for run in mlflow_runs()}


@pytest.fixture(autouse=True)
def _their_own_warnings() -> Iterator[None]:
    """Those of the libraries are theirs; ours are errors still."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", ProfileWarning)
        yield


# ---- transformers ----------------------------------------------------------------------------------------------------


@pytest.fixture
def trainer(tmp_path: Path) -> Any:
    """Makes a Trainer of a two-layer model on eight sequences."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    def make(callback: Any, **arguments: Any) -> Any:
        config = transformers.LlamaConfig(
            num_hidden_layers=1, hidden_size=16, intermediate_size=32, num_attention_heads=2, vocab_size=32
        )
        model = transformers.LlamaForCausalLM(config)
        rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(8)]
        given = {"max_steps": 18, "per_device_train_batch_size": 2, "report_to": [], "save_strategy": "no", **arguments}
        options = transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"), use_cpu=True, disable_tqdm=True, **given
        )
        return transformers.Trainer(
            model=model, args=options, train_dataset=rows, eval_dataset=rows, callbacks=[callback]
        )

    return make


def test_a_trainer_is_profiled_beside_the_users_own_run(trainer: Any, store_uri: str) -> None:
    import mlflow

    from proftrack.integrations.transformers import ProfileCallback

    callback = ProfileCallback(params={"note": "mine"}, schedule=SHORT, **QUIET)
    with mlflow.start_run() as mine:
        trainer(callback, gradient_accumulation_steps=2).train()
        active = mlflow.active_run()
        assert active is not None and active.info.run_id == mine.info.run_id
    found = all_runs()
    assert set(found) == {mine.info.run_id, callback.run_id}
    own, child = found[mine.info.run_id], found[callback.run_id or ""]
    assert child.data.tags["mlflow.parentRunId"] == mine.info.run_id
    assert (own.info.status, child.info.status) == ("FINISHED", "FINISHED")
    assert not [tag for tag in own.data.tags if tag.startswith("proftrack")]
    params = child.data.params
    assert (params["experiment"], params["model"], params["note"]) == ("LlamaForCausalLM", "LlamaForCausalLM", "mine")
    assert (params["batch"], params["accumulation"], params["precision"]) == ("2", "2", "fp32")
    # Embedding and head 2 x 32 x 16, attention 4 x 16 x 16, MLP 3 x 16 x 32, three norms of 16.
    assert params["parameters"] == str(1024 + 1024 + 1536 + 48)
    assert child.data.metrics["recorded_steps"] == 2
    assert child.data.tags["regime.basis"] == "unprofiled"
    assert callback.record is not None and callback.record.run is not None
    # A step is an optimizer step: two forward passes of the model each.
    calls = {op.name: op.calls for op in callback.record.ops}
    assert calls["aten::embedding"] == 4
    assert callback.record.timing is not None and callback.record.timing.input_wait_us
    assert callback.record.run.fingerprint_keys["workload"] == "test_integrations.py:loop"


def test_the_trainers_own_mlflow_run_is_the_parent(
    trainer: Any, store_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import fluent

    from proftrack.integrations.transformers import ProfileCallback

    monkeypatch.setattr(fluent, "_active_experiment_id", None)  # Trainer's callback sets it, for all who follow
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "training")
    monkeypatch.setenv("HF_MLFLOW_LOG_ARTIFACTS", "0")
    callback = ProfileCallback("mine", schedule=SHORT, **QUIET)
    trainer(callback, report_to=["mlflow"], logging_steps=5).train()
    import mlflow

    mlflow.end_run()
    found = all_runs()
    parent = found[found[callback.run_id or ""].data.tags["mlflow.parentRunId"]]
    assert parent.data.metrics["loss"] > 0
    assert parent.info.status == "FINISHED"


def test_without_a_schedule_one_is_made_that_the_training_is_long_enough_for(trainer: Any, tmp_path: Path) -> None:
    from proftrack.integrations.transformers import ProfileCallback

    callback = ProfileCallback(output=tmp_path / "o", mlflow=False, **QUIET)
    trainer(callback).train()
    assert callback.record is not None and callback.record.run is not None
    assert callback.record.run.schedule == {"skip_first": 2, "wait": 12, "warmup": 1, "active": 3, "repeat": 1}
    assert callback.record.window.steps == 3


def test_a_training_that_ends_early_warns(trainer: Any, tmp_path: Path) -> None:
    from proftrack.integrations.transformers import ProfileCallback

    callback = ProfileCallback(schedule={"wait": 30}, output=tmp_path / "o", mlflow=False, **QUIET)
    with pytest.warns(ProfileWarning, match="ended after 18 steps, before recording began at step 32"):
        trainer(callback).train()


def test_arguments_are_refused_where_they_are_written() -> None:
    pytest.importorskip("transformers")
    from proftrack.integrations.transformers import ProfileCallback

    with pytest.raises(UsageError, match=r"schedule\.active=0"):
        ProfileCallback(schedule={"active": 0})


def test_switched_off_the_callback_does_nothing(trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from proftrack.integrations.transformers import ProfileCallback

    monkeypatch.chdir(tmp_path)
    callback = ProfileCallback(enabled=False)
    trainer(callback, max_steps=2).train()
    assert (callback.record, callback.run_id) == (None, None)
    assert not (tmp_path / "proftrack-runs").exists()


def test_a_training_that_an_exception_ends_is_failed_when_the_program_ends(tmp_path: Path, store_uri: str) -> None:
    """A Trainer tells its callbacks nothing of exceptions."""
    pytest.importorskip("transformers")
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, transformers\n"
        "from types import SimpleNamespace as Space\n"
        "from proftrack.integrations.transformers import ProfileCallback\n"
        "callback = ProfileCallback('mine', calibrate=False, quiet=True)\n"
        "model = torch.nn.Linear(2, 2)\n"
        "args = transformers.TrainingArguments(output_dir='out', use_cpu=True)\n"
        "callback.on_train_begin(args, Space(max_steps=100, global_step=0), None, model=model)\n"
        "callback.on_step_end(args, None, None)\n"
        "raise RuntimeError('the loss is gone')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(proftrack.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 1
    assert "RuntimeError: the loss is gone" in done.stderr
    (found,) = all_runs().values()
    assert (found.info.status, found.data.tags["proftrack.error"]) == ("FAILED", "RuntimeError: the loss is gone")


@pytest.mark.parametrize("strategy", ["no", "steps"])
def test_a_trainers_evaluation_is_no_part_of_its_steps(trainer: Any, tmp_path: Path, strategy: str) -> None:
    """After the 3rd, 6th ... of 18 steps, on eight sequences one by one; checkpoints are written with it, or not."""
    from proftrack.integrations.transformers import ProfileCallback

    callback = ProfileCallback(schedule={"wait": 12, "warmup": 1, "active": 4}, output=tmp_path / "o", **NO_STORE)
    made = trainer(
        callback,
        eval_strategy="steps",
        eval_steps=3,
        per_device_eval_batch_size=1,
        save_strategy=strategy,
        save_steps=3,
    )
    made.eval_dataset = made.train_dataset
    made.train()
    assert callback.record is not None and callback.record.run is not None
    # Recorded are the steps 13 to 16 (from 0): 3 evaluations while the first 12 steps are timed, and the one after the
    # 15th step begins the step that is recorded as number 15.
    excluded, step = regions(callback.record, EXCLUDED_REGION), regions(callback.record, "LlamaForCausalLM")
    assert (excluded.calls, step.calls) == (1, 4)
    (flag,) = [flag for flag in callback.record.quality if flag.code == "evaluation_in_steps"]
    assert flag.count == 1
    assert "In step 15:" in flag.message
    assert any("of evaluation and other work between the timed steps" in note for note in callback.record.run.notes)


def test_evaluation_that_nobody_announced_is_excluded_from_its_second_batch_on(trainer: Any, tmp_path: Path) -> None:
    """A callback behind ours evaluates by itself, as some libraries' do."""
    transformers = pytest.importorskip("transformers")
    from proftrack.integrations.transformers import ProfileCallback

    class Evaluates(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 14:
                made.evaluate()

    callback = ProfileCallback(schedule=SHORT, output=tmp_path / "o", **NO_STORE)
    made = trainer(callback, per_device_eval_batch_size=1)
    made.add_callback(Evaluates)
    made.train()
    assert callback.record is not None
    assert regions(callback.record, EXCLUDED_REGION).calls == 1


# ---- Lightning -------------------------------------------------------------------------------------------------------


@pytest.fixture
def fit(tmp_path: Path) -> Any:
    """Fits a one-layer module on 24 batches, with Lightning's own trainer."""
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self, fails_at: int = -1) -> None:
            super().__init__()
            self.layer, self.fails_at = torch.nn.Linear(4, 4), fails_at

        def training_step(self, batch: Any, index: int) -> Any:
            assert index != self.fails_at, "as asked"
            return self.layer(batch).sum()

        def validation_step(self, batch: Any, index: int) -> None:
            self.layer(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def run(callback: Any, *, fails_at: int = -1, validated: bool = False, **arguments: Any) -> None:
        loader = torch.utils.data.DataLoader(torch.ones(48, 4), batch_size=2)
        options = {"accelerator": "cpu", "max_epochs": 1, "logger": False, **arguments}
        trainer = lightning.Trainer(
            callbacks=[callback],
            default_root_dir=tmp_path,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **options,
        )
        trainer.fit(Module(fails_at), loader, loader if validated else None)

    return run


def test_a_fit_is_profiled_beside_the_users_own_run(fit: Any, store_uri: str) -> None:
    import mlflow

    from proftrack.integrations.lightning import ProfileCallback

    callback = ProfileCallback(schedule=SHORT, **QUIET)
    with mlflow.start_run() as mine:
        fit(callback)
        active = mlflow.active_run()
        assert active is not None and active.info.run_id == mine.info.run_id
    found = all_runs()
    own, child = found[mine.info.run_id], found[callback.run_id or ""]
    assert child.data.tags["mlflow.parentRunId"] == mine.info.run_id
    assert (own.info.status, child.info.status) == ("FINISHED", "FINISHED")
    params = child.data.params
    assert (params["model"], params["parameters"], params["batch"]) == ("Module", "20", "2")
    assert child.data.metrics["recorded_steps"] == 2
    assert callback.record is not None
    assert {op.name: op.calls for op in callback.record.ops}["aten::addmm"] == 2
    assert callback.record.timing is not None and callback.record.timing.input_wait_us


def test_validation_within_an_epoch_is_no_part_of_its_steps(fit: Any, tmp_path: Path) -> None:
    """After the 4th, 8th ... of 24 batches, and two batches before the first one, to check that it works at all."""
    from proftrack.integrations.lightning import ProfileCallback

    callback = ProfileCallback(schedule={"wait": 12, "warmup": 1, "active": 5}, output=tmp_path / "o", **NO_STORE)
    fit(callback, validated=True, val_check_interval=4)
    assert callback.record is not None and callback.record.run is not None
    # Recorded are the batches 13 to 17 (from 0): validation after the 16th begins the one with number 16.
    assert regions(callback.record, EXCLUDED_REGION).calls == 1
    (flag,) = [flag for flag in callback.record.quality if flag.code == "evaluation_in_steps"]
    assert "In step 16:" in flag.message
    assert any("of evaluation and other work between the timed steps" in note for note in callback.record.run.notes)


def test_an_exception_in_the_fit_passes_and_the_run_is_failed(fit: Any, store_uri: str) -> None:
    from proftrack.integrations.lightning import ProfileCallback

    callback = ProfileCallback("mine", schedule=SHORT, **QUIET)
    with pytest.raises(AssertionError, match="as asked"):
        fit(callback, fails_at=14)
    (found,) = all_runs().values()
    assert found.info.status == "FAILED"
    assert "AssertionError: as asked" in found.data.tags["proftrack.error"]
    fit(callback)  # and the callback can be used again
    assert sorted(run.info.status for run in all_runs().values()) == ["FAILED", "FINISHED"]


def test_without_a_schedule_the_fit_is_long_enough(fit: Any, tmp_path: Path) -> None:
    from proftrack.integrations.lightning import ProfileCallback

    callback = ProfileCallback(output=tmp_path / "o", mlflow=False, **QUIET)
    fit(callback)
    assert callback.record is not None and callback.record.run is not None
    assert sum(callback.record.run.schedule.values()) == 24 + 1  # the batches, and repeat 1
    assert callback.record.window.steps == 3


def test_the_run_of_lightnings_mlflow_logger_is_the_parent(fit: Any, store_uri: str) -> None:
    loggers = pytest.importorskip("lightning.pytorch.loggers")
    from proftrack.integrations.lightning import ProfileCallback

    callback = ProfileCallback("mine", schedule=SHORT, **QUIET)
    logger = loggers.MLFlowLogger(experiment_name="training", tracking_uri=store_uri)
    fit(callback, logger=logger)
    found = all_runs()
    assert found[callback.run_id or ""].data.tags["mlflow.parentRunId"] == logger.run_id
    assert found[logger.run_id].info.status == "FINISHED"


def test_the_callback_is_one_of_every_lightning_in_use() -> None:
    """`lightning.pytorch` and `pytorch_lightning` are two packages with two Callback classes."""
    pytest.importorskip("lightning.pytorch")
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "import pytorch_lightning\n"
        "from proftrack.integrations.lightning import ProfileCallback\n"
        "print(issubclass(ProfileCallback, pytorch_lightning.Callback), 'lightning.pytorch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
