"""Whether the process of a run still lives: in doubt it does."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from proftrack import process
from proftrack.process import Process
from proftrack.store import lifecycle

HERE = Process(host="a", pid=os.getpid(), started="100", boot="boot-1", namespace="pid:[1]", machine="m")


def changed(**changes: object) -> Process:
    return msgspec.structs.replace(HERE, **changes)


def test_this_process_lives() -> None:
    here = process.this_process()
    assert here.pid == os.getpid()
    assert not process.is_dead(here, here)


def test_tags_round_trip() -> None:
    here = process.this_process()
    assert lifecycle.owner_of(lifecycle.owner_tags_of(here)) == here
    assert set(lifecycle.owner_tags_of(here)) == {"proftrack.host", "proftrack.pid", "proftrack.process"}


@pytest.mark.parametrize(
    "tags",
    [
        {},
        {"proftrack.host": "a", "proftrack.pid": "x", "proftrack.process": "{}"},
        {"proftrack.host": "a", "proftrack.pid": "1", "proftrack.process": "nonsense"},
        {"proftrack.host": "a", "proftrack.pid": "1", "proftrack.process": '{"boot": "b"}'},
    ],
)
def test_tags_that_say_nothing(tags: dict[str, str]) -> None:
    assert lifecycle.owner_of(tags) is None


def test_a_process_that_has_ended_is_dead() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        here = process.this_process()
        mark = process._start_mark(child.pid)
        assert mark is not None
        other = msgspec.structs.replace(here, pid=child.pid, started=mark)
        assert not process.is_dead(other, here)
        child.communicate(b"\n")
    assert process.is_dead(other, here)


def test_a_pid_that_is_used_again_is_another_process() -> None:
    here = process.this_process()
    assert process.is_dead(msgspec.structs.replace(here, started="1"), here)


@pytest.mark.parametrize(
    ("other", "dead"),
    [
        (changed(namespace="pid:[2]", started="1"), False),  # another container of this machine
        (changed(boot="boot-0"), True),  # this machine before it was booted again
        (changed(boot="boot-0", machine="n"), False),  # another machine of the same name
        (changed(boot="boot-0", machine=""), False),  # a container: which machine is not known
        (changed(boot=""), False),
    ],
)
def test_what_cannot_be_seen_lives(other: Process, dead: bool) -> None:
    assert process.is_dead(other, HERE) is dead


def test_the_parent_is_looked_for_above_shells() -> None:
    """python -> sh -> python: the watched chain of the inner one ends at this test's process, not at the shell."""
    code = "from proftrack.process import Parent; print([pid for pid, _ in Parent()._above])"
    shell = f'"{sys.executable}" -c "{code}"; true'
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True, env=environment).stdout
    chain = [int(pid) for pid in shown.strip("[]\n ").split(",")]
    assert len(chain) == 2
    assert chain[1] == os.getpid()
