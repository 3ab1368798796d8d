"""Pages: what is said of a record or a result, as a document for every form. Nothing here knows a form.

run          a record: at the end of a run, as an overview, as a summary, as the whole report
note         its description in MLflow
ranks        several ranks together
kernel       how kernels came to be launched
comparison   two records against each other
gate         a candidate against limits
history      an experiment's runs over its commits
environment  what a run was made with
times        a step's times, and which steps were run for what
tables       operators, kernels, steps and regions as tables
"""
