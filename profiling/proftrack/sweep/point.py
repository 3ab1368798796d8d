"""One point, in a process of its own.

Nothing is timed in a process that has profiled, and a point that crashes, or runs out of memory, takes no other with
it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from proftrack import record as records
from proftrack.errors import ProftrackError
from proftrack.record import Record

_ROOT = Path(__file__).resolve().parents[2]
_CODE = "import sys; sys.path.append(sys.argv.pop(1)); from proftrack.cli import main; main(sys.argv[1:])"
_GRACE_S = 10.0
_PREFIX = "proftrack: "


def measure(reference: str, overrides: Mapping[str, str], folder: Path, log: Path) -> Record:
    """`proftrack run` of one point into `folder`; what it writes to the terminal goes to `log`.

    Raises ProftrackError with the point's own sentence where it fails. An interruption ends the process.
    """
    pairs = [word for key, value in overrides.items() for word in ("-P", f"{key}={value}")]
    run_command(["run", reference, *pairs, "--no-mlflow", "--output", str(folder)], log)
    return records.load(folder / "record.json")


def run_command(arguments: Sequence[str], log: Path) -> None:
    """A command of proftrack in a fresh process; its output goes to `log`.

    Raises ProftrackError with the sentence that it ended with. An interruption ends the process.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(_ROOT), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if name != "MLFLOW_RUN_ID"},
        )
        try:
            code = process.wait()
        except BaseException:
            _end(process)
            raise
    if code:
        raise ProftrackError(_last_sentence(log, code))


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and where that is not heard, SIGKILL."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
        return
    process.kill()
    process.wait()


def _last_sentence(log: Path, code: int) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line.removeprefix(_PREFIX) for line in lines if line.startswith(_PREFIX) and not line.endswith(" s")]
    if said:
        return said[-1]
    ended = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"the process ended with {ended}" + (f": {lines[-1].strip()}" if lines else "")
