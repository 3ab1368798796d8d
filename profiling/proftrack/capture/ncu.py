"""NVIDIA's Nsight Compute (`ncu`): where it is, how it is called, what it prints, and why it may print nothing.

Kernels are selected and named by their mangled names, because ncu demangles in its own way: `(int)4` and `<unnamed>`
where a trace has `4` and `(anonymous namespace)`. What a mangled name becomes in a trace is known: Kineto asks the C++
library.
"""

from __future__ import annotations

import csv
import ctypes
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from proftrack.errors import UsageError
from proftrack.record.counters import KernelCounters, Unit

VARIABLE = "PROFTRACK_NCU"
_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda-*/bin/ncu")
_VERSION_SECONDS = 20.0

_DURATION = "gpu__time_duration.sum"
_DRAM_BYTES = "dram__bytes.sum"
_ELAPSED = "avg.pct_of_peak_sustained_elapsed"
_SHARES: dict[Unit, str] = {
    "dram": f"dram__throughput.{_ELAPSED}",
    "tensor": f"sm__pipe_tensor_cycles_active.{_ELAPSED}",
    "fp64": f"sm__pipe_fp64_cycles_active.{_ELAPSED}",
    "fp32": f"sm__pipe_fma_cycles_active.{_ELAPSED}",
    "integer": f"sm__pipe_alu_cycles_active.{_ELAPSED}",
}
_SM = f"sm__throughput.{_ELAPSED}"
_ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
_THEORETICAL = "sm__maximum_warps_per_active_cycle_pct"
_WAVES, _REGISTERS = "launch__waves_per_multiprocessor", "launch__registers_per_thread"
METRICS = (_DURATION, _DRAM_BYTES, *_SHARES.values(), _SM, _ACHIEVED, _THEORETICAL, _WAVES, _REGISTERS)
"""What is asked for. A GPU that lacks one makes ncu refuse all, so that one is left out and the others are asked for
again; see `unknown_metrics`."""

ENVIRONMENT = {"NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1"}
"""Without it, ncu copies its section files into the user's Documents."""


def find_ncu() -> Path | None:
    """The executable: $PROFTRACK_NCU, else the one on the PATH, else where CUDA installs it. None if there is none.

    Raises UsageError if $PROFTRACK_NCU is not an executable file.
    """
    given = os.environ.get(VARIABLE)
    if given:
        found = shutil.which(given)
        if found is None:
            raise UsageError(f"{VARIABLE}={given}: not an executable file", "name the ncu of Nsight Compute")
        return Path(found)
    on_path = shutil.which("ncu")
    if on_path:
        return Path(on_path)
    places = (path for pattern in _PLACES for path in sorted(Path("/").glob(pattern[1:]), reverse=True))
    return next((path for path in places if os.access(path, os.X_OK)), None)


def title(ncu: Path) -> str:
    """`Nsight Compute 2025.3.1`; without the version if it does not say."""
    try:
        asked = subprocess.run(
            [ncu, "--version"], capture_output=True, text=True, errors="replace", timeout=_VERSION_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "Nsight Compute"
    version = re.search(r"^Version (\d+(?:\.\d+){1,2})", asked.stdout, re.MULTILINE)
    return f"Nsight Compute {version[1]}" if version else "Nsight Compute"


class Selection(NamedTuple):
    """What is replayed of a step."""

    kernels: Sequence[str]
    """Names as in a trace."""
    numbers: Sequence[int] | None
    """Which launches of each, counted from 1 within the step; None: all."""


def command(ncu: Path, program: Sequence[str], *, log: Path, selection: Selection, metrics: Sequence[str]) -> list[str]:
    """The command line that replays what is selected between the program's start and stop."""
    numbers = "" if selection.numbers is None else "|".join(map(str, selection.numbers))
    return [
        str(ncu),
        *("--config-file", "off"),  # a user's own would add options to ours
        *("--target-processes", "application-only"),  # workers of a DataLoader run no kernels
        *("--profile-from-start", "off"),
        *("--clock-control", "none"),
        *("--kernel-name-base", "mangled", "--kernel-id", f"::regex:{pattern(selection.kernels)}:{numbers}"),
        *("--metrics", ",".join(metrics)),
        *("--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "mangled"),
        *("--log-file", str(log)),
        *program,
    ]


# ---- names -----------------------------------------------------------------------------------------------------------

_ANONYMOUS = re.compile(r"\(anonymous namespace\)|\{(?:lambda|unnamed type|default arg)\b|\[abi:\w+\]")
_IDENTIFIER = re.compile(r"(?<!\w)[A-Za-z_]\w*")
_NOT_WRITTEN_OUT = frozenset(
    "void bool char short int long unsigned signed float double wchar_t char8_t char16_t char32_t __int128 _Float16"
    " __float128 const volatile restrict auto decltype operator new delete true false nullptr sizeof alignof clone"
    " std allocator basic_string string istream ostream iostream".split()
)
"""Words of a demangled name that its mangled one abbreviates."""
_LONGEST = 300
"""Characters of a name without C++ in it that are compared."""


def pattern(kernels: Iterable[str]) -> str:
    """A regular expression for the mangled names of kernels with these names in a trace.

    A mangled name has every identifier of its demangled one, after its length. So no kernel is missed; one that
    differs only in built-in types or numbers is matched too.
    """
    return "|".join(dict.fromkeys(map(_pattern, kernels)))


def _pattern(kernel: str) -> str:
    if re.fullmatch(r"[\w.$]+", kernel):  # a name of C, or one that was too long to be demangled
        return f"^{re.escape(kernel[:_LONGEST])}{'$' if len(kernel) <= _LONGEST else ''}"
    words = dict.fromkeys(_IDENTIFIER.findall(_ANONYMOUS.sub(" ", kernel)))
    return "^" + "".join(f"(?=.*{len(word)}{word})" for word in words if word not in _NOT_WRITTEN_OUT)


def demangled(name: str) -> str:
    """A mangled name as a trace shows it; unchanged if it is not mangled, or there is no C++ library to ask."""
    demangle = _demangler()
    return name if demangle is None else demangle(name)


@lru_cache(maxsize=1)
def _demangler() -> Callable[[str], str] | None:
    for library in (None, "libstdc++.so.6", "libc++abi.so.1"):
        try:
            own, c = ctypes.CDLL(library), ctypes.CDLL(None)
            call, free = own.__cxa_demangle, c.free
        except (OSError, AttributeError, TypeError):
            continue
        call.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

        def demangle(name: str, call: Any = call, free: Any = free) -> str:
            status = ctypes.c_int()
            address = call(name.encode(), None, None, ctypes.byref(status))
            if not address:
                return name
            text = ctypes.string_at(address).decode(errors="replace")
            free(address)
            return text

        return demangle
    return None


# ---- what it prints --------------------------------------------------------------------------------------------------


class Launch(NamedTuple):
    """One replayed launch."""

    kernel: str
    """Mangled."""
    blocks: int | None
    counters: KernelCounters


class Output(NamedTuple):
    """What ncu printed: the replayed launches in their order, and its own messages."""

    launches: list[Launch]
    messages: list[str]
    """Without their `==ERROR==`, in order; the other messages are left out."""


class Printed(NamedTuple):
    """ncu's CSV as text: a row for each launch, by column."""

    rows: list[dict[str, str]]
    units: dict[str, str]
    messages: list[str]
    """As in `Output`."""


def printed(text: str) -> Printed:
    """Tell apart what ncu and the program print: messages, a row of names, one of units, and a row for each launch."""
    lines = [line for line in text.splitlines() if line.strip()]
    messages = [line[9:].strip() for line in lines if line.startswith("==ERROR==")]
    table = [line for line in lines if not line.startswith("==")]
    first = next((index for index, line in enumerate(table) if line.startswith('"ID"')), len(table))
    names, *rows = [row for row in csv.reader(table[first:]) if row] or [[]]
    named = [dict(zip(names, row, strict=False)) for row in rows]
    units = next((row for row in named if not row.get("ID")), {})
    return Printed([row for row in named if row.get("ID", "").isdecimal()], units, messages)


def parse(text: str) -> Output:
    """Read what `command` made ncu print."""
    rows, units, messages = printed(text)
    launches = [launch for row in rows if (launch := _launch(row, units)) is not None]
    return Output(launches, messages)


def unknown_metrics(output: Output, metrics: Iterable[str]) -> list[str]:
    """Those metrics that this GPU or this version of ncu does not have, by its own words."""
    said = [message.replace("\\", "") for message in output.messages if "find metric" in message]
    return [metric for metric in metrics if any(_is_named(metric, message) for message in said)]


def _is_named(metric: str, message: str) -> bool:
    """Names are quoted as they were given, or as a pattern for a base name and its suffixes."""
    base = metric.partition(".")[0]
    return metric in message or re.search(rf"\^?{re.escape(base)}\.?\(", message) is not None


_MICROSECONDS = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1.0, "us": 1.0, "msecond": 1e3, "ms": 1e3, "s": 1e6}
_BYTES = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12}
_SCALES = {**_MICROSECONDS, "second": 1e6, **_BYTES, "%": 0.01}
"""Factors to microseconds, bytes and shares of 1."""


def _launch(values: dict[str, str], units: dict[str, str]) -> Launch | None:
    def figure(metric: str) -> float | None:
        value = number(values.get(metric, ""))
        return None if value is None else value * _SCALES.get(units.get(metric, ""), 1.0)

    duration = figure(_DURATION)
    if duration is None:
        return None
    size, registers = figure(_DRAM_BYTES), figure(_REGISTERS)
    shares = {unit: share for unit, metric in _SHARES.items() if (share := figure(metric)) is not None}
    counters = KernelCounters(
        launches=1,
        duration_us=duration,
        dram_bytes=None if size is None else round(size),
        shares={unit: _share(value) for unit, value in shares.items()},
        sm_share=_share_or_none(figure(_SM)),
        achieved_occupancy=_share_or_none(figure(_ACHIEVED)),
        theoretical_occupancy=_share_or_none(figure(_THEORETICAL)),
        waves=figure(_WAVES),
        registers=None if registers is None else round(registers),
    )
    return Launch(values.get("Kernel Name", ""), _blocks(values.get("Grid Size", "")), counters)


def _blocks(grid: str) -> int | None:
    """`(2, 66, 1)` has 132."""
    sides = re.findall(r"\d+", grid)
    return math.prod(map(int, sides)) if sides else None


def number(text: str) -> float | None:
    """`1,380,344,064`, `93.30`; None for n/a, nan and the like."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def _share(value: float) -> float:
    """Counters of different passes may add up to a little over the peak."""
    return round(min(max(value, 0.0), 1.0), 6)


def _share_or_none(value: float | None) -> float | None:
    return None if value is None else _share(value)


# ---- why it prints nothing -------------------------------------------------------------------------------------------

_PROBLEMS = (
    (
        r"NVGPUCTRPERM|permission to access NVIDIA GPU Performance Counters",
        "this user may not read the GPU's performance counters (ERR_NVGPUCTRPERM)",
        "load the driver with NVreg_RestrictProfilingToAdminUsers=0, or run as root (a container also needs "
        "--cap-add SYS_ADMIN)",
    ),
    (
        r"LibraryNotLoaded|library not loaded",
        "Nsight Compute cannot reach the driver here (LibraryNotLoaded), as in some sandboxes",
        "run outside of it",
    ),
    (
        r"resource was unavailable|no other tool|already (?:in use|being profiled)",
        "another tool is reading the GPU's performance counters",
        "stop it (DCGM: dcgmi profile --pause)",
    ),
    (
        r"unrecogni[sz]ed option|no such option|invalid option|ambiguous option",
        "this version of Nsight Compute is too old for the options that are needed",
        f"install 2022.1 or newer, or name another one in {VARIABLE}",
    ),
    (
        r"not supported on|unsupported (?:gpu|device|chip)|unknown (?:gpu|chip)|no supported gpus?",
        "this version of Nsight Compute does not support this GPU",
        f"install a newer one, or name it in {VARIABLE}",
    ),
)
"""What ncu's messages contain, what that means, and the remedy."""


def explained(messages: Sequence[str]) -> tuple[str, str] | None:
    """Problem and remedy by ncu's error messages; None if there is none that is known."""
    for said, problem, remedy in _PROBLEMS:
        if any(re.search(said, message, re.IGNORECASE) for message in messages):
            return problem, remedy
    return None


def quoted(messages: Sequence[str]) -> str | None:
    """The first error message in ncu's words; None if there is none, or only that the program failed."""
    first = next((message for message in messages if "application returned an error" not in message), None)
    return f"Nsight Compute says: {first[:300].rstrip('.')}" if first else None
