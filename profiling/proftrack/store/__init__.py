"""Run folders and MLflow: the only part of proftrack that imports mlflow, and only once a store is needed.

- process: which process a run belongs to, and whether that process still lives
- spool: run folders: where they lie, what is in them, to which stores they were logged
- mapping, note: record -> params, metrics, tags and description (the names are a contract)
- faults: what a store raises, as one sentence
- store: which store, made whole before anything writes to it
- signals: signals and the parent's death, as exceptions
- session: one MLflow run from its start to its last status
- log: a run folder into an MLflow run
- sync: folders that were kept, each logged exactly once
"""
