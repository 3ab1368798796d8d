"""What sweeps and variants share: parts that are measured and shown together, kept by `recorder.Batch`.

key        what must be equal for a part that is done to be taken over
group      what a batch is asked for, and what its runs share
result     the figures of a part
shown      table and sentences: terminal, Markdown, MLflow's form
worker     a process that makes calls for this one
"""
