"""One run of several ranks: `torchrun --nproc-per-node 2 -m proftrack run ddp`.

Every rank runs the workload, equally many steps, and records itself. Rank 0 alone has the MLflow run; the others put
their trace and record into its folder, which all ranks must be able to write to.

    rank 0     open run | announce folder | measure | wait for the others | compare, write, log
    others     wait for the folder        | measure | put trace and record there, say so

When a rank fails it says why, and the others stop: nobody waits in a collective for one that is not there. The run is
FAILED and names the rank whose failure came first, or that is gone without a word.

    team    the ranks: in step, in one place, and what is known of each other's failures

The order of these is `proftrack.recorder`'s: `record` for rank 0, `take_part` for the others.
"""
