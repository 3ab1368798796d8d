"""Idle time by cause: a timeline for each, in microseconds."""

from __future__ import annotations

import pytest
from traces import BACKWARD, TraceBuilder, clean

from proftrack.measures import Measures
from proftrack.measures.idle import CAUSES


def causes(measures: Measures) -> dict[str, float]:
    """Idle time of the whole trace by cause."""
    assert set(measures.idle.by_cause_us_per_step) <= set(CAUSES)
    steps = max(measures.steps, 1)
    total = {cause: us * steps for cause, us in measures.idle.by_cause_us_per_step.items()}
    assert measures.window.device_duration_us is not None
    assert measures.busy_us is not None
    idle = measures.window.device_duration_us - measures.busy_us
    assert sum(total.values()) == pytest.approx(idle, abs=0.01)
    return total


def two_kernels(gap: float) -> TraceBuilder:
    """A step with a kernel of 100 us at 10, and one of 100 us behind a gap. The second is launched 5 us before it.

    host  |-[L1]------------------------------------[L2]-----|
    GPU      |==100==|            gap                |==100==|
    """
    end = 110 + gap
    trace = TraceBuilder().step(0, at=0, dur=end + 100).work(1, launch=5, at=10, dur=100)
    return trace.launch(at=end - 6, correlation=2).kernel("gemm", at=end, dur=100, correlation=2)


def test_dispatch_the_host_was_launching_too_slowly() -> None:
    # Operators that launch fill the gap; also the 10 us before the first kernel are dispatch.
    trace = two_kernels(500).op("aten::linear", at=100, dur=520)
    assert causes(trace.measures()) == {"dispatch": 510}


def test_dispatch_short_stretches_are_the_python_between_launches() -> None:
    # 900 us in which nothing is recorded: under a millisecond.
    assert causes(two_kernels(900).measures()) == {"dispatch": 910}


def test_host_a_long_stretch_that_launches_nothing() -> None:
    # 14 ms without an operator that launches or a runtime call: numpy, sleep, tokenising.
    assert causes(two_kernels(14_000).measures()) == {"host": 14_000, "dispatch": 10}


def test_host_operators_that_launch_nothing_are_the_hosts_work_too() -> None:
    trace = two_kernels(5000)
    for i in range(49):
        trace.op("aten::sort", at=110 + i * 100, dur=100)
    assert causes(trace.measures()) == {"host": 5000, "dispatch": 10}


def test_host_a_region_is_no_launching_operator() -> None:
    trace = two_kernels(5000).region("forward", at=2, dur=5200)
    assert causes(trace.measures())["host"] == 5000


def test_dispatch_a_long_operator_that_launches_is_dispatch() -> None:
    trace = two_kernels(5000).op("CompiledFunction", at=100, dur=5100)
    assert causes(trace.measures()) == {"dispatch": 5010}


@pytest.mark.parametrize(
    "name",
    [
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "[pl][profile][_TrainingEpochLoop].train_dataloader_next",
        "next_batch",
    ],
)
def test_input_the_host_waited_for_data(name: str) -> None:
    trace = two_kernels(3000).region(name, at=200, dur=2500)
    assert causes(trace.measures()) == {"input": 3000, "dispatch": 10}


def test_synchronization_a_wait_drained_the_queue() -> None:
    # The host waits from 20 on for the kernel that ends at 110, and launches 30 us later: without the wait it would
    # have launched at 20.
    trace = two_kernels(30).sync(at=20, dur=92)
    assert causes(trace.measures()) == {"synchronization": 30, "dispatch": 10}


@pytest.mark.parametrize(
    "name", ["cudaStreamSynchronize", "cudaEventSynchronize", "hipDeviceSynchronize", "cudaMemcpy"]
)
def test_synchronization_has_several_names(name: str) -> None:
    trace = two_kernels(30).sync(at=20, dur=92, name=name)
    assert causes(trace.measures())["synchronization"] == 30


def test_synchronization_a_wait_that_began_late_explains_only_what_it_cost() -> None:
    # The wait began 10 us before the kernel ended; the gap of 500 us is the launching host's.
    trace = two_kernels(500).sync(at=100, dur=12).op("aten::linear", at=112, dur=500)
    assert causes(trace.measures()) == {"dispatch": 510}


def test_synchronization_a_wait_for_nothing_costs_nothing() -> None:
    # The queue was empty when it was called.
    trace = two_kernels(500).sync(at=300, dur=2).op("aten::linear", at=310, dur=300)
    assert causes(trace.measures()) == {"dispatch": 510}


def test_allocator_calls() -> None:
    trace = two_kernels(400).call("cudaMalloc", at=120, dur=300)
    assert causes(trace.measures()) == {"allocator": 400, "dispatch": 10}
    trace = two_kernels(400).call("cudaFree", at=120, dur=300)
    assert causes(trace.measures())["allocator"] == 400


def test_queued_the_work_was_launched_in_time() -> None:
    # Both launched at once; the device starts the second 7 us after the first.
    trace = TraceBuilder().step(0, at=0, dur=217).work(1, launch=5, at=10, dur=100).work(2, launch=7, at=117, dur=100)
    assert causes(trace.measures()) == {"queued": 7, "dispatch": 10}


def test_unknown_no_launch_was_recorded() -> None:
    trace = TraceBuilder().step(0, at=0, dur=180).work(1, launch=5, at=10, dur=100).kernel("k", at=150, dur=20)
    trace.work(2, launch=160, at=170, dur=10)
    assert causes(trace.measures()) == {"unknown": 40, "dispatch": 10}


def test_the_thread_that_launched_counts() -> None:
    # The main thread is in a long operator that launches nothing; the gap is the backward thread's own.
    trace = TraceBuilder().step(0, at=0, dur=5120).work(1, launch=5, at=10, dur=100)
    trace.op("MmBackward0", at=120, dur=5000, thread=BACKWARD)
    trace.launch(at=5100, correlation=2, thread=BACKWARD).kernel("k", at=5110, dur=10, correlation=2)
    assert causes(trace.measures()) == {"dispatch": 5010}


def test_two_causes_in_one_gap_the_larger_one_wins() -> None:
    # 5 ms: 4 ms of nothing, then 1 ms of launching operators without a launch of the busy kind.
    trace = two_kernels(5000).op("aten::linear", at=4200, dur=950)
    assert causes(trace.measures())["host"] == 5000
    trace = two_kernels(5000).op("aten::linear", at=1200, dur=3950)
    assert causes(trace.measures()) == {"dispatch": 5010}


def test_work_on_another_stream_fills_the_gap() -> None:
    trace = two_kernels(500).work(3, launch=20, at=100, dur=520, stream=20)
    assert causes(trace.measures()) == {"dispatch": 10}


def test_gaps_before_leaked_work_are_not_the_steps() -> None:
    trace = clean().kernel("old", at=-60, dur=65)
    assert causes(trace.measures()) == {"dispatch": 10 + 60 + 45}  # from 5 on


def test_the_largest_gaps_say_what_the_host_did() -> None:
    trace = two_kernels(3000).region("forward", at=1, dur=3300).region("next_batch", at=200, dur=2500)
    trace.python("train.py(7): tokenize", at=201, dur=2400)
    largest = trace.measures().idle.largest
    assert [(g.start_us, g.duration_us, g.cause) for g in largest] == [(110, 3000, "input"), (0, 10, "dispatch")]
    assert largest[0].during == "train.py(7): tokenize"


def test_ten_gaps_are_listed_the_largest_first() -> None:
    trace = TraceBuilder().step(0, at=0, dur=195.1)
    at = 0.0
    for i in range(1, 16):
        at += i
        trace.work(i, launch=at - 0.9, at=at + 0.1, dur=5)
        at += 5
    largest = trace.measures().idle.largest
    assert len(largest) == 10
    assert [g.duration_us for g in largest] == sorted((g.duration_us for g in largest), reverse=True)
    assert largest[0].duration_us == 15


def test_causes_per_step_are_means() -> None:
    assert clean().measures().idle.by_cause_us_per_step == {"dispatch": 60}  # (15 + 60 + 45) / 2
