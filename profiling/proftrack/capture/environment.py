"""Facts about the machine, the software and the code of a run.

Only what is named here is ever recorded: environment variables from an allow-list, package versions from their metadata
(no package is imported), Git's remote without credentials.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

from proftrack.capture.nvml import nvml
from proftrack.git import git_state
from proftrack.record.environment import DeviceFacts, Environment
from proftrack.threads import usable_cpus

PACKAGES = (
    "accelerate",
    "deepspeed",
    "flash-attn",
    "lightning",
    "mlflow",
    "mlflow-skinny",
    "numpy",
    "pytorch-lightning",
    "pytorch-triton",
    "pytorch-triton-rocm",
    "torchvision",
    "transformers",
    "triton",
    "vllm",
    "xformers",
)
VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "RANK",
    "ROCR_VISIBLE_DEVICES",
    "TORCHDYNAMO_DISABLE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_COMPILE_DISABLE",
    "TORCH_LOGS",
    "WORLD_SIZE",
)
VARIABLE_PREFIXES = ("NCCL_", "TORCHINDUCTOR_", "TORCH_NCCL_")
# These families also configure remote caches and plugins; addresses and keys are left out.
_SENSITIVE = re.compile(r"TOKEN|SECRET|PASS|KEY|CRED|AUTH|REDIS|URL|URI|HOST|USER|COMM_ID")
_VALUE_LIMIT = 500


def collect(device_type: str, *, code: Path) -> Environment:
    """Facts for a run on `device_type` (cuda or cpu) of the code at `code`. A fact that is not available is None."""
    import torch

    on_gpu = device_type != "cpu" and torch.cuda.is_available()
    return Environment(
        device=_gpu() if on_gpu else _cpu_device(),
        driver=driver_version() if on_gpu and torch.version.hip is None else None,
        cuda=torch.version.cuda,
        torch=str(torch.__version__),
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=cpu_model(),
        cpu_count=len(usable_cpus()),
        threads=torch.get_num_threads(),
        hostname=platform.node() or None,
        packages=_packages(torch.version.hip),
        variables=recorded_variables(os.environ),
        git=git_state(code),
    )


# ---- machine -------------------------------------------------------------------------------------------------------


def _gpu() -> DeviceFacts:
    import torch

    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    return DeviceFacts(
        type="cuda",
        name=facts.name,
        count=torch.cuda.device_count(),
        sm_count=facts.multi_processor_count,
        memory_bytes=facts.total_memory,
        compute_capability=f"{facts.major}.{facts.minor}",
    )


def _cpu_device() -> DeviceFacts:
    import psutil

    return DeviceFacts(type="cpu", name=cpu_model() or "CPU", memory_bytes=psutil.virtual_memory().total)


def cpu_model() -> str | None:
    """The vendor's name for the processor, else the architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "cpu model") and value.strip():
                return value.strip()
    if sys.platform == "darwin":
        name = _run(["sysctl", "-n", "machdep.cpu.brand_string"])
        if name:
            return name.strip()
    return platform.processor() or platform.machine() or None


def driver_version() -> str | None:
    """NVIDIA's driver version, from NVML if its package is installed, else from nvidia-smi."""
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with nvml() as pynvml:
            version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    answer = _run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return answer.split()[0] if answer and answer.strip() else None


def _packages(hip: str | None) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version  # here: slow, and `analyze` does not need it

    versions = {"rocm": hip} if hip else {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def recorded_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The allow-listed `variables`, sorted, without those that look like an address or a credential."""
    recorded = {}
    for name, value in sorted(variables.items()):
        in_family = name.startswith(VARIABLE_PREFIXES) and not _SENSITIVE.search(name)
        if (name in VARIABLES or in_family) and "://" not in value:
            recorded[name] = value[:_VALUE_LIMIT]
    return recorded


def _run(command: list[str], timeout: float = 15) -> str | None:
    """The output of a read-only command; None if it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")
