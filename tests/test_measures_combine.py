"""Several cycles of one run: sums, and means weighted by steps."""

from __future__ import annotations

import pytest
from traces import TraceBuilder, clean, flags

from proftrack.measures import Measures, combine
from proftrack.measures.combine import combine as combine_directly


def three_steps() -> TraceBuilder:
    """Three steps of 100 us, 30 us of GPU work each, one kernel overlapping another on its stream."""
    trace = TraceBuilder()
    for i in range(3):
        trace.step(5 + i, at=i * 100, dur=100).region("forward", at=i * 100, dur=50)
        trace.work(i + 1, launch=i * 100 + 1, at=i * 100 + 5, dur=30, name="other")
    return trace.work(9, launch=20, at=30, dur=5)


def test_one_cycle_is_returned_as_it_is() -> None:
    measures = clean().measures()
    assert combine([measures]) is measures
    assert combine is combine_directly


def test_two_cycles_add_up() -> None:
    a, b = clean().measures(), three_steps().measures()
    both = combine([a, b])
    assert both.window.steps == 5
    assert both.window.cycles == 2
    assert both.window.step_names == [f"ProfilerStep#{n}" for n in (2, 3, 5, 6, 7)]
    assert both.window.duration_us == 500
    assert both.window.device_duration_us == 200 + 300
    assert both.totals.self_cuda_time_total_us == 80 + 95
    assert both.totals.gpu_busy_us == 80 + 90
    assert both.totals.gpu_idle_us == 500 - 170
    assert both.totals.gpu_busy_fraction_profiled == 0.34
    assert both.totals.gpu_events == 6
    assert both.totals.launches == 6
    assert both.gpu_busy_per_step_us == 170 / 5
    assert both.step_time_profiled_us == 500 / 5
    assert [s.step for s in both.per_step] == [2, 3, 5, 6, 7]
    assert flags(both) == {"overlapping_on_stream": 1}


def test_tables_merge_by_name() -> None:
    both = combine([clean().measures(), three_steps().measures()])
    gemm = next(k for k in both.kernels if k.name == "gemm")
    assert (gemm.calls, gemm.total_us, gemm.min_us, gemm.max_us) == (3, 85, 5, 40)
    assert gemm.mean_us == pytest.approx(85 / 3, abs=1e-3)
    assert gemm.share == pytest.approx(85 / 175, abs=1e-5)
    assert [k.name for k in both.kernels] == ["other", "gemm"]  # 90 and 85: the largest first
    forward = next(r for r in both.regions if r.name == "forward")
    assert (forward.calls, forward.cpu_time_us, forward.launches, forward.gpu_busy_us) == (5, 330, 6, 170)
    assert sum(o.self_cpu_time_us for o in both.ops) == both.totals.self_cpu_time_total_us
    launches = next(o for o in both.ops if o.name == "cudaLaunchKernel")
    assert launches.calls == 6


def test_tables_keep_their_order() -> None:
    both = combine([clean().measures(), three_steps().measures()])
    assert [o.name for o in both.ops] == [
        o.name for o in sorted(both.ops, key=lambda o: (-o.self_cuda_time_us, -o.self_cpu_time_us, o.name))
    ]
    assert [r.name for r in both.regions] == [r.name for r in sorted(both.regions, key=lambda r: -r.cpu_time_us)]
    assert [
        f.code for f in combine([three_steps().measures(), TraceBuilder().op("a", at=0, dur=1).measures()]).flags
    ] == [
        "no_steps",
        "overlapping_on_stream",
    ]


def test_idle_causes_are_weighted_by_steps() -> None:
    # clean: 15 + 60 + 45 us; three steps: gaps of 5, 70 and 70 us, and 65 after the last kernel
    both = combine([clean().measures(), three_steps().measures()])
    assert both.idle.by_cause_us_per_step == {"dispatch": pytest.approx((120 + 210) / 5, abs=0.01)}
    assert [g.duration_us for g in both.idle.largest] == [70, 70, 65, 60, 45, 15, 5]


def test_split_and_limits_add() -> None:
    both = combine([clean().measures(), three_steps().measures()])
    assert both.split is not None
    assert (both.split.compute_us, both.split.idle_us) == (170, 330)
    assert sum(both.busy_by_limit_us.values()) == pytest.approx(170)


def test_a_cycle_without_gpu_work_does_not_make_the_others_nothing() -> None:
    both = combine([clean().measures(), TraceBuilder().step(9, at=0, dur=100).op("a", at=0, dur=5).measures()])
    assert both.totals.self_cuda_time_total_us == 80
    assert both.window.steps == 3
    assert both.totals.self_cpu_time_total_us == 300


def test_queues_and_delays() -> None:
    both = combine([clean().measures(), three_steps().measures()])
    assert both.launch is not None
    assert both.launch.queue_depth_max == 1
    assert both.launch.launch_call_mean_us == 1


def test_time_outside_of_operators_adds_up() -> None:
    def cycle(us: float) -> Measures:
        trace = TraceBuilder().step(0, at=0, dur=100).op("aten::mm", at=0, dur=5).work(1, launch=1, at=5, dur=us)
        trace.launch(at=10, correlation=2).kernel("poly", at=30, dur=us, correlation=2)
        trace.launch(name="cudaGraphLaunch", at=20, correlation=3).kernel("replayed", at=60, dur=us, correlation=3)
        return trace.measures()

    both = combine([cycle(10), cycle(20)])
    assert (both.whole_us, both.launched_us, both.replayed_us) == ({"aten::mm": 30}, {"poly": 30}, 30)
