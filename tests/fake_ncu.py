"""A stand-in for Nsight Compute: an executable that takes its options and writes its log as the real one does.

`Ncu(folder)` makes one; what it is to say is set before it is called. The table is that of ncu 2025.3.1 on an H200 with
fewer columns: messages, a row of names, a row of units, numbers with thousands separators.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

UNITS = {
    "ID": "",
    "Process ID": "",
    "Kernel Name": "",
    "dram__bytes.sum": "byte",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "%",
    "gpu__time_duration.sum": "ns",
    "launch__registers_per_thread": "register/thread",
    "launch__waves_per_multiprocessor": "",
    "sm__maximum_warps_per_active_cycle_pct": "%",
    "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_elapsed": "%",
    "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed": "%",
    "sm__pipe_fp64_cycles_active.avg.pct_of_peak_sustained_elapsed": "%",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": "%",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "%",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "%",
}
CONNECTED = "==PROF== Connected to process 590 (/usr/bin/python3.12)"
UNLOCKED = "==WARNING== Note: Running with unmodified GPU clocks."
DISCONNECTED = "==PROF== Disconnected from process 590"
NOTHING = "==WARNING== No kernels were profiled."
NO_PERMISSION = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the "
    "target device 0. For instructions on enabling permissions and to get more information see "
    "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
)

# A product of 4096 x 4096 in bfloat16 and an exponential of 2048 x 2048 doubles, as measured on an H200.
PRODUCT = ("180,032", "175,342,080", "20.24", "90.35", "0.03", "2.63", "0", "90.35", "14.63", "18.75", "1", "168")
EXPONENTIAL = ("17,248", "42,779,136", "51.64", "0", "3.05", "2.96", "22.18", "51.64", "77.57", "100", "1.94", "32")
_ORDER = (
    "gpu__time_duration.sum",
    "dram__bytes.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_fp64_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__maximum_warps_per_active_cycle_pct",
    "launch__waves_per_multiprocessor",
    "launch__registers_per_thread",
)


def named(figures: Sequence[str]) -> dict[str, str]:
    """Figures in the order of PRODUCT by their metrics' names."""
    return dict(zip(_ORDER, figures, strict=True))


def table(launches: Sequence[tuple[str, Mapping[str, str]]], *, units: Mapping[str, str] = UNITS) -> str:
    """What ncu prints for these launches: mangled name and figures of each."""
    rows = [list(units), list(units.values())]
    for number, (name, figures) in enumerate(launches):
        values = {"ID": str(number), "Process ID": "590", "Kernel Name": name, **figures}
        rows.append([values.get(column, "") for column in units])
    lines = [",".join(f'"{cell}"' for cell in row) for row in rows]
    return "\n".join([UNLOCKED, CONNECTED, DISCONNECTED, *lines]) + "\n"


class Ncu:
    """The executable. `says` is its log, by call; the last one is repeated."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "ncu"
        self._plan, self._calls = folder / "plan.json", folder / "calls.jsonl"
        self.plan()
        self.path.write_text(f"#!{sys.executable}\n{_PROGRAM.format(plan=str(self._plan), calls=str(self._calls))}")
        self.path.chmod(0o755)

    def plan(
        self,
        *says: str,
        state: Mapping[str, object] | None = None,
        code: int = 0,
        hangs: bool = False,
        printed: str | None = None,
    ) -> None:
        """`state` is what the step's process leaves (done, if nothing is given); `printed` goes to stdout, not to the
        log; `hangs`: it and a process that it starts never end.
        """
        state = {"stage": "close the workload", "done": True} if state is None else state
        plan = {"says": says, "state": state, "code": code, "hangs": hangs, "printed": printed}
        self._plan.write_text(json.dumps(plan))

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of each call so far, those for its version left out."""
        text = self._calls.read_text() if self._calls.exists() else ""
        return [json.loads(line)["arguments"] for line in text.splitlines()]

    @property
    def pids(self) -> list[int]:
        """The processes of the calls so far, and those that they started."""
        return [pid for line in self._calls.read_text().splitlines() for pid in json.loads(line)["pids"]]


_PROGRAM = """
import json, os, subprocess, sys, time
if sys.argv[1:] == ["--version"]:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.1.0 (build 36398880) (public-release)")
    sys.exit()
plan = json.load(open({plan!r}))
pids = [os.getpid()]
if plan["hangs"]:
    sleep = "import time; time.sleep(600)"
    pids.append(subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True).pid)
calls = open({calls!r}, "a+")
calls.seek(0)
number = len(calls.readlines())
print(json.dumps({{"arguments": sys.argv[1:], "pids": pids}}), file=calls, flush=True)
request = json.load(open(sys.argv[-1]))
open(request["state"], "w").write(json.dumps(plan["state"]))
if plan["printed"] is not None:
    print(plan["printed"])
else:
    says = plan["says"]
    log = sys.argv[sys.argv.index("--log-file") + 1]
    open(log, "w").write(says[min(number, len(says) - 1)] if says else "")
if plan["hangs"]:
    time.sleep(600)
sys.exit(plan["code"])
"""
