"""Environment facts: what is recorded, and above all what is not."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from proftrack import git as repositories
from proftrack.capture import environment

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "deep").mkdir(parents=True)
    git(root, "init", "--initial-branch=trunk")
    (root / "code.py").write_text("one\n")
    (root / ".gitignore").write_text("ignored\n")
    git(root, "add", ".")
    git(root, "commit", "-m", "first")
    return root


def test_facts_of_a_cpu_run(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        facts = environment.collect("cpu", code=tmp_path)
    finally:
        torch.set_num_threads(before)
    assert (facts.threads, facts.cpu_threads) == (1, 1)
    assert facts.device is not None
    assert facts.device.type == "cpu"
    assert facts.device.name == facts.cpu
    assert facts.driver is None
    assert facts.torch == str(torch.__version__)
    assert facts.python == platform.python_version()
    assert facts.cpu_count == len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else True
    assert "numpy" in facts.packages
    assert facts.git is None


@pytest.mark.gpu
def test_facts_of_a_gpu_run(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    facts = environment.collect("cuda", code=tmp_path)
    assert facts.device is not None
    assert facts.device.name == torch.cuda.get_device_name()
    assert facts.device.count == torch.cuda.device_count()
    assert facts.device.sm_count and facts.device.memory_bytes
    assert facts.driver


def test_only_listed_variables_are_recorded() -> None:
    given = {
        "CUDA_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "2",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
        "NCCL_ALGO": "Ring",
        "NCCL_DEBUG": "x" * 2000,
        # none of these:
        "HOME": "/home/u",
        "AWS_SECRET_ACCESS_KEY": "s",
        "MLFLOW_TRACKING_PASSWORD": "s",
        "MLFLOW_TRACKING_URI": "https://u:s@h",
        "NCCL_AUTH_TOKEN": "s",
        "TORCHINDUCTOR_REDIS_HOST": "h",
        "TORCHINDUCTOR_CACHE_KEY": "s",
        "NCCL_COMM_ID": "10.0.0.1:1",
        "TORCH_LOGS": "https://u:s@h",
        "CUDA_VISIBLE_DEVICES_SECRET": "s",
    }
    recorded = environment.recorded_variables(given)
    assert recorded == {
        "CUDA_VISIBLE_DEVICES": "0",
        "NCCL_ALGO": "Ring",
        "NCCL_DEBUG": "x" * 500,
        "OMP_NUM_THREADS": "2",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
    }


@pytest.mark.parametrize(
    ("remote", "recorded"),
    [
        ("https://user:token@host.org/team/x.git", "https://host.org/team/x.git"),
        ("https://token@host.org/x?private_token=1#f", "https://host.org/x"),
        ("ssh://git@host.org:22/x.git", "ssh://host.org:22/x.git"),
        ("git@host.org:team/x.git", "git@host.org:team/x.git"),
        ("/srv/git/x.git", "/srv/git/x.git"),
        ("https://host.org/a@b", "https://host.org/a@b"),
        ("https://oauth2:tok/en123@host.org/x.git", "https://host.org/x.git"),  # not encoded, and taken all the same
        ("postgresql://me:Se#cr/e?t9@127.0.0.1:5432/mlflow", "postgresql://127.0.0.1:5432/mlflow"),
        ("sqlite:////tmp/a@b/mlflow.db", "sqlite:////tmp/a@b/mlflow.db"),
    ],
)
def test_remotes_lose_their_credentials(remote: str, recorded: str) -> None:
    from proftrack.redact import without_credentials

    assert without_credentials(remote) == recorded


@needs_git
def test_a_clean_repository(repository: Path) -> None:
    git(repository, "remote", "add", "origin", "https://u:secret@host.org/x.git")
    (repository / "ignored").write_text("output of a run\n")
    for code in (repository, repository / "deep", repository / "code.py"):
        state = repositories.git_state(code)
        assert state is not None
        assert state.commit == git(repository, "rev-parse", "HEAD")
        assert (state.branch, state.dirty, state.remote) == ("trunk", False, "https://host.org/x.git")
    assert repositories.git_diff(repository, 10_000) is None


@needs_git
def test_a_dirty_repository_is_told_with_its_diff(repository: Path) -> None:
    (repository / "code.py").write_text("two\n")
    (repository / "new.py").write_text("contents that are not recorded\n")
    (repository / "ignored").write_text("neither is this\n")
    git(repository, "add", "code.py")
    state = repositories.git_state(repository / "deep")
    assert state is not None and state.dirty
    diff = repositories.git_diff(repository / "deep", 10_000)
    assert diff is not None
    assert "-one\n+two\n" in diff
    assert "#   new.py\n" in diff
    assert "not recorded\n" not in diff.replace("# untracked files, contents not recorded:\n", "")
    assert "ignored" not in diff


@needs_git
def test_the_report_of_a_run_does_not_make_it_dirty(repository: Path) -> None:
    (repository / "report.html").write_text("what `proftrack report RUN` writes")
    state = repositories.git_state(repository)
    assert state is not None and not state.dirty


def test_an_untracked_file_alone_makes_it_dirty(repository: Path) -> None:
    (repository / "new.py").write_text("")
    state = repositories.git_state(repository)
    assert state is not None and state.dirty and state.untracked_only
    assert repositories.git_diff(repository, 10_000) == "# untracked files, contents not recorded:\n#   new.py\n"


@needs_git
def test_a_long_diff_is_cut_and_says_so(repository: Path) -> None:
    (repository / "code.py").write_text("line\n" * 5000)
    whole = repositories.git_diff(repository, 10**6)
    cut = repositories.git_diff(repository, 1000)
    assert whole is not None and cut is not None
    assert f"# diff cut here: 1000 of {len(whole)} bytes\n" in cut
    assert len(cut) < 1100


@needs_git
def test_a_detached_head_has_no_branch(repository: Path) -> None:
    git(repository, "checkout", "--detach")
    state = repositories.git_state(repository)
    assert state is not None
    assert state.branch is None


@needs_git
def test_programs_that_the_repository_configures_are_not_run(repository: Path, tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    git(repository, "config", "diff.external", f"touch {trap}; true")
    git(repository, "config", "core.fsmonitor", f"touch {trap}; true")
    git(repository, "config", "diff.trap.textconv", f"touch {trap}; cat")
    (repository / ".gitattributes").write_text("*.py diff=trap\n")
    (repository / "code.py").write_text("two\n")
    state = repositories.git_state(repository)
    assert state is not None and state.dirty
    assert "+two" in (repositories.git_diff(repository, 10_000) or "")
    assert not trap.exists()


@needs_git
def test_no_repository_and_no_commit_are_none(tmp_path: Path, capfd: Any) -> None:
    assert repositories.git_state(tmp_path) is None
    assert repositories.git_diff(tmp_path, 1000) is None
    git(tmp_path, "init")
    assert repositories.git_state(tmp_path) is None
    assert capfd.readouterr() == ("", "")


def test_without_git_there_is_no_state(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert repositories.git_state(repository) is None
    assert repositories.git_diff(repository, 1000) is None


@needs_git
def test_variables_of_a_hook_do_not_lead_elsewhere(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert repositories.git_state(repository) is not None
