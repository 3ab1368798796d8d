"""From traces to judged records: all that `proftrack analyze` and `proftrack.analyze()` do, without torch.

trace_files  which files were named: themselves, or by their folder
pool         several traces read and measured, in processes where that pays
pipeline     the stages joined: a record for each rank, of traces or of a capture
ranks        what several ranks say together, and each one's verdict in their company
dataframes   the result in a notebook
"""
