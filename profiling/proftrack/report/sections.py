"""A record as the sections of a report: what is said and shown, without its markup.

Every name here is still untrusted text: whoever shows it escapes it. Names are cut and on one line.
"""

from __future__ import annotations

from msgspec import Struct

from proftrack.record import Record
from proftrack.text import counted, duration, factor, moment, percent, plain, scaled

ROWS = 100
"""Rows of one table."""
NAME = 160


class Bar(Struct, frozen=True, kw_only=True):
    """A time as a bar: solid up to what stands below it, the rest is what could be won. Shares of the longest."""

    key: str
    label: str
    us: float
    solid: float
    rest: float
    text: str
    """What could be won, and by what."""


class Part(Struct, frozen=True, kw_only=True):
    """A part of a whole, in per cent from `start` on."""

    key: str
    label: str
    us: float
    start: float
    share: float


class Span(Struct, frozen=True, kw_only=True):
    """Steps of the schedule that were treated alike."""

    kind: str
    """first, warm, timed, skipped, waited, warmed, recorded."""
    label: str
    detail: str


def title(record: Record) -> str:
    """What was profiled: the experiment with its parameters, or the trace's file name."""
    if record.run is not None:
        return plain(record.run.display_name or record.run.experiment, NAME)
    return plain(record.source.files[0].name if record.source.files else "trace", NAME)


def origin(record: Record) -> str:
    """Where and when, on one line."""
    environment, run = record.environment, record.run
    parts = [
        environment.device.name if environment.device else None,
        f"torch {environment.torch}" if environment.torch else None,
        moment(run.started_ns) if run else None,
        f"commit {environment.git.commit[:10]}{' (dirty)' if environment.git.dirty else ''}"
        if environment.git and environment.git.commit
        else None,
    ]
    return " · ".join(plain(part, NAME) for part in parts if part)


# ---- times -----------------------------------------------------------------------------------------------------------


def time_bars(record: Record) -> list[Bar]:
    """T, B and R, and what each could win, unless the figures carry no verdict.

    On the CPU the operators' working time stands in for B.
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
    rows += [(below[0], below[1], b, below[2]), ("R", "roofline: the least this device could need", r, "")]
    known = [row for row in rows if row[2]]
    longest = max((us or 0.0 for _, _, us, _ in known), default=0.0)
    bars = []
    for i, (key, label, us, what) in enumerate(known):
        assert us is not None
        lower = min((known[i + 1][2] or us), us) if i + 1 < len(known) else us
        if key == "B" and lower < us:
            headroom = record.verdict.figure("kernel_headroom") or us / lower
            lower = min(max(lower, us / headroom), us)  # copies and collectives stay
        text = f"{what}: at most {factor(us / lower)} faster" if lower < us else ""
        if not text and i + 1 < len(known):
            text = f"{what}: nothing to win"
        if record.verdict.regime == "inconclusive":
            text = ""
        solid = 100 * lower / longest
        bars.append(Bar(key=key, label=label, us=us, solid=solid, rest=100 * us / longest - solid, text=text))
    return bars


def times_remarks(record: Record) -> list[str]:
    """What else is known of the step's time."""
    timing, out = record.timing, []
    if timing is not None:
        other = timing.other
        if other is not None:
            how = "back to back" if other.noun == "block" else "step by step, synchronised after each"
            out.append(f"Timed {how}, a step takes {duration(other.us)}.")
        if timing.first_step_time_us is not None:
            out.append(f"The very first step took {duration(timing.first_step_time_us)} (compilation, initialisation).")
        profiled = record.times.step_time_profiled_us
        if profiled and record.step_time_us:
            ratio = factor(profiled / record.step_time_us)
            out.append(f"Inside the profiler a step takes {duration(profiled)}, {ratio} of T: the timeline shows that.")
    rates = record.rates
    if rates is not None and rates.tflops:
        said = [scaled(rates.tflops * 1e12, "FLOP/s") + (f" ({percent(rates.mfu)} of attainable)" if rates.mfu else "")]
        if rates.gbytes_per_s:
            share = f" ({percent(rates.mbu)} of attainable)" if rates.mbu else ""
            said.append(f"{scaled(rates.gbytes_per_s * 1e9, 'B/s')} of least traffic{share}")
        out.append(f"Over T the step attains {' and '.join(said)}.")
    return out


# ---- schedule --------------------------------------------------------------------------------------------------------


def schedule(record: Record) -> list[Span]:
    """What the steps were run for, in their order; empty where that is not known."""
    spans = _timed(record)
    plan, numbers = record.run.schedule if record.run else {}, [s.step for s in record.per_step]
    if not plan:  # somebody's trace
        return [*spans, _recorded(numbers)] if numbers else []
    skipped, wait, warmup, active = (plan.get(k, 0) for k in ("skip_first", "wait", "warmup", "active"))
    if skipped:
        spans.append(Span(kind="skipped", label=counted(skipped, "step"), detail="skipped"))
    cycles = max(record.window.cycles, 1)
    shown = min(cycles, 4)
    for cycle in range(shown):
        if wait:
            spans.append(Span(kind="waited", label=counted(wait, "step"), detail="waited: profiler off"))
        if warmup:
            spans.append(Span(kind="warmed", label=counted(warmup, "step"), detail="profiler on, not kept"))
        spans.append(_recorded(numbers[cycle * active : (cycle + 1) * active]))
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
    detail = f"timed without profiler: {counted(blocks, 'block')}, median T"
    return [*spans, Span(kind="timed", label=counted(steps, "step"), detail=detail)]


def _recorded(numbers: list[int]) -> Span:
    shown = ", ".join(f"#{n}" for n in numbers) if len(numbers) <= 8 else f"#{numbers[0]} to #{numbers[-1]}"
    return Span(kind="recorded", label=shown or "none", detail="recorded: what the tables count")


# ---- split and idle --------------------------------------------------------------------------------------------------


def split_parts(record: Record) -> list[Part]:
    """The window as exclusive parts."""
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


def idle_parts(record: Record) -> list[Part]:
    """Idle time of a step by cause."""
    from proftrack.verdict.evidence import CAUSE_TEXT

    causes = sorted(record.idle.by_cause_us_per_step.items(), key=lambda kv: -kv[1])
    return _parts([(f"idle-{cause}", f"{cause}: {CAUSE_TEXT.get(cause, '')}", us) for cause, us in causes])


def _parts(rows: list[tuple[str, str, float]]) -> list[Part]:
    whole = sum(us for _, _, us in rows)
    out, start = [], 0.0
    for key, label, us in rows:
        if us > 0:
            out.append(Part(key=key, label=label, us=us, start=start, share=100 * us / whole))
            start += 100 * us / whole
    return out
