"""The device that steps run on: the part of torch that capture needs from it."""

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
    """torch uses one thread inside the block, in the whole process: do not use it while other work is timed."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Device(Protocol):
    """What capture needs from a device. To support another accelerator, add a class and a line in `open_device`."""

    type: str
    """torch's device type."""
    is_gpu: bool
    """Work is queued: timing needs a synchronisation, and a profile without device work is not a measurement."""

    @property
    def name(self) -> str:
        """The vendor's name for it."""

    @property
    def torch_device(self) -> Any:
        """The `torch.device` passed to the workload."""

    def synchronize(self) -> None:
        """Wait for all queued work, on every device of this kind that the process uses."""

    def activities(self) -> list[Any]:
        """The profiler activities that record this device."""

    def reset_peak_memory(self) -> None:
        """Reset the peak memory counter."""

    def release_memory(self) -> None:
        """Release memory that torch's allocator caches but does not use."""

    def has_bfloat16(self) -> bool:
        """Whether `dtype: auto` means bfloat16 here: a GPU with instructions for it."""

    def peak_memory_bytes(self) -> int | None:
        """Largest memory that torch's allocator held on one device; None if torch does not count it."""

    def gpus_in_use(self) -> int:
        """The number of GPUs on which this process has memory; 0 for a CPU."""


class CpuDevice:
    """The host: work is done when the call returns."""

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
        """A CPU queues no work."""

    def activities(self) -> list[Any]:
        """Only the CPU."""
        from torch.profiler import ProfilerActivity

        return [ProfilerActivity.CPU]

    def reset_peak_memory(self) -> None:
        """torch does not count CPU memory."""

    def release_memory(self) -> None:
        """torch caches no CPU memory."""

    def has_bfloat16(self) -> bool:
        """False: some CPUs have instructions for it, others emulate it a hundred times slower."""
        return False

    def peak_memory_bytes(self) -> int | None:
        """None: torch does not count CPU memory."""
        return None

    def gpus_in_use(self) -> int:
        """None of them."""
        return 0


class CudaDevice:
    """torch's `cuda` devices, including ROCm; the workload gets the current one."""

    type = "cuda"
    is_gpu = True

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        torch.cuda.init()
        self.index = torch.cuda.current_device()

    @property
    def name(self) -> str:
        """The current GPU's name."""
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
        """CPU and CUDA; only CPU if this torch cannot profile the GPU (the trace then has no GPU work)."""
        from torch.profiler import ProfilerActivity, supported_activities

        wanted = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        return [activity for activity in wanted if activity in supported_activities()]

    def reset_peak_memory(self) -> None:
        """Reset the counters of every GPU in use."""
        for index in self._used():
            self._cuda.reset_peak_memory_stats(index)

    def release_memory(self) -> None:
        """Empty the caching allocator."""
        self._cuda.empty_cache()

    def has_bfloat16(self) -> bool:
        """Whether the GPU has instructions for it; emulation does not count."""
        return bool(self._cuda.is_bf16_supported(including_emulation=False))

    def peak_memory_bytes(self) -> int | None:
        """The peak of the GPU that used the most."""
        return max(int(self._cuda.max_memory_allocated(index)) for index in self._used())

    def gpus_in_use(self) -> int:
        """1, unless the workload spreads over several."""
        return len(self._used())

    def _used(self) -> list[int]:
        # Synchronising an unused GPU would create a context there: some hundred MB and most of a second.
        others = (i for i in range(self._cuda.device_count()) if i != self.index)
        return [self.index, *(i for i in others if self._cuda.memory_reserved(i) > 0)]


def open_device(wanted: str) -> tuple[Device, list[str]]:
    """The device that `wanted` (auto, cuda, cpu) means here, and a note if a GPU could not be used.

    Raises UsageError if a GPU was requested and torch finds none, CaptureError if torch finds one that does not work.
    """
    if wanted == "cpu":
        return CpuDevice(), []
    no_gpu = _why_no_gpu()
    if no_gpu is None:
        try:
            return CudaDevice(), []
        except Exception as error:
            problem = f"the GPU cannot be used ({first_line(error)})"
            raise CaptureError(problem, "check nvidia-smi, or set device=cpu") from error
    reason, remedy = no_gpu
    if wanted == "cuda":
        raise UsageError(f"device=cuda, but {reason}", f"{remedy}, or set device=cpu")
    if shutil.which("nvidia-smi"):
        return CpuDevice(), [f"This machine has NVIDIA's driver, but {reason}: {remedy}. The run used the CPU."]
    return CpuDevice(), []


def _why_no_gpu() -> tuple[str, str] | None:
    """Why torch has no GPU, and what to do about it; None if it has one."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available() and torch.cuda.device_count() > 0:
            return None
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this torch ({torch.__version__}) is built without CUDA", "install a CUDA build of torch"
    reason = f" ({str(caught[0].message).splitlines()[0]})" if caught else ""
    return f"torch finds no GPU{reason}", "check nvidia-smi, the driver and CUDA_VISIBLE_DEVICES"
