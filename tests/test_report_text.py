"""Terminal, Markdown and figures as text: fit to be read, whatever the terminal and whatever the names."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from run_folders import make_record
from traces import TraceBuilder

from proftrack import text as units
from proftrack.analysis.pipeline import analyze_trace
from proftrack.record import Record
from proftrack.record.ceilings import StepWork
from proftrack.record.figures import Flag, Kernel, Op
from proftrack.record.verdict import Evidence, Verdict
from proftrack.report import figures, html, markdown, terminal
from proftrack.report.charts import Box, Words
from proftrack.report.pages import full, run
from proftrack.report.pages.note import note
from proftrack.report.pages.times import bars as time_bars
from proftrack.report.pages.times import remarks, schedule

DATA = Path(__file__).parent / "data"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(record: Record, monkeypatch: pytest.MonkeyPatch, columns: int | None) -> str:
    out: Any = io.StringIO() if columns is None else Terminal()
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm-256color")
    terminal.show(run.overview(record), out)
    return str(out.getvalue())


def record_of(name: str) -> Record:
    return analyze_trace(DATA / f"{name}.json.gz").record


@pytest.mark.parametrize("columns", [80, 100, 140])
@pytest.mark.parametrize("name", ["mlp_train", "tracelens_vllm_graph", "matmul_add_4096"])
def test_it_fits_the_terminal(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    record = record_of(name)
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown(record, monkeypatch, columns))
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text
    # The largest kernel's figures are whole.
    first = record.kernels[0]
    for figure in (units.percent(first.share), units.duration(first.total_us), units.duration(first.mean_us)):
        assert figure in text
    assert first.limit in text


def test_where_it_is_piped_columns_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setenv("COLUMNS", "80")
    terminal.show(run.result(record_of("mlp_train")), out)
    assert 70 < max(map(len, out.getvalue().splitlines())) <= 80


def test_numbers_stay_whole_on_the_narrowest_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(record_of("mlp_train"), monkeypatch, 40)
    kernel = record_of("mlp_train").kernels[0]
    assert units.duration(kernel.total_us) in text


def test_colour_where_it_is_wanted_only(monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_record()
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in shown(record, monkeypatch, 80)
    assert "\x1b[" not in shown(record, monkeypatch, None)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", shown(record, monkeypatch, 80))


def test_piped_text_has_no_trailing_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in shown(record_of("mlp_train"), monkeypatch, None).splitlines():
        assert line == line.rstrip()


def test_a_name_that_the_terminal_cannot_show_is_no_failure() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    record = make_record(ops=[_op("multiplizière_日本")])
    terminal.show(run.overview(record), stream)
    stream.flush()
    assert b"multiplizi\\xe8re_\\u65e5\\u672c" in raw.getvalue()


def _op(name: str) -> Op:
    return Op(
        name=name, category="cpu_op", calls=1, self_cpu_time_us=1.0, cpu_time_us=1.0, self_cuda_time_us=0.0,
        cuda_time_us=0.0,
    )  # fmt: skip


def _kernel(name: str) -> Kernel:
    return Kernel(
        name=name, kind="matmul", calls=1, total_us=1.0, mean_us=1.0, min_us=1.0, max_us=1.0, share=1.0, limit="unknown"
    )  # fmt: skip


def test_names_move_no_cursor_and_ring_no_bell(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "\x1b[2J\x1b]0;title\x07[bold red]x[/]\r\n"
    record = make_record(ops=[_op(name)], kernels=[_kernel(name)], quality=[Flag(code="x", count=1, message=name)])
    monkeypatch.setenv("NO_COLOR", "1")
    for columns in (80, None):
        text = shown(record, monkeypatch, columns)
        assert "\x1b[2J" not in text
        assert "\x1b]" not in text
        assert "\x07" not in text
        assert "[bold red]" in text


# ---- Markdown --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>",
        "a|b|c",
        "[x](http://evil.example)",
        "![x](y)",
        "`code`",
        "**b** _i_ ~~s~~",
        "# heading",
        "- item",
        "1. item",
        "a\n\n## b",
        "$x^2$",
        "@someone",
        "http://evil.example",
    ],
)
def test_markdown_shows_names_and_nothing_more(name: str) -> None:
    from html import unescape

    from markdown_it import MarkdownIt

    cell = markdown.escape(name, 200)
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    assert unescape(re.sub(r"</?p>", "", parser.render(cell))).strip() == " ".join(name.split())
    html = parser.render(f"| a | b |\n|---|---|\n| {cell} | 2 |\n")
    assert html.count("<td>") == 2
    assert not re.search(r"<(?!/?(?:table|thead|tbody|tr|th|td)\b)", html)


def test_a_report_in_markdown_says_what_the_others_say() -> None:
    record = record_of("mlp_train")
    text = markdown.render(run.summary(record))
    assert markdown.escape(record.verdict.summary, 600) in text
    assert units.duration(record.times.step_time_us) in text
    assert all(markdown.escape(line, 600) in text for line in record.verdict.advice)
    tables = [line for line in text.splitlines() if line.startswith("|---")]
    assert len(tables) >= 5


# ---- sections --------------------------------------------------------------------------------------------------------


def test_times_as_bars_and_what_could_be_won() -> None:
    """T 100, B 40, R 5: without overhead 2.5x, at the roofline another 8x."""
    bars = time_bars(make_record())
    assert [(b.key, b.value, b.solid, b.rest) for b in bars] == [
        ("T", "100 us", 40, 60),
        ("B", "40.0 us", 5, 35),
        ("R", "5.00 us", 5, 0),
    ]
    assert bars[0].text == "If everything but the GPU's work vanished: at most 2.5x faster"
    assert bars[1].text == "If every kernel reached the roofline: at most 8.0x faster"


def test_the_letters_are_explained_once_per_page(monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_record()
    legend = "T = step time, B = GPU busy time, R = roofline time (the least this device could need), u = B / T."
    pages = [
        shown(record, monkeypatch, None),
        terminal.text(run.result(record)),
        markdown.render(run.summary(record)),
        html.render(full.report(record, None)),
        note(record),
    ]
    assert [" ".join(page.split()).count(legend) for page in pages] == [1] * 5


def test_a_busy_gpu_leaves_nothing_to_win() -> None:
    times = msgspec.structs.replace(make_record().times, gpu_busy_per_step_us=101.0, roofline_time_us=None)
    bars = time_bars(make_record(times=times))
    assert [(b.key, round(b.solid, 2), round(b.rest, 2)) for b in bars] == [("T", 99.01, 0), ("B", 100, 0)]
    assert bars[0].text.endswith("nothing to gain")


def test_figures_that_carry_no_verdict_promise_no_gain() -> None:
    verdict = msgspec.structs.replace(make_record().verdict, regime="inconclusive")
    assert [bar.text for bar in time_bars(make_record(verdict=verdict))] == ["", "", ""]


def with_evidence(**figures: float) -> Verdict:
    evidence = [Evidence(name=name, value=value, unit="", text=".") for name, value in figures.items()]
    return msgspec.structs.replace(make_record().verdict, evidence=evidence)


def test_from_a_profiled_step_the_gain_is_a_bound_in_both_readings() -> None:
    """T 100, B 40: 2.5x as recorded; with u = 0.8 without the inflation 1.25x."""
    record = make_record(verdict=with_evidence(gpu_busy_fraction_without_inflation=0.8))
    assert time_bars(record)[0].text == (
        "If everything but the GPU's work vanished: at most 1.25x to 2.5x faster (a bound from a profiled step)"
    )


def test_a_roofline_that_leaves_work_out_is_a_lower_bound_and_promises_nothing() -> None:
    part = StepWork(flops_by_dtype={"bfloat16": 1e6}, bytes=1e6, source="counted", uncounted_share=0.42)
    record = make_record(verdict=with_evidence(roofline_time_us=5), work=part)
    t, b, r = time_bars(record)
    assert (t.text, b.text) == ("If everything but the GPU's work vanished: at most 2.5x faster", "")
    left_out = "without 42.0 % of the GPU's time that was not counted"
    assert r.label == f"roofline (a lower bound): the least this device could need, {left_out}"
    assert "| roofline R (a lower bound) | 5.00 us |" in note(record)
    assert any("attains at least 1.50 TFLOP/s" in text for text in remarks(record))
    assert time_bars(make_record(verdict=with_evidence(roofline_time_us=5)))[1].text == ""  # kept before the share was
    whole = make_record(verdict=with_evidence(roofline_time_us=5, kernel_headroom=8))
    assert time_bars(whole)[1].text == "If every kernel reached the roofline: at most 8.0x faster"
    assert "| roofline R | 5.00 us |" in note(whole)


def test_the_schedule_strip() -> None:
    strip = [(s.kind, s.label) for s in schedule(make_record())]
    assert strip == [
        ("first", "first step"),
        ("timed", "30 steps"),
        ("waited", "1 step"),
        ("warmed", "1 step"),
        ("recorded", "#2, #3, #4"),
    ]
    assert [s.label for s in schedule(record_of("mlp_train"))] == ["#2, #3, #4"]  # somebody's trace


def test_a_schedule_of_many_cycles_is_not_endless() -> None:
    record = make_record()
    run = msgspec.structs.replace(record.run, schedule={"wait": 1, "warmup": 1, "active": 1, "repeat": 9})
    steps = [msgspec.structs.replace(record.per_step[0], step=2 + 3 * i) for i in range(9)]
    window = msgspec.structs.replace(record.window, cycles=9, steps=9)
    strip = schedule(msgspec.structs.replace(record, run=run, per_step=steps, window=window))
    assert [s.label for s in strip if s.kind == "recorded"] == ["#2", "#5", "#8", "#11"]
    assert strip[-1].label == "5 cycles"


def test_a_record_without_events_says_so() -> None:
    page = html.render(full.report(make_record(), None))
    assert "Only the record is available" in page
    assert 'id="lanes"' not in page


# ---- what the host did, and where ------------------------------------------------------------------------------------


def test_gaps_launches_and_devices_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Device 1 is busy for 60 us and device 0 for 20; between device 1's kernels the host is in an operator."""
    trace = TraceBuilder(devices=2).step(1, at=0, dur=200).op("aten::slow", at=40, dur=80)
    trace.work(1, launch=1, at=2, dur=20).work(2, launch=3, at=4, dur=30, device=1, stream=9)
    trace.work(3, launch=121, at=124, dur=30, device=1, stream=9)
    text = shown(analyze_trace(trace.write(tmp_path / "t.json")).record, monkeypatch, 100)
    assert "Longest idle gaps (profiled):\n    90.0 us  dispatch        during aten::slow\n" in text
    assert "Launch to start: median 0 us, p95 1.80 us; queue depth at most 1." in text
    assert "2 devices (1 busy 60.0 us, 0 busy 20.0 us): B, idle time and split are those of device 1." in " ".join(
        text.split()
    )


def test_kernels_that_differ_in_their_middle_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [
        msgspec.structs.replace(make_record().kernels[0], name=f"elementwise_kernel<4, {f}, {'x' * 90}, float>")
        for f in ("Add", "Mul")
    ]
    text = shown(make_record(kernels=kernels), monkeypatch, 100)
    assert "elementwise_kernel<4, Add" in text and "elementwise_kernel<4, Mul" in text


# ---- steps that T and B leave out ------------------------------------------------------------------------------------


def test_what_is_left_out_is_said_wherever_steps_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five steps of 100 us, and a fourth one of 20 ms: 100 us are typical, and the mean is 20,500 / 6 = 3.42 ms."""
    trace, at = TraceBuilder(), 0
    for number, length in enumerate((100, 100, 100, 20_000, 100, 100)):
        trace.step(number, at=at, dur=length).work(number + 1, launch=at + 2, at=at + 10, dur=length - 20)
        at += length
    record = analyze_trace(trace.write(tmp_path / "a.json")).record
    text = shown(record, monkeypatch, 120)
    assert "Window of 20.5 ms, 6 steps (1 left out of T and B):" in text
    assert re.search(r"all steps, profiled +3.42 ms", text)
    assert "Window of 20.5 ms, 6 steps (1 left out of T and B)" in markdown.render(run.summary(record))
    assert schedule(record)[0].detail == "recorded: counted in the tables; #3 left out of T and B"
    assert remarks(record)[-1] == "Over all recorded steps, 1 outlier included, the mean in the trace is 3.42 ms."
    chart = figures.steps_chart(record)
    assert chart is not None
    assert chart.y.high == 150  # the scale of the typical steps: 125 us and over
    assert max(mark.high for mark in chart.marks if isinstance(mark, Box)) == 135
    assert "20.0 ms, left out" in [mark.text for mark in chart.marks if isinstance(mark, Words)]
