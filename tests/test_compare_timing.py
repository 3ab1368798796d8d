"""What may be said of two times: intervals, the noise floor, and words that never claim more than both allow."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from proftrack.compare.floors import LEAST, assumed_busy_floor, assumed_floor, given_floor, measured_floor
from proftrack.compare.results import Floor
from proftrack.compare.timing import Samples, compare_times, quantile, within_interval

N64_H200 = (29.2, 20.3, 19.2)
"""Microseconds a step of matmul_add n=64 in three fresh processes on one H200; each one's blocks were within 3 %."""
N4096_H200 = (226.3, 224.0, 224.0)
BUSY_N4096_H200 = (226.8, 225.4, 227.5, 222.2, 221.1, 213.0)
"""GPU busy time of three recorded steps: the H200 was at its power limit, and its clock followed."""


def run(step_time: float, spread: float = 0.01, *, blocks: int = 10, runs: int = 1, seed: int = 0) -> Samples:
    noise = np.random.default_rng(seed).normal(0, spread, blocks)
    return Samples(step_time, step_time * np.exp(noise - np.median(noise)), runs)


def word(before: Samples, after: Samples, floor: Floor) -> str:
    return compare_times("step_time_us", before, after, floor).word


def test_the_quantile_is_students() -> None:
    """Values of a printed table (two-sided 95 %)."""
    assert [round(quantile(d), 3) for d in (1, 2, 10, 1e6)] == [12.706, 4.303, 2.228, 1.960]


def test_the_interval_within_two_processes() -> None:
    interval = within_interval(run(100, seed=1), run(150, seed=2))
    assert interval is not None
    assert interval.low < 1.5 < interval.high
    assert interval.high / interval.low < 1.05


def test_it_covers_what_it_promises() -> None:
    """Blocks of two processes whose true medians are equal: the interval misses 1 in about 5 of 100 (10 blocks: 7)."""
    generator = np.random.default_rng(5)
    missed = 0
    for _ in range(300):
        a, b = (100 * np.exp(generator.normal(0, 0.02, 10)) for _ in range(2))
        interval = within_interval(Samples(float(np.median(a)), a), Samples(float(np.median(b)), b))
        assert interval is not None
        missed += not interval.holds(1.0)
    assert missed / 300 < 0.1


def test_three_samples_give_the_extremes_and_two_give_nothing() -> None:
    interval = within_interval(Samples(10, [9, 10, 12]), Samples(20, [18, 20, 24]))
    assert interval is not None
    assert (interval.low, interval.high) == (18 / 12, 24 / 9)
    assert within_interval(Samples(10, [9, 10, 12]), Samples(20, [18, 20])) is None


def test_means_are_resampled_where_the_time_is_a_mean() -> None:
    """One step of twelve takes twice as long: it moves the mean of a resample, and never the median."""
    steps = [100.0] * 11 + [200.0]
    mean = within_interval(Samples(108, steps, mean=True), Samples(108, steps, mean=True))
    median = within_interval(Samples(100, steps), Samples(100, steps))
    assert mean is not None
    assert mean.high > 1.1
    assert median is not None
    assert (median.low, median.high) == (1.0, 1.0)


# ---- the floor -------------------------------------------------------------------------------------------------------


def test_a_floor_measured_from_repeats() -> None:
    """Logarithms 0, 0.01, -0.01: deviation 0.01, two degrees of freedom; exp(4.3027 x 0.01 x sqrt 2) - 1 = 6.27 %."""
    floor = measured_floor([[1.0, math.exp(0.01), math.exp(-0.01)]])
    assert floor is not None
    assert (floor.source, floor.runs) == ("measured", 3)
    assert floor.fraction == pytest.approx(0.0627, abs=1e-4)


def test_pairs_of_repeats_are_pooled_and_a_single_pair_is_not_enough() -> None:
    """Two pairs, each 0.02 apart: deviation sqrt(2 x 2 x 0.01^2 / 2) = 0.01414, two degrees of freedom."""
    pair = [1.0, math.exp(0.02)]
    floor = measured_floor([pair, [5 * value for value in pair]])
    assert floor is not None
    assert floor.fraction == pytest.approx(math.expm1(4.3027 * 0.014142 * math.sqrt(2)), rel=1e-4)
    assert measured_floor([pair]) is None
    assert measured_floor([[1.0], [2.0], [3.0]]) is None


def test_runs_of_successive_commits_stand_in_and_a_step_is_no_noise() -> None:
    """Two levels of five runs that alternate by 0.01: deviation sqrt(10 x 0.0049^2 / 8) = 0.00548, eight degrees."""
    values = [math.exp(0.01 * (i % 2) + (0.3 if i >= 5 else 0.0)) for i in range(10)]
    floor = measured_floor([], values)
    assert floor is not None
    assert floor.fraction == pytest.approx(math.expm1(2.306 * 0.00548 * math.sqrt(2)), rel=0.01)
    assert measured_floor([], values[:7]) is None


def test_runs_that_agree_by_chance_are_not_taken_at_their_word() -> None:
    floor = measured_floor([[1.0, 1.0, 1.0, 1.0]])
    assert floor is not None
    assert floor.fraction == LEAST


def test_what_is_assumed_follows_where_the_time_goes() -> None:
    """3 % for a step that the GPU fills, a factor of 1.65 for one that it does not."""
    assert assumed_floor(1.0).fraction == pytest.approx(math.expm1(0.03))
    assert assumed_floor(None).fraction == pytest.approx(math.expm1(0.5))
    assert assumed_floor(0.1).fraction > max(N64_H200) / min(N64_H200) - 1


def test_two_processes_are_not_taken_to_agree_better_than_the_blocks_of_one() -> None:
    """An overloaded CPU: most blocks take 20, two in ten a hundred times as long. One slow block alone is no sign."""
    calm, torn = [20.0] * 10, [20.0] * 8 + [2000.0] * 2
    assert assumed_floor(1.0, [calm, [20.0] * 10 + [30.0]]).fraction == assumed_floor(1.0).fraction
    assert assumed_floor(None, [calm, torn]).fraction > 10
    assert "blocks of one process differ by as much" in assumed_floor(None, [calm, torn]).text


# ---- the word --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("times", "busy_fraction"), [(N64_H200, 0.12), (N4096_H200, 1.0)])
def test_processes_of_the_same_code_are_never_called_different(times: tuple[float, ...], busy_fraction: float) -> None:
    for before in times:
        for after in times:
            assert word(run(before), run(after, seed=1), assumed_floor(busy_fraction)) == "inconclusive"


def test_busy_times_of_the_same_kernels_are_never_called_different() -> None:
    for before, after in itertools.permutations(BUSY_N4096_H200, 2):
        assert word(run(before, 1e-3, blocks=3), run(after, 1e-3, blocks=3), assumed_busy_floor()) == "inconclusive"


def test_measured_repeats_of_a_noisy_program_allow_no_claim_between_them() -> None:
    floor = measured_floor([N64_H200])
    assert floor is not None
    assert word(run(29.2), run(19.2), floor) == "inconclusive"
    assert word(run(20.0), run(20.0, seed=1), floor) == "inconclusive"  # such noise would hide a factor of four


def test_beyond_the_floor_is_a_difference_both_ways() -> None:
    assert word(run(100), run(120), given_floor(5)) == "regressed"
    assert word(run(120), run(100), given_floor(5)) == "improved"
    assert word(run(100), run(120), assumed_floor(1.0)) == "regressed"


def test_within_a_small_known_floor_there_is_no_difference() -> None:
    assert word(run(100), run(103), given_floor(5)) == "no difference"
    assert word(run(100), run(103), given_floor(15)) == "inconclusive"
    assert word(run(100), run(103), assumed_floor(1.0)) == "inconclusive"


def test_blocks_that_vary_more_than_the_floor_decide() -> None:
    assert word(run(100, 0.2), run(108, 0.2, seed=3), given_floor(2)) != "regressed"


def test_too_few_samples_say_nothing_unless_the_floor_is_known() -> None:
    few, after = Samples(100, [100, 101]), Samples(150, [150, 151])
    change = compare_times("step_time_us", few, after, assumed_floor(1.0))
    assert change.word == "inconclusive"
    assert "Too few samples" in change.reason
    assert word(few, after, given_floor(5)) == "regressed"


def test_more_processes_lower_the_floor() -> None:
    """A floor of 10 % of one process each; five each leave 1.5 / 5 of the variance: 1.1 ^ sqrt(0.3) = 1.054."""
    one, five = (compare_times("t", run(100, 1e-4, runs=n), run(108, 1e-4, runs=n), given_floor(10)) for n in (1, 5))
    assert (one.word, five.word) == ("no difference", "regressed")
    assert five.interval is not None
    assert five.interval.low == pytest.approx(1.08 / 1.1 ** math.sqrt(0.3), rel=1e-3)


def test_one_and_the_same_measurement() -> None:
    change = compare_times("t", run(100), run(100), assumed_floor(None), same_data=True)
    assert (change.word, change.change_us) == ("no difference", 0.0)


def test_what_profiling_may_have_added_widens_the_interval() -> None:
    """Twice as long, but each trace may be up to twice too long."""
    change = compare_times("t", run(100), run(200), given_floor(5), inflated=(2.0, 2.0))
    assert change.word == "inconclusive"
    assert "without the profiler" in change.reason
    assert compare_times("t", run(100), run(500), given_floor(5), inflated=(2.0, 2.0)).word == "regressed"
