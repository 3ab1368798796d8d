"""Capture: run a workload, time it, profile it. The only stage that runs the user's code.

    compat           what torch does not promise: private names, and what not every version has
    device           what is asked of the device that steps run on
    environment      facts about the machine, the software and the code
    cpu_load         what used the processors while steps were timed
    gpu_state        the GPU's clocks, throttling and neighbours
    timing           warm-up, and steps timed without a profiler
    in_turns         several workloads timed in turns
    lockstep         ranks timed in step with each other
    call_costs       what it costs to call an operator on this CPU
    ceilings         attainable rates of the device, measured once and kept
    step_work        what one step must at least do, counted
    dtype            what a workload computes in, and what this device only emulates
    budget           how long all of it may take, and what fits
    trace_file       a cycle's trace: counted, compressed, named
    profiling        the scheduled profiler, one trace a cycle
    profiler_check   whether a profile can be taken here at all
    result           what a capture leaves behind
    measurement      a workload under measurement, stage by stage
    run              the order of the stages: `capture`
    loop             the same for a loop that the user runs
    step_hooks       where the steps are of a program that marks none
    rank_exchange    what ranks tell each other
    step_transforms  a step compiled, or captured as a CUDA graph
    compilation      what torch.compile did
    output_check     a step's results held against another's

What it changes in the user's process, and why it cannot do without:

    KINETO_LOG_LEVEL                 for the first session of the process, when Kineto reads it; then as it was
    filters of three warnings        of torch's profiler; they stay, see `profiling.quiet`
    torch's threads                  1 while a call's cost or an emulated type is measured, before steps are timed
    profile._prepare_trace           while steps are timed and recorded: a second profiler must raise
    CUDAGraph.capture_begin          while variants run: who captures is in the way of the next
    warnings.catch_warnings          around the first question for a GPU, and for NVIDIA's driver: the reason is quoted
    the current GPU                  of a rank that `torchrun` started through the command line
    sys.path, sys.modules            while a workload of a file is in use (`proftrack.experiment.workload`)

`proftrack.record` needs the result alone, so torch and the rest are imported when `capture` is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proftrack.capture.run import capture

__all__ = ["capture"]


def __getattr__(name: str) -> Any:
    if name == "capture":
        from proftrack.capture.run import capture

        return capture
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
