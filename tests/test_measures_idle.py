"""Idle time by cause: a timeline for each, in microseconds."""

from __future__ import annotations

import pytest
from traces import BACKWARD, TraceBuilder, clean

from proftrack.measures import Measures
from proftrack.measures.idle import CAUSES


def causes(measures: Measures) -> dict[str, float]:
    """Idle time of the typical steps, or of a trace without steps, by cause."""
    assert set(measures.idle.by_cause_us_per_step) <= set(CAUSES)
    steps = measures.window.typical_steps
    total = {cause: us * steps for cause, us in measures.idle.by_cause_us_per_step.items()}
    assert measures.typical_us is not None
    assert measures.busy_us is not None
    idle = measures.typical_us - measures.busy_us
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


def test_allocator_a_call_that_drained_the_queue() -> None:
    # It waits from 20 on for the kernel that ends at 110; 30 us later the next one starts.
    trace = two_kernels(30).call("cudaFree", at=20, dur=92)
    assert causes(trace.measures()) == {"allocator": 30, "dispatch": 10}
    # Here it began 10 us before the kernel ended, and explains 12 of 500 us.
    assert causes(two_kernels(500).call("cudaFree", at=100, dur=12).measures()) == {"dispatch": 510}


def test_queued_the_work_was_launched_in_time() -> None:
    # Both launched at once; the device starts the second 7 us after the first.
    trace = TraceBuilder().step(0, at=0, dur=217).work(1, launch=5, at=10, dur=100).work(2, launch=7, at=117, dur=100)
    assert causes(trace.measures()) == {"queued": 7, "dispatch": 10}


def after_a_kernel(end: float) -> TraceBuilder:
    """A step that ends at `end`, with a kernel from 10 to 110 that is launched from 5 to 6."""
    return TraceBuilder().step(0, at=0, dur=end).work(1, launch=5, at=10, dur=100)


def test_a_gap_is_divided_where_its_launch_returned() -> None:
    # Launched from 200 to 201; the device starts it 7.799 ms later.
    trace = after_a_kernel(8100).launch(at=200, correlation=2).kernel(at=8000, dur=100, correlation=2)
    measures = trace.measures()
    assert causes(measures) == {"dispatch": 10 + 91, "queued": 7799}
    assert [(g.start_us, g.duration_us, g.cause) for g in measures.idle.largest] == [
        (201, 7799, "queued"),
        (110, 91, "dispatch"),
        (0, 10, "dispatch"),
    ]


def test_a_graph_that_was_launched_long_ago_without_steps() -> None:
    # The launch returns at 140; the first of three kernels starts 9.86 ms later, behind a queue that is not in the
    # trace. Between them the device takes 2 us.
    trace = TraceBuilder().op("model", at=0, dur=4000).launch(name="cudaGraphLaunch", at=100, dur=40, correlation=1)
    for i in range(3):
        trace.kernel(at=10_000 + 1002 * i, dur=1000, correlation=1)
    assert causes(trace.measures()) == {"dispatch": 140, "queued": 2 * 2}


@pytest.mark.parametrize(("start", "expected"), [(221, {"dispatch": 121}), (222, {"dispatch": 101, "queued": 21})])
def test_the_latency_of_a_late_launch_is_part_of_what_it_costs(start: float, expected: dict[str, float]) -> None:
    # The launch returns at 201. Up to 20 us later its kernel had only the launch to wait for.
    trace = after_a_kernel(start + 50).launch(at=200, correlation=2).kernel(at=start, dur=50, correlation=2)
    assert causes(trace.measures()) == expected


def test_the_hosts_part_has_the_hosts_cause() -> None:
    # 5 ms of nothing, a launch from 5200 to 5201, and 3 ms until the device starts.
    trace = after_a_kernel(8300).launch(at=5200, correlation=2).kernel(at=8201, dur=99, correlation=2)
    assert causes(trace.measures()) == {"dispatch": 10, "host": 5091, "queued": 3000}


# -- copies that wait

PAGEABLE = "Memcpy DtoH (Device -> Pageable)"


@pytest.mark.parametrize(
    ("call", "copy"),
    [
        ("cudaMemcpyAsync", PAGEABLE),
        ("hipMemcpyWithStream", "Memcpy DtoH (Device -> Host)"),
        ("hipMemcpyAsync", "CopyDeviceToHost"),
    ],
)
def test_synchronization_a_copy_that_returns_with_its_data(call: str, copy: str) -> None:
    # It waits from 20 on for the kernel that ends at 110, copies from 111 to 120, and returns at 125. The next launch
    # could have been at 20 instead of 160.
    trace = after_a_kernel(265).call(call, at=20, dur=105, correlation=2).memcpy(copy, at=111, dur=9, correlation=2)
    measures = trace.work(3, launch=160, at=165, dur=100).measures()
    assert causes(measures) == {"dispatch": 10, "queued": 1, "synchronization": 45}
    assert measures.waits_over_gpu_us == 90 + 9


def test_a_copy_that_returns_at_once_does_not_wait() -> None:
    trace = after_a_kernel(265).call("cudaMemcpyAsync", at=20, dur=5, correlation=2)
    trace.memcpy("Memcpy DtoH (Device -> Pinned)", at=110, dur=10, correlation=2)
    measures = trace.work(3, launch=160, at=165, dur=100).measures()
    assert causes(measures) == {"dispatch": 10 + 45}
    assert measures.waits_over_gpu_us == 0


def test_a_graph_launch_that_outlives_its_first_copy_does_not_wait() -> None:
    trace = after_a_kernel(265).launch(name="cudaGraphLaunch", at=20, dur=110, correlation=2)
    trace.memcpy(PAGEABLE, at=111, dur=9, correlation=2).kernel(at=165, dur=100, correlation=2)
    measures = trace.measures()
    assert causes(measures) == {"dispatch": 10 + 1 + 10, "queued": 35}  # it returns at 130
    assert measures.waits_over_gpu_us == 0


@pytest.mark.parametrize("call", ["hipMemcpyWithStream", "cudaMemcpyAsync"])
def test_queued_a_blocking_copy_waits_for_what_was_not_recorded(call: str) -> None:
    # The call lasts from 100 to 60,000, the copy takes its last 5 us. It prepares the copy for up to 100 us.
    trace = TraceBuilder().op("aten::copy_", at=0, dur=60_010).call(call, at=100, dur=59_900, correlation=1)
    trace.memcpy(PAGEABLE, at=59_995, dur=5, correlation=1).work(2, launch=60_005, at=60_010, dur=90)
    measures = trace.work(9, launch=1, at=2, dur=8).measures()  # the stream's first work waits for nothing
    # Behind the copy, 10 us: the host had been waiting for longer than that.
    assert causes(measures) == {"dispatch": 2 + 190, "queued": 59_995 - 200, "synchronization": 10}
    assert measures.idle.largest[0].during == call


def test_queued_a_wait_that_goes_on_while_the_device_does_nothing() -> None:
    # The kernel ends at 110; the host waits on until 5110, and launches 90 us later.
    trace = after_a_kernel(5300).sync(at=20, dur=5090).launch(at=5199, correlation=2)
    trace.kernel(at=5205, dur=95, correlation=2)
    assert causes(trace.measures()) == {"dispatch": 10, "queued": 5095}


# -- waits that delay nothing


def waiting(steps: bool) -> TraceBuilder:
    """Two launches and kernels of 100 us, each with a wait that ends with it; between them 30 us.

    host  |L|--wait--|   |L|--wait--|
    GPU     |====|         |====|
           10  110       140  240
    """
    trace = TraceBuilder().op("aten::mm", at=0, dur=240)
    for i, at in enumerate((0, 130)):
        if steps:
            trace.step(i, at=at, dur=130 if i == 0 else 50)
        trace.work(i + 1, launch=at + 5, at=at + 10, dur=100).sync(at=at + 10, dur=100)
    return trace


def test_waits_behind_the_last_launch_delay_nothing() -> None:
    assert waiting(steps=False).measures().waits_over_gpu_us == 100
    # The second step ends at 180: up to there its wait delays it.
    assert waiting(steps=True).measures().waits_over_gpu_us == 100 + 40


def test_a_wait_at_the_end_of_each_step_delays_the_next() -> None:
    """loss.item(): of the 500 us from step to step the GPU works from 10 to 410, and the host waits from 20 to 410."""
    trace = TraceBuilder()
    for i in range(3):
        trace.step(i, at=500 * i, dur=500).work(i + 1, launch=500 * i + 5, at=500 * i + 10, dur=400)
        trace.sync(name="cudaStreamSynchronize", at=500 * i + 20, dur=390)
    measures = trace.measures()
    assert measures.waits_over_gpu_us == 3 * 390
    # From 410 to the next kernel, at 510, and in the last step to its end.
    assert causes(measures) == pytest.approx({"dispatch": 10, "synchronization": 100 + 100 + 90}, abs=0.01)


# -- what no work ends


def test_behind_the_last_work_what_the_host_did_counts() -> None:
    # Without steps the recording ends with the last operator. 5 ms of sorting launch nothing.
    trace = TraceBuilder().work(1, launch=3, at=5, dur=100).op("aten::sort", at=105, dur=5000)
    assert causes(trace.measures()) == {"host": 5000}
    # Another thread, in an operator that has launched something, changes nothing but the beginning.
    trace.op("MmBackward0", at=0, dur=5105, thread=BACKWARD).launch(at=1, dur=1, correlation=2, thread=BACKWARD)
    assert causes(trace.memset(at=2, dur=1, correlation=2).measures()) == {"dispatch": 2 + 2, "host": 5000}


# -- start-up


def test_startup_a_launch_that_loads_its_kernel() -> None:
    # Behind the first kernel a launch takes 30 ms.
    trace = TraceBuilder().op("aten::zero_", at=0, dur=20).work(1, launch=5, at=10, dur=100)
    trace.op("aten::mm", at=200, dur=30_100).launch(at=210, dur=30_000, correlation=2)
    measures = trace.kernel(at=30_215, dur=100, correlation=2).measures()
    assert causes(measures) == {"dispatch": 10, "startup": 30_105}


def allocating(name: str, *at: float) -> TraceBuilder:
    """Three steps of 100 ms with a kernel at their end, and calls of 50 ms at these times."""
    trace = TraceBuilder()
    for i in range(3):
        trace.step(i, at=100_000 * i, dur=100_000)
        trace.work(i + 1, launch=100_000 * i + 99_800, at=100_000 * i + 99_810, dur=190)
    for each in at:
        trace.call(name, at=each, dur=50_000)
    return trace


def test_allocations_that_recur_are_no_startup() -> None:
    assert causes(allocating("cudaMalloc", 10, 100_010).measures())["allocator"] == 2 * 99_810
    once = allocating("cudaMalloc", 10).measures()  # the first step is left out for it
    assert "startup" not in causes(once)
    assert [step.outlier is not None for step in once.per_step] == [True, False, False]
    # Code is loaded once, whenever that is.
    assert causes(allocating("cuLibraryLoadData", 10, 100_010).measures())["startup"] == 2 * 99_810


def test_without_steps_many_long_allocations_are_the_programs_own() -> None:
    for count, cause in ((10, "startup"), (11, "allocator")):
        trace = TraceBuilder()
        for i in range(count):
            trace.work(i + 1, launch=i * 30_000, at=i * 30_000 + 5, dur=1000)
            trace.call("cudaMalloc", at=i * 30_000 + 2000, dur=25_000)
        trace.work(99, launch=count * 30_000, at=count * 30_000 + 5, dur=1000)
        assert causes(trace.measures())[cause] == count * 29_000


# -- what it was during


@pytest.mark.parametrize(
    ("rows", "during"),
    [
        ([("short", 300, 1)], "unrecorded host activity"),  # 0.02 % of the gap
        ([("long", 200, 2999), ("short", 300, 1)], "long"),
        ([("half", 200, 2500), ("in it", 210, 2450)], "half"),  # half of 4985 is 2492.5
        ([(f"op {i}", 200 + 300 * i, 290) for i in range(15)], "many short calls"),
        ([(f"op {i}", 200 + 300 * i, 100) for i in range(15)], "unrecorded host activity"),
    ],
)
def test_a_gap_is_during_what_fills_half_of_it(rows: list[tuple[str, float, float]], during: str) -> None:
    # The gap lasts from 110 to 5095, the launch from 5089 to 5090. The step spans all of it and says nothing.
    trace = after_a_kernel(5195).launch(at=5089, correlation=2).kernel(at=5095, dur=100, correlation=2)
    for name, at, dur in rows:
        trace.op(name, at=at, dur=dur)
    assert trace.measures().idle.largest[0].during == during


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


def test_host_a_launching_operator_that_calls_nothing_for_long() -> None:
    # It loads a library for 90 ms, in two operators around it; then it launches. After 20 ms it is no dispatch.
    for stall, expected in ((90_000, {"host": 90_010, "dispatch": 10}), (19_000, {"dispatch": 19_010 + 10})):
        trace = two_kernels(stall + 10).op("aten::conv2d", at=110, dur=stall + 9)
        trace.op("aten::convolution", at=110.5, dur=stall + 8).op("aten::cudnn_convolution", at=111, dur=stall + 7)
        assert causes(trace.measures()) == expected
    # Calls and operators inside it: it goes on launching.
    trace = two_kernels(90_000).op("aten::conv2d", at=110, dur=89_999)
    for i in range(8):
        trace.call("cudaEventRecord", at=10_000 * (i + 1), dur=5)
    assert causes(trace.measures()) == {"dispatch": 90_010}


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
