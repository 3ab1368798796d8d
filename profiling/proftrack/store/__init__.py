"""Run folders and MLflow: the only part of proftrack that imports mlflow, and only once a store is needed.

keys         every name of a tag, metric, param or artifact in MLflow
compat       what is used of MLflow beyond its documented interface
address      where a store is, what is shown of it, the address of its UI
quiet        MLflow without its noise, for one thread
retry        how long a store is waited for
errors       what a store raises, as one sentence
connect      which store, made whole before anything writes to it; its experiments
fields       record -> params, metrics and tags
runs         runs of a store: searched, read, tagged
cache        an experiment's runs, kept on this machine
ownership    the process that keeps a run, as its tags
lifecycle    made, opened again, ended; duplicates settled, dead processes' runs closed
session      one MLflow run from its start to its last status
upload       a run folder into an MLflow run
columns      what an experiment's page in MLflow shows
sync         folders that were kept, each logged exactly once
batch        the parent run of a sweep or of variants
folders      everything that lies in a folder, logged
links        where a run is, in lines to be printed
references   what RUN, RECORD, TRACE or a git ref names
baselines    what a run is held against where nobody names anything
noise        how far fresh processes differ
gating       a gate between what two references name
history      an experiment's comparable runs in order, with the changes between them
event_files  kernels across runs, read where they lie
prune        old traces, dropped
health       whether a store can be used
"""
