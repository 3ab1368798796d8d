"""Steps, own and leaked work, and the two windows; values by hand, microseconds."""

from __future__ import annotations

import pytest
from traces import BACKWARD, TraceBuilder, clean, flags

from proftrack.verdict.judge import judge


def test_a_clean_trace_has_these_figures_and_no_flag() -> None:
    measures = clean().measures()
    assert flags(measures) == {}
    assert measures.window.steps == 2
    assert measures.window.step_names == ["ProfilerStep#2", "ProfilerStep#3"]
    assert measures.window.duration_us == 200
    assert measures.window.device_duration_us == 200  # to the last step's end
    assert measures.totals.gpu_busy_us == 80
    assert measures.totals.gpu_idle_us == 120
    assert measures.totals.gpu_busy_fraction_profiled == 0.4
    assert measures.gpu_busy_per_step_us == 40
    assert measures.step_time_profiled_us == 100
    first, second = measures.per_step
    assert (first.step, first.host_us, first.self_cuda_time_us) == (2, 100, 40)
    assert (second.gpu_events, second.kernels, second.launches) == (1, 1, 1)
    assert (first.self_cpu_time_us, second.self_cpu_time_us) == (100, 100)


def test_work_belongs_to_the_step_that_launched_it_whenever_it_runs() -> None:
    # host |--#0 L L--|--#1 L--|
    # GPU            |=====a=====||==b==||==c==|     all behind the host's steps
    trace = TraceBuilder().step(0, at=0, dur=10).step(1, at=10, dur=10)
    trace.work(1, launch=2, at=15, dur=100, name="a").work(2, launch=5, at=120, dur=50, name="b")
    trace.work(3, launch=12, at=180, dur=30, name="c")
    measures = trace.measures()
    assert [s.self_cuda_time_us for s in measures.per_step] == [150, 30]
    assert [s.launches for s in measures.per_step] == [2, 1]
    assert measures.window.duration_us == 210
    assert measures.window.device_duration_us == 210
    assert measures.totals.gpu_busy_us == 180


def test_the_step_holds_its_first_instant_and_not_its_last() -> None:
    trace = TraceBuilder().step(0, at=0, dur=10).step(1, at=10, dur=10)
    trace.work(1, launch=0, at=2, dur=1).work(2, launch=10, at=12, dur=1).work(3, launch=20, at=22, dur=1)
    measures = trace.measures()
    assert [s.gpu_events for s in measures.per_step] == [1, 1]
    assert measures.window.duration_us == 20


def test_leaked_work_counts_in_totals_only() -> None:
    # host           |--#5 L--|--#6 L--|
    # GPU  ===leaked=====|==5==||==6==|         leaked: 0 .. 120, no launch row
    trace = TraceBuilder().step(5, at=100, dur=50).step(6, at=150, dur=50).kernel("old", at=0, dur=120)
    trace.work(1, launch=110, at=120, dur=30).work(2, launch=160, at=160, dur=30)
    measures = trace.measures()
    assert flags(measures)["work_before_window"] == 1
    assert measures.totals.self_cuda_time_total_us == 180
    assert [s.self_cuda_time_us for s in measures.per_step] == [30, 30]
    assert measures.window.duration_us == 100
    assert measures.window.device_duration_us == 80  # from the end of leaked work, 120, to 200
    assert measures.gpu_busy_per_step_us == 30
    assert measures.totals.gpu_busy_us == 80  # 20 of the leaked work lie in the window


def test_work_launched_before_the_steps_is_leaked_too() -> None:
    trace = TraceBuilder().work(9, launch=0, at=5, dur=110).step(0, at=100, dur=50)
    trace.work(1, launch=110, at=116, dur=10)
    measures = trace.measures()
    assert flags(measures)["work_before_window"] == 1
    assert measures.window.device_duration_us == 150 - 115


def test_leaked_work_on_a_stream_of_its_own() -> None:
    trace = TraceBuilder().step(0, at=100, dur=50).kernel("old", at=50, dur=70, stream=20)
    trace.work(1, launch=110, at=111, dur=30)
    measures = trace.measures()
    assert flags(measures)["work_before_window"] == 1
    assert measures.window.device_duration_us == 150 - 111  # it does not keep the own work waiting
    assert measures.gpu_busy_per_step_us == 30


def test_a_queue_that_was_not_recorded_is_seen_by_the_delay_of_the_first_work() -> None:
    # The launch call ends at 111; the work starts at 132, 21 us later: something ran before it.
    trace = TraceBuilder().step(0, at=100, dur=50).work(1, launch=110, at=132, dur=30)
    measures = trace.measures()
    assert flags(measures)["work_before_window"] == 1
    assert measures.window.device_duration_us == 30
    assert measures.window.duration_us == 62
    trace = TraceBuilder().step(0, at=100, dur=50).work(1, launch=110, at=131, dur=30)
    measures = trace.measures()
    assert "work_before_window" not in flags(measures)
    assert measures.window.device_duration_us == 61


def test_work_launched_behind_the_steps_is_no_steps_and_extends_nothing() -> None:
    trace = clean().work(9, launch=250, at=260, dur=40)
    measures = trace.measures()
    assert measures.window.duration_us == 200
    assert sum(s.gpu_events for s in measures.per_step) == 2
    assert measures.totals.self_cuda_time_total_us == 120


def test_leaked_work_that_outlives_all_own_work_takes_nothing_from_it() -> None:
    trace = TraceBuilder().step(0, at=100, dur=50).kernel("old", at=50, dur=500, stream=20)
    trace.work(1, launch=110, at=111, dur=30)
    measures = trace.measures()
    assert measures.window.device_duration_us == 150 - 111
    assert measures.gpu_busy_per_step_us == 39  # the copy of the earlier step runs to the end


def test_a_late_first_launch_is_no_queue() -> None:
    """The kernel starts 30 us after its launch call, which ends 10 ms into the step: the GPU idled until then."""
    trace = TraceBuilder().step(0, at=0, dur=10_100).work(1, launch=10_000, at=10_031, dur=1000)
    measures = trace.measures()
    assert "work_before_window" not in flags(measures)
    assert (measures.window.device_duration_us, measures.unseen_queue_us) == (11_031, 0)
    queued = TraceBuilder().step(0, at=0, dur=100).work(1, launch=10, at=60, dur=30).measures()
    assert (queued.window.device_duration_us, queued.unseen_queue_us) == (40, 60)


def test_without_steps_the_window_spans_operators_and_gpu_work() -> None:
    trace = TraceBuilder().region("setup", at=0, dur=5).op("a", at=10, dur=50).work(1, launch=20, at=30, dur=100)
    measures = trace.measures()
    assert flags(measures)["no_steps"] == 1
    assert measures.window.steps == 0
    assert measures.window.duration_us == 120  # 10 .. 130
    assert measures.window.device_duration_us == 120
    assert measures.gpu_busy_per_step_us == 100
    assert measures.per_step == []


def test_gpu_work_alone() -> None:
    measures = TraceBuilder().kernel("a", at=10, dur=5).kernel("b", at=20, dur=5).measures()
    assert measures.window.duration_us == 15
    assert measures.totals.gpu_busy_us == 10
    assert measures.totals.gpu_events_without_launch == 2


def test_runtime_calls_alone() -> None:
    measures = TraceBuilder().sync(at=10, dur=5).measures()
    assert measures.window.duration_us == 5
    assert measures.totals.self_cuda_time_total_us is None
    assert measures.totals.gpu_busy_us is None


def test_one_event_and_none() -> None:
    measures = TraceBuilder().op("a", at=3, dur=0).measures()
    assert measures.window.duration_us == 0
    assert measures.totals.self_cpu_time_total_us == 0
    empty = TraceBuilder().event(ph="M", name="process_name", pid=1).table()
    assert len(empty) == 0
    one = TraceBuilder().kernel("k", at=5, dur=0).measures()
    assert one.totals.gpu_busy_us is None
    assert one.totals.gpu_busy_fraction_profiled is None


@pytest.mark.parametrize(
    ("trace", "window_us"),
    [
        # All at one instant: the window has no length.
        (TraceBuilder().op("aten::mm", at=0, dur=0).kernel(at=0, dur=0, correlation=1), 0),
        # The step has a length, but its work has none, or (by clocks that differ) ended before it began.
        (TraceBuilder().step(0, at=9, dur=5).launch(at=9, correlation=1).kernel(at=9, dur=0, correlation=1), 5),
        (TraceBuilder().step(0, at=9, dur=5).launch(at=9, correlation=1).kernel(at=6, dur=2, correlation=1), 5),
        # The same 4 us and 40 us behind the launch: an unseen queue may have been before the second.
        (TraceBuilder().step(0, at=9, dur=50).launch(at=9, correlation=1).kernel(at=14, dur=0, correlation=1), 50),
        (TraceBuilder().step(0, at=9, dur=60).launch(at=9, correlation=1).kernel(at=50, dur=0, correlation=1), 60),
    ],
)
def test_where_no_work_can_be_placed_the_gpu_is_neither_busy_nor_idle(trace: TraceBuilder, window_us: float) -> None:
    got = trace.measures()
    assert got.window.duration_us == window_us
    assert (got.totals.gpu_busy_us, got.totals.gpu_idle_us, got.totals.gpu_busy_fraction_profiled) == (None, None, None)
    assert (got.split, got.busy_us, got.idle.by_cause_us_per_step) == (None, None, {})
    found = judge(got).verdict
    assert (found.regime, found.confidence) == ("inconclusive", "low")
    assert found.summary == "Inconclusive: no GPU work belongs to the steps."


def test_rows_with_times_that_cannot_be_are_counted_but_in_no_interval() -> None:
    # As in kineto#109: a kernel at ts 0 would make the window last decades.
    trace = TraceBuilder().step(7, at=5e9, dur=1000)
    trace.launch(at=5e9 + 50, correlation=1).kernel("zero ts", at=0, dur=60, correlation=1)
    trace.work(2, launch=5e9 + 70, at=5e9 + 100, dur=200)
    trace.work(3, launch=5e9 + 90, at=5e9 + 400, dur=0)
    measures = trace.measures()
    assert flags(measures)["invalid_timestamps"] == 1
    assert measures.totals.gpu_events == 3
    assert measures.totals.self_cuda_time_total_us == 260
    assert measures.totals.gpu_busy_us == 200
    assert measures.window.duration_us == 1000


@pytest.mark.parametrize("duration", [-5, -1e15, 1.8e16, 9e18, 1e300])
def test_durations_that_cannot_be_do_not_swell_the_totals(duration: float) -> None:
    trace = clean().work(9, launch=50, at=60, dur=duration)
    measures = trace.measures()
    assert flags(measures)["invalid_timestamps"] == 1
    assert measures.totals.gpu_events == 3
    assert measures.totals.self_cuda_time_total_us == 80
    assert measures.totals.gpu_busy_us == 80


def test_a_recording_of_hours_is_whole() -> None:
    trace, hour = TraceBuilder(), 3.6e9
    for i in range(12):
        trace.step(i, at=i * 0.9 * hour, dur=0.8 * hour).work(
            i + 1, launch=i * 0.9 * hour + 5, at=i * 0.9 * hour + 9, dur=hour / 2
        )
    measures = trace.measures()
    assert "invalid_timestamps" not in flags(measures)
    assert measures.totals.gpu_busy_us == 6 * hour


def test_steps_of_old_traces_are_among_the_operators() -> None:
    trace = TraceBuilder().row("Operator", "ProfilerStep#4", 0, 100).row("Operator", "aten::mm", 5, 10)
    trace.row("Runtime", "cudaLaunchKernel", 6, 2, correlation=3)
    trace.row("Kernel", "gemm", 20, 30, pid=0, thread="stream 7", correlation=3)
    trace.row("Memcpy", "Memcpy HtoD", 60, 10, pid=0, thread="stream 7", correlation=4)
    trace.row("Memset", "Memset", 75, 5, pid=0, thread="stream 7", correlation=5)
    measures = trace.measures()
    assert measures.window.step_names == ["ProfilerStep#4"]
    assert measures.totals.self_cuda_time_total_us == 45
    assert measures.totals.kernels == 1
    assert measures.per_step[0].self_cuda_time_us == 30
    assert measures.totals.self_cpu_time_total_us == 100


@pytest.mark.parametrize(
    ("category", "name"),
    [
        ("gpu_user_annotation", "ProfilerStep#4"),
        ("user_annotation", "my ProfilerStep#4"),
        ("python_function", "ProfilerStep#4"),
        ("user_annotation", "ProfilerStep"),
        ("user_annotation", "ProfilerStep#" + "9" * 5000),
        ("user_annotation", "ProfilerStep#9999999999999999999999"),
    ],
)
def test_what_is_no_step(category: str, name: str) -> None:
    assert TraceBuilder().row(category, name, 0, 100).op("a", at=0, dur=1).measures().window.steps == 0


def test_what_is_no_gpu_work() -> None:
    trace = clean().gpu("gpu_user_annotation", "forward", 15, 500).gpu("cuda_sync", "Stream Sync", 15, 500)
    trace.gpu("Trace", "PyTorch Profiler (0)", 0, 1000).row("overhead", "Activity Buffer Request", 10, 20)
    measures = trace.measures()
    assert measures.totals.gpu_events == 2
    assert measures.totals.self_cuda_time_total_us == 80
    assert measures.totals.self_cpu_time_total_us == 200
    assert [k.name for k in measures.kernels] == ["gemm"]


def test_backward_on_another_thread_belongs_to_the_step() -> None:
    trace = TraceBuilder().step(0, at=0, dur=100)
    trace.op("MmBackward0", at=10, dur=30, thread=BACKWARD).launch(at=12, correlation=1, thread=BACKWARD)
    trace.kernel("gemm", at=20, dur=40, correlation=1)
    measures = trace.measures()
    assert measures.per_step[0].self_cuda_time_us == 40
    assert measures.per_step[0].launches == 1
    assert measures.totals.self_cpu_time_total_us == 130  # threads add up past the step's 100


def test_several_devices() -> None:
    # device 0   ====60====                    busiest: figures are its own
    # device 1        ===40===      ==20==     its own work ends last: the window holds it
    trace = TraceBuilder(devices=2).step(0, at=0, dur=100)
    trace.work(1, launch=5, at=10, dur=60).work(2, launch=20, at=30, dur=40, device=1)
    trace.work(3, launch=60, at=100, dur=15, device=1)
    measures = trace.measures()
    assert measures.window.duration_us == 115
    assert measures.window.device_duration_us == 100  # of device 0: to the step's end, later than its own work
    assert measures.totals.gpu_busy_us == 60
    assert measures.totals.gpu_idle_us == 55
    assert measures.totals.self_cuda_time_total_us == 115
    assert [(d.device, d.name, d.gpu_busy_us, d.gpu_events) for d in measures.devices] == [
        (0, "Test GPU 0", 60, 1),
        (1, "Test GPU 1", 55, 2),
    ]
    assert measures.per_step[0].self_cuda_time_us == 115


def test_two_devices_that_take_turns_are_each_half_idle() -> None:
    trace = TraceBuilder(devices=2).step(0, at=0, dur=100)
    for i in range(10):
        trace.work(i + 1, launch=i * 10, at=i * 10, dur=10, device=i % 2)
    measures = trace.measures()
    assert measures.totals.gpu_busy_us == 50
    assert measures.totals.gpu_busy_fraction_profiled == 0.5
    assert [d.gpu_busy_us for d in measures.devices] == [50, 50]


def test_streams_of_one_device_overlap_and_sum_past_busy_time() -> None:
    # stream 7   ====60====
    # stream 20     ====60====       union 80
    trace = TraceBuilder().step(0, at=0, dur=100)
    trace.work(1, launch=5, at=10, dur=60).work(2, launch=6, at=30, dur=60, stream=20)
    measures = trace.measures()
    assert measures.totals.self_cuda_time_total_us == 120
    assert measures.totals.gpu_busy_us == 80
    assert "overlapping_on_stream" not in flags(measures)
    assert measures.devices[0].streams == 2
    assert measures.gpu_busy_per_step_us == 80


def test_equal_stream_numbers_on_two_devices_are_two_streams() -> None:
    trace = TraceBuilder(devices=2).step(0, at=0, dur=100)
    trace.work(1, launch=5, at=10, dur=60).work(2, launch=6, at=30, dur=60, device=1)
    assert "overlapping_on_stream" not in flags(trace.measures())


def test_clocks_that_differ_give_no_busy_time_at_all() -> None:
    """The GPU's clock is 5 ms early: its work of 30 us lies before the steps that launched it."""
    measures = TraceBuilder().step(0, at=10_000, dur=100).work(1, launch=10_010, at=5012, dur=30).measures()
    assert measures.totals.self_cuda_time_total_us == 30
    assert (measures.totals.gpu_busy_us, measures.totals.gpu_idle_us, measures.split) == (None, None, None)
    assert (measures.gpu_busy_per_step_us, measures.step_time_profiled_us) == (None, None)
    assert "At most 4998.0 us early." in next(f.message for f in measures.flags if f.code == "gpu_before_launch")
