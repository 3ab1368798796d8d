"""The MLflow store: the only part of proftrack that imports mlflow, and only once a store is needed.

keys         every name of a tag, metric, param or artifact in MLflow
compat       uses of MLflow beyond its documented interface
address      a store's location, its public form, and the address of its UI
quiet        silences MLflow for one thread
retry        how long to wait for a store
errors       turns a store's exceptions into a problem and a remedy
connect      chooses the store, creates it safely, finds its experiments
fields       record -> params, metrics and tags
runs         search, read and tag the runs of a store
cache        an experiment's runs, cached on this machine
lifecycle    create, reopen and end runs; which process owns one; settle duplicates; close runs of dead processes
session      one MLflow run from its start to its final status
upload       log a run folder into an MLflow run
columns      the columns of an experiment's page in MLflow
sync         log run folders later, each exactly once
batch        the parent run of a sweep or of variants
folders      log everything in a folder
links        the lines printed about where a run is
references   what RUN, RECORD, TRACE or a git ref names
baselines    the default baseline of a run
noise        how much fresh processes differ
gating       run a gate between two references
history      an experiment's comparable runs in order, with the changes between them
event_files  query kernels across runs, without downloading
prune        delete old traces
health       check whether a store can be used
"""
