"""Two records against each other: may they be compared, is the step time different, why, and what else changed.

subjects      what is compared: a record, its label, the step times of its repeats
results       what a comparison says
comparable    what must be equal, and the refusal that names what is not
timing        ratio of two times, its interval, the word that it and the noise floor allow
floors        the noise between processes: measured, given or assumed
parts         a step time taken apart into GPU work by its origin and idle time by its cause
match         which part of one run is which part of the other: slower, renamed, added, gone
why           the contributions, which add up to the change
kernels       what a kernel's name says of its library and tile
changed       what else is different: commits, parameters, software, machine
headline      all of it in one line
comparison    joins these
changepoints  where a series of values changed, by how much
history       comparable runs in order, with their changes
policy        limits in YAML
gate          what they say of a candidate
"""

from proftrack.compare.comparison import compare
from proftrack.compare.results import Comparison
from proftrack.compare.subjects import Subject

__all__ = ["Comparison", "Subject", "compare"]
