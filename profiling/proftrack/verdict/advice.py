"""What to do next in each regime, and what would win nothing."""

from __future__ import annotations

_ADVICE: dict[str, tuple[str, ...]] = {
    "overhead-bound": (
        "Launch less: a larger batch, fused operators (torch.compile), or a CUDA graph that replays the step.",
        "Measure the change: torch.compile can cost more host time than it saves on a step this short.",
        "A faster kernel or a lower precision wins nothing here: the GPU waits for the host.",
    ),
    "compute-bound": (
        "Only a better kernel, a lower precision or less arithmetic helps: the GPU computes nearly all the time.",
        "Launching less (CUDA graphs, fusion for launch overhead's sake) wins next to nothing here.",
    ),
    "memory-bound": (
        "Move fewer bytes: fuse elementwise chains (torch.compile), keep data in a narrower type, avoid copies.",
        "Faster arithmetic wins nothing here: the kernels wait for memory.",
    ),
    "latency-bound": (
        "The kernels are too small to fill the GPU: raise the batch, or merge kernels, so that each has more blocks.",
        "Launch overhead is not the limit: the GPU is busy, with most of its multiprocessors empty.",
    ),
    "transfer-bound": (
        "Copy from pinned memory with non_blocking=True on a second stream, so that kernels hide it; copy less or in a "
        "narrower type.",
        "Better kernels win nothing here: the GPU's time goes into copies between host and device.",
    ),
    "communication-bound": (
        "Overlap collectives with compute (smaller buckets, more accumulation steps), or send less.",
        "Waiting for a slower rank looks the same: compare the ranks before tuning the network.",
    ),
    "input-bound": (
        "Feed the GPU: more DataLoader workers, pin_memory=True, prefetching, cheaper decoding, or data kept ready.",
        "Better kernels, torch.compile or CUDA graphs win nothing while the model waits for its data.",
    ),
    "sync-bound": (
        "Remove what makes the host wait in the step: .item(), .cpu(), printing losses, torch.cuda.synchronize(), "
        "blocking copies; keep values on the GPU and read them every N steps.",
        "Fusing kernels wins little while the queue is drained at each wait.",
    ),
    "host-bound": (
        "Take the host's own work out of the step (numpy, tokenising, logging, sleep), or run it in another thread or "
        "process.",
        "Fusing kernels, torch.compile or CUDA graphs win nothing: in that time nothing is launched.",
    ),
    "mixed": (
        "Both sides matter: overlap host and GPU first (fewer waits, fewer launches), then look at the largest kernel.",
        "Neither faster kernels alone nor fewer launches alone can win more than its part of the step.",
    ),
    "inconclusive": ("Follow the reasons above; a verdict needs better data.",),
}


def advice_for(regime: str) -> list[str]:
    """What to do next; the last sentence says what would not help."""
    return list(_ADVICE[regime])
