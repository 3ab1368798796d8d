"""A workload at several points of its parameters: one parent run with a child for each, a table, a plot, the crossover.

plan       which points
result     what is known of each, and of all: sweep.json
crossover  where the regime changes, by bisection
code       what must be equal for a point that is done to be taken over
point      one point, in a process of its own
keeping    where points go, and where earlier ones are
shown      table, text and plot
run        the order of these
"""
