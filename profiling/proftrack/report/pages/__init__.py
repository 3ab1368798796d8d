"""Pages: what a record or a result says, as a document. Nothing here knows the output format.

run          a record: at the end of a run, as an overview, as a summary, as the full report
note         its description in MLflow
ranks        several ranks together
kernel       how kernels are launched
comparison   two records compared
gate         a candidate checked against limits
history      an experiment's runs over its commits
environment  the machine, software and settings of a run
times        the times of a step, and what each step was used for
tables       operators, kernels, steps and regions as tables
"""
