"""State of the Git repository that holds the profiled code. Only reads: nothing is written or printed."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import IO

from proftrack.record.environment import Git
from proftrack.redact import without_credentials

NO_DIFF_VARIABLE = "PROFTRACK_NO_DIFF"
"""If set to anything but 0, no diff is recorded, only that the tree is dirty."""
_TIMEOUT_S = 30
_UNTRACKED_SHOWN = 1000
_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
# Ignore hooks, pagers, prompts and external diff programs from the user's configuration.
_GIT = ("git", "--no-optional-locks", "--no-pager", "-c", "core.fsmonitor=false", "-c", "core.quotepath=off")
_DIFF = ("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short")
# Files that a run itself leaves in the working directory do not change the code.
_OUTPUTS = ("mlflow.db*", "mlruns/**", "proftrack-runs/**")
_WITHOUT_OUTPUTS = ("--", ".", *(f":(exclude,glob)**/{output}" for output in _OUTPUTS))
# These would point git at another repository.
_REDIRECTING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE", "GIT_PREFIX")


def git_state(code: Path) -> Git | None:
    """Commit, branch, remote, and whether the tree differs from the commit (counting untracked, not ignored files).

    None without Git, without a repository, or before its first commit.
    """
    root = _root(code)
    commit = _ask(root, "rev-parse", "--verify", "--quiet", "HEAD")
    if not commit:
        return None
    status = _ask(root, "status", "--porcelain", "--untracked-files=all", *_WITHOUT_OUTPUTS)
    changes = None if status is None else _changes(status)
    remote = _ask(root, "config", "--get", "remote.origin.url")
    return Git(
        commit=commit.strip(),
        branch=(_ask(root, "symbolic-ref", "--short", "--quiet", "HEAD") or "").strip() or None,
        dirty=changes is None or bool(changes),  # an unreadable tree may be dirty
        untracked_only=bool(changes) and all(line.startswith("?? ") for line in changes or ()),
        remote=without_credentials(remote.strip()) if remote and remote.strip() else None,
    )


def _changes(status: str) -> list[str]:
    """The lines of `git status --porcelain`, without a report.html, which `proftrack report` may have written."""
    lines = (line for line in status.splitlines() if line)
    return [line for line in lines if not re.fullmatch(r'\?\? "?(?:.*/)?report\.html"?', line)]


def git_diff(code: Path, max_bytes: int) -> str | None:
    """What makes the tree dirty: the changes of tracked files against HEAD, then the names of untracked files.

    The diff is cut after `max_bytes`, with a line that says so. None if the tree is clean, if there is no repository,
    or if $PROFTRACK_NO_DIFF says that no source code may leave this machine.
    """
    root = None if os.environ.get(NO_DIFF_VARIABLE, "0") not in ("", "0") else _root(code)
    if root is None:
        return None
    parts = [_capped(root, max_bytes)]
    names = (_ask(root, "ls-files", "--others", "--exclude-standard", "-z", *_WITHOUT_OUTPUTS) or "").split("\0")
    names = sorted(name for name in names if name)
    if names:
        more = len(names) - _UNTRACKED_SHOWN
        shown = [f"#   {name!r}" if not name.isprintable() else f"#   {name}" for name in names[:_UNTRACKED_SHOWN]]
        parts.append(
            "\n".join(["# untracked files, contents not recorded:", *shown, *([f"#   and {more} more"] * (more > 0))])
        )
    text = "\n".join(part for part in parts if part)
    return text + "\n" if text else None


def resolve_commit(code: Path, ref: str) -> str | None:
    """The commit of a branch, tag or (short) hash in the repository around `code`; None if there is none."""
    answer = _ask(_root(code), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    return (answer or "").strip() or None


def commits_between(code: Path, before: str, after: str, limit: int) -> tuple[list[tuple[str, str]], int] | None:
    """Commits reachable from `after` but not from `before`, newest first: (hash, subject) of the first `limit`, and the
    number of all. None unless the repository around `code` has both.
    """
    root, span = _root(code), f"{before}..{after}"
    if root is None or resolve_commit(root, before) is None or resolve_commit(root, after) is None:
        return None
    count = _ask(root, "rev-list", "--count", "--end-of-options", span)
    listed = _ask(root, "log", f"--max-count={limit}", "--format=%H%x00%s", "--end-of-options", span)
    if count is None or listed is None:
        return None
    pairs = [line.partition("\0") for line in listed.splitlines()]
    return [(commit, subject) for commit, _, subject in pairs], int(count)


def diff_summary(code: Path, before: str, after: str) -> str:
    """`3 files changed, 10 insertions(+)` between two commits; empty if unknown."""
    answer = _ask(_root(code), "diff", "--shortstat", "--no-ext-diff", "--end-of-options", before, after)
    return (answer or "").strip()


def commit_order(code: Path, commits: set[str]) -> dict[str, int]:
    """Position of each commit in the repository around `code`, ancestors first; unknown commits are left out."""
    hashes = sorted(commit for commit in commits if _HASH.fullmatch(commit))
    if not hashes:
        return {}
    answer = _ask(_root(code), "rev-list", "--topo-order", "--reverse", "--ignore-missing", "--end-of-options", *hashes)
    order = {commit: position for position, commit in enumerate((answer or "").split())}
    return {commit: order[commit] for commit in hashes if commit in order}


def _root(code: Path) -> Path | None:
    folder = code if code.is_dir() else code.parent
    top = _ask(folder, "rev-parse", "--show-toplevel")
    return Path(top.rstrip("\n")) if top and top.strip() else None


def _capped(root: Path, max_bytes: int) -> str:
    with tempfile.TemporaryFile() as output:
        if not _run(root, _DIFF, output):
            return ""
        size = output.tell()
        output.seek(0)
        text = output.read(max_bytes).decode(errors="replace").rstrip("\n")
    return text if size <= max_bytes else f"{text}\n# diff cut here: {max_bytes} of {size} bytes"


def _ask(folder: Path | None, *arguments: str) -> str | None:
    """What git prints in `folder`; None without a folder, or if git fails."""
    if folder is None:
        return None
    with tempfile.TemporaryFile() as output:
        if not _run(folder, arguments, output):
            return None
        output.seek(0)
        return output.read().decode(errors="surrogateescape")


def _run(folder: Path, arguments: tuple[str, ...], output: IO[bytes]) -> bool:
    """Run git in `folder`; False if it is missing, fails or takes too long."""
    variables = {key: value for key, value in os.environ.items() if key not in _REDIRECTING}
    variables |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_EXTERNAL_DIFF": ""}
    try:
        done = subprocess.run(
            [*_GIT, *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env=variables,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    output.seek(0, os.SEEK_END)
    return done.returncode == 0
