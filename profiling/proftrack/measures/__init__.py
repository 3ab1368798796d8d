"""From an event table to figures: plain functions, no I/O.

view         one trace with its rows nested, launches joined and GPU work assigned to steps
nesting      which host row ran inside which, and each one's self time
links        which host call launched which GPU work
window       steps, and the stretches of time that figures are about
intervals    unions and overlaps of time intervals
measure      the figures of one trace, from:
idle         each gap of the device and its cause
kernels      what a kernel is, by its name
limits       what limits GPU work, and how busy time divides among the limits
work, costs  arithmetic and traffic, by the shapes of operators
sites        which operator caused which GPU work
tables       operators, GPU work, steps, regions, devices
collectives  collectives in their order
quality      flags: what changes the meaning of the figures
combine      the figures of a run's several cycles
"""

from proftrack.measures.combine import combine
from proftrack.measures.measure import Measures, measure

__all__ = ["Measures", "combine", "measure"]
