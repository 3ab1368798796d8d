"""`proftrack gate`: a candidate against limits, with an exit code for CI."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from proftrack.cli import output as out
from proftrack.cli import sides
from proftrack.cli.sides import Side, Store
from proftrack.compare import gate as gates
from proftrack.compare.gate import EXIT_CODES, Gate
from proftrack.compare.policy import DEFAULT, Policy
from proftrack.errors import IncomparableError, NotFoundError

if TYPE_CHECKING:
    from proftrack.store.query import Found

_FORMS = click.Choice(["markdown", "text", "html", "json"])


@click.command(
    "gate",
    context_settings=out.UNDERSCORES,
    epilog="Exit codes: 0 pass, 3 fail, 4 inconclusive (no baseline, not comparable, too few samples, hidden by "
    "noise), 1 error, 2 usage.",
)
@click.argument("candidate")
@click.option("--baseline", metavar="REF", help="Run id, git ref or path [default: the last comparable run].")
@click.option("--policy", "policy_file", type=click.Path(path_type=Path), metavar="FILE", help="Limits as YAML.")
@click.option(
    "--format", "form", type=_FORMS, help="Default: what the file's name ends in, else text (markdown in a pipe)."
)
@click.option("-o", "--output", metavar="FILE", help="Write to this file instead of stdout.")
@click.option("--noise-floor", type=click.FloatRange(0, 1000), metavar="PCT", help="How far two processes may differ.")
@click.option("--experiment", metavar="NAME", help="Which experiment's runs, where a git ref has several.")
@click.option("--branch", metavar="NAME", help="Where a baseline is looked for [default: the policy's, else main].")
@click.option("--across", multiple=True, metavar="KEY", help="Compare although this key differs; it is recorded.")
@click.option("--tag/--no-tag", default=True, help="Write the outcome as tags on the candidate's run.")
def command(
    candidate: str,
    baseline: str | None,
    policy_file: Path | None,
    form: str | None,
    output: str | None,
    noise_floor: float | None,
    experiment: str | None,
    branch: str | None,
    across: tuple[str, ...],
    tag: bool,
) -> None:
    """Hold a run against its baseline: exit 0 pass, 3 fail, 4 inconclusive. Markdown for a pull request."""
    from proftrack.report.pages.gate import page

    policy = _policy(policy_file, branch)
    store = Store()
    side = sides.load(store, candidate, experiment=experiment, like=_like(store, baseline))
    gate = _held(store, side, baseline, policy, across, noise_floor)
    form = out.form_of(form, output, "text" if output is None and sys.stdout.isatty() else "markdown")
    out.show(page(gate), form, gate, output)
    if tag and side.run is not None:
        store.runs.tag(side.run, _tags(gate))
    sys.exit(EXIT_CODES[gate.outcome])


def _policy(path: Path | None, branch: str | None) -> Policy:
    from proftrack.compare import policy as policies
    from proftrack.store.fields import METRICS

    policy = policies.load(path, METRICS) if path is not None else DEFAULT
    return msgspec.structs.replace(policy, branch=branch) if branch else policy


def _like(store: Store, baseline: str | None) -> Found | None:
    """What a candidate that is named by a commit must be like: a baseline that is named by its id or a file."""
    if baseline is None or not (sides.is_file(baseline) or sides.is_run(store, baseline)):
        return None
    try:
        return sides.load(store, baseline).like
    except NotFoundError:
        return None


def _held(
    store: Store,
    candidate: Side,
    reference: str | None,
    policy: Policy,
    across: tuple[str, ...],
    noise_floor: float | None,
) -> Gate:
    """The gate's outcome; what keeps it from being held is inconclusive, a store that is away is an error."""
    from proftrack.compare import compare
    from proftrack.store import fields

    subject = candidate.subject
    label = subject.label if subject.run_id in (None, subject.label) else f"{subject.label} (run {subject.run_id})"
    try:
        if reference is None:
            baseline = sides.default_baseline(store, candidate, policy.branch)
        else:
            baseline = sides.load(store, reference, like=candidate.like)
    except NotFoundError as error:
        return gates.undecided(label, policy, str(error), reference)
    held = baseline.subject
    try:
        comparison = compare(
            held,
            subject,
            across=across,
            noise=sides.noise(store, baseline, percent=noise_floor, otherwise=policy.noise_floor_pct),
            commits=sides.commits(held, subject),
            notes=[baseline.note] if baseline.note else [],
        )
    except IncomparableError as error:
        return gates.undecided(label, policy, str(error), held.run_id or held.label)
    before, after = ({point.key: point.value for point in fields.metrics(each.record)} for each in (held, subject))
    return gates.evaluate(held, msgspec.structs.replace(subject, label=label), comparison, policy, before, after)


def _tags(gate: Gate) -> dict[str, str]:
    """What the candidate's run remembers of its last gate."""
    across = [each.name for each in gate.comparison.across] if gate.comparison else []
    return {
        "gate.outcome": gate.outcome,
        "gate.baseline": gate.baseline or "none",
        "gate.policy": gate.policy,
        "gate.failed": ", ".join(gate.failed) or "none",
        "gate.reason": gate.reason,
        "gate.across": ", ".join(across) or "none",
        "gate.time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
