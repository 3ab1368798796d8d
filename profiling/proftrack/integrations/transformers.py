"""A callback for `transformers.Trainer`: the training is profiled, in a run nested under the one that is open.

    from proftrack.integrations.transformers import ProfileCallback
    Trainer(..., callbacks=[ProfileCallback()])

A step is an optimizer step, with all the batches that are accumulated for it. A Trainer does not tell its callbacks of
exceptions: a training that one ends is FAILED when the program ends, or when the next training begins.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from proftrack.integrations.training import Training

__all__ = ["ProfileCallback"]


class ProfileCallback(Training, TrainerCallback):
    """Profiles each training of the Trainer that it is given to; arguments as of `proftrack.profile`.

    Params are the model's class and size, batch size, gradient accumulation, precision, optimizer and torch_compile.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Start, in the run that is open: Trainer's own MLflow callback has opened its one before."""
        remaining = state.max_steps - state.global_step if state.max_steps > 0 else None
        told = _told(args, model)
        self.begin(
            told["model"], told, variant=("optim", "torch_compile"), steps=remaining, device=str(args.device.type)
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """An optimizer step is over."""
        self.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The training is over."""
        self.end()


def _told(args: Any, model: Any) -> dict[str, Any]:
    precision = "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32"
    return {
        "model": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "batch": int(args.per_device_train_batch_size),
        "accumulation": int(args.gradient_accumulation_steps),
        "precision": precision,
        "optim": str(getattr(args.optim, "value", args.optim)),
        "torch_compile": bool(args.torch_compile),
    }
