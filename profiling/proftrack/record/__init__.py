"""The record: everything known about one profiled run or trace. Plain types, and the file that stores them.

model         Record, and the sections about the run or trace itself
figures       the figures measured from a trace
modules       whose time it is: GPU time by module, optimizer or region
owners        these in trees, alike ones summed, found by name
columns       items of a section as a flat table
timing        steps timed without the profiler
counters      what the hardware counted, and the energy of a step
ceilings      the device's attainable rates, and the least work of a step
compilation   what torch.compile did, and whether a variant gives the same results
environment   machine, software, code; clocks and other users of the GPU
verdict       the regime and its evidence
ranks         the comparison of several ranks
saved         writes and reads record.json
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
