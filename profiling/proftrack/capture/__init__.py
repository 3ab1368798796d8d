"""Capture: run a workload, time it, profile it. The only stage that runs the user's code.

    compat           what torch does not promise: private names, and what not every version has
    device           the device that steps run on
    environment      facts about the machine, the software and the code
    cpu_load         what used the CPUs while steps were timed
    nvml             NVIDIA's management library, asked about one device
    gpu_state        the GPU's clocks, throttling and other processes
    input_waits      how long steps wait for their data
    timing           warm-up, and steps timed without a profiler
    counters         hardware counters and energy of steps that run without a profiler
    in_turns         several workloads timed in turns
    lockstep         ranks timed in lockstep
    call_costs       the cost of calling an operator on this CPU
    loads            the work by which a device is measured
    reachable        what this device reaches of each unit's peak
    ceilings         attainable rates of the device, measured once and cached
    op_flops         FLOPs of one call of an operator
    step_work        the least work that one step must do, counted
    dtype            the type that a workload computes in, and types that this device only emulates
    budget           how long a measurement may take, and which of its parts fit
    trace_file       a cycle's trace: counted, compressed, named
    live_objects     what of the program is alive: modules, optimizers, what it compiled
    module_names     the names of its modules
    marks            regions around calls of modules and around parameter groups
    profiling        the scheduled profiler, one trace per cycle
    profiler_check   whether profiling works on this machine
    ncu              Nsight Compute: found, called, read
    replayed_step    the process whose kernels it replays
    replay           the largest kernels of a step, replayed under it
    result           the result of a capture
    measurement      the measurement of one workload, stage by stage
    graph_names      CUDA graphs captured once more, for the names of their kernels
    run              the order of the stages: `capture`
    loop             the same for a user's own loop
    step_hooks       finds the steps of a program that does not mark them
    rank_exchange    messages between ranks
    step_transforms  a step compiled, or captured as a CUDA graph
    compilation      what torch.compile did
    output_check     compares a step's results with another's

Process-wide changes that capture makes, and why it needs them:

    KINETO_LOG_LEVEL                 set for the first session of the process, when Kineto reads it; then restored
    filters of three warnings        of torch's profiler; they stay, see `profiling.quiet`
    torch's thread count             1 while a call's cost or an emulated type is measured, before steps are timed
    profile._prepare_trace           while steps are timed and recorded: a second profiler must raise
    DataLoader.__iter__ and the      while steps are timed: how long they wait for data. If another tool replaces them
    __next__ of its iterators        meanwhile, its own stay, and what they call is still timed, for nobody
    CUDAGraph.capture_begin          while variants run: a capture by one of them gets in the way of the next
    CUDAGraph.capture_begin and _end while a workload is built and runs its first steps: what a graph does is counted
    torch.set_autocast_enabled       while either is counted: a dispatch mode has autocast off
    CUDAGraph.replay, Triton's run   while one step is counted: neither dispatches an operator
    CUDAGraph's three methods        while graphs are captured once more, after everything is measured
    what torch.compile has compiled  forgotten before a workload is built once more for that
    TF32 for products                on for its ceiling, off while float32 shows what it reaches; then restored
    torch's peak memory counters     reset before steps are timed: the peak is theirs
    warnings.catch_warnings          around the first query for a GPU, and for NVIDIA's driver: the reason is quoted
    the current GPU                  of a rank that `torchrun` started through the command line
    sys.path, sys.modules            while a workload from a file is in use (`proftrack.experiment.workload`)
    torch's optimizer step hook      while a program runs whose steps are its optimizer's (`step_hooks`); then removed
    hooks of every nn.Module, and    from the step before the recorded ones to the last of these: where each call begins
    _init_group of optimizers        and ends; then removed, from copies too. So is `_compiled_call_impl` of modules
                                     that were compiled by `module.compile()`, in place of hooks
    the function named by --step     wrapped while the program runs, to count its calls (`step_hooks`); then restored

`proftrack.record` needs only the result, so torch and the rest are imported on the first access to `capture`.
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
