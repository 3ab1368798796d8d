"""Streams a trace file into a table of its events.

source      the file's bytes, decompressed and limited in size, in chunks
members     the keys around the event array, read one by one
reader      the events, decoded in batches
repair      a batch that does not decode, event by event
mend        a copy of the file that is valid JSON
lenient     a value that is not quite JSON
rows        decoded events into columns
marks       the same for allocations, counters and flows, which are no complete events
values      times, ids and sizes of any type as numbers
codes       numbers that stand for a column's distinct values
categories  what kind of event a row is
legacy      rows of torch.autograd's profiler, which have no category
duplicates  rows that stand in the file twice
table       the event table: every column explained
parquet     the table as a file, and back
groups      the process groups that a trace states
ranks       which rank, stage and process a trace belongs to
"""
