"""A workload at several points of its parameters: one parent run with a child for each, a table, a plot, the crossover.

plan       which points
result     what is known of each, and of all: sweep.json
crossover  where the regime changes, by bisection
code       what must be equal for a point that is done to be taken over
worker     a process that makes calls for this one
stages     what such processes do with a point
measuring  which process does what, and when
keeping    where points go, and where earlier ones are
shown      table, text and plot
run        the order of these
"""
