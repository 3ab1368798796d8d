"""The ranks of one launch: how they keep in step, find one folder, and learn of each other's failures."""

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
"""For rank 0 to open its run, and for all to arrive."""
_RESULT_S = 1800.0
"""For the analysis of the largest trace."""
_STEP_S = 600.0
_TURN_S = 60.0
_JOIN_S = 30.0
"""For rank 0 to begin a profile that another rank has begun."""
_NOTE_S = 5.0
"""A rank whose failure ended ours may not have said so yet."""
_INTERRUPTION = re.compile(r"^(?:Interrupted|KeyboardInterrupt|SIG[A-Z]+)\b")
_CONSEQUENCE = re.compile(
    rf"{_INTERRUPTION.pattern}|connection (?:closed|reset|refused|was)|broken pipe|gloo|nccl|process ?group|\bpeer\b"
    r"|store of torchrun|another rank|rank \d+ (?:failed|\()",
    re.IGNORECASE,
)
"""What a rank says when it is another one's end that ended it."""


class Said(Struct, frozen=True):
    """A rank's last word: in which order it came, and what it was."""

    order: int
    sentence: str


class Team:
    """The ranks of one launch, and this one among them."""

    def __init__(self, rank: int, size: int, local_rank: int, exchange: Exchange, watching: Exchange) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank
        self._exchange = exchange
        self._watching = watching  # a connection of its own: the main thread may be waiting on the other
        self._agreed = 0
        self._said = False
        self._members: dict[int, Process] = {}
        self._exchange.put(f"member/{rank}", msgspec.json.encode(process.this_process()).decode())

    # ---- in step: what capture asks for

    def agree(self, seconds: float) -> float:
        """Rank 0's figure, for all ranks."""
        key = f"agreed/{self._agreed}"
        self._agreed += 1
        if self.rank == 0:
            self._exchange.put(key, repr(seconds))
            return seconds
        return float(self._exchange.get(key, self.look, _STEP_S))

    @contextlib.contextmanager
    def in_turn(self, what: str) -> Iterator[None]:
        """The first rank of each machine, then its others."""
        key = f"turn/{what}/{socket.gethostname()}"
        if self.local_rank != 0:
            self._exchange.wait(key, self.look, _TURN_S)  # in vain where that rank takes no part: then out of turn
        yield
        if self.local_rank == 0:
            self._exchange.put(key, "done")

    # ---- the folder

    def announce(self, folder: Path, run_id: str | None) -> None:
        """Rank 0: where the others put what they measure, and which run it is for."""
        (folder / RANKS).mkdir(parents=True, exist_ok=True)
        self._exchange.put("place", msgspec.json.encode({"folder": str(folder), "run_id": run_id}).decode())

    def place(self) -> tuple[Path, str | None]:
        """Another rank: the folder and the run that rank 0 has announced."""
        said = msgspec.json.decode(self._exchange.get("place", self.look, _START_S))
        folder = Path(said["folder"])
        if not (folder / RANKS).is_dir():
            raise CaptureError(
                f"rank {self.rank} ({socket.gethostname()}) cannot see {folder}, where rank 0 keeps the run",
                "name a folder that all machines share with --output",
            )
        return folder, said["run_id"]

    def done(self) -> None:
        """This rank's part is in the folder."""
        self._exchange.put(f"done/{self.rank}", "")

    def wait_for_others(self, *, joined: bool = False) -> list[int]:
        """Rank 0: until all parts are there, or those of the ranks that have `joined`. Returns the ranks.

        Raises CaptureError where one never will be.
        """
        others = [rank for rank in range(1, self.size) if not joined or self._exchange.has(f"member/{rank}")]
        for other in others:
            self._exchange.get(f"done/{other}", self.look, _RESULT_S)
        return others

    def need_first(self) -> None:
        """Raise CaptureError where rank 0, which keeps and logs what all measure, does not take part."""
        if not self._exchange.wait("member/0", self.look, _JOIN_S):
            raise CaptureError(
                f"rank {self.rank} profiles and rank 0 does not: what ranks measure is kept and logged by rank 0",
                "profile on all ranks, or on rank 0 alone",
            )

    # ---- failures

    def fail(self, error: BaseException) -> None:
        """Let the others know that this rank has failed, and how; once."""
        if self._said:
            return
        self._said = True
        with contextlib.suppress(CaptureError):
            from proftrack.store.lifecycle import describe

            said = Said(self._exchange.count("failures"), describe(error))
            self._exchange.put(f"failed/{self.rank}", msgspec.json.encode(said).decode())

    def look(self) -> None:
        """Raise CaptureError where another rank has failed or is gone."""
        failure = self.failure(patient=False)
        if failure is not None:
            raise failure

    def is_gone(self) -> bool:
        """Whether another rank has failed, or is gone, so that this one must end."""
        try:
            said = self._heard()
            return any(rank != self.rank for rank in said) or self._first(said)[0] is not None
        except CaptureError:
            return True  # the store ended with torchrun

    def failure(self, *, patient: bool = True) -> ProftrackError | None:
        """What the rank that failed first said, where that is another one.

        `patient`: where what is known may all come of another rank's end, give that one some seconds to say so.
        """
        deadline = time.monotonic() + (_NOTE_S if patient else 0.0)
        while True:
            try:
                said = self._heard()
                found, certain = self._first(said)
            except CaptureError as error:
                return error
            if certain or len(said) == self.size or time.monotonic() >= deadline:
                return found
            time.sleep(0.1)

    def _first(self, said: dict[int, Said]) -> tuple[CaptureError | None, bool]:
        """The failure of the rank that was first, if that is another one; and whether none before it can turn up."""
        gone = [rank for rank in range(self.size) if rank not in said and rank != self.rank and self._is_dead(rank)]
        if gone:
            member = self._members[gone[0]]
            where = f"process {member.pid} on {member.host}"
            return CaptureError(f"rank {gone[0]} ({where}) is gone without a word: it was killed, or crashed"), True
        causes = {rank: each for rank, each in said.items() if not _CONSEQUENCE.search(each.sentence)}
        broken = {rank: each for rank, each in said.items() if not _INTERRUPTION.search(each.sentence)}
        pool = causes or broken
        if not pool:
            return None, not said
        first = min(pool, key=lambda rank: pool[rank].order)
        found = None if first == self.rank else CaptureError(f"rank {first} failed: {said[first].sentence}")
        return found, bool(causes)

    def _heard(self) -> dict[int, Said]:
        said: dict[int, Said] = {}
        for rank in range(self.size):
            if self._watching.has(f"failed/{rank}"):
                text = self._watching.get(f"failed/{rank}", lambda: None, 1.0)
                said[rank] = msgspec.json.decode(text, type=Said)
        return said

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
        """Whether this is the lowest rank that still lives, rank 0 being dead: who ends its run for it."""
        try:
            return self._is_dead(0) and all(self._is_dead(rank) for rank in range(1, self.rank))
        except CaptureError:
            return False


def join_team(*, choose_gpu: bool = True) -> Team | None:
    """The team that this process is a rank of; None where it runs alone.

    `choose_gpu`: give each rank a GPU of its own; a program of the user's has done so itself. Raises CaptureError where
    the other ranks cannot be found.
    """
    size = int(os.environ.get("WORLD_SIZE") or 1)
    if size < 2:
        return None
    from proftrack.capture.rank_exchange import Exchange, use_local_gpu

    global _joined  # noqa: PLW0603  # a process may profile several times: each time has keys of its own
    _joined += 1
    rank, local_rank = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK") or 0)
    team = Team(rank, size, local_rank, Exchange(f"{_joined}"), Exchange(f"{_joined}"))
    if choose_gpu:
        use_local_gpu(local_rank)
    return team


_joined = 0
