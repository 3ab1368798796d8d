"""The life of a run, the same for every frontend: folder -> MLflow run -> measure -> write -> upload -> final status.

    create and lock the folder | open the run, note it in the folder | measure | write the folder | upload it | end

A frontend provides a `Plan` of what to record, and a function that measures: it gets the folder for the traces and
returns an `Analysis`. All other work on folder and store is done here, none of it in a frontend.

    record          the whole life, in our own process: a signal, or the end of a watched process, ends the run
    begin_beside    the same steps inside the user's program, which continues whatever happens: returns a RunRecording;
                    call its `write` and `log`, or `fail`, at the end
    take_part       for ranks other than 0: the rank's part goes into the folder of rank 0, which owns the run
    Batch           a sweep or variants: a parent run, and a child for each part that is kept
    log_analysis    log traces that were analyzed already, as a run with their own times
    keep            write one run folder without a life of its own: a point of a sweep, a variant
    refusals_noted  report errors from before a run is opened in the run of `mlflow run`

    life     a folder and its MLflow run, from their creation to the final status. A kind of run derives from `Life`
             and defines how its run is found, what is noted at the start, what is uploaded, and what is left if it
             fails; `with life.living(say): ...` does the rest
    run      a run that is measured here
    batch    the parent run of a sweep or of variants
    ranks    what the ranks of one launch do for each other
    content  from a capture to a run folder
    write    the files of a run folder
"""

from proftrack.recorder.batch import Batch, Destination
from proftrack.recorder.content import analysed, keep
from proftrack.recorder.life import Life, refusals_noted
from proftrack.recorder.ranks import Peers, RankRecording, take_part
from proftrack.recorder.run import Plan, Recorded, RunRecording, begin_beside, log_analysis, record

__all__ = [
    "Batch",
    "Destination",
    "Life",
    "Peers",
    "Plan",
    "RankRecording",
    "Recorded",
    "RunRecording",
    "analysed",
    "begin_beside",
    "keep",
    "log_analysis",
    "record",
    "refusals_noted",
    "take_part",
]
