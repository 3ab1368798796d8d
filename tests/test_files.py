"""Files that are whole or not there, and locks between processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from proftrack.errors import StoreError
from proftrack.files import aside, locked, replace


def test_replaced_whole_and_nothing_left_beside(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    replace(target, b"one")
    replace(target, b"two", sync=True)
    assert target.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [target]


def test_a_block_that_raises_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.write_bytes(b"old")
    with pytest.raises(RuntimeError), aside(target) as part:
        part.write_bytes(b"half")
        raise RuntimeError
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_private_file_is_private_from_its_first_byte(tmp_path: Path) -> None:
    replace(tmp_path / "secret", b"x", mode=0o600)
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0


OTHER = """
import sys
from pathlib import Path
from proftrack.errors import StoreError
from proftrack.files import locked
try:
    with locked(Path(sys.argv[1]), held=StoreError("held", "wait")):
        print("free")
except StoreError as error:
    print(error)
"""


def other(lock: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent / "profiling")}
    done = subprocess.run(
        [sys.executable, "-c", OTHER, str(lock)], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.strip()


def test_another_process_is_refused_while_the_lock_is_held(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    with locked(lock, held=StoreError("held", "wait")):
        assert other(lock) == "held; wait"
    assert other(lock) == "free"
    assert lock.exists()  # removing it would let two of those in that wait for it


def test_where_no_lock_can_be_made_nothing_is_held(tmp_path: Path) -> None:
    with locked(tmp_path / "no" / "such" / "folder"):
        pass
