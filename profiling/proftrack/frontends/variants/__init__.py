"""The same workload in several ways, measured in turns: which is faster, by how much, and what it costs to have.

names     what `eager`, `compile`, `cuda-graph` and named parameter sets mean for an experiment
measure   all of them in one process: opened, checked against each other, timed in turns, profiled
isolate   each in processes of its own
judge     ratios with intervals, the winner, the steps after which a compilation pays off
changes   which kernels went, which came
result    variants.json
shown     table and sentences
run       the order of these
"""
