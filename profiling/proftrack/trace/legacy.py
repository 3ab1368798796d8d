"""Traces of torch.autograd.profiler without Kineto: their rows have no category, but telling process names.

pid "CPU functions"     an operator or a region; tid is its thread
pid "CUDA functions"    (up to torch 1.8) an operator again, between two CUDA events around it; tid is the device.
                        Nested operators are nested here, too, and idle time counts: this is not GPU work. Only if
                        the profiler took its times from nvprof are these kernels, with names of their own.
ph "s", cpu_to_cuda     such an operator did something on the GPU
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from proftrack.trace.categories import Kind
from proftrack.trace.table import Bools, Codes, Ints

CPU, GPU = ("cpu functions", "cuda functions")


def is_legacy(process: object) -> bool:
    """Whether a process of this name has the operators of such a trace (C++ writes "CPU Functions")."""
    return isinstance(process, str) and process.lower() == CPU


def kinds(kind: npt.NDArray[np.int8], uncategorised: Bools, processes: Sequence[Any], pid: Codes, name: Codes) -> Ints:
    """Set the kinds of the rows without a category, by their process; returns the rows that are kernels."""
    texts = [str(process).lower() for process in processes]
    operators = uncategorised & np.array([text == CPU for text in texts], dtype=bool)[pid]
    on_gpu = uncategorised & np.array([text == GPU for text in texts], dtype=bool)[pid]
    again = on_gpu & np.isin(name, np.unique(name[operators]))
    kind[operators], kind[on_gpu], kind[again] = Kind.CPU_OP, Kind.KERNEL, Kind.GPU_ANNOTATION
    return np.flatnonzero(on_gpu & ~again)
