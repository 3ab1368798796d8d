"""From traces to judged records: everything that `proftrack analyze` and `proftrack.analyze()` do, without torch.

trace_files  which trace files to read: those named directly, and those in a named folder
captured     which traces hold the captures of a trace's CUDA graphs
pool         reads and measures several traces, in several processes if that is faster
pipeline     joins the stages: a record for each rank, from traces or from a capture
waiting      who waits for whom in the collectives of several ranks
replay       joins the launches that Nsight Compute replayed with kernels, operators and shapes
ranks        compares the ranks of one run, and adds to each verdict what the comparison shows
dataframes   the result in a notebook
"""
