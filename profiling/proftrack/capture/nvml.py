"""NVML, NVIDIA's management library, asked about one CUDA device. Needs the package nvidia-ml-py."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from proftrack.experiment.workload import first_line

PACKAGE_REMEDY = "pip install 'proftrack[nvidia]'"


class NoNvml(Exception):
    """NVML cannot be asked; the text says why."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy


@contextlib.contextmanager
def nvml() -> Iterator[Any]:
    """The module pynvml, initialised inside the block. Raises NoNvml."""
    try:
        import pynvml
    except ImportError:
        raise NoNvml("the package nvidia-ml-py is not installed", PACKAGE_REMEDY) from None
    try:
        pynvml.nvmlInit()
    except Exception as error:
        raise NoNvml(f"NVML does not answer ({first_line(error)})", "check nvidia-smi") from error
    try:
        yield pynvml
    finally:
        ask(pynvml.nvmlShutdown)  # fails once the GPU or the driver is lost, which must not end a run


def handle_of(pynvml: Any, index: int) -> Any:
    """NVML's handle of a CUDA device. Raises NVML's error if it does not know the device.

    NVML also counts devices that CUDA_VISIBLE_DEVICES hides, so the device is looked up by its UUID. torch gives it
    without the prefix that tells a GPU from an instance of a divided one.
    """
    import torch

    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    if uuid is None:
        return pynvml.nvmlDeviceGetHandleByIndex(index)
    text = str(uuid)
    if text.startswith(("GPU-", "MIG-")):
        return pynvml.nvmlDeviceGetHandleByUUID(text)
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{text}")
    except pynvml.NVMLError:
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{text}")


def ask(question: Any, *arguments: Any) -> Any:
    """NVML's answer; None if it has none for this device, driver or user."""
    try:
        return question(*arguments)
    except Exception:
        return None


def is_divided(pynvml: Any, handle: Any) -> bool:
    """Whether the device is an instance of a GPU that is divided (MIG), or such a GPU."""
    if ask(getattr(pynvml, "nvmlDeviceIsMigDeviceHandle", None), handle):
        return True
    mode = ask(getattr(pynvml, "nvmlDeviceGetMigMode", None), handle)
    return bool(mode and mode[0])


def other_processes(pynvml: Any, handle: Any) -> int | None:
    """The number of other compute processes. In a container NVML lists host pids: then one of them is this process."""
    processes = ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if processes is None:
        return None
    pids = {p.pid for p in processes}
    return len(pids - {os.getpid()}) if os.getpid() in pids else max(len(pids) - 1, 0)
