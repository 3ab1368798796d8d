"""From an event table to figures: plain functions, no I/O.

view         one trace with its rows nested, launches joined and GPU work assigned to steps
nesting      which host row ran inside which, and each row's self time
serial       ends of GPU work that its stream rules out
links        which host call launched which GPU work
captures     CUDA graphs captured while a trace was recorded, and the kernels that they run
graphs       replayed CUDA graphs, and the captured launches that their work stands for
origins      the operator that launched, or captured, each piece of GPU work
window       steps, and the time windows that figures cover
typical      steps that the figures of a step leave out
cold         calls that start something up, which happens once
intervals    unions and overlaps of time intervals
measure      the figures of one trace, from:
idle         each idle gap of the device and its cause
unseen       without steps: work that was queued when recording began
waits        calls in which the host waits for the GPU, and what they could cost
loading      how long the recorded steps spent getting their data
kernels      the kind of a kernel, by its name
identifiers  the function in a kernel's name, and its words
limits       what limits GPU work, and how busy time divides among the limits
occupancy    how far kernels can fill the GPU, by registers, shared memory, block and grid
work, costs  arithmetic and memory traffic, from operators' input shapes
counted      the counted work's FLOPs per byte, against the device's ridge
autograd     which forward operator a backward operator belongs to
markers      which host rows mark whose time it is
owners       whose each host row is: the module, optimizer or region around it, also of the backward pass
work_owners  whose each piece of GPU work is, also in a replayed graph
sites        which operator caused which GPU work
modules      time by owner and pass
evaluation   steps that hold evaluation
single       time of the typical steps that only one of them shows
compiling    compilations, and autotuning, in the steps
tables       operators, GPU work, steps, regions, devices
collectives  collectives in order
quality      flags: what changes the meaning of the figures
combine      combines the figures of a run's cycles
"""

from proftrack.measures.captures import recorded_captures
from proftrack.measures.combine import combine
from proftrack.measures.measure import Measures, measure

__all__ = ["Measures", "combine", "measure", "recorded_captures"]
