"""The one life of a run, whoever measures it: folder -> MLflow run -> measure -> write -> upload -> last status.

    make the folder, hold it | open the run, note it in the folder | measure | write the folder | upload it | end

A frontend says what is recorded, in a `Plan`, and how it is measured: a function from the folder that its traces go to
to an `Analysis`. Everything else about folder and store is done here, and nothing of it by a frontend.

    record          the whole life, in a process of ours: signals and the end of others end the run
    begin_beside    the same steps in a program of the user's, who goes on whatever happens: a RunRecording, of which
                    `write` and `log`, or `fail`, are called when it is over
    take_part       another rank than 0: its part goes into the folder of rank 0, whose run it is
    Batch           a sweep or variants: a parent run, and a child for each part that is kept
    log_analysis    traces that were analysed already, as a run with their own times
    keep            one run folder and no life of its own: a point of a sweep, a variant
    refusals_noted  what is refused before a run is opened, into the run of `mlflow run`

    life     a folder and the MLflow run that it goes to, from their making to the last status. Another kind of run
             derives from `Life` and says how its run is found, what is noted at the beginning, what is uploaded, and
             what is left when it fails; then `with life.living(say): ...` is all of it
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
