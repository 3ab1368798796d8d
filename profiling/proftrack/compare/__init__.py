"""Compare two records: whether they are comparable, whether the step time differs, why, and what else changed.

subjects       one side of a comparison: a record, its label, the step times of its repeats
results        the result types of a comparison
comparable     the keys that must be equal, and the error that names those that are not
timing         the ratio of two times, its interval, and the word that it and the noise floor allow
floors         the noise between processes: measured, given or assumed
parts          splits a step time into GPU work by origin and idle time by cause
match          pairs the parts of both runs: slower, renamed, added, gone
why            counts per step, and the host's operators and calls that changed
module_tree    the modules of both runs as one tree, joined by path
modules        which of them changed, as deep as the change is
kernels        the library and tile that a kernel's name reveals
changed        what else is different: commits, parameters, software, machine
headline       the comparison in one line
comparison     joins these
changepoints   where a series of values changed, and by how much
history        comparable runs in order, with their changes
policy         the limits in gate.yaml
limits         how a limit is applied to a figure and its noise
module_limits  the limits of modules
gate           checks a candidate against the limits
"""

from proftrack.compare.comparison import compare
from proftrack.compare.results import Comparison
from proftrack.compare.subjects import Subject

__all__ = ["Comparison", "Subject", "compare"]
