"""The record: everything known about one profiled run or trace. Plain types, and the file they are kept in.

model         Record, and what is said of the whole
figures       what measuring a trace gives
timing        steps timed without the profiler
ceilings      what the device can do at most, and what a step must at least do
compilation   what torch.compile did, and whether a variant gives the same results
gpu_state     clocks, throttling and neighbours of the GPU
environment   machine, software, code
verdict       the regime and its evidence
ranks         what several ranks say together
saved         record.json, written and read
"""

from proftrack.record.model import SCHEMA_VERSION, Rates, Record, RunFacts, Source, SourceFile, Times
from proftrack.record.saved import MAX_BYTES, dump, load, save

__all__ = [
    "MAX_BYTES",
    "SCHEMA_VERSION",
    "Rates",
    "Record",
    "RunFacts",
    "Source",
    "SourceFile",
    "Times",
    "dump",
    "load",
    "save",
]
