"""A callback for Lightning's Trainer that profiles the fit, in a run nested under the open one.

    from proftrack.integrations.lightning import ProfileCallback
    Trainer(..., callbacks=[ProfileCallback()])

A step is a training batch; validation between two of them is no part of a step. Both of Lightning's packages work,
`lightning.pytorch` and `pytorch_lightning`: the callback derives from the Callback of those already imported, else of
the first one installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from typing import Any

from proftrack.errors import StoreError
from proftrack.integrations.training import Training

__all__ = ["ProfileCallback"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _bases() -> tuple[Any, ...]:
    """Lightning checks for its own Callback class; one class can derive from both packages'."""
    installed = [name for name in _PACKAGES if importlib.util.find_spec(name.partition(".")[0]) is not None]
    used = [name for name in installed if name in sys.modules] or installed[:1]
    if not used:
        raise ImportError("proftrack.integrations.lightning needs Lightning: pip install lightning")
    return tuple(importlib.import_module(name).Callback for name in used)


class ProfileCallback(Training, *_bases()):  # type: ignore[misc]  # the bases are found at import
    """Profiles each fit of its Trainer; takes the arguments of `proftrack.profile`.

    Params are the module's class and size, batch size, gradient accumulation and precision.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the profile, nested under the open run; the run of an MLFlowLogger for this store counts as open."""
        facts = _facts(trainer, pl_module)
        self.begin(
            facts["model"],
            facts,
            variant=("precision",),
            steps=_steps(trainer),
            device=str(pl_module.device.type),
            parent_run_id=_logger_run(trainer),
        )

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Count a batch as a step."""
        self.step()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Leave validation between two training batches out of the steps."""
        self.pause()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Go on with the step."""
        self.resume()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the profile with the fit."""
        self.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the profile with the exception that ended the fit; it propagates."""
        self.end(exception)


def _facts(trainer: Any, module: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "model": type(module).__name__,
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        "accumulation": int(trainer.accumulate_grad_batches),
        "precision": str(trainer.precision),
    }
    batch = getattr(trainer.train_dataloader, "batch_size", None)
    if isinstance(batch, int):
        facts["batch"] = batch
    return facts


def _steps(trainer: Any) -> int | None:
    """Number of batches in this fit; None if unknown."""
    epochs, batches = trainer.max_epochs, trainer.num_training_batches
    by_epochs = batches * epochs if epochs is not None and epochs > 0 and math.isfinite(batches) else None
    by_steps = trainer.max_steps * trainer.accumulate_grad_batches if trainer.max_steps > 0 else None
    limits = [int(steps) for steps in (by_epochs, by_steps) if steps is not None]
    return min(limits, default=None)


def _logger_run(trainer: Any) -> str | None:
    """The run of Lightning's own MLflow logger, if it writes to the same store as we do."""
    for logger in trainer.loggers:
        if type(logger).__name__ == "MLFlowLogger" and _same_store(getattr(logger, "_tracking_uri", None)):
            return str(logger.run_id)
    return None


def _same_store(uri: str | None) -> bool:
    try:
        from proftrack.store import connect

        store = connect.resolve()
    except (ImportError, StoreError):
        return False
    return uri in (store.uri, store.given)
