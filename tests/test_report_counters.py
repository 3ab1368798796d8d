"""Hardware counters and energy where people see them: terminal, Markdown, MLflow's note, report.html."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from run_folders import COUNTERS, make_record

from proftrack import record as records
from proftrack.record import Record
from proftrack.record.counters import Counters
from proftrack.report import figures, html, markdown, terminal
from proftrack.report.charts import Box, Line, Words
from proftrack.report.pages import counters, full, run
from proftrack.report.pages.note import note
from proftrack.report.pages.times import remarks
from proftrack.report.svg import Drawing

USE = "While the GPU is busy: DRAM 50.0 %, FP32 25.0 %, tensor cores 20.0 % of reachable; integer 5.0 % of peak."
ENERGY = "Energy: 30.0 mJ per step, 60.0 uJ per token, 300 W."


def with_counters(busy_us: float = 40, **changes: Any) -> Record:
    """Steps of 100 us, of which the GPU is busy for `busy_us`."""
    record = make_record(counters=msgspec.structs.replace(COUNTERS, **changes))
    times = msgspec.structs.replace(record.times, gpu_busy_per_step_us=busy_us)
    return msgspec.structs.replace(record, times=times)


def section_of(record: Record) -> str:
    page = html.render(full.report(record, None))
    return page.partition('<section id="counters"')[2].partition("</section>")[0]


# ---- sentences -------------------------------------------------------------------------------------------------------


def test_a_run_and_an_analysis_say_it_in_the_terminal() -> None:
    """0.17 / 0.4 / 0.85, 0.076 / 0.4 / 0.76, 0.0728 / 0.4 / 0.91, and 0.02 / 0.4 of the integer pipes' peak."""
    for page in (run.result, run.overview):
        assert f"{USE} {ENERGY}" in " ".join(terminal.text(page(make_record())).split())


def test_it_is_one_paragraph_of_the_summary_and_of_the_note() -> None:
    assert f"\n\n{USE} {ENERGY}\n\n" in markdown.render(run.summary(make_record()))
    assert f"\n\n{USE} {ENERGY}\n\n" in note(make_record())


def test_the_most_used_unit_comes_first_whatever_it_is_a_share_of() -> None:
    """EmbeddingBag: integer 82 % of peak; DRAM 0.23 / 0.85 is 27.1 % of reachable. The GPU is always busy."""
    record = with_counters(100, shares={"dram": 0.23, "tensor": 0.0, "fp32": 0.02, "integer": 0.82})
    assert counters.sentences(record)[0] == ("While the GPU is busy: integer 82.0 % of peak; DRAM 27.1 % of reachable.")


def test_a_gpu_is_not_busy_for_longer_than_the_step() -> None:
    """B = 125 of T = 100 us by two clocks: a unit's use while the GPU is busy is not under what was counted."""
    record = with_counters(125, shares={"dram": 0.68, "tensor": 0.0})
    assert record.counted_busy_fraction == 1.0
    assert counters.sentences(record)[0] == "While the GPU is busy: DRAM 80.0 % of reachable."
    (dram, *_) = counters._table(record).rows
    assert [cell.text for cell in dram] == ["DRAM", "68.0 %", "68.0 %", "85.0 %", "80.0 %"]


def test_units_that_hardly_work_are_not_named() -> None:
    record = with_counters(100, shares={"sm_active": 0.9, "dram": 0.02, "tensor": 0.01})
    assert counters.sentences(record)[0] == "While the GPU is busy, neither DRAM nor a pipe reaches 3 %."


def test_energy_alone_and_use_alone() -> None:
    assert counters.sentences(with_counters(source="nvml", shares={}, reachable={})) == [ENERGY]
    assert counters.sentences(with_counters(energy_joules_per_step=None, power_watts=None)) == [USE]
    assert counters.sentences(with_counters(power_watts=None))[1] == ("Energy: 30.0 mJ per step, 60.0 uJ per token.")


def test_tokens_per_second_where_the_workload_says_how_many() -> None:
    record = make_record()
    assert re.search(r"^ +tokens per second +5.00 M$", terminal.text(run.result(record)), re.M)
    assert "That is 5,000,000 tokens per second." in remarks(record)
    unsaid = msgspec.structs.replace(record, run=msgspec.structs.replace(record.run, tokens_per_step=None))
    assert "token" not in terminal.text(run.result(unsaid))


def test_waits_for_data_stand_beside_the_step_time_only_if_there_are_any() -> None:
    record = make_record()
    assert record.timing is not None
    assert "Of a timed step, 12.0 us is waiting for data." in remarks(record)
    for wait in (0.0, None):
        timing = msgspec.structs.replace(record.timing, input_wait_us=wait)
        assert not any("waiting for data" in text for text in remarks(msgspec.structs.replace(record, timing=timing)))


def test_without_counters_nothing_is_said() -> None:
    record = make_record(counters=None)
    assert counters.sentences(record) == []
    assert figures.counters_chart(record) is None
    assert section_of(record) == ""
    assert "Energy" not in terminal.text(run.result(record))


# ---- the report ------------------------------------------------------------------------------------------------------


def test_a_bar_for_each_unit_with_a_line_at_what_is_reachable() -> None:
    chart = figures.counters_chart(make_record())
    assert chart is not None
    assert [tick.label for tick in chart.y.ticks] == [
        "SM active",
        "occupancy",
        "DRAM",
        "FP32",
        "tensor cores",
        "integer",
        "FP64",
        "FP16",
    ]
    bars = [(mark.style, round(mark.left, 1), round(mark.right, 1)) for mark in chart.marks if isinstance(mark, Box)]
    assert bars[:6] == [
        ("counted", 0, 38.0),
        ("while-busy", 38.0, 95.0),
        ("counted", 0, 15.0),
        ("while-busy", 15.0, 37.5),
        ("counted", 0, 17.0),
        ("while-busy", 17.0, 42.5),
    ]
    lines = [mark.points[0][0] for mark in chart.marks if isinstance(mark, Line)]
    assert lines == pytest.approx([85.0, 76.0, 91.0])
    words = [(mark.text, mark.x) for mark in chart.marks if isinstance(mark, Words)]
    assert words[0] == ("50.0 % of reachable", pytest.approx(85.0))


def test_a_gpu_that_is_always_busy_has_no_pale_bars() -> None:
    chart = figures.counters_chart(with_counters(100))
    assert chart is not None
    assert {mark.style for mark in chart.marks if isinstance(mark, Box)} == {"counted"}
    assert [key.style for key in chart.key] == ["counted", "reachable"]


def test_the_names_of_units_have_room() -> None:
    chart = figures.counters_chart(make_record())
    assert chart is not None
    assert Drawing(chart).left >= 10 + 12 * 6  # `tensor cores`, at 6 units a character


def test_the_section_has_text_for_who_does_not_see_the_chart() -> None:
    section = section_of(make_record())
    label = re.search(r'role="img" aria-label="([^"]+)"', section)
    assert label is not None
    assert "DRAM 17.0 % (85.0 % reachable)" in label[1]
    rows = re.findall(r"<tr>(.*?)</tr>", section, re.S)
    cells = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in rows]
    assert ["DRAM", "17.0 %", "42.5 %", "85.0 %", "50.0 %"] in cells
    assert ["HMMA (floats of 16 bits and fewer)", "7.3 %", "18.2 %", "-", "-"] in cells
    assert ["integer", "2.0 %", "5.0 %", "-", "-"] in cells
    assert "<dd>30.0 mJ</dd>" in section
    assert "<dd>2.00 GB/s from the GPU, 1.00 GB/s to it</dd>" in section
    assert "NVLink" not in section  # no traffic
    assert "500 ms of steps back to back" in section


def test_a_section_of_energy_alone_has_no_chart() -> None:
    section = section_of(with_counters(source="nvml", shares={}, reachable={}, link_bytes_per_s={}))
    assert "<svg" not in section
    assert "<dd>300 W</dd>" in section


def test_a_gpu_whose_work_was_not_recorded_has_only_what_was_counted() -> None:
    record = make_record()
    times = msgspec.structs.replace(record.times, gpu_busy_per_step_us=None)
    record = msgspec.structs.replace(record, times=times)
    chart = figures.counters_chart(record)
    assert chart is not None
    assert [mark for mark in chart.marks if isinstance(mark, Words)] == []
    assert counters.sentences(record) == [ENERGY]
    assert "<td" in section_of(record)


# ---- the record ------------------------------------------------------------------------------------------------------


def test_json_carries_the_counters(tmp_path: Any) -> None:
    records.save(make_record(), tmp_path / "record.json")
    assert records.load(tmp_path / "record.json").counters == COUNTERS
    assert msgspec.json.decode((tmp_path / "record.json").read_bytes())["counters"]["shares"]["dram"] == 0.17


@pytest.mark.parametrize(
    ("shares", "reachable", "busy", "use"),
    [
        ({"dram": 0.85}, {"dram": 0.85}, 1.0, 1.0),
        ({"dram": 0.34}, {"dram": 0.85}, 0.5, 0.8),
        ({"dram": 0.34}, {"dram": 0.85}, 1.4, 0.4),  # B above T: the GPU was busy all the time
        ({"dram": 0.9}, {"dram": 0.85}, 0.9, 1.0),
        ({"dram": 0.34}, {}, 0.5, 0.68),
        ({}, {"dram": 0.85}, 0.5, None),
    ],
)
def test_use_of_a_unit(shares: Any, reachable: Any, busy: float, use: float | None) -> None:
    found = Counters(source="gpm", window_s=1, shares=shares, reachable=reachable).utilization("dram", busy)
    assert found == (None if use is None else pytest.approx(use))
