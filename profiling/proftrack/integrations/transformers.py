"""A callback for `transformers.Trainer` that profiles the training, in a run nested under the open one.

    from proftrack.integrations.transformers import ProfileCallback
    Trainer(..., callbacks=[ProfileCallback()])

A step is an optimizer step, with all the batches accumulated for it; evaluation and checkpoints are no part of one. A
Trainer does not notify its callbacks of exceptions: if one ends a training, its run becomes FAILED when the program
ends, or when the next training begins.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from proftrack.integrations.training import Training

__all__ = ["ProfileCallback"]


class ProfileCallback(Training, TrainerCallback):
    """Profiles each training of its Trainer; takes the arguments of `proftrack.profile`.

    Params are the model's class and size, batch size, gradient accumulation, precision, optimizer and torch_compile.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Start the profile, nested under the open run: Trainer's own MLflow callback has opened its run by now."""
        remaining = state.max_steps - state.global_step if state.max_steps > 0 else None
        facts = _facts(args, model)
        self.begin(
            facts["model"], facts, variant=("optim", "torch_compile"), steps=remaining, device=str(args.device.type)
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count an optimizer step. Evaluation and checkpoints follow if an earlier callback has asked for them."""
        self.step()
        self._pause_before(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The same at the end of an epoch."""
        self._pause_before(control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A batch of evaluation was run, which nobody may have announced."""
        self.pause()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Go on with the step, unless a checkpoint follows; whether this is the best one is decided later."""
        if not (control.should_save or getattr(args.save_strategy, "value", args.save_strategy) == "best"):
            self.resume()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Go on with the step: the checkpoint is written."""
        self.resume()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Training certainly goes on."""
        self.resume()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the profile with the training."""
        self.end()

    def _pause_before(self, control: Any) -> None:
        if getattr(control, "should_evaluate", False) or getattr(control, "should_save", False):
            self.pause()


def _facts(args: Any, model: Any) -> dict[str, Any]:
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
