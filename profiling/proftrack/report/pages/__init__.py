"""Pages: what a record or a result says, as a document. Nothing here knows the output format.

run          a record: at the end of a run, as an overview, as a summary
full         a record: the full report, and how its kernels are launched
note         its description in MLflow
ranks        several ranks together
comparison   two records compared, and a candidate checked against limits
history      an experiment's runs over its commits, also as plots and CSV
environment  the machine, software and settings of a run
counters     hardware counters and energy
times        the times of a step, what each step was used for, and where the window's time went
modules      whose time it is
tables       operators, kernels, steps and regions as tables
"""
