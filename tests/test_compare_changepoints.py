"""Changes in a series of runs: found where they are, and none where there is only noise."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_points import run_point

from proftrack.compare.changepoints import find, find_exact, stretches
from proftrack.compare.history import Series, detect, levels


def series(levels_: list[tuple[int, float]], noise: float = 0.01, seed: int = 0) -> list[float]:
    """Runs at these levels: (how many, level)."""
    generator = np.random.default_rng(seed)
    return [level * math.exp(generator.normal(0, noise)) for count, level in levels_ for _ in range(count)]


def found(values: list[float]) -> list[int]:
    return [point.index for point in find(values)]


@pytest.mark.parametrize(
    ("parts", "at"),
    [
        ([(4, 100), (4, 120)], [4]),
        ([(6, 100), (6, 110)], [6]),
        ([(9, 100), (3, 80)], [9]),
        ([(4, 100), (4, 120), (4, 100)], [4, 8]),  # a regression that was mended
        ([(4, 100), (4, 110), (4, 125)], [4, 8]),
        ([(10, 100), (10, 120), (10, 90), (10, 95)], [10, 20, 30]),
        ([(100, 100), (3, 130), (97, 100)], [100, 103]),
    ],
)
def test_known_changes(parts: list[tuple[int, float]], at: list[int]) -> None:
    assert found(series(parts, noise=0.005)) == at


def test_a_change_has_a_size_and_an_interval() -> None:
    (point,) = find(series([(10, 100), (10, 120)]))
    assert point.ratio == pytest.approx(1.2, rel=0.02)
    assert point.interval is not None
    assert point.interval.low < 1.2 < point.interval.high
    assert point.interval.high / point.interval.low < 1.05
    assert (point.before, point.after) == (pytest.approx(100, rel=0.02), pytest.approx(120, rel=0.02))


def heavy_tails(generator: np.random.Generator, runs: int) -> np.ndarray:
    return np.asarray(generator.standard_t(3, size=runs))


def two_modes(generator: np.random.Generator, runs: int) -> np.ndarray:
    """Three processes in ten are slower by far: what an H200 shows for small steps."""
    return np.where(generator.random(runs) < 0.3, 4.0, 0.0) + generator.normal(size=runs)


def normal(generator: np.random.Generator, runs: int) -> np.ndarray:
    return np.asarray(generator.normal(size=runs))


@pytest.mark.parametrize("runs", [8, 12, 30])
@pytest.mark.parametrize("noise", [normal, heavy_tails, two_modes])
def test_noise_raises_no_alarm_in_nineteen_of_twenty_seeds(noise: object, runs: int) -> None:
    alarms = 0
    for seed in range(20):
        values = np.exp(0.02 * noise(np.random.default_rng(seed), runs))  # type: ignore[operator]
        alarms += bool(found((100 * values).tolist()))
    assert alarms <= 1


def test_too_few_runs_and_impossible_values_say_nothing() -> None:
    assert find(series([(3, 100), (4, 200)])) == []
    assert find([0.0] * 10) == []
    assert find([]) == []
    assert find([100.0] * 12) == []


def test_one_run_alone_is_no_evidence() -> None:
    assert found([*series([(15, 100)]), 200.0]) == []
    outlier = series([(16, 100)])
    outlier[7] = 300.0
    assert found(outlier) == []


@given(st.lists(st.floats(50, 200), min_size=8, max_size=20), st.floats(0.1, 10))
@settings(max_examples=25, deadline=None)
def test_the_unit_does_not_matter(values: list[float], scale: float) -> None:
    assert found(values) == found([value * scale for value in values])


@given(st.lists(st.floats(50, 200), min_size=8, max_size=24))
@settings(max_examples=25, deadline=None)
def test_stretches_cover_the_series(values: list[float]) -> None:
    bounds = stretches(np.log(np.array(values)))
    assert (bounds[0], bounds[-1]) == (0, len(values))
    assert all(high - low >= 2 for low, high in pairwise(bounds))


def test_every_change_of_a_count() -> None:
    points = find_exact([2, 2, 3, 3, 2, 0])
    assert [(point.index, point.before, point.after, point.ratio) for point in points] == [
        (2, 2, 3, 1.5),
        (4, 3, 2, 2 / 3),
        (5, 2, 0, 0.0),
    ]
    assert find_exact([0, 4])[0].ratio is None


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_runs_without_the_metric_are_passed_over() -> None:
    times = series([(6, 100), (6, 150)])
    runs = [run_point(2 * i, step_time_us=time) for i, time in enumerate(times)]
    runs[3:3] = [run_point(99, launches_per_step=2.0)]
    (change,) = detect(runs, "step_time_us")
    assert (change.before.run_id, change.after.run_id) == (runs[6].run_id, runs[7].run_id)
    assert levels(Series(experiment="x", fingerprint="f", variant={}, runs=runs, changes=[change])) == [
        (0, 7, change.point.before),
        (7, 13, change.point.after),
    ]


def test_a_count_that_varies_by_itself_is_treated_as_noisy() -> None:
    """cuDNN's choice of algorithms changes launches from run to run: no code did."""
    generator = np.random.default_rng(1)
    runs = [run_point(i, launches_per_step=float(1500 + generator.integers(0, 9))) for i in range(20)]
    assert detect(runs, "step_time_us") == []
    runs += [run_point(20 + i, launches_per_step=float(1700 + generator.integers(0, 9))) for i in range(10)]
    (change,) = detect(runs, "step_time_us")
    assert (change.exact, change.after.run_id) == (False, runs[20].run_id)


def test_of_very_many_runs_a_picture_shows_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    from proftrack.compare import history as compared

    monkeypatch.setattr(compared, "NEWEST", 12)
    times = series([(6, 50), (6, 100), (6, 150)])
    runs = [run_point(i, step_time_us=time, launches_per_step=2.0 if i < 3 else 3.0) for i, time in enumerate(times)]
    found = detect(runs, "step_time_us")
    assert [(change.metric, change.after.run_id) for change in found] == [
        ("launches_per_step", runs[3].run_id),
        ("step_time_us", runs[6].run_id),
        ("step_time_us", runs[12].run_id),
    ]
    shown = compared.newest(Series(experiment="x", fingerprint="f", variant={}, runs=runs, changes=found))
    assert (len(shown.runs), [change.metric for change in shown.changes]) == (12, ["step_time_us"])
    assert [(first, last) for first, last, _ in levels(shown)] == [(0, 6), (6, 12)]


def test_a_real_change_vouches_for_no_other() -> None:
    """Without parts of their own, cuts in the noise beside a large step pass with it, in one series of eight."""
    wrong = [
        places
        for seed in range(20)
        if (places := found(series([(300, 100), (300, 150)], noise=0.02, seed=seed))) != [300]
    ]
    assert len(wrong) <= 2, wrong


def test_a_long_series_is_searched_whole_and_soon() -> None:
    """Longer than several windows; one change lies where a window ends, two belong together, one is the last."""
    parts = [(300, 100), (390, 110), (3, 130), (1000, 110), (1300, 120), (4, 140)]
    assert found(series(parts, noise=0.005)) == [300, 690, 693, 1693, 2993]
    assert found(series([(4000, 100)])) == []
