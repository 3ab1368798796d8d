"""What else is different: parameters, software, machine, and the commits in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from proftrack import git
from proftrack.compare.results import Commit, CommitRange, Different
from proftrack.record import Record
from proftrack.record.environment import Environment

MOST_COMMITS = 20
_SOFTWARE = ("torch", "cuda", "driver", "python", "platform")
_MACHINE = ("hostname", "cpu", "cpu_count")


def changed(before: Record, after: Record) -> list[Different]:
    """Facts that may differ and do: regime, parameters, code, software, machine, state of the GPU."""
    facts = [
        _different("regime", before.verdict.regime, after.verdict.regime),
        *_params(before, after),
        *_code(before.environment, after.environment),
        *_attributes(before.environment, after.environment, _SOFTWARE),
        *_table("package", before.environment.packages, after.environment.packages),
        *_table("variable", before.environment.variables, after.environment.variables),
        *_attributes(before.environment, after.environment, _MACHINE),
        *_threads(before.environment, after.environment),
        *_device(before, after),
        _different("proftrack", before.source.proftrack_version, after.source.proftrack_version),
    ]
    return [fact for fact in facts if fact.before != fact.after]


def variants(before: Record, after: Record) -> list[Different]:
    """The parameters that were changed on purpose: variants."""
    return [param for param in _params(before, after) if param.before != param.after]


def commits_between(before: str | None, after: str | None) -> CommitRange | None:
    """The commits between two, as far as the repository of the working directory has them; None without two commits."""
    if before is None or after is None or before == after:
        return None
    here = Path.cwd()
    listed = git.commits_between(here, before, after, MOST_COMMITS)
    if listed is None:
        return CommitRange(before=before, after=after)
    shown, count = listed
    return CommitRange(
        before=before,
        after=after,
        commits=[Commit(hash=commit, subject=subject) for commit, subject in shown],
        more=count - len(shown),
        known=True,
        summary=git.diff_summary(here, before, after),
    )


def _params(before: Record, after: Record) -> Iterator[Different]:
    a = before.run.params if before.run else {}
    b = after.run.params if after.run else {}
    for name in sorted(a.keys() | b.keys()) if before.run and after.run else ():
        yield _different(name, a.get(name), b.get(name))


def _code(before: Environment, after: Environment) -> Iterator[Different]:
    a, b = before.git, after.git
    if a is None and b is None:
        return
    yield _different("commit", a.commit if a else None, b.commit if b else None)
    yield _different("branch", a.branch if a else None, b.branch if b else None)
    yield _different("uncommitted changes", _yes(a.dirty) if a else None, _yes(b.dirty) if b else None)


def _attributes(before: Environment, after: Environment, names: tuple[str, ...]) -> Iterator[Different]:
    for name in names:
        yield _different(name, getattr(before, name), getattr(after, name))


def _table(noun: str, before: dict[str, str], after: dict[str, str]) -> Iterator[Different]:
    for name in sorted(before.keys() | after.keys()):
        yield _different(f"{noun} {name}", before.get(name), after.get(name))


def _threads(before: Environment, after: Environment) -> Iterator[Different]:
    """The thread count, if both records have it: older records do not, and unknown is not different."""
    if before.threads is not None and after.threads is not None:
        yield _different("threads", before.threads, after.threads)


def _device(before: Record, after: Record) -> Iterator[Different]:
    a, b = before.environment.device, after.environment.device
    if a is not None and b is not None:
        for name in ("name", "count", "sm_count", "memory_bytes"):
            yield _different(f"device {name}", getattr(a, name), getattr(b, name))
    x, y = before.gpu_state, after.gpu_state
    if x is not None and y is not None:
        yield _different("throttled by", ", ".join(x.throttled_by) or "nothing", ", ".join(y.throttled_by) or "nothing")
        yield _different("SM clock (MHz)", x.sm_clock_mhz, y.sm_clock_mhz)
        yield _different("other processes on the GPU", x.other_processes, y.other_processes)


def _different(name: str, before: object, after: object) -> Different:
    return Different(
        name=name, before=None if before is None else str(before), after=None if after is None else str(after)
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"
