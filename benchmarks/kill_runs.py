"""Sends SIGKILL to real runs at random moments and checks what is left of them.

    python benchmarks/kill_runs.py --kills 50               against a new sqlite store in a temporary folder
    MLFLOW_TRACKING_URI=http://... python benchmarks/kill_runs.py --kills 50 --here    against that store

Each run is `proftrack run matmul_add` on the CPU with a short timing. Checked afterwards and printed as JSON:

    finished_not_whole   runs that are FINISHED without all their files: must be 0
    corrupt              folders of the spool that have a record but cannot be synced: must be 0
    still_running        runs left RUNNING once another run has started: must be 0
    lost                 records in the spool that are not in the store exactly once after `proftrack sync`: must be 0
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "profiling"))

QUICK = ["--n", "64", "--device", "cpu", "--min-seconds", "0.05", "--min-steps", "5", "--max-seconds", "1"]
QUICK += ["--no-calibrate"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--here", action="store_true", help="use the store of MLFLOW_TRACKING_URI")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="proftrack-kills-") as folder:
        os.environ["PROFTRACK_SPOOL"] = f"{folder}/spool"
        if not options.here:
            os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        os.environ.setdefault("MLFLOW_EXPERIMENT_NAME", f"kills-{os.getpid()}")
        result = kill_runs(options.kills, random.Random(options.seed), Path(folder))
    print(json.dumps(result, indent=1))
    wrong = ("finished_not_whole", "corrupt", "still_running", "lost")
    sys.exit(any(result[name] for name in wrong))


def kill_runs(kills: int, chance: random.Random, folder: Path) -> dict[str, Any]:
    lasts, logs = run(folder)
    at: Counter[str] = Counter()
    for _ in range(kills):
        before = {each.info.run_id for each in all_runs()}
        process = start(folder)
        # Every other one in the short time in which the run is logged.
        late = chance.random() < 0.5 and wait_for_record(process)
        time.sleep(chance.uniform(0.0, logs if late else lasts))
        done = process.poll() is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        new = [each for each in all_runs() if each.info.run_id not in before]
        at["after its end" if done else moment(new)] += 1
    run(folder)
    found = all_runs()
    return {
        "kills": kills,
        "seconds_of_a_run": round(lasts, 1),
        "of_them_logging": round(logs, 1),
        "killed": dict(at),
        "still_running": sum(each.info.status == "RUNNING" for each in found),
        **settle(),
    }


def moment(new: list[Any]) -> str:
    """What the killed process had come to."""
    if not new:
        return "before its run was made"
    (run,) = new
    if run.info.status != "RUNNING":
        return "after it was FINISHED"
    if "proftrack.record" in run.data.tags:
        return "while it logged"
    spooled = Path(os.environ["PROFTRACK_SPOOL"]).glob("*/logged.json")
    ours = [path.parent for path in spooled if run.info.run_id in path.read_text()]
    return (
        "with everything in the spool"
        if any((path / "record.json").is_file() for path in ours)
        else "while it measured"
    )


def settle() -> dict[str, int]:
    """Sync what is left, and look at all of it."""
    from proftrack import rundir
    from proftrack.errors import ProftrackError
    from proftrack.store import connect, sync

    found = connect.resolve()
    client = connect.connect(found)
    root = Path(os.environ["PROFTRACK_SPOOL"])
    folders = [path.parent for path in root.glob("*/record.json")]
    corrupt = lost = 0
    for each in folders:
        try:
            sync.sync_folder(found, client, each)
        except ProftrackError as error:
            print(error, file=sys.stderr)
            corrupt += 1
        else:
            identity = rundir.identity(each)
            lost += sum(run.data.tags.get("proftrack.record") == identity for run in all_runs()) != 1
    found_runs = all_runs()
    whole = [run for run in found_runs if run.info.status == "FINISHED"]
    return {
        "in_the_spool": len(folders),
        "corrupt": corrupt,
        "lost": lost,
        "finished": len(whole),
        "finished_not_whole": sum(not is_whole(client, run) for run in whole),
        "failed": sum(run.info.status == "FAILED" for run in found_runs),
        "leftovers_without_a_record": sum(not (path / "record.json").is_file() for path in root.glob("*/")),
    }


def is_whole(client: Any, run: Any) -> bool:
    """Whether a run holds every file that its own record names, the record as it was hashed, and its figures."""
    import hashlib

    from proftrack import record as records
    from proftrack.store.quiet import quiet

    with tempfile.TemporaryDirectory() as folder, quiet():
        path = Path(client.download_artifacts(run.info.run_id, "record.json", folder))
        identity = hashlib.sha256(path.read_bytes()).hexdigest()[:32]
        record = records.load(path)
        for name in ["events.parquet", "tables/ops.json", "tables/kernels.json", "tables/key_averages.txt"]:
            client.download_artifacts(run.info.run_id, name, folder)
        for file in record.source.files:
            trace = Path(client.download_artifacts(run.info.run_id, f"trace/{file.name}", folder))
            if trace.stat().st_size != file.bytes:
                return False
    tags = run.data.tags
    named = {"proftrack.record", "proftrack.changed", "regime", "mlflow.note.content"} <= set(tags)
    return named and tags["proftrack.record"] == identity and "step_time_us" in run.data.metrics


def run(folder: Path) -> tuple[float, float]:
    """Seconds of an undisturbed run, and of its end: from its record in the spool on."""
    begin = time.monotonic()
    process = start(folder)
    wait_for_record(process)
    spooled = time.monotonic()
    assert process.wait(300) == 0
    return time.monotonic() - begin, time.monotonic() - spooled


def wait_for_record(process: subprocess.Popen[bytes]) -> bool:
    """Wait until the process has a whole record in the spool; False where it ended before that was seen."""
    root = Path(os.environ["PROFTRACK_SPOOL"])
    before = set(root.glob("*/record.json"))
    while set(root.glob("*/record.json")) <= before:
        if process.poll() is not None:
            return False
        time.sleep(0.01)
    return True


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(ROOT / "profiling"), "run", str(ROOT / "experiments" / "matmul_add.yaml"), *QUICK]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def all_runs() -> list[Any]:
    """Of this benchmark's experiment."""
    from proftrack.store import connect

    client = connect.connect(connect.resolve())
    experiment = client.get_experiment_by_name(os.environ["MLFLOW_EXPERIMENT_NAME"])
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


if __name__ == "__main__":
    main()
