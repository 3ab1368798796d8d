"""The device that steps run on: what capture needs of it, and nothing else of torch."""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Iterator
from typing import Any, Protocol

from proftrack.errors import CaptureError, UsageError
from proftrack.experiment.workload import first_line


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """torch computes on one thread inside the block, in this process: not beside other work that is timed."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Device(Protocol):
    """What capture asks of a device. Another accelerator is another class, and a line in `open_device`."""

    type: str
    """torch's device type."""
    is_gpu: bool
    """Work is queued: it must be synchronised to be timed, and a profile without any of it was not measured."""

    @property
    def name(self) -> str:
        """As its maker writes it."""

    @property
    def torch_device(self) -> Any:
        """The `torch.device` that the workload gets."""

    def synchronize(self) -> None:
        """Wait until all that was queued is done, on every device of this kind that the process uses."""

    def activities(self) -> list[Any]:
        """The profiler activities that record it."""

    def reset_peak_memory(self) -> None:
        """Forget the largest memory so far."""

    def release_memory(self) -> None:
        """Give back what torch's allocator holds and does not use."""

    def has_bfloat16(self) -> bool:
        """Whether bfloat16 is what to compute in here: a GPU with instructions for it."""

    def peak_memory_bytes(self) -> int | None:
        """Largest memory that torch's allocator held on one device; None where torch does not count it."""


class CpuDevice:
    """The host: work is done when its call returns."""

    type = "cpu"
    is_gpu = False

    @property
    def name(self) -> str:
        """The processor's model."""
        from proftrack.capture.environment import cpu_model

        return cpu_model() or "CPU"

    @property
    def torch_device(self) -> Any:
        """`cpu`."""
        import torch

        return torch.device("cpu")

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def activities(self) -> list[Any]:
        """CPU alone."""
        from torch.profiler import ProfilerActivity

        return [ProfilerActivity.CPU]

    def reset_peak_memory(self) -> None:
        """Nothing is counted."""

    def release_memory(self) -> None:
        """Nothing is held."""

    def has_bfloat16(self) -> bool:
        """False: some CPUs have instructions for it, others emulate it a hundred times slower."""
        return False

    def peak_memory_bytes(self) -> int | None:
        """Not counted by torch."""
        return None


class CudaDevice:
    """torch's `cuda` devices, those of ROCm included; the workload gets the current one."""

    type = "cuda"
    is_gpu = True

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        torch.cuda.init()
        self.index = torch.cuda.current_device()

    @property
    def name(self) -> str:
        """The current GPU's."""
        return str(self._cuda.get_device_name(self.index))

    @property
    def torch_device(self) -> Any:
        """The current GPU."""
        import torch

        return torch.device("cuda", self.index)

    def synchronize(self) -> None:
        """Wait for every GPU in use: a workload may spread over several."""
        for index in self._used():
            self._cuda.synchronize(index)

    def activities(self) -> list[Any]:
        """CPU and CUDA; CPU alone where this torch cannot profile the GPU (the trace then holds no GPU work)."""
        from torch.profiler import ProfilerActivity, supported_activities

        wanted = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        return [activity for activity in wanted if activity in supported_activities()]

    def reset_peak_memory(self) -> None:
        """On every GPU in use."""
        for index in self._used():
            self._cuda.reset_peak_memory_stats(index)

    def release_memory(self) -> None:
        """Empty the caching allocator."""
        self._cuda.empty_cache()

    def has_bfloat16(self) -> bool:
        """Instructions for it, not an emulation."""
        return bool(self._cuda.is_bf16_supported(including_emulation=False))

    def peak_memory_bytes(self) -> int | None:
        """Of the fullest GPU."""
        return max(int(self._cuda.max_memory_allocated(index)) for index in self._used())

    def _used(self) -> list[int]:
        # Synchronising a GPU that nobody used would create a context there: some hundred MB and most of a second.
        others = (i for i in range(self._cuda.device_count()) if i != self.index)
        return [self.index, *(i for i in others if self._cuda.memory_reserved(i) > 0)]


def open_device(wanted: str) -> tuple[Device, list[str]]:
    """The device that `wanted` (auto, cuda, cpu) means here, and notes on what could not be had.

    Raises UsageError where a GPU was asked for and torch has none, CaptureError where it has one that does not answer.
    """
    if wanted == "cpu":
        return CpuDevice(), []
    obstacle = _cuda_obstacle()
    if obstacle is None:
        try:
            return CudaDevice(), []
        except Exception as error:
            raise CaptureError(
                f"the GPU cannot be used ({first_line(error)}): check nvidia-smi, or set device=cpu"
            ) from error
    if wanted == "cuda":
        raise UsageError(f"device=cuda, but {obstacle}", "or set device=cpu")
    if shutil.which("nvidia-smi"):
        return CpuDevice(), [f"This machine has NVIDIA's driver, but {obstacle}. The run was made on the CPU."]
    return CpuDevice(), []


def _cuda_obstacle() -> str | None:
    """Why torch has no GPU, and what to do about it; None where it has one."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available() and torch.cuda.device_count() > 0:
            return None
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this torch ({torch.__version__}) is built without CUDA: install a CUDA build of torch"
    reason = f" ({str(caught[0].message).splitlines()[0]})" if caught else ""
    return f"torch finds no GPU{reason}: check nvidia-smi, the driver and CUDA_VISIBLE_DEVICES"
