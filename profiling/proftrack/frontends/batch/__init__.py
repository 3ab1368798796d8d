"""What sweeps and variants share: parts that are measured and shown together, kept by `recorder.Batch`.

group      the request for a batch, and the keys that decide which earlier parts it may reuse
result     the figures of a part
shown      the page with a table and sentences, and the table in MLflow's form
worker     a child process that runs functions for this one
"""
