"""What sweeps and variants share: parts that are measured, kept and shown together, below one parent run.

key        what must be equal for a part that is done to be taken over
group      what a batch is asked for, and what its runs share
keeping    where parts go, and where earlier ones are
ongoing    a batch while it is measured: its parts, its files
result     the figures of a part
shown      table and sentences: terminal, Markdown, MLflow's form
worker     a process that makes calls for this one
"""
