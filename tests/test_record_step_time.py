"""One step time: what timing.mode chooses is T wherever a step time is shown or compared."""

from __future__ import annotations

import msgspec
import pytest
from run_folders import make_record

from proftrack.compare.comparison import compare
from proftrack.compare.subjects import Subject
from proftrack.frontends.batch.result import fill
from proftrack.frontends.sweep.result import Point
from proftrack.record import Record
from proftrack.record.figures import CpuWork
from proftrack.record.timing import StepTime
from proftrack.report import figures
from proftrack.report.charts import Words
from proftrack.report.pages import note as description
from proftrack.report.pages import times
from proftrack.store import fields

BLOCKS, LATENCIES = [99.0, 100.0, 101.0], [118.0, 120.0, 122.0]


@pytest.fixture
def latency() -> Record:
    """Steps of 100 us back to back and of 120 us synchronised, which the experiment asked for."""
    record = make_record()
    timing = msgspec.structs.replace(record.timing, mode="latency", step_latencies_us=LATENCIES)
    return msgspec.structs.replace(record, timing=timing)


def test_t_is_what_the_mode_chooses_with_its_samples(latency: Record) -> None:
    assert latency.timing is not None
    assert (latency.step_time_us, latency.unprofiled_step_time_us) == (120.0, 120.0)
    assert latency.timing.chosen == StepTime(120.0, LATENCIES, "step", [])
    assert latency.timing.other == StepTime(100.0, BLOCKS, "block", [])
    throughput = msgspec.structs.replace(latency.timing, mode="throughput")
    assert (throughput.chosen, throughput.other) == (latency.timing.other, latency.timing.chosen)


def test_a_loop_too_short_to_time_both_has_one_step_time(latency: Record) -> None:
    for mode in ("throughput", "latency"):
        timing = msgspec.structs.replace(latency.timing, mode=mode, step_latency_us=None, step_latencies_us=[])
        assert (timing.chosen, timing.other) == (StepTime(100.0, BLOCKS, "block", []), None)


def test_without_timed_steps_t_is_what_the_verdict_took(latency: Record) -> None:
    given = msgspec.structs.replace(latency, timing=None)
    assert (given.step_time_us, given.unprofiled_step_time_us) == (100.0, 100.0)
    profiled = msgspec.structs.replace(
        given,
        verdict=msgspec.structs.replace(given.verdict, basis="profiled"),
        times=msgspec.structs.replace(given.times, step_time_us=180.0),
    )
    assert (profiled.step_time_us, profiled.unprofiled_step_time_us) == (180.0, None)


def test_every_reader_shows_the_same_t(latency: Record) -> None:
    bars = {bar.key: bar.value for bar in times.bars(latency)}
    chart = figures.steps_chart(latency)
    assert bars["T"] == "120 us"
    assert chart is not None and "T 120 us" in [mark.text for mark in chart.marks if isinstance(mark, Words)]
    assert "| step time T | 120 us |" in description.note(latency)
    side = Subject(record=latency, label="a")
    found = compare(side, side)
    assert (found.step_time.before_us, found.baseline.step_time_us) == (120.0, 120.0)
    point = Point(key="", label="", values={})
    fill(point, latency)
    assert point.step_time_us == 120.0


def test_the_metrics_are_what_was_measured(latency: Record) -> None:
    metrics = {point.key: point.value for point in fields.metrics(latency)}
    assert (metrics["step_time_us"], metrics["step_latency_us"]) == (100.0, 120.0)


def test_work_stands_in_for_busy_time_on_a_cpu_only(latency: Record) -> None:
    """Three steps with 150 us of work, or with more than fits into 120 us each; a GPU that launches is another case."""
    cpu = CpuWork(operators=9, operators_us=300.0, working_us={"arithmetic": 120.0, "bandwidth": 30.0})
    totals = msgspec.structs.replace(latency.totals, launches=0)
    record = msgspec.structs.replace(latency, cpu=cpu, totals=totals)
    assert record.cpu_work_us == 50.0
    more = msgspec.structs.replace(cpu, working_us={"unknown": 1200.0})
    assert msgspec.structs.replace(record, cpu=more).cpu_work_us == 120.0
    assert msgspec.structs.replace(record, totals=latency.totals).cpu_work_us is None
