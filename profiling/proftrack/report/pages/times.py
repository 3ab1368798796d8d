"""The times of a step, what each step was used for, and where the window's time went."""

from __future__ import annotations

import re
from collections.abc import Sequence

from proftrack.record import Record
from proftrack.record.figures import Step
from proftrack.report.document import Bar, Share, Span
from proftrack.text import counted, duration, factor, number, percent, scaled
from proftrack.verdict.evidence import CAUSE_TEXT, headroom
from proftrack.verdict.thresholds import Thresholds


def bars(record: Record) -> list[Bar]:
    """T, B and R, and what could be saved at each stage unless the verdict is inconclusive.

    On the CPU, the operators' working time W replaces B.
    """
    times = record.times
    unprofiled = record.verdict.basis == "unprofiled"
    t, b, r = record.step_time_us, times.gpu_busy_per_step_us, times.roofline_time_us
    below = ("B", "GPU busy time", "If every kernel reached the roofline")
    if b is None and record.cpu_work_us is not None:
        b = record.cpu_work_us
        below = ("W", "operators' working time", "If every operator reached the roofline")
    steps = "step time, without the profiler" if unprofiled else "step time, from the profiled trace"
    rows = [("T", steps, t, "If everything but the GPU's work vanished" if below[0] == "B" else "Without overhead")]
    least = (
        f"roofline{' (a lower bound)' if is_part(record) else ''}: the least this device could need{_left_out(record)}"
    )
    rows += [(below[0], below[1], b, below[2]), ("R", least, r, "")]
    measured = [(key, label, us, what) for key, label, us, what in rows if us]
    longest = max((us for _, _, us, _ in measured), default=0.0)
    shown = []
    for i, (key, label, us, what) in enumerate(measured):
        last = i + 1 == len(measured)
        lower = us if last else min(measured[i + 1][2], us)
        if key == "B" and lower < us:
            kernels = record.verdict.figure("kernel_headroom") or us / lower
            lower = min(max(lower, us / kernels), us)  # copies and collectives stay
        text = f"{what}: {_most(record, key, us / lower)}" if lower < us else ""
        if not text and not last:
            text = f"{what}: nothing to gain"
        if record.verdict.regime == "inconclusive" or (key == below[0] and is_part(record)):
            text = ""
        solid = 100 * lower / longest
        rest = 100 * us / longest - solid
        short = re.split("[,:]", label)[0]
        shown.append(Bar(key=key, label=label, short=short, value=duration(us), solid=solid, rest=rest, text=text))
    return shown


def _most(record: Record, key: str, ratio: float) -> str:
    """How much faster; from a profiled step only a bound, in both readings."""
    other = record.verdict.figure("gpu_busy_fraction_without_inflation")
    if key != "T" or not other:
        return f"{headroom(ratio)} faster"
    return f"{headroom(ratio, 1 / other)} faster (a bound from a profiled step)"


def is_part(record: Record) -> bool:
    """Whether R leaves out so much work that it is only a lower bound, from which no headroom follows."""
    if record.times.roofline_time_us is None:
        return False
    share = record.work.uncounted_share if record.work is not None else None
    if share is None:  # a record of before that was kept
        figure = record.verdict.figure
        on_gpu = record.times.gpu_busy_per_step_us is not None and figure("roofline_time_us") is not None
        return on_gpu and figure("kernel_headroom") is None
    return share > record.verdict.thresholds.get("headroom_uncounted", Thresholds().headroom_uncounted)


def _left_out(record: Record) -> str:
    """What R leaves out, if that is worth a word."""
    share = record.work.uncounted_share if record.work is not None else None
    where = "GPU's" if record.times.gpu_busy_per_step_us is not None else "operators'"
    return f", without {percent(share)} of the {where} time that was not counted" if share and share >= 0.005 else ""


_LEGEND = {
    "T": "step time",
    "B": "GPU busy time",
    "W": "the operators' working time",
    "R": "roofline time (the least this device could need)",
    "u": "B / T",
}


def legend(letters: Sequence[str]) -> str:
    """One line that says what these letters (T, B, W, R, u) stand for."""
    return ", ".join(f"{letter} = {_LEGEND[letter]}" for letter in letters) + "."


def legend_of(record: Record, times: Sequence[str] | None = None) -> str:
    """The legend of the times shown (all that the record has, if None), and of u if the record has it."""
    fraction = [] if record.verdict.gpu_busy_fraction is None else ["u"]
    letters = [*(times if times is not None else [bar.key for bar in bars(record)]), *fraction]
    return legend(letters) if letters else ""


def remarks(record: Record) -> list[str]:
    """What else is known about the step time."""
    timing, out = record.timing, []
    if timing is not None:
        other = timing.other
        if other is not None:
            how = "back to back" if other.noun == "block" else "step by step, synchronised after each"
            out.append(f"Timed {how}, a step takes {duration(other.us)}.")
        if timing.first_step_time_us is not None:
            out.append(f"The very first step took {duration(timing.first_step_time_us)} (compilation, initialisation).")
        if timing.input_wait_us:
            out.append(f"Of a timed step, {duration(timing.input_wait_us)} is waiting for data.")
        profiled = record.times.step_time_profiled_us
        if profiled and record.step_time_us:
            ratio = factor(profiled / record.step_time_us)
            out.append(
                f"Under the profiler, a step takes {duration(profiled)}, {ratio} T: the timeline shows that step."
            )
    everything, outliers = record.times.step_time_all_steps_us, record.window.outlier_steps
    if everything:
        left_out = counted(outliers, "outlier")
        out.append(f"Over all recorded steps, {left_out} included, the mean in the trace is {duration(everything)}.")
    if record.tokens_per_s is not None:
        out.append(f"That is {number(record.tokens_per_s)} tokens per second.")
    rates = record.rates
    if rates is not None and rates.tflops:
        share = f" ({percent(rates.mfu)} of attainable)" if rates.mfu else ""
        attained = [f"{scaled(rates.tflops * 1e12, 'FLOP/s')}{share}"]
        if rates.gbytes_per_s:
            share = f" ({percent(rates.mbu)} of attainable)" if rates.mbu else ""
            attained.append(f"{scaled(rates.gbytes_per_s * 1e9, 'B/s')} of minimum traffic{share}")
        at_least = "at least " if is_part(record) else ""
        out.append(f"Over T, the step attains {at_least}{' and '.join(attained)}.")
    return out


# ---- schedule --------------------------------------------------------------------------------------------------------


def schedule(record: Record) -> list[Span]:
    """What the steps were used for, in order; empty if that is unknown."""
    spans = _timed(record)
    plan, steps = record.run.schedule if record.run else {}, record.per_step
    if not plan:  # a trace that proftrack did not record
        return [*spans, _recorded(steps)] if steps else []
    skipped, wait, warmup, active = (plan.get(k, 0) for k in ("skip_first", "wait", "warmup", "active"))
    if skipped:
        spans.append(Span(kind="skipped", label=counted(skipped, "step"), detail="skipped"))
    cycles = max(record.window.cycles, 1)
    shown = min(cycles, 4)
    for cycle in range(shown):
        if wait:
            spans.append(Span(kind="waited", label=counted(wait, "step"), detail="waiting: profiler off"))
        if warmup:
            spans.append(Span(kind="warmed", label=counted(warmup, "step"), detail="profiler on, discarded"))
        spans.append(_recorded(steps[cycle * active : (cycle + 1) * active]))
    if cycles > shown:
        spans.append(Span(kind="waited", label=counted(cycles - shown, "cycle"), detail="more of the same"))
    return spans


def _timed(record: Record) -> list[Span]:
    timing = record.timing
    if timing is None:
        return []
    blocks = len(timing.block_step_times_us)
    steps = blocks * timing.steps_per_block
    spans = []
    if timing.first_step_time_us is not None:
        spans.append(Span(kind="first", label="first step", detail=duration(timing.first_step_time_us)))
    if timing.warmup_steps:
        spans.append(Span(kind="warm", label=counted(timing.warmup_steps, "step"), detail="warm-up"))
    detail = f"timed without the profiler: {counted(blocks, 'block')}, median T"
    return [*spans, Span(kind="timed", label=counted(steps, "step"), detail=detail)]


def _recorded(steps: Sequence[Step]) -> Span:
    numbers = [f"#{step.step}" for step in steps]
    shown = ", ".join(numbers) if len(numbers) <= 8 else f"{numbers[0]} to {numbers[-1]}"
    left_out = [f"#{step.step}" for step in steps if step.outlier is not None]
    but = f"; {', '.join(left_out[:4])}{' ...' if len(left_out) > 4 else ''} left out of T and B" if left_out else ""
    return Span(kind="recorded", label=shown or "none", detail=f"recorded: counted in the tables{but}")


# ---- the window, as parts of a total ---------------------------------------------------------------------------------


def window_steps(record: Record) -> str:
    """How long the window is and how many steps it holds: its parts count all of them, T and B only the typical."""
    window = record.window
    steps = f"{duration(window.duration_us)}, {counted(window.steps, 'step')}"
    return f"{steps} ({window.outlier_steps} left out of T and B)" if window.outlier_steps else steps


def split_parts(record: Record) -> list[Share]:
    """The window, split into exclusive parts."""
    split = record.split
    if split is None:
        return []
    return _parts(
        [
            ("compute", "compute", split.compute_us),
            ("communication", "exposed communication", split.exposed_communication_us),
            ("transfer", "exposed copies", split.exposed_copy_us),
            ("idle", "idle", split.idle_us),
        ]
    )


def idle_parts(record: Record) -> list[Share]:
    """Idle time per step, by cause."""
    causes = sorted(record.idle.by_cause_us_per_step.items(), key=lambda kv: -kv[1])
    return _parts([(f"idle-{cause}", f"{cause}: {CAUSE_TEXT.get(cause, '')}", us) for cause, us in causes])


def _parts(rows: list[tuple[str, str, float]]) -> list[Share]:
    total = sum(us for _, _, us in rows)
    parts, start = [], 0.0
    for style, label, us in rows:
        if us > 0:
            share = 100 * us / total
            short = label.partition(":")[0]
            parts.append(Share(style=style, label=label, short=short, value=duration(us), start=start, share=share))
            start += share
    return parts
