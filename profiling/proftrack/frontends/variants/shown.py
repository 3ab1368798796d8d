"""Variants as people see them: a table in the terminal, in Markdown and in MLflow's form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from proftrack.errors import ProftrackError
from proftrack.frontends.variants.result import Change, Entry, Variants
from proftrack.text import brief, counted, duration, number, percent, plain

TABLE = "tables/variants.json"
TEXT = "variants.md"
_HEADS = ("variant", "T", "/ first", "B", "u", "launches", "set-up", "pays off", "results", "regime")
_MOST_CHANGES = 6
_NAME = 60
_NARROWEST = 20
"""Of the column of names, in a terminal."""
_LEFT = ("results", "regime")
"""Columns of words."""
_WHAT = {"copy added": "copy added", "renamed": "other kernel", "more": "more calls", "less": "fewer calls"}


def rows(found: Variants) -> list[list[str]]:
    """The table's cells, a row a variant, with the heads first."""
    return [list(_HEADS), *(_row(entry) for entry in found.entries)]


def _row(entry: Entry) -> list[str]:
    if entry.status != "measured":
        return [entry.name, *["-"] * (len(_HEADS) - 2), entry.status]
    return [
        entry.name,
        duration(entry.step_time_us),
        _versus(entry),
        duration(entry.busy_us),
        percent(entry.busy_fraction),
        "-" if entry.launches_per_step is None else f"{entry.launches_per_step:.0f}",
        duration(_set_up(entry)),
        _payoff(entry),
        _outputs(entry),
        entry.regime,
    ]


def _versus(entry: Entry) -> str:
    return "-" if entry.versus_first is None else f"{entry.versus_first.ratio:.3f}"


def _set_up(entry: Entry) -> float | None:
    return None if entry.first_step_us is None else (entry.build_us or 0.0) + entry.first_step_us


def _payoff(entry: Entry) -> str:
    if entry.versus_first is None:
        return "-"
    return "never" if entry.payoff_steps is None else f"{entry.payoff_steps:,} steps"


def _outputs(entry: Entry) -> str:
    if entry.outputs is None:
        return "-"
    return {True: "equal", False: "DIFFER", None: "not compared"}[entry.outputs.equal]


def print_variants(found: Variants) -> None:
    """Verdict, table and remarks, on stdout."""
    from rich.text import Text

    from proftrack.report.terminal import console

    out = console()
    out.print()
    out.print(Text(found.verdict, style="bold"))
    out.print(Text(f"{found.title}, {found.device or 'unknown device'}; {found.mode}, {found.how}"))
    for lines in _side_by_side(rows(found), out.width):
        out.print()
        for line in lines:
            out.print(Text(line), no_wrap=True, crop=False)
    for line in sentences(found):
        out.print(Text(line))


def _side_by_side(cells: list[list[str]], width: int) -> list[list[str]]:
    """The table's lines; columns that do not fit beside the others make another table below, with the names again.

    Figures are never cut: names give way, but to no less than `_NARROWEST`.
    """
    names, *columns = ([plain(cell, _NAME) for cell in column] for column in zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    parts: list[list[int]] = [[]]
    room = 0
    for index, wide in enumerate(widths):
        if parts[-1] and room + wide + 2 > width:
            parts.append([])
        room = room + wide + 2 if parts[-1] else min(max(map(len, names)), _NARROWEST) + wide + 2
        parts[-1].append(index)
    return [_lines(names, [columns[index] for index in part], width) for part in parts]


def _lines(names: list[str], columns: list[list[str]], width: int) -> list[str]:
    padded = [
        [cell.ljust(wide) if column[0] in _LEFT else cell.rjust(wide) for cell in column]
        for column in columns
        for wide in [max(map(len, column))]
    ]
    taken = sum(len(column[0]) + 2 for column in padded)
    room = min(max(map(len, names)), max(width - taken, _NARROWEST))
    first = [plain(name, room).ljust(room) for name in names]
    return ["  ".join(row).rstrip() for row in zip(first, *padded, strict=True)]


def sentences(found: Variants) -> list[str]:
    """What is known beside the table, variant by variant."""
    lines = list(found.remarks)
    for entry in found.entries:
        said = _about(entry, found.measured[0].name if found.measured else "")
        lines += [f"{entry.name}: {text}" for text in said]
    return lines


def _about(entry: Entry, first: str) -> list[str]:
    if entry.status != "measured":
        return [f"{entry.status}: {plain(entry.reason, 300)}"]
    lines, v = [], entry.versus_first
    if v is not None:
        lines.append(f"{v.ratio:.3f} of the time of {first}, 95 % interval {v.low:.3f} to {v.high:.3f}: {v.word}.")
    if entry.outputs is not None and entry.outputs.equal is not True:
        lines.append(f"results: {entry.outputs.text}.")
    c = entry.compiled
    if c is not None:
        breaks = f", {counted(c.graph_breaks, 'graph break')}" + (
            f" ({_reasons(c.break_reasons)})" if c.graph_breaks else ""
        )
        lines.append(
            f"compiled {counted(c.graphs, 'graph')}{breaks}, {counted(c.recompiles, 'recompilation')}, "
            f"{counted(c.cudagraph_skips, 'CUDA graph')} skipped."
        )
        if c.cache_hits:
            lines.append(
                f"{counted(c.cache_hits, 'graph')} came from the compiler's cache on disk: setting up takes longer the "
                "first time."
            )
    lines += [_change(change) for change in entry.kernel_changes[:_MOST_CHANGES]]
    more = len(entry.kernel_changes) - _MOST_CHANGES
    return [*lines, f"and {more} more changes, in variants.json."] if more > 0 else lines


def _reasons(reasons: list[str]) -> str:
    return "; ".join(plain(reason, 80) for reason in reasons[:2])


def _change(change: Change) -> str:
    name = brief(change.name, _NAME)
    by = f" of {brief(change.operator, 40)}" if change.operator else ""
    if change.what == "renamed":
        return f"other kernel{by}: {brief(change.old_name, _NAME)} is now {name}."
    calls = f"{number(change.calls_before)} to {_calls(change.calls_after)}"
    times = f"{duration(change.before_us)} to {duration(change.after_us)} a step"
    if change.what == "gone":
        calls, times = _calls(change.calls_before), f"{duration(change.before_us)} a step"
    elif change.what in ("added", "copy added") and not change.calls_before:
        calls, times = _calls(change.calls_after), f"{duration(change.after_us)} a step"
    return f"{_WHAT.get(change.what, change.what)}{by}: {name} ({calls}, {times})."


def _calls(count: float) -> str:
    text = number(count)
    return f"{text} {'call' if text == '1' else 'calls'}"


def tags(found: Variants) -> dict[str, str]:
    """What the parent run's row says: the winner's regime, without one all of them, and the verdict as a sentence."""
    kept = [entry for entry in found.measured if entry.name == found.winner] or found.measured
    regimes = dict.fromkeys(entry.regime for entry in kept if entry.regime)
    return {"conclusion": found.verdict, **({"regime": ", ".join(regimes)} if regimes else {})}


def markdown(found: Variants) -> str:
    """All of it as Markdown: the parent run's description."""
    from proftrack.report.markdown import escape

    head, *body = rows(found)
    table = [head, ["---"] * len(head), *([escape(cell, 60) for cell in cells] for cells in body)]
    lines = [f"**{escape(found.verdict, 400)}**", ""]
    lines += [f"{escape(found.title, 200)}, {escape(found.device or 'unknown device')}; {found.mode}, {found.how}", ""]
    lines += [f"| {' | '.join(cells)} |" for cells in table]
    return "\n".join([*lines, "", *(f"- {escape(line, 300)}" for line in sentences(found))])


def write(found: Variants, folder: Path) -> None:
    """Write table and text. Raises ProftrackError where the disk refuses."""
    try:
        (folder / TABLE).parent.mkdir(parents=True, exist_ok=True)
        (folder / TABLE).write_bytes(msgspec.json.encode(_table(found)))
        (folder / TEXT).write_text(markdown(found) + "\n", encoding="utf-8")
    except OSError as error:
        raise ProftrackError(f"{folder}: cannot be written ({error.strerror}); free some space") from error


def _table(found: Variants) -> dict[str, Any]:
    """In the form of mlflow.log_table."""
    columns = ["variant", "step_time_us", "ratio", "low", "high", "word", "busy_us", "busy_fraction"]
    columns += ["launches_per_step", "set_up_us", "payoff_steps", "outputs_equal", "regime", "run_id", "reason"]
    data = []
    for entry in found.entries:
        v = entry.versus_first
        compared = [v.ratio, v.low, v.high, v.word] if v is not None else [None] * 4
        data.append(
            [
                entry.name,
                entry.step_time_us,
                *compared,
                entry.busy_us,
                entry.busy_fraction,
                entry.launches_per_step,
                _set_up(entry),
                entry.payoff_steps,
                entry.outputs.equal if entry.outputs else None,
                entry.regime,
                entry.run_id,
                entry.reason or None,
            ]
        )
    return {"columns": columns, "data": data}
