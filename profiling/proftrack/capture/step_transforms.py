"""Transform a workload's step into one that does the same: compiled, or captured as a CUDA graph.

A workload can forbid replaying its step: set the attribute `not_capturable` of the step to the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proftrack.capture import compat
from proftrack.capture.device import Device
from proftrack.errors import ProftrackError
from proftrack.experiment.workload import Step, first_line

WARM_STEPS = 3
"""Steps before a capture, on the capturing stream: lazy initialisation must be done by then."""
REASON = "not_capturable"
_CAPTURED = "captured"


class Refused(ProftrackError):
    """The workload or the device does not allow a variant, for the given reason."""


def compiled(mode: str) -> Callable[[Step, Device], Step]:
    """Compile the whole step in this mode of torch.compile. Code that it cannot compile becomes a graph break."""

    def transform(step: Step, device: Device) -> Step:
        compiled_step: Step = compat.compiled(step, mode)
        return compiled_step

    return transform


def cuda_graph(step: Step, device: Device) -> Step:
    """Capture a step as a CUDA graph. Calling the result replays it and returns the same tensors each time.

    Raises Refused if the device or the workload does not allow it.
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
    try:
        graph, result = capture(step)
    except Exception as error:
        raise Refused(
            f"the step cannot be captured as a CUDA graph: {type(error).__name__}: {first_line(error)}"
        ) from error

    def replay() -> Any:
        graph.replay()
        return result

    setattr(replay, _CAPTURED, step)  # a graph does not keep alive what it reads; the step does
    replay.steps_before = WARM_STEPS  # type: ignore[attr-defined]
    return replay


def capture(step: Step) -> tuple[Any, Any]:
    """A CUDA graph of a step that is warm, and what the step returns: the tensors that each replay fills."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph, result


def captured_step(step: Step) -> Step | None:
    """The step that `cuda_graph` has captured to make this one; None if it was made in another way."""
    captured: Step | None = getattr(step, _CAPTURED, None)
    return captured


def refuse_uncapturable(step: Step, device: Device) -> None:
    """Raise Refused if the device has no CUDA graphs, or the workload forbids replaying its step."""
    if device.type != "cuda":
        raise Refused("a CUDA graph needs a CUDA device")
    reason = getattr(step, REASON, None)
    if reason:
        raise Refused(f"the workload says that its step cannot be captured: {reason}")


def steps_before(step: Step) -> int:
    """Number of steps that were run to make this one."""
    return int(getattr(step, "steps_before", 0))
