"""A workload at several points of its parameters: one parent run with a child for each, a table, a plot, the crossover.

plan       which points
result     what is known of each, and of all: sweep.json
crossover  where the regime changes, by bisection
stages     what the processes of a sweep do with a point
measuring  which process does what, and when
shown      table, sentences and plot
run        the order of these
"""
