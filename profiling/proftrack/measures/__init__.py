"""From an event table to figures: plain functions, no I/O.

view       rows nested, launches joined, GPU work assigned to steps
measure    the figures of one trace; `idle`, `limits`, `tables`, `work` and `quality` each do a part
combine    the figures of a run's several cycles
"""

from proftrack.measures.combine import combine
from proftrack.measures.measure import Measures, measure

__all__ = ["Measures", "combine", "measure"]
