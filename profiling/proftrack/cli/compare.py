"""`proftrack compare`: compare two runs or two traces."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from proftrack.cli import output as out
from proftrack.compare.changed import commits_between
from proftrack.errors import UsageError
from proftrack.store import baselines, keys, noise
from proftrack.store.references import Named, References

_FORMS = click.Choice(["text", "markdown", "html", "json"])


@click.command(
    "compare",
    context_settings=out.UNDERSCORES,
    epilog="A side is an MLflow run id, a git ref (the runs of that commit), a run folder, a record.json or a trace. "
    "With CANDIDATE alone, the baseline is the newest comparable run marked as one, else the last FINISHED one on "
    "branch main (see --branch).",
)
@click.argument("sides_given", nargs=-1, required=True, metavar="[BASELINE] CANDIDATE")
@click.option("--baseline-trace", type=click.Path(exists=True, dir_okay=False), help="Use this trace as the baseline.")
@click.option("--format", "form", type=_FORMS, help="Default: from the ending of the file's name, else text.")
@click.option("-o", "--output", metavar="FILE", help="Write to this file instead of stdout.")
@click.option("--across", multiple=True, metavar="KEY", help="Compare although this key differs; the result says so.")
@click.option(
    "--noise-floor",
    type=click.FloatRange(0, 1000),
    metavar="PCT",
    help="Noise between two processes of the same code, in percent.",
)
@click.option(
    "--repeat-runs",
    multiple=True,
    metavar="RUN|FOLDER",
    help="More runs of the baseline's code, to measure the noise.",
)
@click.option("--experiment", metavar="NAME", help="The experiment to compare, if a git ref has runs of several.")
@click.option("--branch", default="main", show_default=True, help="Branch to look for a baseline on.")
@click.option(
    "--baseline-step-time-us",
    type=click.FloatRange(0, min_open=True),
    help="Step time of a baseline trace without the profiler, in microseconds.",
)
@click.option("--step-time-us", type=click.FloatRange(0, min_open=True), help="The same for a candidate trace.")
@click.option(
    "--log/--no-log", default=None, help="Store the page with the candidate's run (default: only with --format html)."
)
def command(
    sides_given: tuple[str, ...],
    baseline_trace: str | None,
    form: str | None,
    output: str | None,
    across: tuple[str, ...],
    noise_floor: float | None,
    repeat_runs: tuple[str, ...],
    experiment: str | None,
    branch: str,
    baseline_step_time_us: float | None,
    step_time_us: float | None,
    log: bool | None,
) -> None:
    """Say whether the step time changed, whether the change is real, and why."""
    from proftrack.compare import compare
    from proftrack.report.pages.comparison import page

    references = References()
    names = _names(sides_given, baseline_trace)
    baseline, candidate = _both(references, *names, branch, experiment, (baseline_step_time_us, step_time_us))
    comparison = compare(
        baseline.subject,
        candidate.subject,
        across=across,
        noise=noise.floors_for(references, baseline, percent=noise_floor, repeats=references.repeats(repeat_runs)),
        commits=commits_between(baseline.subject.git_commit, candidate.subject.git_commit),
        notes=[baseline.note] if baseline.note else [],
    )
    form = out.form_of(form, output, "text")
    document = page(comparison)
    out.show(document, form, comparison, output)
    if candidate.run is not None and (log or (log is None and form == "html")):
        _keep(references, baseline, candidate, out.render(document, "html", comparison))


def _names(given: tuple[str, ...], baseline_trace: str | None) -> tuple[str | None, str]:
    if len(given) > 2 or (len(given) == 2 and baseline_trace):
        raise UsageError(f"{given[-1]}: one argument too many", "give only BASELINE and CANDIDATE")
    if baseline_trace is not None:
        return baseline_trace, given[0]
    return (given[0], given[1]) if len(given) == 2 else (None, given[0])


def _both(
    references: References,
    baseline_name: str | None,
    candidate_name: str,
    branch: str,
    experiment: str | None,
    step_times: tuple[float | None, float | None],
) -> tuple[Named, Named]:
    """Find both sides; a git ref means those of its runs that are comparable with the other side."""
    baseline = None
    if baseline_name is not None and references.is_single(baseline_name):
        baseline = references.subject(baseline_name, step_time_us=step_times[0], experiment=experiment)
    like = baseline.like if baseline else None
    candidate = references.subject(candidate_name, step_time_us=step_times[1], experiment=experiment, like=like)
    if baseline is None and baseline_name is not None:
        baseline = references.subject(baseline_name, experiment=experiment, like=candidate.like)
    return baseline or baselines.default_for(references, candidate, branch=branch), candidate


def _keep(references: References, baseline: Named, candidate: Named, text: str) -> None:
    """Store the page as an artifact of the candidate's run."""
    assert candidate.run is not None
    name = baseline.subject.run_id or Path(baseline.subject.label).name
    with tempfile.TemporaryDirectory(prefix="proftrack-") as folder:
        path = Path(folder) / f"{''.join(c if c.isalnum() or c in '-_.' else '_' for c in name)[:80]}.html"
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        references.runs.log_file(candidate.run, path, keys.COMPARISONS)
    click.echo(f"Kept    {keys.COMPARISONS}/{path.name} with run {candidate.run.run_id}", file=sys.stderr)
