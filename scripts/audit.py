"""Checks the installed packages for known vulnerabilities, with pip-audit.

    python scripts/audit.py               exit 1 for a vulnerability; if the advisory service cannot be reached, print
                                          NOT DONE and exit 0: a check without network must not fail
    python scripts/audit.py --required    exit 1 in that case, too; for a nightly job that has network access

Exceptions are in audit-exceptions.txt, each with its reason.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXCEPTIONS = ROOT / "audit-exceptions.txt"
# A package that the service certainly knows: if there is no answer for this one, the service cannot be reached.
PROBE = "pip==24.0"


def main() -> int:
    """Check the packages, print the result and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--required", action="store_true", help="fail if the advisory service cannot be reached")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.txt"
        probe.write_text(f"{PROBE}\n", encoding="ascii")
        answers = audited("--requirement", str(probe), "--no-deps", "--disable-pip") is not None
    found = audited("--local", "--skip-editable", *ignored(EXCEPTIONS.read_text(encoding="utf-8"))) if answers else None
    if found is None:
        print("audit: NOT DONE: the advisory service cannot be reached from here")
        return 1 if options.required else 0
    for line in vulnerabilities(found):
        print(f"audit: {line}")
    print(f"audit: {len(found)} packages looked up, {len(vulnerabilities(found))} known vulnerabilities")
    return 1 if vulnerabilities(found) else 0


def audited(*arguments: str) -> list[dict[str, Any]] | None:
    """pip-audit's findings; None where it could not look anything up."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return None
    # A package that is not on PyPI (our own) is skipped with a reason; if all are, nobody answered.
    return [each for each in found if "vulns" in each] or None


def ignored(text: str) -> list[str]:
    """pip-audit's options for the lines of audit-exceptions.txt."""
    identities = [line.split()[0] for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [word for identity in identities for word in ("--ignore-vuln", identity)]


def vulnerabilities(found: list[dict[str, Any]]) -> list[str]:
    """One line each."""
    lines = []
    for each in found:
        for one in each["vulns"]:
            fixed = ", ".join(one.get("fix_versions") or ["no version"])
            lines.append(f"{each['name']} {each['version']}: {one['id']}, fixed in {fixed}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
