"""A workload's step made into another that does the same: compiled, or captured as a CUDA graph.

A workload can say that its step must not be replayed: the attribute `not_capturable` of the step, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proftrack.capture import compat
from proftrack.capture.device import Device
from proftrack.errors import ProftrackError
from proftrack.experiment.workload import Step, first_line

WARM_STEPS = 3
"""Steps before a capture, on the stream that it is captured from: lazy initialisation must be over."""
REASON = "not_capturable"


class Refused(ProftrackError):
    """A workload that does not allow a variant, with the reason."""


def compiled(mode: str) -> Callable[[Step, Device], Step]:
    """Compiles a step whole, in this mode of torch.compile. What it cannot take in becomes a graph break."""

    def transform(step: Step, device: Device) -> Step:
        compiled_step: Step = compat.compiled(step, mode)
        return compiled_step

    return transform


def cuda_graph(step: Step, device: Device) -> Step:
    """Capture a step as a CUDA graph; a call of the result replays it and gives the same tensors each time.

    Raises Refused where device or workload do not allow it.
    """
    refuse_uncapturable(step, device)
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    device.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            result = step()
    except Exception as error:
        raise Refused(
            f"the step cannot be captured as a CUDA graph: {type(error).__name__}: {first_line(error)}"
        ) from error

    def replay() -> Any:
        graph.replay()
        return result

    replay.steps_before = WARM_STEPS  # type: ignore[attr-defined]
    return replay


def refuse_uncapturable(step: Step, device: Device) -> None:
    """Raise Refused where the device has no graphs, or the workload says that its step must not be replayed."""
    if device.type != "cuda":
        raise Refused("a CUDA graph needs a CUDA device")
    reason = getattr(step, REASON, None)
    if reason:
        raise Refused(f"the workload says that its step cannot be captured: {reason}")


def steps_before(step: Step) -> int:
    """Steps that making it has run already."""
    return int(getattr(step, "steps_before", 0))
