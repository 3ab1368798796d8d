"""One run of several ranks: `torchrun --nproc-per-node 2 -m proftrack run ddp`.

Every rank runs the same number of steps of the workload and records itself. Only rank 0 has the MLflow run; the others
put their trace and record into its folder, which all ranks must be able to write to.

    rank 0     open run | announce folder | measure | wait for the others | compare, write, log
    others     wait for the folder        | measure | put trace and record there, report that it is done

A rank that fails reports why, and the others stop, so that no rank waits in a collective for one that has ended. The
run is FAILED and names the rank that failed first, or that ended without reporting a failure.

`proftrack.recorder` decides the order of these steps: `record` for rank 0, `take_part` for the others.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from proftrack import process
from proftrack.errors import CaptureError, ProftrackError
from proftrack.process import Process
from proftrack.rundir.layout import RANKS

if TYPE_CHECKING:
    from proftrack.capture.rank_exchange import Exchange

_START_S = 600.0
"""Time for rank 0 to open its run, and for all ranks to arrive."""
_RESULT_S = 1800.0
"""Time to analyse the largest trace."""
_STEP_S = 600.0
_TURN_S = 60.0
_JOIN_S = 30.0
"""Time for rank 0 to start a profile that another rank has started."""
_REPORT_S = 5.0
"""Time for a rank to report a failure that has already ended this rank."""
_INTERRUPTION = re.compile(r"^(?:Interrupted|KeyboardInterrupt|SIG[A-Z]+)\b")
_CONSEQUENCE = re.compile(
    rf"{_INTERRUPTION.pattern}|connection (?:closed|reset|refused|was)|broken pipe|gloo|nccl|process ?group|\bpeer\b"
    r"|store of torchrun|another rank|rank \d+ (?:failed|\()",
    re.IGNORECASE,
)
"""Errors that a rank reports when another rank's failure ended it."""


class Failure(Struct, frozen=True):
    """What a failed rank reported, and its place in the order of reports."""

    order: int
    sentence: str


class Team:
    """The ranks of one launch, from the point of view of this one."""

    def __init__(self, rank: int, size: int, local_rank: int, exchange: Exchange, watching: Exchange) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank
        self._exchange = exchange
        self._watching = watching  # a separate connection: the main thread may be waiting on the other one
        self._agreed = 0
        self._has_reported = False
        self._members: dict[int, Process] = {}
        self._exchange.put(f"member/{rank}", msgspec.json.encode(process.this_process()).decode())

    # ---- staying in step, for capture

    def agree(self, seconds: float) -> float:
        """Rank 0's figure, the same on every rank."""
        key = f"agreed/{self._agreed}"
        self._agreed += 1
        if self.rank == 0:
            self._exchange.put(key, repr(seconds))
            return seconds
        return float(self._exchange.get(key, self.check_others, _STEP_S))

    @contextlib.contextmanager
    def in_turn(self, what: str) -> Iterator[None]:
        """Let the first rank of each machine go first, then its others."""
        key = f"turn/{what}/{socket.gethostname()}"
        if self.local_rank != 0:
            # If that rank does not take part, this times out and the others go ahead.
            self._exchange.wait(key, self.check_others, _TURN_S)
        yield
        if self.local_rank == 0:
            self._exchange.put(key, "done")

    # ---- the folder

    def announce(self, folder: Path, run_id: str | None) -> None:
        """Rank 0: tell the others where to put their parts, and for which run."""
        (folder / RANKS).mkdir(parents=True, exist_ok=True)
        self._exchange.put("place", msgspec.json.encode({"folder": str(folder), "run_id": run_id}).decode())

    def place(self) -> tuple[Path, str | None]:
        """Another rank: the folder and the run that rank 0 has announced.

        Raises CaptureError if the folder cannot be seen from here.
        """
        place = msgspec.json.decode(self._exchange.get("place", self.check_others, _START_S))
        folder = Path(place["folder"])
        if not (folder / RANKS).is_dir():
            raise CaptureError(
                f"rank {self.rank} ({socket.gethostname()}) cannot see {folder}, where rank 0 keeps the run",
                "give --output a folder that all machines share",
            )
        return folder, place["run_id"]

    def done(self) -> None:
        """Report that this rank's part is in the folder."""
        self._exchange.put(f"done/{self.rank}", "")

    def wait_for_others(self, *, joined: bool = False) -> list[int]:
        """Rank 0: wait for the parts of all other ranks, or only of those that have `joined`. Returns these ranks.

        Raises CaptureError if a part will never come.
        """
        others = [rank for rank in range(1, self.size) if not joined or self._exchange.has(f"member/{rank}")]
        for other in others:
            self._exchange.get(f"done/{other}", self.check_others, _RESULT_S)
        return others

    def need_first(self) -> None:
        """Raise CaptureError if rank 0, which keeps and logs what all ranks measure, does not take part."""
        if not self._exchange.wait("member/0", self.check_others, _JOIN_S):
            raise CaptureError(
                f"rank {self.rank} profiles and rank 0 does not, but only rank 0 can keep and log the measurements",
                "profile on all ranks, or on rank 0 alone",
            )

    # ---- failures

    def fail(self, error: BaseException) -> None:
        """Report to the others that this rank has failed, and how; only the first call counts."""
        if self._has_reported:
            return
        self._has_reported = True
        with contextlib.suppress(CaptureError):
            from proftrack.store.lifecycle import describe

            report = Failure(self._exchange.count("failures"), describe(error))
            self._exchange.put(f"failed/{self.rank}", msgspec.json.encode(report).decode())

    def check_others(self) -> None:
        """Raise CaptureError if another rank has failed or died."""
        failure = self.failure(patient=False)
        if failure is not None:
            raise failure

    def is_gone(self) -> bool:
        """Whether another rank has failed or died, so that this one must end."""
        try:
            reports = self._reports()
            return any(rank != self.rank for rank in reports) or self._first_failure(reports)[0] is not None
        except CaptureError:
            return True  # the store ended with torchrun

    def failure(self, *, patient: bool = True) -> ProftrackError | None:
        """The failure of the rank that failed first, or None if that is this rank or no rank has failed.

        `patient`: if all reported failures may be consequences of another rank's end, wait some seconds for its report.
        """
        deadline = time.monotonic() + (_REPORT_S if patient else 0.0)
        while True:
            try:
                reports = self._reports()
                failure, is_certain = self._first_failure(reports)
            except CaptureError as error:
                return error
            if is_certain or len(reports) == self.size or time.monotonic() >= deadline:
                return failure
            time.sleep(0.1)

    def _first_failure(self, reports: dict[int, Failure]) -> tuple[CaptureError | None, bool]:
        """The failure of the rank that failed first, if it is another rank; and whether that is certain."""
        dead = [rank for rank in range(self.size) if rank not in reports and rank != self.rank and self._is_dead(rank)]
        if dead:
            member = self._members[dead[0]]
            where = f"process {member.pid} on {member.host}"
            return CaptureError(f"rank {dead[0]} ({where}) ended without reporting an error: killed or crashed"), True
        causes = {rank: report for rank, report in reports.items() if not _CONSEQUENCE.search(report.sentence)}
        broken = {rank: report for rank, report in reports.items() if not _INTERRUPTION.search(report.sentence)}
        candidates = causes or broken
        if not candidates:
            return None, not reports
        first = min(candidates, key=lambda rank: candidates[rank].order)
        failure = None if first == self.rank else CaptureError(f"rank {first} failed: {reports[first].sentence}")
        return failure, bool(causes)

    def _reports(self) -> dict[int, Failure]:
        """The failures reported so far, by rank."""
        reports: dict[int, Failure] = {}
        for rank in range(self.size):
            if self._watching.has(f"failed/{rank}"):
                text = self._watching.get(f"failed/{rank}", lambda: None, 1.0)
                reports[rank] = msgspec.json.decode(text, type=Failure)
        return reports

    def _is_dead(self, rank: int) -> bool:
        if self._watching.has(f"done/{rank}") and rank != 0:
            return False
        if rank not in self._members:
            if not self._watching.has(f"member/{rank}"):
                return False
            text = self._watching.get(f"member/{rank}", lambda: None, 1.0)
            self._members[rank] = msgspec.json.decode(text, type=Process)
        return process.is_dead(self._members[rank], process.this_process())

    def leads_now(self) -> bool:
        """Whether rank 0 is dead and this is the lowest living rank, which must end the run in its place."""
        try:
            return self._is_dead(0) and all(self._is_dead(rank) for rank in range(1, self.rank))
        except CaptureError:
            return False


def join_team(*, choose_gpu: bool = True) -> Team | None:
    """The team that this process is a rank of, or None if it runs alone.

    `choose_gpu`: give each rank its own GPU; pass False in a user's program, which has chosen already. Raises
    CaptureError if the other ranks cannot be found.
    """
    size = int(os.environ.get("WORLD_SIZE") or 1)
    if size < 2:
        return None
    from proftrack.capture.rank_exchange import Exchange, use_local_gpu

    global _joined  # noqa: PLW0603  # a process may profile several times, each time under its own keys
    _joined += 1
    rank, local_rank = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK") or 0)
    team = Team(rank, size, local_rank, Exchange(f"{_joined}"), Exchange(f"{_joined}"))
    if choose_gpu:
        use_local_gpu(local_rank)
    return team


_joined = 0
