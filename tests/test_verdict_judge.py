"""Judging a trace: the two readings of a bare one, what makes it inconclusive, what lowers confidence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from traces import TraceBuilder, clean, table_of

from proftrack.measures import measure
from proftrack.record.timing import Timing
from proftrack.verdict.context import Context
from proftrack.verdict.judge import Judgement, judge


def steps(
    count: int = 4,
    *,
    dur: float = 1000,
    busy: float = 100,
    name: str = "gemm",
    each: Callable[[TraceBuilder, float], object] | None = None,
) -> TraceBuilder:
    """Steps in one region; in each a kernel of `busy` us that is launched at once."""
    trace = TraceBuilder()
    for i in range(count):
        at = i * dur
        trace.step(i, at=at, dur=dur).region("train", at=at, dur=dur)
        trace.work(i + 1, launch=at, at=at + 2, dur=busy, name=name)
        if each:
            each(trace, at)
    return trace


def pipeline() -> TraceBuilder:
    """The second kernel of each step is launched at once, and starts 148 us after the first has ended."""
    trace = TraceBuilder()
    for i in range(3):
        at = i * 200
        trace.step(i, at=at, dur=200).region("train", at=at, dur=200).work(2 * i + 1, launch=at + 1, at=at + 2, dur=20)
        trace.work(2 * i + 2, launch=at + 3, at=at + 170, dur=20)
    return trace


def judged(trace: TraceBuilder, step_time_us: float | None = None, timing: Timing | None = None) -> Judgement:
    return judge(trace.measures(), Context(step_time_us=step_time_us, timing=timing))


def timing(*blocks: float, latencies: tuple[float, ...] = (1300.0,), mode: str = "throughput") -> Timing:
    middle = sorted(blocks)[len(blocks) // 2]
    return Timing(
        mode=mode,  # type: ignore[arg-type]
        step_time_us=middle,
        step_latency_us=sorted(latencies)[len(latencies) // 2],
        step_time_p95_us=max(latencies),
        steps_per_block=10,
        block_step_times_us=list(blocks),
        step_latencies_us=list(latencies),
    )


# -- a time without the profiler


@pytest.mark.parametrize(
    ("step_time", "regime"), [(1000, "overhead-bound"), (150, "mixed"), (120, "compute-bound"), (100, "compute-bound")]
)
def test_with_a_step_time_it_is_read_once(step_time: float, regime: str) -> None:
    outcome = judged(steps(), step_time)
    assert outcome.verdict.regime == regime
    assert outcome.verdict.basis == "unprofiled"
    assert outcome.step_time_us == step_time
    assert outcome.verdict.gpu_busy_fraction == pytest.approx(100 / step_time)


def test_the_step_time_of_the_timing_wins_and_its_mode_chooses() -> None:
    measured = timing(120, 120, 120, latencies=(1000, 1000, 1000))
    assert judged(steps(), 500, measured).verdict.regime == "compute-bound"
    other = timing(120, 120, 120, latencies=(1000, 1000, 1000), mode="latency")
    assert judged(steps(), 500, other).verdict.regime == "overhead-bound"


@pytest.mark.parametrize(
    ("name", "regime"),
    [
        ("gemm", "compute-bound"),
        ("vectorized_elementwise_kernel", "memory-bound"),
        ("ncclDevKernel_AllReduce_Sum", "communication-bound"),
        ("zorp", "inconclusive"),
    ],
)
def test_a_busy_gpu_is_judged_by_its_kernels(name: str, regime: str) -> None:
    assert judged(steps(busy=950, name=name), 1000).verdict.regime == regime


def test_copies_and_small_kernels() -> None:
    trace = TraceBuilder().step(0, at=0, dur=1000)
    trace.launch(at=0, correlation=1, name="cudaMemcpyAsync").memcpy(at=2, dur=950, correlation=1)
    assert judged(trace, 1000).verdict.regime == "transfer-bound"
    trace = TraceBuilder(sms=100).step(0, at=0, dur=1000).work(1, launch=0, at=2, dur=950, grid=[8, 1, 1])
    assert judged(trace, 1000).verdict.regime == "latency-bound"


# -- a bare trace


def test_a_bare_trace_whose_readings_agree() -> None:
    outcome = judged(steps())
    assert outcome.verdict.regime == "overhead-bound"
    assert outcome.verdict.basis == "profiled"
    assert outcome.verdict.confidence != "high"


def test_a_bare_trace_whose_readings_differ_asks_for_the_step_time() -> None:
    # 40 % busy as traced: with dispatch divided by four it would be over 70 %.
    verdict = judged(steps(dur=500, busy=200)).verdict
    assert verdict.regime == "inconclusive"
    assert verdict.confidence == "low"
    assert any("--step-time-us" in r for r in verdict.reasons)
    assert judged(steps(dur=500, busy=200), 210).verdict.regime == "compute-bound"
    assert judged(steps(dur=500, busy=200), 500).verdict.regime == "overhead-bound"


def test_longer_steps_are_inflated_less() -> None:
    # 30 % busy: divided by four it would be mixed, by two (steps over a millisecond) it is not.
    assert judged(steps(8, dur=900, busy=230)).verdict.regime == "inconclusive"
    assert judged(steps(8, dur=1150, busy=230)).verdict.regime == "overhead-bound"


def test_host_work_is_host_bound_in_both_readings() -> None:
    def numpy_work(trace: TraceBuilder, at: float) -> None:
        trace.work(int(at) + 77, launch=at + 15_900, at=at + 15_905, dur=50)

    verdict = judged(steps(dur=16_000, busy=1500, each=numpy_work)).verdict
    assert (verdict.regime, verdict.cause) == ("host-bound", "host")


def test_data_loading_and_waits() -> None:
    def loader(trace: TraceBuilder, at: float) -> None:
        trace.region("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at=at + 100, dur=880)
        trace.work(int(at) + 77, launch=at + 985, at=at + 987, dur=5)

    verdict = judged(steps(each=loader), 1000).verdict
    assert (verdict.regime, verdict.cause) == ("input-bound", "input")

    def item(trace: TraceBuilder, at: float) -> None:
        trace.sync(at=at + 2, dur=401, name="cudaStreamSynchronize")

    verdict = judged(steps(dur=800, busy=400, each=item), 800).verdict
    assert (verdict.regime, verdict.cause) == ("sync-bound", "synchronization")


def test_the_profilers_own_stall_is_nobodys_work() -> None:
    """18 ms of a buffer request in a step of 20: without it 3 ms of steps of which 1.5 are busy."""
    trace = TraceBuilder()
    for i, (at, dur) in enumerate(((0, 19_000), (19_000, 1000), (20_000, 1000))):
        trace.step(i, at=at, dur=dur).region("train", at=at, dur=dur)
        trace.work(i + 1, launch=at + dur - 600, at=at + dur - 598, dur=500)
    trace.row("overhead", "Activity Buffer Request", 300, 18_000)
    verdict = judged(trace).verdict
    assert verdict.regime != "host-bound"
    said = {item.name: item.value for item in verdict.evidence}
    assert said["step_time_us"] == pytest.approx((21_000 - 18_402) / 3, abs=1)


# -- what makes it inconclusive

INCONCLUSIVE: dict[str, tuple[Callable[[], TraceBuilder], float | None, str]] = {
    "no kernels were recorded": (
        lambda: TraceBuilder().step(0, at=0, dur=100).launch(at=1, correlation=1),
        100,
        "not measured",
    ),
    "replays without kernels": (
        lambda: steps(each=lambda t, at: t.launch(at=at + 5, correlation=int(at) + 50, name="cudaGraphLaunch")),
        1000,
        "Graph replays",
    ),
    "a third of the launches without kernels": (
        lambda: steps(each=lambda t, at: t.launch(at=at + 5, correlation=int(at) + 50)),
        1000,
        "launch calls have no recorded GPU work",
    ),
    "a kernel in ten without usable times": (
        lambda: steps(each=lambda t, at: t.work(int(at) + 50, launch=at + 200, at=at + 210, dur=-1)),
        1000,
        "impossible timestamps",
    ),
    "another program's step time": (steps, 70, "not of the same work"),
    "compilation in a bare trace": (
        lambda: steps(each=lambda t, at: t.op("compile_fx", at=at + 300, dur=5)),
        None,
        "Compilation",
    ),
    "a cpu trace": (lambda: TraceBuilder().step(0, at=0, dur=9).op("aten::mm", at=1, dur=5), None, "no GPU work"),
    "gpu work of no length": (
        lambda: TraceBuilder().step(0, at=0, dur=9).work(1, launch=1, at=2, dur=0),
        None,
        "no duration",
    ),
    "a step time of other work": (lambda: steps(3), 100_000, "profiling only lengthens a step"),
    "steps of two processes": (lambda: steps(3).step(1, at=1, dur=1000, pid=77), None, "several processes"),
    "launched in time, started late": (pipeline, 200, "waits for another device"),
    "a queue that may not have been": (
        lambda: TraceBuilder().step(0, at=0, dur=100).work(1, launch=10, at=60, dur=30),
        None,
        "a queue of earlier work may have run",
    ),
    "markers only": (lambda: TraceBuilder().row("overhead", "Buffer Flush", 0, 5), None, "neither operators"),
}


@pytest.mark.parametrize("what", INCONCLUSIVE)
def test_inconclusive_with_its_reason(what: str) -> None:
    build, step_time, says = INCONCLUSIVE[what]
    verdict = judged(build(), step_time).verdict
    assert verdict.regime == "inconclusive"
    assert verdict.confidence == "low"
    assert any(says in reason for reason in verdict.reasons), verdict.reasons


def test_a_partial_file_is_inconclusive() -> None:
    text = steps().json()
    verdict = judge(measure(table_of(text[:-300], salvage=True)), Context(step_time_us=1000)).verdict
    assert verdict.regime == "inconclusive"
    assert any("broken" in r for r in verdict.reasons)


def test_missing_work_does_not_unsay_that_the_gpu_is_busy() -> None:
    # The GPU did at least this much: 95 % busy stays 95 % busy.
    trace = steps(busy=950, each=lambda t, at: t.launch(at=at + 5, correlation=int(at) + 50))
    assert judged(trace, 1000).verdict.regime == "compute-bound"


def test_a_repaired_file_is_judged() -> None:
    broken = steps().json().replace(b'"train"', b'"tr"ain"')
    assert judge(measure(table_of(broken)), Context(step_time_us=1000)).verdict.regime == "overhead-bound"


# -- idle time that no late launch explains


def without_launches(share: int) -> TraceBuilder:
    """Three steps of 1 ms with ten kernels of 20 us each; of ten, the last `share` have no launch row."""
    trace = TraceBuilder()
    for i in range(30):
        at = 100 * i
        if not i % 10:
            trace.step(i // 10, at=at, dur=1000).region("train", at=at, dur=1000)
        trace.kernel(at=at + 80, dur=20, **({} if i % 10 >= 10 - share else {"correlation": i + 1}))
        if i % 10 < 10 - share:
            trace.launch(at=at + 75, correlation=i + 1)
    return trace


@pytest.mark.parametrize("step_time", [None, 900, 1000])
def test_work_without_a_recorded_launch_blames_nobody(step_time: float | None) -> None:
    for share in (10, 8):
        verdict = judged(without_launches(share), step_time).verdict
        assert (verdict.regime, verdict.cause) == ("inconclusive", "unknown")
        assert any("precedes work with no recorded launch: the trace does not show" in r for r in verdict.reasons)
    assert judged(without_launches(3), 1000).verdict.regime == "overhead-bound"


def full(dur: float = 1000) -> TraceBuilder:
    """Steps whose last kernel ends with them: 200 of each 1000 us are busy, and launches are late."""
    return steps(dur=dur, each=lambda t, at: t.work(int(at) + 7, launch=at + dur - 103, at=at + dur - 100, dur=100))


def test_late_launches_that_explain_too_little() -> None:
    """T = 1900 us: T - B is 1700, of which the trace shows 800 idle."""
    verdict = judged(full(), 1900).verdict
    assert (verdict.regime, verdict.reasons[0]) == (
        "inconclusive",
        "Late launches explain only 47% of T - B: 53% is not in the trace.",
    )
    near = judged(full(), 1700).verdict  # 800 of 1500
    assert (near.regime, near.confidence) == ("overhead-bound", "medium")
    assert near.reasons == [
        "53% of the idle time points to late launches: close to the limit of 50% (beyond it: inconclusive)."
    ]
    assert judged(full(), 1000).verdict.reasons == []


@pytest.mark.parametrize("name", ["hipFree", "cudaMalloc", "cudaHostAlloc", "cuMemUnmap"])
def test_a_step_that_allocates_is_host_bound_for_that(name: str) -> None:
    def allocate(trace: TraceBuilder, at: float) -> None:
        for i in range(4):
            trace.call(name, at=at + 110 + 220 * i, dur=190)
            trace.work(int(at) + 50 + i, launch=at + 310 + 220 * i, at=at + 313 + 220 * i, dur=20)

    verdict = judged(steps(each=allocate), 1000).verdict
    assert (verdict.regime, verdict.cause, verdict.confidence) == ("host-bound", "allocator", "high")
    assert verdict.summary.endswith("the host allocated or freed device memory.")
    assert judged(steps(dur=9000, busy=900), 9000).verdict.summary.endswith("the host does work that launches nothing.")


def test_a_wait_for_a_device_that_waits_itself_is_no_sync() -> None:
    """Both kernels of a step are launched at once, the second starts 80 us after the first; the host waits for both."""
    trace = TraceBuilder()
    for i in range(3):
        at = 200 * i
        trace.step(i, at=at, dur=200).work(2 * i + 1, launch=at, at=at + 2, dur=58)
        trace.work(2 * i + 2, launch=at + 1, at=at + 140, dur=60).sync(at=at + 5, dur=195)
    verdict = judged(trace, 200).verdict
    assert (verdict.regime, verdict.cause) == ("inconclusive", "queued")


@pytest.mark.parametrize("latency", [2, 10, 18])
def test_tiny_kernels_that_start_soon_after_their_launch_are_overhead(latency: float) -> None:
    """Forty kernels of 2 us, one every 25 us: most of each gap is the latency of a launch into an empty queue."""
    trace = TraceBuilder().step(0, at=0, dur=1000).region("train", at=0, dur=1000)
    for i in range(40):
        trace.launch(at=25 * i, correlation=i + 1, dur=4).kernel(at=25 * i + 4 + latency, dur=2, correlation=i + 1)
    verdict = judged(trace, 1000).verdict
    assert (verdict.regime, verdict.cause, verdict.confidence) == ("overhead-bound", "dispatch", "high")


# -- start-up


def cold(busy: float, *, between: float = 0) -> TraceBuilder:
    """Without steps: 50 ms of cudaFree, then 100 kernels, one every 100 us; `between` the 50th and the 51st a load."""
    trace = TraceBuilder().op("aten::empty", at=0, dur=50_000).call("cudaFree", at=0, dur=50_000)
    for i in range(100):
        at = 50_000 + 100 * i + (between if i >= 50 else 0)
        trace.work(i + 1, launch=at, at=at + 5, dur=busy)
    if between:
        trace.call("cuLibraryLoadData", at=50_000 + 4990, dur=between, cat="cuda_driver")
    return trace


def test_start_up_is_no_idle_time_of_a_step() -> None:
    for between in (0, 30_000):
        outcome = judged(cold(90, between=between))
        assert outcome.verdict.regime == "compute-bound"
        assert outcome.verdict.figure("overhead_headroom") == pytest.approx(100 / 90, rel=0.01)
    assert outcome.step_time_us == pytest.approx(100 * 100, rel=0.01)


def test_start_up_that_takes_most_of_the_recording() -> None:
    """Once the GPU works, 8 ms are idle beside the 30.08 ms in which a library is loaded."""
    verdict = judged(cold(20, between=30_000)).verdict
    assert verdict.regime == "inconclusive"
    assert verdict.reasons[0].startswith("Start-up takes 30.1 ms of the GPU's idle time")
    assert judged(cold(20)).verdict.regime == "overhead-bound"


def with_impossible(dur: float, count: int = 1) -> TraceBuilder:
    """Four steps of 1 ms with a kernel of 100 us each; in the first `count` a longer one begins before that one."""
    number = iter(range(50, 60))

    def longer(trace: TraceBuilder, at: float) -> None:
        if at < count * 1000:
            trace.work(next(number), launch=at, at=at + 1, dur=dur, name="impossible")

    return steps(each=longer)


def test_where_more_than_a_twentieth_of_b_is_cut_off_there_is_no_verdict() -> None:
    # B: 4 x 100 us, and of the impossible kernel, which starts at 1, the 1 us up to its successor's start. 5 % of that
    # are 20 us; cut are 120 and 11,999 us.
    assert judged(with_impossible(121), 1000).verdict.regime == "inconclusive"
    verdict = judged(with_impossible(12_000), 1000).verdict
    assert verdict.regime == "inconclusive"
    assert [r for r in verdict.reasons if r.startswith("Some GPU work ends after work that its stream started later")]
    assert verdict.gpu_busy_fraction == pytest.approx(401 / 4 / 1000)


def test_a_small_part_cut_off_is_only_flagged() -> None:
    def longer(trace: TraceBuilder, at: float) -> None:
        first = int(at) + 10
        trace.work(first, launch=at + 3, at=at + 101, dur=6).work(first + 1, launch=at + 5, at=at + 103, dur=2)

    trace = steps(each=longer)  # a step: 2..102, 101..107 cut at 103, 103..105
    judgement = judged(trace, 1000)
    measures = trace.measures()
    assert (measures.impossible_us, measures.busy_us) == (4 * 4, 4 * 103)
    assert judgement.verdict.regime == "overhead-bound"
    assert "impossible_durations" in {f.code for f in measures.flags}


# -- confidence


def test_confidence_is_high_where_nothing_speaks_against_it() -> None:
    verdict = judged(steps(), 1000, timing(1000, 1001, 999, 1000, 1000)).verdict
    assert (verdict.confidence, verdict.reasons) == ("high", [])


def test_blocks_that_could_mean_another_regime_make_it_low() -> None:
    verdict = judged(steps(), None, timing(110, 115, 122, 128, 240, 260, 280)).verdict
    assert verdict.confidence == "low"
    # B = 100 us, the middle block 128 us: u = 0.78. The quickest block gives 0.91, the slowest 0.36.
    assert verdict.reasons == [
        "Within the spread of the measurements, it could also be compute-bound or overhead-bound.",
        "u = 0.78 is close to the limit of 0.8 (beyond it: compute-bound).",
    ]


def test_next_to_a_limit_it_is_medium() -> None:
    # u = 0.51
    verdict = judged(steps(), 196, timing(196, 196, 196)).verdict
    assert (verdict.regime, verdict.confidence) == ("mixed", "medium")
    assert any("close to the limit" in r for r in verdict.reasons)


@pytest.mark.parametrize(
    ("trace", "level"),
    [
        (lambda: TraceBuilder().op("a", at=0, dur=1000).work(1, launch=5, at=9, dur=9), "low"),  # no steps
        (lambda: steps().step(9, at=4000, dur=1000), "medium"),  # a step without GPU work
        (lambda: steps(each=lambda t, at: t.op("compile_fx", at=at + 300, dur=5)), "medium"),
    ],
)
def test_flags_lower_confidence(trace: Callable[[], TraceBuilder], level: str) -> None:
    assert judged(trace(), 1000, timing(1000, 1000, 1000)).verdict.confidence == level


def test_slower_under_the_profiler_is_flagged() -> None:
    outcome = judged(steps(), 92)
    assert [f.code for f in outcome.flags] == ["slow_under_profiler"]
    assert outcome.verdict.regime == "compute-bound"
    assert outcome.verdict.confidence == "medium"
    assert judged(steps(), 96).flags == []


# u = 0.95, shared by two kernels: the first and its share, the second, the regime, what it says.
CLOSE = [
    (
        "gemm",
        0.52,
        "vectorized_elementwise_kernel",
        "compute-bound",
        "52% of the busy time is in kernels limited by ar",
    ),
    (
        "gemm",
        0.48,
        "vectorized_elementwise_kernel",
        "memory-bound",
        "52% of the busy time is in kernels limited by mem",
    ),
    ("ncclDevKernel_AllReduce_Sum", 0.51, "gemm", "communication-bound", "51% of the busy time is in collectives"),
    ("ncclDevKernel_AllReduce_Sum", 0.49, "gemm", "compute-bound", "49% of the busy time is in collectives"),
    ("zorp", 0.48, "gemm", "compute-bound", "48% of the busy time is in kernels of unknown kind"),
]


@pytest.mark.parametrize(("first", "share", "second", "regime", "says"), CLOSE)
def test_a_close_call_between_kinds_is_doubted_and_names_the_other(
    first: str, share: float, second: str, regime: str, says: str
) -> None:
    def rest(trace: TraceBuilder, at: float) -> None:
        trace.work(int(at) + 77, launch=at + 1, at=at + 2 + 950 * share, dur=950 * (1 - share), name=second)

    verdict = judged(steps(busy=950 * share, name=first, each=rest), 1000, timing(1000, 1000, 1000)).verdict
    assert (verdict.regime, verdict.confidence) == (regime, "medium")
    others = {
        "gemm/vectorized_elementwise_kernel": {"compute-bound": "memory-bound", "memory-bound": "compute-bound"},
        "ncclDevKernel_AllReduce_Sum/gemm": {"communication-bound": "compute-bound", "compute-bound": "communication"},
        "zorp/gemm": {"compute-bound": "inconclusive"},
    }[f"{first}/{second}"]
    assert any(r.startswith(says) and f"(beyond it: {others[regime]}" in r for r in verdict.reasons), verdict.reasons


@pytest.mark.parametrize("share", [0.6, 0.4])
def test_a_clear_lead_between_kinds_is_not_doubted(share: float) -> None:
    def rest(trace: TraceBuilder, at: float) -> None:
        trace.work(int(at) + 77, launch=at + 1, at=at + 2 + 950 * share, dur=950 * (1 - share), name="softmax_warp")

    (reason,) = judged(steps(busy=950 * share, each=rest), 1000, timing(1000, 1000, 1000)).verdict.reasons
    assert reason.endswith("what limits them is judged by their names.")  # no operator has shapes


# -- what it says


# Of a trace (B = 40, 100, 900 us; none) and a step time: the regime, how sure it is, and how many reasons it gives.
VERDICTS = [
    (clean(), None, "inconclusive", "low", 2),
    (clean(), 1000.0, "inconclusive", "low", 1),  # ten times the step that was traced
    (clean(), 100.0, "overhead-bound", "high", 0),  # u = 0.4
    (clean(), 70.0, "mixed", "high", 0),  # 0.57
    (steps(), None, "overhead-bound", "medium", 1),
    (steps(), 1000.0, "overhead-bound", "high", 0),  # 0.10
    (steps(), 150.0, "mixed", "high", 0),  # 0.67
    (steps(), 120.0, "compute-bound", "medium", 2),  # 0.83 is near 0.80, and a name says what limits the kernel
    (steps(), 70.0, "inconclusive", "low", 1),  # more than all of it
    (steps(busy=900), None, "compute-bound", "medium", 2),
    (steps(busy=900), 1000.0, "compute-bound", "medium", 1),  # 0.90
    *((steps(busy=900), step_time, "inconclusive", "low", 1) for step_time in (150.0, 120.0, 70.0)),
    *((TraceBuilder().op("a", at=0, dur=5), t, "inconclusive", "low", 1) for t in (None, 1000.0, 150.0, 120.0, 70.0)),
]


@pytest.mark.parametrize(("trace", "step_time", "regime", "confidence", "reasons"), VERDICTS)
def test_every_verdict_says_what_it_rests_on(
    trace: TraceBuilder, step_time: float | None, regime: str, confidence: str, reasons: int
) -> None:
    verdict = judged(trace, step_time).verdict
    assert (verdict.regime, verdict.confidence, len(verdict.reasons)) == (regime, confidence, reasons)
    assert verdict.summary.endswith(".")
    assert len(verdict.advice) >= 1
    assert "e+" not in " ".join([verdict.summary, *(e.text for e in verdict.evidence)])
    if verdict.gpu_busy_fraction is not None:
        assert [e.name for e in verdict.evidence][:2] == ["step_time_us", "gpu_busy_per_step_us"]


def uneven(*busy: float) -> TraceBuilder:
    """Steps as long as their one kernel and 20 us."""
    trace, at = TraceBuilder(), 0.0
    for i, each in enumerate(busy):
        trace.step(i, at=at, dur=each + 20).region("train", at=at, dur=each + 20)
        trace.work(i + 1, launch=at, at=at + 5, dur=each).sync(at=at + 3, dur=each + 10)
        at += each + 20
    return trace


@pytest.mark.parametrize("busy", [(2000, 2000, 20_000, 2000, 2000, 20_000), (1000, 3000, 5000, 7000, 9000)])
def test_longer_work_makes_the_steps_of_a_bare_trace_longer(busy: tuple[float, ...]) -> None:
    """u is over 0.98 in every step: however B varies among them, the GPU is busy."""
    verdict = judged(uneven(*busy)).verdict
    assert verdict.regime == "compute-bound"
    assert not any("Within the spread" in reason for reason in verdict.reasons)


def test_a_reason_is_given_once() -> None:
    trace = TraceBuilder()
    for i in range(3):
        trace.step(i, at=i * 1000, dur=1000).region("train", at=i * 1000, dur=1000)
        trace.op("_compile.compile_inner (dynamo_timed)", at=i * 1000, dur=600)
        trace.work(i + 1, launch=i * 1000 + 700, at=i * 1000 + 705, dur=100)
    reasons = judged(trace).verdict.reasons
    assert sum("Compilation" in reason for reason in reasons) == 1
    assert len(set(reasons)) == len(reasons)


def test_a_step_time_in_another_unit() -> None:
    """1000 us of GPU work, and 1.1 ms given as 1.1."""
    (reason,) = judged(steps(busy=1000, dur=1100), 1.1).verdict.reasons
    assert reason.startswith("GPU busy time is 909 times the given step time")
    assert reason.endswith("(or the unit is not microseconds).")


# -- what only one step shows


def flushed(*lengths: float, busy: float = 900) -> TraceBuilder:
    """Steps that launch a kernel of `busy` us after they freed memory for what is left of these lengths."""
    trace, at = TraceBuilder(), 0.0
    for i, length in enumerate(lengths):
        trace.step(i, at=at, dur=length).region("train", at=at, dur=length)
        if length > busy + 20:
            trace.call("cudaFree", at=at + 5, dur=length - busy - 10)
        trace.work(i + 1, launch=at + length - busy - 5, at=at + length - busy, dur=busy)
        at += length
    return trace


def lone(judgement: Judgement) -> list[str]:
    return [reason for reason in judgement.verdict.reasons if "Record more steps" in reason]


def test_a_regime_that_one_of_the_steps_decides() -> None:
    # 2700 of 4420 us are busy (0.61), 1695 of the idle 1720 in the second step; the other two are busy for 900 of 910.
    outcome = judged(flushed(910, 2600, 910))
    assert (outcome.verdict.regime, outcome.verdict.cause) == ("host-bound", "allocator")
    assert outcome.verdict.confidence == "low"
    assert lone(outcome) == [
        "ProfilerStep#1 takes 2.6 ms, the others 910 us: without that, the trace is compute-bound. Record more steps."
    ]
    # A step time that was measured over many steps is no single step's.
    assert lone(judged(flushed(910, 2600, 910), 1473)) == []


@pytest.mark.parametrize(
    "lengths",
    [
        (1500, 1500, 1500),
        (2600, 910, 2600),
        (1150, 1240, 1150),
        (910, 910, 1000),
        (1100, 1600, 1100),  # 1.45 times as long as the others: it decides, but is nothing special
    ],
)
def test_no_single_step_decides(lengths: tuple[float, ...]) -> None:
    assert lone(judged(flushed(*lengths))) == []


def test_half_as_long_again_is_a_step_of_its_own() -> None:
    """1.52 times 1100 us: 2700 of 3870 us are busy (0.70), in the others 0.82."""
    assert "ProfilerStep#1 takes 1.67 ms, the others 1.1 ms" in lone(judged(flushed(1100, 1670, 1100)))[0]


def test_a_regime_that_the_end_of_the_only_step_decides() -> None:
    trace = TraceBuilder().step(0, at=0, dur=5000).region("train", at=0, dur=5000).work(1, launch=0, at=5, dur=600)
    outcome = judged(trace)
    assert (outcome.verdict.regime, outcome.verdict.confidence) == ("host-bound", "low")
    assert lone(outcome) == [
        "The only step takes 4.39 ms after its last GPU work: without that, the trace is compute-bound. "
        "Record more steps."
    ]
    assert outcome.step_time_us == 5000
    # Two steps with the same end: it recurs.
    trace.step(1, at=5000, dur=5000).region("train", at=5000, dur=5000).work(2, launch=5000, at=5005, dur=600)
    assert judged(trace).verdict.regime == "host-bound"
    assert lone(judged(trace)) == []


def test_the_end_of_the_only_step_changes_nothing() -> None:
    """Host work of 3 ms ahead of the kernel and 2 ms behind it: host-bound with and without its end."""
    trace = TraceBuilder().step(0, at=0, dur=5600).region("train", at=0, dur=5600)
    trace.work(1, launch=3000, at=3005, dur=600)
    assert judged(trace).verdict.regime == "host-bound"
    assert lone(judged(trace)) == []
