"""The kind of row that a trace's category names, in torch's old and new spellings and for other accelerators."""

from __future__ import annotations

import re
from enum import IntEnum


class Kind(IntEnum):
    """The kind of a row, whatever its file calls it."""

    OTHER = 0
    CPU_OP = 1
    ANNOTATION = 2
    RUNTIME = 3
    DRIVER = 4
    PYTHON = 5
    KERNEL = 6
    MEMCPY = 7
    MEMSET = 8
    GPU_ANNOTATION = 9
    """A user's region as shown on the GPU: never GPU work."""
    SYNC = 10
    """cuda_sync rows (waits as the GPU driver sees them): never GPU work."""
    OVERHEAD = 11
    """The profiler's own rows (buffer flushes, requests)."""
    TRACE = 12
    MODULE = 13
    """A call of an nn.Module, in the region that capture puts around it (`MODULE`): no operator."""


_KIND_OF = {
    "cpu_op": Kind.CPU_OP,
    "operator": Kind.CPU_OP,
    "user_annotation": Kind.ANNOTATION,
    "runtime": Kind.RUNTIME,
    "driver": Kind.DRIVER,
    "hpu_op": Kind.RUNTIME,
    "python_function": Kind.PYTHON,
    "kernel": Kind.KERNEL,
    "concurrent_kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "memset": Kind.MEMSET,
    "gpu_user_annotation": Kind.GPU_ANNOTATION,
    "cuda_sync": Kind.SYNC,
    "overhead": Kind.OVERHEAD,
    "trace": Kind.TRACE,
}

HOST_KINDS = (Kind.CPU_OP, Kind.ANNOTATION, Kind.RUNTIME, Kind.DRIVER, Kind.MODULE)
"""The rows that self CPU time is counted over."""
CALL_KINDS = (Kind.RUNTIME, Kind.DRIVER)
GPU_KINDS = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
"""GPU work; no other row shown on a GPU is."""


def kind_of(category: str) -> Kind:
    """The kind of a row from its `cat`: cuda_runtime, hip_runtime, xpu_runtime ... are all runtime calls."""
    lower = category.lower()
    kind = _KIND_OF.get(lower)
    if kind is not None:
        return kind
    if lower.endswith("_runtime"):
        return Kind.RUNTIME
    if lower.endswith("_driver"):
        return Kind.DRIVER
    return Kind.OTHER


_CALLS_WITH_KNOWN_NAMES = frozenset(
    f"{api}{calls}" for api in ("", "cuda_", "hip_", "xpu_") for calls in ("runtime", "driver")
)


def has_known_calls(category: str) -> bool:
    """Whether the calls of this category have the names of CUDA, HIP or Level Zero, so that all launches are known.

    MTIA ("runFunction - job_prep_and_submit_for_execution"), Cambricon, Ascend, Gaudi and other backends that plug in
    as PrivateUse1 name theirs as they like.
    """
    return category.lower() in _CALLS_WITH_KNOWN_NAMES


MODULE = "nn.Module: "
"""How the names of nn.Module calls begin: torch's own, where stacks are recorded (`nn.Module: LlamaMLP_7`), and the
regions that capture puts around calls (`nn.Module: layers.7.mlp (LlamaMLP)`)."""


def is_module(name: str) -> bool:
    """Whether a host row of this name is a call of an nn.Module."""
    return name.startswith(MODULE)


PARAMETER_GROUP = "proftrack: parameter group "
"""How the names of the regions begin that capture puts around an optimizer's work for one of its parameter groups."""
CAPTURED = "proftrack: graph capture"
"""The region in which capture captures a graph once more, under the profiler, to learn the names of its work."""
CAPTURED_REPLAY = "proftrack: graph replay"
"""The region in which it then replays that graph."""
ONE_BRANCH = "proftrack: one branch"
"""An empty region at the end of that of a capture whose work is known to be a chain, whatever streams it used."""

STEP = "ProfilerStep"
"""What torch.profiler calls its steps, before their number: `ProfilerStep#3`, and `ProfilerStep*` in its tables."""


def is_mark(name: str) -> bool:
    """Whether a row only marks whose work is in it: a module's call, or a parameter group's in its optimizer."""
    return is_module(name) or name.startswith(PARAMETER_GROUP)


def is_step(name: str) -> bool:
    """Whether a row of this name is one of the profiler's steps."""
    return name.startswith(STEP)


_LAUNCH = re.compile(
    r"""^(?:
      (?:cuda|cu|hip|musa|mu)(?:Ext|Hcc|Drv)?(?:Module)?Launch(?:Cooperative|Multi)?(?:Kernel|Grid)\w*
    | (?:cuda|cu|hip|musa|mu)GraphLaunch\w*
    | (?:cuda|cu|hip|musa|mu)Mem(?:cpy|set)(?!.*(?:Node|Params))\w*
    | (?:ur|pi)Enqueue\w*(?:Kernel|Memcpy|MemBufferCopy|MemBufferRead|MemBufferWrite|Fill)\w*
    | zeCommandListAppend(?:Launch\w*Kernel|Memory(?:Copy|Fill))\w*
    )$""",
    re.VERBOSE,
)
_COPY = re.compile(r"^(?:cuda|cu|hip|musa|mu)Mem(?:cpy|set)|^(?:ur|pi)Enqueue\w*Mem|^zeCommandListAppendMemory")
_MEMORY_SET = re.compile(r"^(?:cuda|cu|hip|musa|mu)Memset")
_GRAPH_LAUNCH = re.compile(r"^(?:cuda|cu|hip|musa|mu)GraphLaunch")
_SYNC_CALL = re.compile(
    r"^(?:cuda|cu|hip|musa|mu)(?:(?:Device|Stream|Event|Ctx)Synchronize|Mem(?:cpy|set)(?!.*Async)\w*)"
    r"|^(?:ur|pi)(?:QueueFinish|Events?Wait)|^ze(?:Event|Fence|CommandQueue|CommandList)(?:Host)?Synchronize"
)
_ALLOCATOR_CALL = re.compile(
    r"^(?:cuda|cu|hip|musa|mu)(?:(?:Ext)?Malloc|Free|MemAlloc|MemFree|"
    r"(?:Mem)?Host(?:Alloc|Malloc|Free|Register|Unregister)|"
    r"MemCreate|MemMap|MemUnmap|MemRelease|MemSetAccess|MemAddressReserve|MemAddressFree)(?!.*Async)"
)


def is_launch(name: str) -> bool:
    """Whether a call of this name enqueues GPU work: kernel and graph launches, copies and sets."""
    return _LAUNCH.match(name) is not None


def is_graph_launch(name: str) -> bool:
    """Whether a call of this name replays a graph: one correlation id for many kernels."""
    return _GRAPH_LAUNCH.match(name) is not None


def is_copy(name: str) -> bool:
    """Whether a call of this name copies or sets memory."""
    return _COPY.match(name) is not None


def is_memory_set(name: str) -> bool:
    """Whether a launch of this name sets memory; the driver may do that without a recorded piece of GPU work."""
    return _MEMORY_SET.match(name) is not None


def is_wait(name: str) -> bool:
    """Whether a call of this name waits for the GPU: synchronizations and blocking copies."""
    return _SYNC_CALL.match(name) is not None


def is_allocator_call(name: str) -> bool:
    """Whether a call of this name allocates or frees device or pinned memory: that may wait for the GPU.

    Stream-ordered calls (cudaMallocAsync) do not wait, and do not count.
    """
    return _ALLOCATOR_CALL.match(name) is not None
