"""Recordings without steps that begin while a queue runs which they do not show; values by hand."""

from __future__ import annotations

import pytest
from traces import TraceBuilder, flags

from proftrack.verdict.judge import judge


def queued(*, busy: float, every: float, count: int = 10, wait: float = 2000) -> TraceBuilder:
    """A launch of 1 us every `every` us from 50 us on; from `wait` us behind the first launch, kernels back to back."""
    trace = TraceBuilder().op("aten::empty", at=0, dur=5)
    for i in range(count):
        at = 50 + every * i
        trace.op("aten::mm", at=at - 2, dur=4).launch(at=at, correlation=i + 1)
        trace.kernel("gemm", at=51 + wait + busy * i, dur=busy, correlation=i + 1)
    return trace.sync(at=50 + every * count, dur=5000)


def test_what_waits_behind_a_queue_is_no_idle_time() -> None:
    """51 us until the first launch returned, 2 ms behind the queue, 1 ms of kernels: T 1051 us, B 1 ms."""
    measures = queued(busy=100, every=20).measures()
    assert measures.window.duration_us == 51 + 2000 + 1000
    assert (measures.step_time_profiled_us, measures.gpu_busy_per_step_us) == (1051, 1000)
    assert measures.idle.by_cause_us_per_step == {"dispatch": 51}
    assert measures.unseen_queue_us == 0  # the host took 50 + 9 * 20 + 1 us
    assert flags(measures) == {"no_steps": 1, "work_before_window": 1}
    assert judge(measures).verdict.regime == "compute-bound"


def test_a_queue_can_hide_a_slow_host() -> None:
    """Kernels of 10 us that are launched every 100 us run back to back behind the queue: 151 us for 951 us of host."""
    measures = queued(busy=10, every=100).measures()
    assert (measures.step_time_profiled_us, measures.gpu_busy_per_step_us) == (151, 100)
    assert measures.unseen_queue_us == 951 - 151
    verdict = judge(measures).verdict
    assert verdict.regime == "inconclusive"
    assert any("a queue of earlier work may have run" in reason for reason in verdict.reasons)


@pytest.mark.parametrize(("behind", "regime"), [(90_000, "compute-bound"), (1000, "input-bound")])
def test_a_copy_that_waits_for_the_queue(behind: float, regime: str) -> None:
    """A blocking copy waits 80 ms; the 13 ms before it and the first tenth of a millisecond of it are the host's."""
    trace = TraceBuilder().op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at=0, dur=13_000)
    trace.launch(at=13_000, dur=80_000, name="cudaMemcpyAsync", correlation=1)
    trace.memcpy("Memcpy HtoD (Pageable -> Device)", at=92_900, dur=100, correlation=1)
    trace.work(2, launch=93_010, at=93_020, dur=behind)
    measures = trace.sync(at=93_020, dur=behind).measures()
    assert measures.step_time_profiled_us == 13_000 + 100 + 100 + 20 + behind
    assert measures.unseen_queue_us == 0  # of the 93 ms until the last launch, the host waited for 80
    assert measures.idle.by_cause_us_per_step == {"input": 13_100, "synchronization": 20}
    assert judge(measures).verdict.regime == regime


def test_each_stream_has_its_queue() -> None:
    """Stream 9 works at once, stream 7 waits 400 us: once, for what is behind its first work is the device's own."""
    trace = TraceBuilder().op("aten::add", at=0, dur=8).work(1, launch=1, at=4, dur=6, stream=9)
    trace.work(2, launch=9, at=410, dur=100, stream=7).work(3, launch=12, at=710, dur=100, stream=7)
    measures = trace.sync(at=20, dur=790).measures()
    assert measures.step_time_profiled_us == 810 - 400
    assert measures.idle.by_cause_us_per_step == {"dispatch": 4, "queued": 200}
    assert flags(measures)["work_before_window"] == 1
    # A step is what is between its ends.
    assert trace.step(0, at=0, dur=810).measures().idle.by_cause_us_per_step == {"dispatch": 4, "queued": 600}


@pytest.mark.parametrize(("at", "cut"), [(71, 0), (72, 21)])
def test_a_start_shortly_behind_its_launch_is_no_queue(at: float, cut: float) -> None:
    """The launch returned at 51 us; up to 20 us later is what launching costs."""
    trace = TraceBuilder().op("aten::mm", at=0, dur=55).work(1, launch=50, at=at, dur=100)
    assert trace.measures().step_time_profiled_us == at + 100 - cut
