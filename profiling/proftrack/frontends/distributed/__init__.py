"""One run of several ranks: `torchrun --nproc-per-node 2 -m proftrack run ddp`.

Every rank runs the same number of steps of the workload and records itself. Only rank 0 has the MLflow run; the others
put their trace and record into its folder, which all ranks must be able to write to.

    rank 0     open run | announce folder | measure | wait for the others | compare, write, log
    others     wait for the folder        | measure | put trace and record there, report that it is done

A rank that fails reports why, and the others stop, so that no rank waits in a collective for one that has ended. The
run is FAILED and names the rank that failed first, or that ended without reporting a failure.

    team    the ranks: how they stay in step, agree on one folder, and learn of each other's failures

`proftrack.recorder` decides the order of these steps: `record` for rank 0, `take_part` for the others.
"""
