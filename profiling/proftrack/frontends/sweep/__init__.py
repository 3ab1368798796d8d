"""Measure a workload at several points of its parameters: a parent run with a child per point, table, plot, crossover.

plan       the points to measure
result     sweep.json: the figures of each point, and of the sweep
crossover  where the regime changes, by bisection
stages     the work of a sweep's processes on a point
measuring  which process does which work, and when
shown      table, sentences and plot
run        runs all of these in order
"""
