"""The machine, the software and the code of a run, as stored in its record."""

from __future__ import annotations

from msgspec import Struct


class Git(Struct, frozen=True, kw_only=True):
    """State of the repository that contains the experiment."""

    commit: str
    branch: str | None = None
    dirty: bool = False
    untracked_only: bool = False
    """Whether it is dirty only because of files that Git does not track."""
    remote: str | None = None
    """Without credentials."""


class DeviceFacts(Struct, frozen=True, kw_only=True):
    """The accelerator (or CPU) the workload ran on."""

    type: str
    name: str
    count: int = 1
    sm_count: int | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None


class GpuState(Struct, frozen=True, kw_only=True):
    """The GPU's state right after timed steps. Values are None if NVML does not report them."""

    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_watts: float | None = None
    temperature_c: int | None = None
    throttled_by: list[str] = []
    other_processes: int | None = None
    """Other compute processes on this GPU."""


class Environment(Struct, frozen=True, kw_only=True):
    """Recorded with each run; contains only environment variables on the allow-list."""

    device: DeviceFacts | None = None
    driver: str | None = None
    cuda: str | None = None
    torch: str | None = None
    python: str | None = None
    platform: str | None = None
    cpu: str | None = None
    cpu_count: int | None = None
    threads: int | None = None
    """torch's threads within an operator (`torch.get_num_threads()`), in the process that ran the workload."""
    hostname: str | None = None
    packages: dict[str, str] = {}
    variables: dict[str, str] = {}
    git: Git | None = None

    @property
    def cpu_threads(self) -> int | None:
        """`threads` for a run on the CPU, where they determine the step time; None on a GPU or if unknown."""
        return self.threads if self.device is not None and self.device.type == "cpu" else None
