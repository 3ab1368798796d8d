"""`proftrack gate`: check a candidate against limits, with an exit code for CI."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from proftrack.cli import output as out
from proftrack.compare.gate import EXIT_CODES
from proftrack.compare.policy import DEFAULT, Policy

_FORMS = click.Choice(["markdown", "text", "html", "json"])


@click.command(
    "gate",
    context_settings=out.UNDERSCORES,
    epilog="Exit codes: 0 pass, 3 fail, 4 inconclusive (no baseline, not comparable, too few samples, or hidden "
    "by noise), 1 error, 2 usage.",
)
@click.argument("candidate")
@click.option("--baseline", metavar="REF", help="Run id, git ref or path [default: the last comparable run].")
@click.option("--policy", "policy_file", type=click.Path(path_type=Path), metavar="FILE", help="YAML file of limits.")
@click.option(
    "--format", "form", type=_FORMS, help="Default: from the ending of the file's name, else text (markdown in a pipe)."
)
@click.option("-o", "--output", metavar="FILE", help="Write to this file instead of stdout.")
@click.option(
    "--noise-floor",
    type=click.FloatRange(0, 1000),
    metavar="PCT",
    help="Noise between two processes of the same code, in percent.",
)
@click.option("--experiment", metavar="NAME", help="The experiment to check, if a git ref has runs of several.")
@click.option("--branch", metavar="NAME", help="Branch to look for a baseline on [default: the policy's, else main].")
@click.option("--across", multiple=True, metavar="KEY", help="Compare although this key differs; the result says so.")
@click.option("--tag/--no-tag", default=True, help="Set the outcome as tags on the candidate's run.")
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
    """Check a run against its baseline: exit 0 pass, 3 fail, 4 inconclusive. Prints Markdown for a pull request."""
    from proftrack.report.pages.comparison import gate_page
    from proftrack.store import gating
    from proftrack.store.references import References

    references = References()
    gate, named = gating.hold(
        references,
        candidate,
        baseline,
        _policy(policy_file, branch),
        experiment=experiment,
        across=across,
        noise_floor=noise_floor,
    )
    form = out.form_of(form, output, "text" if output is None and sys.stdout.isatty() else "markdown")
    out.show(gate_page(gate), form, gate, output)
    if tag and named.run is not None:
        references.runs.tag(named.run, gating.tags(gate))
    sys.exit(EXIT_CODES[gate.outcome])


def _policy(path: Path | None, branch: str | None) -> Policy:
    from proftrack.compare import policy as policies
    from proftrack.store import keys

    policy = policies.load(path, keys.METRICS) if path is not None else DEFAULT
    return msgspec.structs.replace(policy, branch=branch) if branch else policy
