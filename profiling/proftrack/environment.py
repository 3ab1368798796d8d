"""Facts about the machine, the software and the code that a run was made with."""

from __future__ import annotations

from msgspec import Struct


class DeviceFacts(Struct, frozen=True, kw_only=True):
    """The accelerator (or CPU) the workload ran on."""

    type: str
    name: str
    count: int = 1
    sm_count: int | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None


class Git(Struct, frozen=True, kw_only=True):
    """State of the repository that holds the experiment; None of it where there is no repository."""

    commit: str
    branch: str | None = None
    dirty: bool = False
    remote: str | None = None
    """Without credentials."""


class Environment(Struct, frozen=True, kw_only=True):
    """Recorded with each run; never holds anything outside the allow-list of variables."""

    device: DeviceFacts | None = None
    driver: str | None = None
    cuda: str | None = None
    torch: str | None = None
    python: str | None = None
    platform: str | None = None
    cpu: str | None = None
    cpu_count: int | None = None
    hostname: str | None = None
    packages: dict[str, str] = {}
    variables: dict[str, str] = {}
    git: Git | None = None
