"""What limits a busy GPU by hardware counters, and by counted work where there are none."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from traces import TraceBuilder

from proftrack.measures import Measures, combine, measure
from proftrack.measures.counted import Counted
from proftrack.record.ceilings import Ceilings, StepWork
from proftrack.record.counters import PIPES, Counters, Unit
from proftrack.record.timing import Timing
from proftrack.record.verdict import Regime, Verdict
from proftrack.verdict.context import Context
from proftrack.verdict.judge import judge
from proftrack.verdict.rules import StepFacts, gpu_regime, regime, ruling
from proftrack.verdict.thresholds import THRESHOLDS
from proftrack.verdict.unfilled import look_at
from proftrack.verdict.units import use_of

REACHABLE: dict[Unit, float] = {"tensor": 0.91, "dram": 0.85, "fp32": 0.76}
"""What a product, a copy and a float32 product reach on an H200."""


def counters(**shares: float) -> Counters:
    """Shares in percent of the peak, as counted."""
    return Counters(
        source="gpm",
        window_s=0.4,
        shares={unit: share / 100 for unit, share in shares.items()},  # type: ignore[misc]
        reachable=REACHABLE,
    )


def facts(time: float = 100, busy: float = 100, *, counted: Counters | None = None, **limits: float) -> StepFacts:
    return StepFacts(
        step_time_us=time,
        gpu_busy_us=busy,
        idle_by_cause_us={"dispatch": time - busy} if time > busy else {},
        busy_by_limit_us=limits or {"arithmetic": busy},  # type: ignore[arg-type]
        waits_over_gpu_us=0.0,
        counters=counted,
    )


def timing(time: float, *, latency: float | None = None, mode: str = "throughput", blocks: int = 5) -> Timing:
    return Timing(
        mode=mode,  # type: ignore[arg-type]
        step_time_us=time,
        step_latency_us=latency or time,
        step_time_p95_us=None,
        steps_per_block=10,
        block_step_times_us=[time] * blocks,
        step_latencies_us=[latency or time] * blocks,
    )


def kernels(*names: tuple[str, float], dur: float = 1000, count: int = 3, **args: Any) -> TraceBuilder:
    """Steps of `dur` us in which these kernels run one after the other for so many us each."""
    trace, number = TraceBuilder(), itertools.count(1)
    for i in range(count):
        at = i * dur
        trace.step(i, at=at, dur=dur).region("train", at=at, dur=dur)
        start = at + 1
        for name, busy in names:
            trace.work(next(number), launch=at, at=start, dur=busy, name=name, **args)
            start += busy
    return trace


def judged(trace: TraceBuilder, counted: Counters | None, *, time: float = 1000, **more: Any) -> Verdict:
    context = Context(timing=more.pop("timing", None) or timing(time), counters=counted, **more)
    return judge(trace.measures(), context).verdict


# ---- the rule --------------------------------------------------------------------------------------------------------


# The table that the rule was made with: percent of the peak. What names say; regime, confidence, unit, its share.
SEEN = [
    ("8192 product", {"tensor": 91, "dram": 16, "fp32": 0, "integer": 1}, "gemm", "compute-bound", "high", "tensor", 1),
    (
        "copy",
        {"tensor": 0, "dram": 85, "fp32": 2, "integer": 4},
        "vectorized_elementwise_kernel",
        "memory-bound",
        "high",
        "dram",
        1,
    ),
    (
        "attention over 64k",
        {"tensor": 11, "dram": 91, "fp32": 4, "integer": 11},
        "flash_fwd_splitkv",
        "memory-bound",
        "high",
        "dram",
        1,  # 91 of 85: capped
    ),
    (
        "decode as a graph",
        {"tensor": 2, "dram": 54, "fp32": 0, "integer": 3},
        "gemm",
        "memory-bound",
        "high",
        "dram",
        0.54 / 0.85,  # 64 % against 3
    ),
    (
        "Triton polynomial",
        {"tensor": 0, "dram": 1, "fp32": 87, "integer": 11},
        "zorp",
        "compute-bound",
        "high",
        "fp32",
        1,  # 87 of 76: capped
    ),
    (
        "EmbeddingBag",
        {"tensor": 0, "dram": 23, "fp32": 2, "integer": 82},
        "EmbeddingBag_updateOutputKernel_sum_mean",
        "compute-bound",
        "high",
        "integer",
        0.82,  # of its peak: nothing measures what it reaches
    ),
    (
        "200,000 products of 32 x 32",
        {"tensor": 8, "dram": 38, "fp32": 0, "integer": 11},
        "gemm",
        "memory-bound",  # 45 % bears bandwidth out, 11 % no arithmetic
        "medium",
        "dram",
        0.38 / 0.85,
    ),
]


@pytest.mark.parametrize(("what", "shares", "name", "expected", "confidence", "unit", "share"), SEEN)
def test_the_workloads_of_the_table(
    what: str, shares: dict[str, float], name: str, expected: str, confidence: str, unit: Unit, share: float
) -> None:
    verdict = judged(kernels((name, 1000)), counters(**shares))
    assert (verdict.regime, verdict.confidence) == (expected, confidence), (what, verdict.reasons)
    assert verdict.figure("dram_utilization") == pytest.approx(min(shares["dram"] / 85, 1), abs=1e-6)
    assert max(verdict.figure("dram_utilization") or 0, verdict.figure("pipe_utilization") or 0) == pytest.approx(
        share, abs=1e-6
    )
    use = use_of(counters(**shares), 1.0)
    assert use is not None
    assert use.unit == unit


def test_training_a_vit_alternates_and_stands_by_its_names_at_medium() -> None:
    """DRAM 39 of 85 is 0.46, the tensor cores 33 of 91 are 0.36: each bears its class out, neither is a limit."""
    counted = counters(tensor=33, dram=39, fp32=5, integer=28)
    mostly_products = judged(kernels(("gemm", 650), ("softmax_warp", 350)), counted)
    assert (mostly_products.regime, mostly_products.confidence) == ("compute-bound", "medium")
    mostly_moving = judged(kernels(("gemm", 350), ("softmax_warp", 650)), counted)
    assert (mostly_moving.regime, mostly_moving.confidence) == ("memory-bound", "medium")
    for verdict in (mostly_products, mostly_moving):
        assert "and no unit is near its limit" in verdict.summary
        (reason,) = verdict.reasons
        assert "DRAM at 46% of what a copy reaches" in reason
        assert "tensor cores at 36% of what a large product reaches" in reason
    # 0.363 / 0.65 and 0.459 / 0.35, capped; 0.363 / 0.35, capped, and 0.459 / 0.65
    for verdict, pipe, memory in ((mostly_products, 56, 100), (mostly_moving, 100, 71)):
        said = f"tensor cores may be at up to {pipe}%, DRAM at up to {memory}%."
        assert any("take turns" in text and said in text for text in verdict.advice), verdict.advice


# memory and pipe (percent of reachable), the kernels' class, and what comes out.
RULE: list[tuple[float, float, dict[str, float], str, str]] = [
    (60, 40, {"arithmetic": 100}, "memory-bound", "high"),
    (60, 40.1, {"arithmetic": 100}, "memory-bound", "medium"),
    (40, 60, {"bandwidth": 100}, "compute-bound", "high"),
    (80, 60.1, {"unknown": 100}, "memory-bound", "medium"),
    (100, 100, {"bandwidth": 100}, "compute-bound", "medium"),
    (0, 60, {"latency": 100}, "compute-bound", "high"),
    # under 60 the class stands where it is borne out
    (59.9, 0, {"arithmetic": 100}, "memory-bound", "medium"),
    (59.9, 30, {"arithmetic": 100}, "compute-bound", "medium"),
    (59.9, 29.9, {"arithmetic": 100}, "memory-bound", "medium"),
    (30, 59.9, {"bandwidth": 100}, "memory-bound", "medium"),
    (29.9, 59.9, {"bandwidth": 100}, "compute-bound", "medium"),
    (29.9, 29.9, {"bandwidth": 100}, "latency-bound", "medium"),
    (29.9, 29.9, {"unknown": 100}, "latency-bound", "medium"),
    (0.1, 0.1, {"arithmetic": 100}, "latency-bound", "medium"),
    (45, 10, {"latency": 100}, "latency-bound", "medium"),
    # names that tell nothing: what is borne out, and of two the larger, which says little unless it leads
    (50, 10, {"unknown": 100}, "memory-bound", "medium"),
    (10, 50, {"unknown": 100}, "compute-bound", "medium"),
    (35, 55, {"unknown": 100}, "compute-bound", "medium"),
    (36, 55, {"unknown": 100}, "compute-bound", "low"),
]


@pytest.mark.parametrize(("memory", "pipe", "limits", "expected", "confidence"), RULE)
def test_both_sides_of_each_limit(
    memory: float, pipe: float, limits: dict[str, float], expected: str, confidence: str
) -> None:
    counted = counters(dram=memory * 0.85, tensor=pipe * 0.91)
    given = facts(counted=counted, **limits)
    assert ruling(given, THRESHOLDS).regime == regime(given, THRESHOLDS) == expected
    names = {
        "arithmetic": "gemm",
        "bandwidth": "softmax_warp",
        "unknown": "zorp",
        "latency": "gemm",
    }
    ((limit, _),) = limits.items()
    small = {"grid": [8, 1, 1]} if limit == "latency" else {}
    verdict = judged(kernels((names[limit], 1000), **small), counted)
    assert (verdict.regime, verdict.confidence) == (expected, confidence), verdict.reasons


def test_from_a_tenth_of_copies_and_collectives_on_counters_do_not_judge() -> None:
    """They count the whole step: a tenth of it in which nothing else happens dilutes them."""
    counted = counters(dram=80, tensor=5)
    for transfer, communication, expected in ((5, 4.9, "memory-bound"), (5, 5, "compute-bound")):
        given = facts(
            counted=counted,
            arithmetic=100 - transfer - communication,
            transfer=transfer,
            communication=communication,
        )
        assert regime(given, THRESHOLDS) == expected
    # A tenth of B, not of T: 8 and 7.9 of 80.
    for transfer, expected in ((8, "compute-bound"), (7.9, "memory-bound")):
        given = facts(100, 80, counted=counted, arithmetic=80 - transfer, transfer=transfer)
        assert regime(given, THRESHOLDS) == expected
    trace = kernels(("gemm", 800), ("ncclDevKernel_AllReduce_Sum", 200))
    verdict = judged(trace, counted)
    assert verdict.regime == "compute-bound"
    said = (
        "Counters do not judge the kernels: 20% of the busy time is in copies and collectives. Over all of it, DRAM at "
        "94% of what a copy reaches, tensor cores at 5% of what a large product reaches."
    )
    assert said in [e.text for e in verdict.evidence]


def test_they_judge_only_where_the_gpu_is_busy() -> None:
    counted = counters(dram=85, tensor=1)
    assert regime(facts(100, 80, counted=counted), THRESHOLDS) == "memory-bound"
    assert regime(facts(100, 79.9, counted=counted), THRESHOLDS) == "mixed"
    assert regime(facts(100, 50, counted=counted), THRESHOLDS) == "overhead-bound"


def test_shares_are_of_the_time_in_which_the_gpu_is_busy() -> None:
    """DRAM at 43.2 of 85 while the GPU is busy 0.9 of the time: 0.508 / 0.9 = 0.565, and 0.635 at 0.8."""
    counted = counters(dram=43.2, tensor=1)
    for u, use in ((0.9, 0.564706), (0.8, 0.635294), (1.0, 0.508235), (1.2, 0.508235)):
        found = use_of(counted, u)
        assert found is not None
        assert found.memory == pytest.approx(use, abs=1e-6)
    assert not ruling(facts(100, 90, counted=counted), THRESHOLDS).at_limit
    assert ruling(facts(100, 80, counted=counted), THRESHOLDS).at_limit


def test_a_latency_is_not_the_time_of_the_steps_that_were_counted() -> None:
    """T = 1100 with a wait after each step, 1000 back to back: B = 900 is 0.82 of one, 0.9 of the other."""
    counted = counters(dram=46, tensor=1)  # 0.541 / 0.9 = 0.601, but 0.541 / 0.818 = 0.661
    trace = kernels(("gemm", 900), dur=1100)
    slow = judged(trace, counted, timing=timing(1000, latency=1100, mode="latency"))
    assert slow.gpu_busy_fraction == pytest.approx(0.818, abs=1e-3)
    assert slow.figure("dram_utilization") == pytest.approx(0.46 / 0.85 / 0.9, abs=1e-6)
    fast = judged(trace, counted, timing=timing(1000, latency=1100))
    assert fast.figure("dram_utilization") == pytest.approx(0.46 / 0.85 / 0.9, abs=1e-6)


def test_what_was_not_counted_judges_nothing() -> None:
    """Energy alone, no DRAM, no pipe, or zeros from a GPU that was busy: as without counters."""
    without = judged(kernels(("gemm", 1000)), None)
    zeros = counters(**dict.fromkeys(("dram", "tensor", "fp32", "sm_active"), 0.0))
    for counted in (
        Counters(source="nvml", window_s=1.0, energy_joules_per_step=0.2),
        counters(dram=80),
        counters(tensor=80),
        counters(sm_active=90, occupancy=40, dram=80),
        zeros,
    ):
        verdict = judged(kernels(("gemm", 1000)), counted)
        assert verdict == without
    assert without.figure("dram_utilization") is None


def test_a_missing_pipe_is_no_zero_and_the_parts_of_the_tensor_pipe_do_not_count_twice() -> None:
    use = use_of(counters(dram=10, integer=70, hmma=90), 1.0)
    assert use is not None
    assert (use.pipe, use.pipe_share) == ("integer", 0.7)


# ---- properties ------------------------------------------------------------------------------------------------------

_SHARES = st.fixed_dictionaries({unit: st.floats(0, 1) for unit in ("dram", *PIPES)})
_LIMITS = st.dictionaries(
    st.sampled_from(["arithmetic", "bandwidth", "latency", "unknown", "transfer", "communication"]),
    st.floats(1, 100),
    min_size=1,
)


def _facts(shares: dict[str, float], limits: dict[str, float], u: float) -> StepFacts:
    busy = sum(limits.values())
    counted = Counters(source="gpm", window_s=1.0, shares=shares, reachable=REACHABLE)  # type: ignore[arg-type]
    return facts(busy / u, busy, counted=counted, **limits)


@given(_SHARES, _LIMITS, st.floats(0.8, 1.2), st.randoms())
def test_the_order_in_which_units_are_listed_does_not_matter(
    shares: dict[str, float], limits: dict[str, float], u: float, order: Any
) -> None:
    items = list(shares.items())
    order.shuffle(items)
    assert ruling(_facts(shares, limits, u), THRESHOLDS) == ruling(_facts(dict(items), limits, u), THRESHOLDS)


@given(_SHARES, _LIMITS, st.floats(0.8, 1.2))
def test_a_use_is_capped_and_the_result_a_regime(shares: dict[str, float], limits: dict[str, float], u: float) -> None:
    given = _facts(shares, limits, u)
    use = given.use
    assert ruling(given, THRESHOLDS).regime in get_args(Regime)
    if use is not None:
        assert 0 <= use.memory <= 1
        assert 0 <= use.pipe_share <= 1
        assert use.pipe in PIPES


@given(_SHARES, _LIMITS, st.floats(0.8, 1.2), st.floats(0, 1))
def test_more_use_of_dram_never_ends_memory_bound(
    shares: dict[str, float], limits: dict[str, float], u: float, more: float
) -> None:
    before, after = (
        _facts({**shares, "dram": share}, limits, u) for share in (shares["dram"], max(shares["dram"], more))
    )
    if before.use is not None and regime(before, THRESHOLDS) == "memory-bound":
        assert regime(after, THRESHOLDS) == "memory-bound"


@given(_SHARES, _LIMITS, st.floats(0.8, 1.2), st.sampled_from(PIPES), st.floats(0, 1))
def test_more_use_of_a_pipe_never_ends_compute_bound(
    shares: dict[str, float], limits: dict[str, float], u: float, pipe: Unit, more: float
) -> None:
    before, after = (_facts({**shares, pipe: share}, limits, u) for share in (shares[pipe], max(shares[pipe], more)))
    if before.use is not None and regime(before, THRESHOLDS) == "compute-bound":
        assert regime(after, THRESHOLDS) == "compute-bound"


@given(_SHARES, _LIMITS, st.floats(0.8, 1.2))
def test_counters_touch_only_kernels(shares: dict[str, float], limits: dict[str, float], u: float) -> None:
    """Copies and collectives that take a tenth of B or more are judged first, and as without counters."""
    given = _facts(shares, limits, u)
    moving = limits.get("transfer", 0.0) + limits.get("communication", 0.0)
    if moving >= 0.1 * sum(limits.values()):
        assert ruling(given, THRESHOLDS).regime == gpu_regime(given.busy_by_limit_us, THRESHOLDS)


# ---- what it says ----------------------------------------------------------------------------------------------------


def texts(verdict: Verdict) -> str:
    return "\n".join([verdict.summary, *(e.text for e in verdict.evidence), *verdict.advice])


def test_both_shares_are_said_and_counters_win_over_names() -> None:
    verdict = judged(kernels(("flash_fwd_splitkv", 1000)), counters(tensor=10, dram=81.6, fp32=4, integer=8))
    said = texts(verdict)
    assert verdict.summary.endswith("; DRAM at 96% of what a copy reaches.")
    assert "DRAM at 96% of what a copy reaches." in said
    assert "Tensor cores at 11% of what a large product reaches; no pipe is used more." in said
    assert "shapes and names say compute-bound; counters say memory-bound" in said
    assert "DRAM at 96% of what a copy reaches: only fewer bytes help." in verdict.advice
    assert verdict.advice[-1] == "Faster arithmetic does not help here: the kernels wait for memory."
    assert verdict.reasons == []


def test_a_memory_not_quite_at_its_limit_has_a_bound_on_what_better_accesses_gain() -> None:
    verdict = judged(kernels(("gemm", 1000)), counters(tensor=2, dram=54))
    assert any("gain at most 1.6x; beyond that only fewer bytes help" in a for a in verdict.advice)


def test_two_units_close_together_are_both_advised_about() -> None:
    """DRAM at 0.8 and tensor cores at 0.7: with fewer bytes alone the step is at most 1 / 0.7 times as fast."""
    memory = judged(kernels(("gemm", 1000)), counters(dram=68, tensor=63.7))
    assert (memory.regime, memory.confidence) == ("memory-bound", "medium")
    assert memory.advice[-1] == (
        "Tensor cores at 70% of what a large product reaches, close behind: less work for one of the two gains at most "
        "1.4x, for then the other is at its limit."
    )
    assert not any("Faster arithmetic does not help" in a for a in memory.advice)
    compute = judged(kernels(("gemm", 1000)), counters(dram=59.5, tensor=72.8))
    assert any("DRAM at 70% of what a copy reaches, close behind" in a for a in compute.advice)


def test_below_the_limits_the_advice_claims_no_more_than_was_measured() -> None:
    """As log-gamma in float64 on an H200: by its name memory-bound, but its FP64 pipe is used more than DRAM."""
    verdict = judged(kernels(("vectorized_elementwise_kernel", 1000)), counters(dram=28, fp64=59, integer=22, tensor=0))
    assert (verdict.regime, verdict.confidence) == ("memory-bound", "medium")
    assert verdict.summary.endswith("no unit is near its limit; FP64 pipe at 59% of its peak is the nearest.")
    assert "FP64 pipe at 59% of its peak is used more than DRAM, and may be what limits them." in verdict.advice
    assert "It is float64 arithmetic: use float32 where that is accurate enough." in verdict.advice
    assert not any("Faster arithmetic does not help" in a or "launching less" in a for a in verdict.advice)
    # Copies by name at DRAM 0.28, under 0.3; integer pipe 0.35: compute-bound, and lower precision is no help.
    counted = judged(kernels(("vectorized_elementwise_kernel", 1000)), counters(dram=24, integer=35, tensor=0))
    assert counted.regime == "compute-bound"
    assert any(a.startswith("It is integer arithmetic") for a in counted.advice)
    assert not any("computes nearly all the time" in a for a in counted.advice)
    said = (
        "The kernels' shapes and names say memory-bound, but DRAM at 28% of what a copy reaches: too little for that."
    )
    assert said in texts(counted)
    assert "the counters do not show what limits the kernels" in counted.reasons[0]
    # Products by name at 0.4 of the tensor cores, DRAM at 0.55
    products = judged(kernels(("gemm", 1000)), counters(dram=46.75, tensor=36.4))
    assert products.regime == "compute-bound"
    assert (
        "DRAM at 55% of what a copy reaches is used more than any pipe, and may be what limits them." in products.advice
    )


def test_names_that_say_nothing_below_the_limits_are_not_answered_by_counters() -> None:
    verdict = judged(kernels(("zorp", 1000)), counters(dram=1, fp32=6, integer=5, tensor=0))
    assert verdict.regime == "latency-bound"
    assert "The kernels' names do not tell what limits them." in texts(verdict)
    assert "counters do." not in texts(verdict)


def test_each_part_of_the_tensor_pipe_has_its_own_reachable_value() -> None:
    """An int8 product keeps the pipe busy for 0.73 of the time where a bfloat16 one reaches 0.91: nothing is left."""
    reachable: dict[Unit, float] = {**REACHABLE, "hmma": 0.91, "imma": 0.73}
    product = Counters(
        source="gpm", window_s=1.0, shares={"tensor": 0.73, "imma": 0.73, "dram": 0.18}, reachable=reachable
    )
    verdict = judged(kernels(("gemm", 1000)), product)
    assert verdict.summary.endswith("; tensor cores at 100% of what a large product reaches.")
    # Both kinds: 0.455 / 0.91 + 0.219 / 0.73 = 0.8
    both = structs.replace(product, shares={"tensor": 0.674, "hmma": 0.455, "imma": 0.219})
    assert both.utilization("tensor", 1.0) == pytest.approx(0.8)
    assert both.reach("tensor") == pytest.approx(0.674 / 0.8)
    # A part without a value of its own counts as the whole pipe; one that was not counted changes nothing.
    assert structs.replace(both, reachable=REACHABLE).reach("tensor") == pytest.approx(0.91)
    assert structs.replace(both, shares={"tensor": 0.5}).reach("tensor") == 0.91
    assert structs.replace(both, reachable={}).reach("tensor") is None


def test_from_nine_tenths_of_what_is_reachable_on_only_less_helps() -> None:
    for share, said in ((0.9, "DRAM at 90% of what a copy reaches: only fewer"), (0.89, "gain at most 1.1x; beyond")):
        verdict = judged(kernels(("softmax_warp", 1000)), counters(tensor=2, dram=share * 85))
        assert any(said in advice for advice in verdict.advice), share


@pytest.mark.parametrize(
    ("name", "busy", "said"),
    [
        ("gemm", 600, "The products run in float32 without tensor cores"),
        ("gemm", 400, "Tensor cores do not help"),
        ("zorp", 600, "If the kernels compute products"),
        ("zorp", 400, "Tensor cores do not help"),
    ],
)
def test_what_most_of_the_time_is_spent_in_says_whether_tensor_cores_help(name: str, busy: float, said: str) -> None:
    trace = kernels((name, busy), ("vectorized_elementwise_kernel", 1000 - busy))
    assert said in texts(judged(trace, counters(fp32=70, dram=5)))


def test_kernels_take_turns_only_if_each_kind_has_a_fifth_of_the_time() -> None:
    for moving, turns in ((200, True), (190, False)):
        verdict = judged(kernels(("gemm", 1000 - moving), ("softmax_warp", moving)), counters(tensor=33, dram=39))
        assert ("take turns" in texts(verdict)) == turns


def test_integer_arithmetic_is_named_and_narrower_types_do_not_help() -> None:
    verdict = judged(
        kernels(("EmbeddingBag_updateOutputKernel_sum_mean", 1000)), counters(tensor=0, dram=23, integer=82)
    )
    assert verdict.summary.endswith("; integer pipe at 82% of its peak.")
    assert any(a.startswith("It is integer arithmetic") for a in verdict.advice)
    assert any(a.startswith("A narrower floating type or tensor cores do not help") for a in verdict.advice)
    assert not any("lower precision" in a for a in verdict.advice)


def test_advice_and_evidence_give_the_distance_from_the_roofline_alike() -> None:
    """950 us of work where 0.12 GB at 4 TB/s need 30 us: 31.67, which is 32x in both."""
    work = StepWork(flops_by_dtype={}, bytes=0.12e9, source="counted")
    trace = TraceBuilder()
    for i in range(3):
        at = i * 1000
        trace.step(i, at=at, dur=1000).op("aten::add", at=at, dur=10)
        trace.work(i + 1, launch=at + 1, at=at + 5, dur=950, name="vectorized_elementwise_kernel")
    found = judged(trace, counters(dram=75, integer=30, tensor=0), ceilings=CEILINGS, work=work)
    assert any(text.startswith("The kernels are 32x above the roofline: ") for text in found.advice)
    assert "If every kernel reached the roofline: at most 32x faster." in [item.text for item in found.evidence]


def test_a_roofline_of_products_and_bytes_says_nothing_of_other_arithmetic() -> None:
    """R = 100 us by 0.4 GB, but the integer pipe is at 82 %: kernels cannot come 9.5 times nearer to it."""
    work = StepWork(flops_by_dtype={}, bytes=0.4e9, source="counted")
    trace = TraceBuilder()
    for i in range(3):
        at = i * 1000
        trace.step(i, at=at, dur=1000).region("train", at=at, dur=1000).op("aten::_embedding_bag", at=at, dur=10)
        trace.work(i + 1, launch=at + 1, at=at + 5, dur=950, name="EmbeddingBag_updateOutputKernel_sum_mean")
    integer = judged(trace, counters(dram=23, integer=78, tensor=0), ceilings=CEILINGS, work=work)
    said = [a for a in integer.advice if "roofline" in a]
    assert said == [
        "The kernels are 9.5x above the roofline, but that is made of bytes and products: it does not tell what less "
        "of this arithmetic gains."
    ]
    memory = judged(trace, counters(dram=75, integer=30, tensor=0), ceilings=CEILINGS, work=work)
    (text,) = (a for a in memory.advice if "roofline" in a)
    assert text.endswith("its distance from the roofline (fewer passes over the data, contiguous accesses).")


def test_kernels_of_unknown_kind_are_judged_and_say_why() -> None:
    verdict = judged(kernels(("zorp", 1000)), counters(tensor=0, dram=1, fp32=70, integer=11))
    assert (verdict.regime, verdict.cause, verdict.confidence) == ("compute-bound", "arithmetic", "high")
    assert "The kernels' names do not tell what limits them: counters do." in texts(verdict)
    assert any("float32 arithmetic on single values" in a for a in verdict.advice)
    assert any("If the kernels compute products" in a and "TF32" in a for a in verdict.advice)
    assert judged(kernels(("zorp", 1000)), None).regime == "inconclusive"


def test_float32_products_belong_on_the_tensor_cores_elementwise_arithmetic_does_not() -> None:
    counted = counters(tensor=0, dram=5, fp32=74)
    products = judged(kernels(("gemm", 1000)), counted)
    assert any("The products run in float32 without tensor cores" in a and "TF32" in a for a in products.advice)
    values = judged(kernels(("vectorized_elementwise_kernel", 1000)), counted)
    assert not any("TF32" in a for a in values.advice)
    assert "Tensor cores do not help: they only do products." in values.advice


def test_where_no_unit_is_near_its_limit_it_says_what_to_look_at() -> None:
    """30 kernels of 33 us on 60 of 100 multiprocessors: neither bytes nor arithmetic; few of the warps that fit."""
    counted = counters(tensor=1, dram=5, integer=9, sm_active=58, occupancy=7)
    verdict = judged(kernels(*[("zorp", 33.3)] * 30, grid=[60, 1, 1]), counted)
    assert (verdict.regime, verdict.cause, verdict.confidence) == ("latency-bound", "latency", "medium")
    assert verdict.summary.endswith("; no unit of the GPU is near its limit.")
    assert "too small to fill" not in verdict.summary
    said = texts(verdict)
    assert "No unit is near its limit: that begins at 60% of what is reachable." in said
    assert "58% of the multiprocessors are at work on average" in said
    assert "hold 12% of the warps that fit" in said
    assert "grids leave over half" not in said  # 60 of 100 is over half
    assert "kernels per step take" not in said  # 33 us each
    assert "--counters ncu" in said


def test_small_grids_and_short_kernels_have_their_own_sentences() -> None:
    """200 kernels of 4.9 us with 8 blocks each."""
    verdict = judged(kernels(*[("zorp", 4.9)] * 200, grid=[8, 1, 1]), counters(tensor=0, dram=1, sm_active=8))
    said = texts(verdict)
    assert verdict.regime == "latency-bound"
    assert (
        "100% of the GPU's time is in launches whose grids leave over half of it empty, most of all zorp (8 blocks)"
        in said
    )
    assert "200 kernels per step take 4.9 us each" in said
    assert "multiprocessors are at work" not in said  # the warps on them were not counted
    assert "most of it in kernels too small to fill the GPU, and no unit is near its limit" in verdict.summary


@pytest.mark.parametrize(
    ("occupancy", "said"), [(12, []), (9, ["Multiprocessors at work hold 20% of the warps that fit (occupancy)"])]
)
def test_multiprocessors_and_their_warps_are_those_of_the_busy_time(occupancy: float, said: list[str]) -> None:
    """B is 60 of 100: 45 % active are 75 % of it; warps of 12 and 9 % are 20 and 15 %, a quarter of 75 is 18.75 %."""
    given = facts(100, 60, counted=counters(sm_active=45, occupancy=occupancy))
    found = look_at(kernels(("zorp", 600)).measures(), given)[:-1]
    assert found[0].startswith("75% of the multiprocessors are at work on average while the GPU is busy")
    assert [text.split(":")[0] for text in found[1:]] == said


def grids(*launches: tuple[str, float, int]) -> TraceBuilder:
    """A step of kernels: name, time, blocks. The GPU has 100 multiprocessors."""
    trace, at = TraceBuilder().step(0, at=0, dur=1000), 5.0
    for number, (name, busy, blocks) in enumerate(launches, 1):
        trace.work(number, launch=number, at=at, dur=busy, name=name, grid=[blocks, 1, 1])
        at += busy
    return trace


def test_small_grids_are_named_from_three_tenths_on_by_their_own_time() -> None:
    """`zorp` takes longer, but most of it in large grids."""
    launches = [("zorp", 100, 8), ("zorp", 400, 1000), ("blub", 200, 8)]
    found = look_at(grids(*launches, ("gemm", 300, 1000)).measures(), facts(1000, 1000))
    assert found[0].startswith(
        "30% of the GPU's time is in launches whose grids leave over half of it empty, most of all blub (8 blocks)"
    )
    found = look_at(grids(*launches, ("gemm", 320, 1000)).measures(), facts(1020, 1020))
    assert len(found) == 1


@pytest.mark.parametrize(("count", "us", "said"), [(20, 10, True), (19, 10, False), (20, 10.5, False)])
def test_twenty_kernels_of_up_to_10_us_are_many_short_ones(count: int, us: float, said: bool) -> None:
    """However long the step is: it is the time that they take."""
    trace = kernels(*[("zorp", us)] * count, grid=[1000, 1, 1])
    found = look_at(trace.measures(), facts(1000, count * us))
    assert any(f"{count} kernels per step take" in text for text in found) == said


@pytest.mark.parametrize(("registers", "said"), [(255, True), (32, False)])
def test_launches_that_cannot_fill_half_of_the_gpu_are_named(registers: int, said: bool) -> None:
    """255 registers are 8192 for a warp: 8 warps, 2 blocks of 4, an eighth of 64. 32 are 1024: 64 warps."""
    device = {"id": 0, "computeMajor": 9, "computeMinor": 0, "warpSize": 32, "numSms": 132}
    device |= {"maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536}
    launch = {"registers per thread": registers, "shared memory": 0, "block": [128, 1, 1], "grid": [21120, 1, 1]}
    trace = kernels(("zorp", 900), **launch).member(deviceProperties=[{**device, "sharedMemPerMultiprocessor": 233472}])
    found = look_at(trace.measures(), facts(1000, 900))
    assert any("Launches can fill at most 12% of the GPU's room for warps" in text for text in found) == said
    assert len(found) == 1 + said


def test_doubts_about_names_are_none_where_counters_decide_and_stay_where_names_do() -> None:
    """45 % products, 45 % moving, 10 % unknown: unknown kernels could turn it."""
    trace = kernels(("gemm", 450), ("softmax_warp", 440), ("zorp", 110))
    decided = judged(trace, counters(dram=80, tensor=10))
    assert (decided.regime, decided.confidence, decided.reasons) == ("memory-bound", "high", [])
    by_names = judged(trace, counters(dram=40, tensor=40))
    assert (by_names.regime, by_names.confidence) == ("compute-bound", "low")
    assert len(by_names.reasons) > 1


def test_noisy_times_still_lower_it() -> None:
    """DRAM at 0.61 of reachable with u = 0.95, but T may be 4 % shorter: 0.59, where names (compute) decide."""
    counted = counters(dram=0.61 * 85 * 0.95, tensor=32)
    noisy = Timing(
        mode="throughput",
        step_time_us=1000,
        step_latency_us=None,
        step_time_p95_us=None,
        steps_per_block=10,
        block_step_times_us=[960, 960, 1000, 1000, 1000, 1040, 1040],
        step_latencies_us=[],
    )
    verdict = judged(kernels(("gemm", 950)), counted, timing=noisy)
    assert (verdict.regime, verdict.confidence) == ("memory-bound", "low")
    assert any("it could also be compute-bound" in reason for reason in verdict.reasons)


def test_limits_are_stamped() -> None:
    stamped = judged(kernels(("gemm", 1000)), None).thresholds
    names = (
        "counters_moving",
        "unit_limits",
        "unit_lead",
        "unit_bears",
        "counted_share",
        "off_ridge",
        "far_from_roofline",
    )
    assert [stamped[name] for name in names] == [0.1, 0.6, 0.2, 0.3, 0.8, 2.0, 3.0]


# ---- without counters: counted work ----------------------------------------------------------------------------------

CEILINGS = Ceilings(device="test", flops_per_s={"bfloat16": 600e12, "float32": 50e12}, bytes_per_s=4e12, measured_ns=1)
"""Ridges: 150 FLOPs per byte in bfloat16, 12.5 in float32."""


def products(*, n: int = 4096, busy: float = 950, rest: float = 0, dtype: str = "c10::BFloat16") -> TraceBuilder:
    """Steps of a square product, counted, and of `rest` us of elementwise work, not counted."""
    trace, number = TraceBuilder(), itertools.count(1)
    for i in range(3):
        at = i * 1000
        trace.step(i, at=at, dur=1000).region("train", at=at, dur=1000)
        trace.op("aten::mm", at=at, dur=10, Input_Dims=[[n, n], [n, n]], Input_type=[dtype, dtype])
        trace.work(next(number), launch=at + 1, at=at + 5, dur=busy, name="nvjet_tst")
        if rest:
            trace.op("mine::act", at=at + 12, dur=5)
            trace.work(next(number), launch=at + 13, at=at + 5 + busy, dur=rest, name="vectorized_elementwise_kernel")
    return trace


def needing(us: float, *, n: int = 4096) -> Ceilings:
    """Ceilings with the same ridges, by which a square product in bfloat16 needs `us`."""
    scale = max(2 * n**3 / 600e12, 6 * n**2 / 4e12) * 1e6 / us
    rates = {dtype: rate * scale for dtype, rate in CEILINGS.flops_per_s.items()}
    return Ceilings(device="test", flops_per_s=rates, bytes_per_s=4e12 * scale, measured_ns=1)


def by_work(trace: TraceBuilder, ceilings: Ceilings | None = CEILINGS) -> Verdict:
    return judge(measure(trace.table(), ceilings), Context(timing=timing(1000), ceilings=ceilings)).verdict


def test_counted_work_far_off_the_ridge_is_sure() -> None:
    """4096: 2 n^3 / (3 n^2 x 2 bytes) = 1365 FLOPs a byte, nine times the ridge."""
    verdict = by_work(products(), needing(400))
    assert (verdict.regime, verdict.confidence, verdict.reasons) == ("compute-bound", "high", [])


@pytest.mark.parametrize(("needs", "confidence"), [(318, "high"), (315, "medium")])
def test_work_far_from_the_roofline_may_be_limited_by_something_else(needs: float, confidence: str) -> None:
    """950 us are 2.99 and 3.02 times as long as the products need."""
    verdict = by_work(products(), needing(needs))
    assert (verdict.regime, verdict.confidence) == ("compute-bound", confidence)
    assert all("3x as long as their FLOPs and bytes need" in reason for reason in verdict.reasons)


@pytest.mark.parametrize(
    ("n", "expected", "confidence"),
    [
        (899, "compute-bound", "medium"),  # 299.7 a byte: within twofold of 150
        (903, "compute-bound", "high"),  # 301
        (226, "memory-bound", "medium"),  # 75.3
        (222, "memory-bound", "high"),  # 74
    ],
)
def test_within_twofold_of_the_ridge_it_is_medium(n: int, expected: str, confidence: str) -> None:
    verdict = by_work(products(n=n), needing(400, n=n))
    assert (verdict.regime, verdict.confidence) == (expected, confidence)
    assert all("within 2x of the ridge" in reason for reason in verdict.reasons)


@pytest.mark.parametrize(("rest", "confidence"), [(180, "high"), (190, "high"), (200, "medium")])
def test_over_a_fifth_of_uncounted_work_is_judged_by_names(rest: float, confidence: str) -> None:
    """770 of 950 counted are 81 %, 760 are 80, 750 are 79 %."""
    verdict = by_work(products(busy=950 - rest, rest=rest), needing(400))
    assert (verdict.regime, verdict.confidence) == ("compute-bound", confidence)
    expected = (
        [] if confidence == "high" else ["21% of the busy time is in kernels whose FLOPs and bytes are not known"]
    )
    assert [reason.split(":")[0] for reason in verdict.reasons] == expected


def test_copies_to_the_host_are_known() -> None:
    """Of 950 us 700 are counted and 90 a copy, together 83 %; without it they would be 74."""
    trace = products(busy=700, rest=160)
    for i in range(3):
        trace.launch(at=1000 * i + 20, correlation=100 + i, name="cudaMemcpyAsync")
        trace.memcpy("Memcpy DtoH (Device -> Pinned)", at=1000 * i + 870, dur=90, correlation=100 + i)
    verdict = by_work(trace, needing(400))
    assert (verdict.regime, verdict.confidence, verdict.reasons) == ("compute-bound", "high", [])


def test_without_ceilings_only_an_intensity_beyond_every_ridge_is_sure() -> None:
    """In 16 bits no ridge is over 430: 4096 does 1365 a byte, 2048 does 683. In float32 7 and less is streaming."""
    assert by_work(products(), None).confidence == "high"
    near = by_work(products(n=2048), None)
    assert (near.regime, near.confidence) == ("compute-bound", "medium")
    # float8: twice the rate; 4096 does 2 n^3 / 3 n^2 = 2731 a byte, 2048 does 1365, under 2 x 860
    assert by_work(products(dtype="c10::Float8_e4m3fn"), None).confidence == "high"
    assert by_work(products(n=2048, dtype="c10::Float8_e4m3fn"), None).confidence == "medium"


def test_without_ceilings_float64_may_have_a_ridge_of_one_half() -> None:
    """36 in float32 does 6 FLOPs a byte, under half of every ridge; in float64 it does 3, over that of some GPUs."""
    single, double = (by_work(products(n=36, dtype=dtype), None) for dtype in ("float", "double"))
    assert (single.regime, single.confidence, single.reasons) == ("memory-bound", "high", [])
    assert (double.regime, double.confidence) == ("memory-bound", "medium")
    assert "within 2x of the ridge" in double.reasons[0]


def test_work_whose_sum_points_the_other_way_is_doubted() -> None:
    """A product at a tenth of its rate takes most of the time, a copy most of the work: 12.5 to one in bytes."""
    trace, number = TraceBuilder(), itertools.count(1)
    for i in range(3):
        at = i * 1000
        trace.step(i, at=at, dur=1000).region("train", at=at, dur=1000)
        half = ["c10::BFloat16"] * 2
        # 2 x 1000^3 FLOPs are 3.3 us of arithmetic, 6 MB are 1.5 us.
        trace.op("aten::mm", at=at, dur=10, Input_Dims=[[1000, 1000]] * 2, Input_type=half)
        trace.work(next(number), launch=at + 1, at=at + 5, dur=600, name="nvjet_tst")
        # 2 x 10^8 values of 2 bytes, read and written: 200 us.
        trace.op("aten::neg", at=at + 12, dur=5, Input_Dims=[[200_000_000]], Input_type=["c10::BFloat16"])
        trace.work(next(number), launch=at + 13, at=at + 605, dur=350, name="vectorized_elementwise_kernel")
    verdict = by_work(trace)
    assert (verdict.regime, verdict.confidence) == ("compute-bound", "medium")
    assert any("all counted work together is limited by bandwidth" in reason for reason in verdict.reasons)


@pytest.mark.parametrize(
    ("flops", "size", "confidence"),
    [
        (285e9 * 1.01, 0, "high"),  # over half of 950 us at 600 TFLOP/s
        (285e9 * 0.99, 0, "medium"),
        (285e9 * 1.01, 1.0e9, "medium"),  # 480 us against 250 us for the bytes
        (285e9 * 1.01, 0.95e9, "high"),  # 238 us
        (600e9, 1.8e9, "high"),  # R is over B: 1000 us, within the slack of 5 %
        (700e9, 0, "medium"),  # R is impossible
    ],
)
def test_a_step_whose_arithmetic_alone_fills_most_of_it_is_sure(flops: float, size: float, confidence: str) -> None:
    """A graph's kernels belong to no operator, but what the step computes was counted."""
    work = StepWork(flops_by_dtype={"bfloat16": flops}, bytes=size, source="counted")
    context = Context(timing=timing(1000), ceilings=CEILINGS, work=work)
    busy = 960 if flops == 600e9 else 950
    verdict = judge(kernels(("gemm", busy)).measures(), context).verdict
    assert (verdict.regime, verdict.confidence) == ("compute-bound", confidence), verdict.reasons


def test_a_step_whose_bytes_alone_fill_most_of_it_is_sure() -> None:
    """2.4 GB at 4 TB/s are 600 of 950 us; products by name are no reason to call that compute-bound at high."""
    work = StepWork(flops_by_dtype={"bfloat16": 1e9}, bytes=2.4e9, source="counted")
    context = Context(timing=timing(1000), ceilings=CEILINGS, work=work)
    moving = judge(kernels(("softmax_warp", 950)).measures(), context).verdict
    assert (moving.regime, moving.confidence) == ("memory-bound", "high")
    named = judge(kernels(("gemm", 950)).measures(), context).verdict
    assert (named.regime, named.confidence) == ("compute-bound", "medium")
    assert any("over half of the busy time is needed for the bytes" in reason for reason in named.reasons)


def test_copies_within_the_device_are_counted_by_what_they_move() -> None:
    trace = TraceBuilder()
    for i in range(3):
        at = i * 1000
        trace.step(i, at=at, dur=1000).region("train", at=at, dur=1000)
        trace.op("aten::mm", at=at, dur=10, Input_Dims=[[4096, 4096]] * 2, Input_type=["c10::BFloat16"] * 2)
        trace.work(2 * i + 1, launch=at + 1, at=at + 5, dur=700, name="nvjet_tst")
        trace.launch(at=at + 12, correlation=2 * i + 2, name="cudaMemcpyAsync")
        trace.memcpy("Memcpy DtoD (Device -> Device)", at=at + 705, dur=250, correlation=2 * i + 2)
    measures = measure(trace.table(), CEILINGS)
    assert measures.counted.busy_us == pytest.approx(3 * 950)
    assert measures.counted.copied_us == pytest.approx(3 * 250)
    assert by_work(trace, needing(240)).confidence == "high"  # 700 us of products are 2.9 times that


@pytest.mark.parametrize(
    ("least", "most", "limit"),
    [
        (200, 900, "arithmetic"),  # twice the bytes' time whatever the ridge
        (199, 900, None),
        (199, 199, None),
        (1, 51, None),  # by the lowest ridge it is within twofold
        (1, 50, "bandwidth"),
        (0, 0, "bandwidth"),
    ],
)
def test_a_limit_holds_for_every_ridge_that_is_possible(least: float, most: float, limit: str | None) -> None:
    assert Counted(bytes=100, least=least, most=most).limit(2) == limit
    assert Counted().limit(2) is None


def test_cycles_add_their_counted_work() -> None:
    one = measure(products().table(), CEILINGS)
    both: Measures = combine([one, one])
    assert both.counted.busy_us == 2 * one.counted.busy_us == pytest.approx(2 * 3 * 950)
    assert both.counted.bytes == 2 * 3 * 3 * 4096**2 * 2
    # Of 150 FLOPs the device does in the time of a byte, a product does 2 n^3.
    assert both.counted.least == both.counted.most == pytest.approx(2 * 3 * 2 * 4096**3 / 150)


def test_counters_need_no_counted_work() -> None:
    verdict = judged(kernels(("gemm", 950)), counters(tensor=80, dram=10))
    assert (verdict.confidence, verdict.reasons) == ("high", [])


def test_copies_collectives_and_small_kernels_are_no_matter_of_names() -> None:
    """A copy's row, a collective's library and a grid say so themselves."""
    small = judged(kernels(("gemm", 1000), grid=[8, 1, 1]), None)
    assert (small.regime, small.confidence) == ("latency-bound", "high")
    spread = judged(kernels(("ncclDevKernel_AllReduce_Sum", 1000)), None)
    assert (spread.regime, spread.confidence) == ("communication-bound", "high")


def test_the_cpu_is_judged_as_before() -> None:
    """Counters of a GPU that a CPU run may have beside it change nothing."""
    trace = TraceBuilder().step(0, at=0, dur=100).op("aten::mm", at=0, dur=90)
    given = Context(timing=timing(100), counters=counters(dram=80, tensor=1))
    assert judge(trace.measures(), given).verdict == judge(trace.measures(), Context(timing=timing(100))).verdict
