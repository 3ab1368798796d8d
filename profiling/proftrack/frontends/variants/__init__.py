"""Run the same workload in several ways, in turns: which way is faster, by how much, and at what set-up cost.

names     what `eager`, `compile`, `cuda-graph` and named parameter sets mean for an experiment
measure   all variants in one process: open, compare outputs, time in turns, profile
isolate   each variant in processes of its own
judge     ratios with intervals, the winner, the steps after which a compilation pays off
changes   which kernels were removed and added
result    variants.json
shown     table and sentences
run       runs all of these in order
"""
