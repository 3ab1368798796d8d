"""How variants are shown: their table and the sentences below it."""

from __future__ import annotations

from typing import Any

from proftrack.frontends.batch import shown
from proftrack.frontends.batch.result import regimes
from proftrack.frontends.batch.shown import Column
from proftrack.frontends.variants.result import Change, Entry, Variants
from proftrack.report.document import Document
from proftrack.text import brief, counted, duration, number, plain

_MOST_CHANGES = 6
_NAME = 60
_WHAT = {"gone": "removed", "more": "more calls", "less": "fewer calls"}


def page(variants: Variants) -> Document:
    """The whole page about the variants, with one table row each."""
    device = variants.device or "unknown device"
    return shown.page(
        variants.entries,
        [Column("variant", lambda entry: plain(entry.name, _NAME), "text")],
        _COLUMNS,
        lead=variants.verdict,
        caption=f"{variants.title}, {device}; {variants.mode}, {variants.how}",
        sentences=sentences(variants),
    )


def _versus(entry: Entry) -> str:
    return "-" if entry.versus_first is None else f"{entry.versus_first.ratio:.3f}"


def _launches(entry: Entry) -> str:
    return "-" if entry.launches_per_step is None else f"{entry.launches_per_step:.0f}"


def _payoff(entry: Entry) -> str:
    if entry.versus_first is None:
        return "-"
    return "never" if entry.payoff_steps is None else f"{entry.payoff_steps:,} steps"


def _outputs(entry: Entry) -> str:
    if entry.outputs is None:
        return "-"
    return {True: "equal", False: "DIFFER", None: "not compared"}[entry.outputs.equal]


_COLUMNS: tuple[Column[Entry], ...] = (
    shown.STEP_TIME,
    Column("/ first", _versus),
    shown.BUSY,
    shown.FRACTION,
    shown.ENERGY,
    Column("launches", _launches),
    Column("set-up", lambda entry: duration(entry.set_up_us)),
    Column("pays off", _payoff),
    Column("results", _outputs, "word"),
    shown.REGIME,
)


def table(variants: Variants) -> bytes:
    """The variants in the form of mlflow.log_table."""
    return shown.as_table([_table_row(entry) for entry in variants.entries])


def _table_row(entry: Entry) -> dict[str, Any]:
    v = entry.versus_first
    return {
        "variant": entry.name,
        **shown.figures(entry),
        "ratio": v and v.ratio,
        "low": v and v.low,
        "high": v and v.high,
        "word": v and v.word,
        "launches_per_step": entry.launches_per_step,
        "set_up_us": entry.set_up_us,
        "payoff_steps": entry.payoff_steps,
        "outputs_equal": entry.outputs and entry.outputs.equal,
    }


def sentences(variants: Variants) -> list[str]:
    """The sentences below the table, variant by variant."""
    first = variants.measured[0].name if variants.measured else ""
    about = [f"{entry.name}: {sentence}" for entry in variants.entries for sentence in _about(entry, first)]
    return [*variants.remarks, *about]


def _about(entry: Entry, first: str) -> list[str]:
    if entry.status != "measured":
        return [f"{entry.status}: {plain(entry.error or '', 300)}"]
    lines, v = [], entry.versus_first
    if v is not None:
        interval = f"95 % interval {v.low:.3f} to {v.high:.3f}"
        lines.append(f"{v.word}: {v.ratio:.3f} of the step time of {first}, {interval}.")
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
                f"{counted(c.cache_hits, 'graph')} came from the compiler's cache on disk; set-up takes longer the "
                "first time."
            )
    lines += [_change(change) for change in entry.kernel_changes[:_MOST_CHANGES]]
    more = len(entry.kernel_changes) - _MOST_CHANGES
    return [*lines, f"{more} more changes are in variants.json."] if more > 0 else lines


def _reasons(reasons: list[str]) -> str:
    return "; ".join(plain(reason, 80) for reason in reasons[:2])


def _change(change: Change) -> str:
    name = brief(change.name, _NAME)
    by = f" of {brief(change.operator, 40)}" if change.operator else ""
    if change.what == "renamed":
        return f"other kernel{by}: {brief(change.old_name, _NAME)} became {name}."
    calls = f"{number(change.calls_before)} to {_calls(change.calls_after)}"
    times = f"{duration(change.before_us)} to {duration(change.after_us)}"
    if change.what == "gone":
        calls, times = _calls(change.calls_before), duration(change.before_us)
    elif change.what in ("added", "copy added") and not change.calls_before:
        calls, times = _calls(change.calls_after), duration(change.after_us)
    return f"{_WHAT.get(change.what, change.what)}: {name}{by} ({calls}, {times} per step)."


def _calls(count: float) -> str:
    text = number(count)
    return f"{text} {'call' if text == '1' else 'calls'}"


def tags(variants: Variants) -> dict[str, str]:
    """Tags for the parent run's row: the winner's regime (without a winner, all regimes), and the verdict."""
    winner = [entry for entry in variants.measured if entry.name == variants.winner]
    distinct = regimes(winner or variants.measured)
    return {"conclusion": variants.verdict, **({"regime": ", ".join(distinct)} if distinct else {})}
