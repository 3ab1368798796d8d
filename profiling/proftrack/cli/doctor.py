"""`proftrack doctor`: can the GPU be measured, can the store be reached, what will be recorded."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from proftrack.doctor import Check

_MARKS = {"ok": "ok", "note": "--", "warning": "warn", "failed": "FAIL"}


@click.command("doctor")
@click.option("--repair", is_flag=True, help="Set runs to FAILED that dead processes of this machine left RUNNING.")
@click.option("--recalibrate", is_flag=True, help="Measure the device's attainable rates again.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def command(repair: bool, recalibrate: bool, as_json: bool) -> None:
    """Check everything that a run needs, and say how to fix what is wrong. Exits with 1 if a check failed.

    No run is created in the store: a tag and a small file are written there and removed again.
    """
    import msgspec

    from proftrack import doctor

    checks: list[doctor.Check] = []
    for check in doctor.examine(repair=repair, recalibrate=recalibrate):
        checks.append(check)
        if not as_json:
            _show(check)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(checks), indent=1))
    if any(check.status == "failed" for check in checks):
        sys.exit(1)


def _show(check: Check) -> None:
    from proftrack.text import plain

    click.echo(f"{_MARKS[check.status]:<5}{check.name:<10}{plain(check.text, 2000)}")
    if check.remedy and check.status != "ok":
        click.echo(f"{'':<15}{'->' if check.status in ('warning', 'failed') else '  '} {plain(check.remedy, 2000)}")
