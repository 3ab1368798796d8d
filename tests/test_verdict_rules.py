"""The table of regimes, row by row; microseconds a step."""

from __future__ import annotations

from typing import get_args

import pytest
from msgspec import structs

from proftrack.record.verdict import Regime
from proftrack.verdict.rules import StepFacts, gpu_regime, regime, without_inflation
from proftrack.verdict.thresholds import THRESHOLDS


def facts(
    time: float, busy: float, *, waits: float = 0.0, limits: dict[str, float] | None = None, **causes: float
) -> StepFacts:
    return StepFacts(
        step_time_us=time,
        gpu_busy_us=busy,
        idle_by_cause_us=causes,
        busy_by_limit_us=limits or {"arithmetic": busy},
        waits_over_gpu_us=waits,
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # input-bound: u < 0.8, data loading explains at least half of T - B
        (facts(100, 20, input=40), "input-bound"),
        (facts(100, 20, input=39.9, dispatch=40), "overhead-bound"),
        (facts(100, 79, input=10.5), "input-bound"),
        (facts(100, 80, input=20), "compute-bound"),
        # sync-bound: T - max(H, B) is at least half of T - B, H = T less the waits that overlap GPU work
        (facts(100, 40, waits=30), "sync-bound"),
        (facts(100, 40, waits=29.9, dispatch=60), "overhead-bound"),
        (facts(100, 70, waits=60), "sync-bound"),  # max(H, B) = B: all of T - B
        (facts(100, 70, waits=14, dispatch=30), "mixed"),
        # host-bound: stretches that launch nothing explain at least half
        (facts(100, 40, host=30), "host-bound"),
        (facts(100, 40, host=29.9, dispatch=30), "overhead-bound"),
        (facts(100, 60, host=20), "host-bound"),
        # of several that explain half the one that explains most; of equals input before sync before host
        (facts(100, 40, input=30, host=30, waits=30), "input-bound"),
        (facts(100, 40, host=30, waits=30), "sync-bound"),
        (facts(100, 40, host=58, waits=31), "host-bound"),
        (facts(100, 40, input=31, waits=40), "sync-bound"),
        # allocator calls that explain half: host-bound too
        (facts(100, 40, allocator=30, dispatch=30), "host-bound"),
        (facts(100, 40, allocator=29.9, dispatch=30), "overhead-bound"),
        (facts(100, 40, allocator=20, host=20, dispatch=20), "overhead-bound"),
        # waits win nothing where the device, or nobody knows what, makes the GPU late
        (facts(100, 40, waits=50, queued=25, dispatch=35), "sync-bound"),
        (facts(100, 40, waits=50, queued=31, dispatch=29), "inconclusive"),
        (facts(100, 40, waits=50, unknown=31, dispatch=29), "inconclusive"),
        # overhead-bound: u <= 0.5 and none of these; mixed above
        (facts(100, 50, dispatch=50), "overhead-bound"),
        (facts(100, 50.1, dispatch=49.9), "mixed"),
        (facts(100, 79.9, dispatch=20), "mixed"),
        # unexplained is not overhead: late launches explain at least half of T - B
        (facts(100, 1), "inconclusive"),
        (facts(100, 40, dispatch=30), "overhead-bound"),
        (facts(100, 40, dispatch=29.9), "inconclusive"),
        (facts(100, 60, dispatch=10, synchronization=10), "mixed"),
        (facts(100, 60, dispatch=10, synchronization=9), "inconclusive"),
        (facts(100, 40, dispatch=10, host=10, input=5, allocator=5, queued=30), "overhead-bound"),
        # over half of what the trace shows, or of T - B if that is more, is of unknown cause or the device's
        (facts(100, 40, dispatch=30, unknown=30), "overhead-bound"),
        (facts(100, 40, dispatch=29, unknown=31), "inconclusive"),
        (facts(100, 40, dispatch=40, unknown=41), "inconclusive"),  # profiling made it longer
        (facts(100, 40, dispatch=40, queued=41), "inconclusive"),
        (facts(100, 40, host=40, unknown=41), "inconclusive"),
        (facts(100, 85, unknown=15), "compute-bound"),
        # causes weigh against T - B of the true step, not against the profiled idle time
        (facts(100, 90, input=500), "compute-bound"),
        (facts(100, 40, dispatch=500, host=31), "host-bound"),
        # the GPU's side: where most of the busy time goes
        (facts(100, 80), "compute-bound"),
        (facts(100, 120), "compute-bound"),
        (facts(100, 90, limits={"bandwidth": 50, "arithmetic": 40}), "memory-bound"),
        (facts(100, 90, limits={"bandwidth": 45, "arithmetic": 45}), "compute-bound"),
        (facts(100, 90, limits={"latency": 46, "arithmetic": 44}), "latency-bound"),
        (facts(100, 90, limits={"latency": 45, "arithmetic": 45}), "compute-bound"),
        (facts(100, 90, limits={"transfer": 46, "arithmetic": 44}), "transfer-bound"),
        (facts(100, 90, limits={"communication": 46, "bandwidth": 44}), "communication-bound"),
        (facts(100, 90, limits={"unknown": 46, "bandwidth": 44}), "inconclusive"),
        (facts(100, 90, limits={"unknown": 44, "bandwidth": 46}), "memory-bound"),
        (facts(100, 90, limits={"unknown": 90}), "inconclusive"),
    ],
)
def test_regimes(given: StepFacts, expected: str) -> None:
    assert regime(given, THRESHOLDS) == expected
    assert expected in get_args(Regime)


def test_no_busy_time_by_limit_is_inconclusive() -> None:
    assert gpu_regime({}, THRESHOLDS) == "inconclusive"


def test_sync_time_is_what_removing_the_waits_would_win() -> None:
    assert facts(100, 40, waits=30).sync_us == 30  # the host needs 70 then
    assert facts(100, 90, waits=30).sync_us == 10  # the GPU still needs 90
    assert facts(100, 120, waits=30).sync_us == 0
    assert facts(100, 120).gap_us == 0


def test_without_inflation_dispatch_is_a_quarter_in_short_steps_and_half_in_longer_ones() -> None:
    short = without_inflation(facts(900, 100, dispatch=800), THRESHOLDS)
    assert (short.step_time_us, short.idle_by_cause_us) == (300, {"dispatch": 200})
    long = without_inflation(facts(1000, 100, dispatch=800, host=50), THRESHOLDS)
    assert (long.step_time_us, long.idle_by_cause_us) == (600, {"dispatch": 400, "host": 50})
    assert without_inflation(facts(100, 90, host=10), THRESHOLDS).step_time_us == 100
    # never shorter than the GPU's own time
    assert without_inflation(facts(100, 90, dispatch=100), THRESHOLDS).step_time_us == 90


def test_thresholds_are_stamped_as_numbers() -> None:
    stamped = THRESHOLDS.as_dict()
    assert stamped["gpu_bound_from"] == 0.8
    assert stamped["overhead_bound_to"] == 0.5
    assert all(isinstance(v, float) for v in stamped.values())


def test_what_better_kernels_can_win_leaves_copies_and_collectives_out() -> None:
    """B = 100 and R = 10: tenfold for kernels alone; with 80 of collectives and 5 of copies 100 / (10 + 85)."""
    assert facts(100, 100).kernel_headroom(10) == 10
    mostly_others = facts(100, 100, limits={"arithmetic": 15, "communication": 80, "transfer": 5})
    assert mostly_others.kernel_headroom(10) == pytest.approx(100 / 95)


@pytest.mark.parametrize(
    ("given", "wait", "causes"),
    [
        (facts(100, 20, dispatch=70, host=5), 50, {"dispatch": 30, "host": 5, "input": 50}),
        (facts(100, 20, dispatch=70, input=10), 0, {"dispatch": 70}),
        (facts(100, 20, dispatch=10, input=70), 20, {"dispatch": 10, "input": 20}),
        (facts(100, 20, dispatch=10), 500, {"dispatch": 0, "input": 80}),
        (facts(100, 120, dispatch=10), 30, {"dispatch": 0}),
        (facts(100, 20), -5, {}),
    ],
)
def test_a_measured_wait_takes_its_part_of_the_gap(given: StepFacts, wait: float, causes: dict[str, float]) -> None:
    assert given.with_input(wait).idle_by_cause_us == causes


def test_workers_pace_is_not_the_hosts() -> None:
    """T - B is 60, 40 of it a wait for data; host waits of 50 could win all 60, were the data there."""
    waiting = facts(100, 40, waits=50, input=40)
    assert waiting.sync_us == 50
    assert structs.replace(waiting, waits_for_workers=True).sync_us == 20
