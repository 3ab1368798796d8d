"""Figures and names as text."""

from __future__ import annotations

import pytest

from proftrack import text


@pytest.mark.parametrize(
    ("us", "expected"),
    [
        (None, "-"),
        (0.0, "0 us"),
        (0.00768, "7.68 ns"),
        (0.1, "0.10 us"),
        (2.79, "2.79 us"),
        (51.23, "51.2 us"),
        (999.4, "999 us"),
        (1190.0, "1.19 ms"),
        (1_190_000.0, "1.19 s"),
        (-5.0, "-5.00 us"),
    ],
)
def test_durations(us: float | None, expected: str) -> None:
    assert text.duration(us) == expected


def test_what_rounds_to_a_thousand_has_the_next_unit() -> None:
    assert [text.duration(us) for us in (999.6, 999_999.0, 0.09999)] == ["1.00 ms", "1.00 s", "0.10 us"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (0.3333, "0.333"),
        (1.0, "1"),
        (12.34, "12.3"),
        (99.96, "100"),
        (2650.4, "2,650"),
        (6e10, "60,000,000,000"),
        (0.00002, "0.00002"),
    ],
)
def test_numbers_have_no_exponent(value: float, expected: str) -> None:
    assert text.number(value) == expected


def test_figures_of_sentences() -> None:
    assert [text.how_often(n) for n in (1.0, 0.5, 2.0, 1300.0)] == ["once", "0.5 times", "2 times", "1,300 times"]
    assert [text.listed(items) for items in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
    assert [text.difference(f) for f in (0.12, 8.9, 238.07)] == ["12.0 %", "890.0 %", "239x"]
    assert [text.short_time(us) for us in (2.65e6, 999.6, 2650.0)] == ["2.65 s", "1 ms", "2.65 ms"]
    assert [text.amount("peak_memory_bytes", n) for n in (6e10, 512, 999_960)] == ["60 GB", "512 B", "1 MB"]
    assert [text.amount(name, 2.65e6) for name in ("step_time_us", "kernels")] == ["2.65 s", "2,650,000"]
    energies = [text.amount("energy_per_step_joules", j) for j in (6e-5, 0.9996, 31.25, 2500)]
    assert energies == ["60 uJ", "1 J", "31.2 J", "2.5 kJ"]
    assert text.amount("power_watts", 700) == "700 W"


def test_figures_have_the_unit_that_the_metrics_name_says() -> None:
    figures = [("power_watts", 612.34), ("joules_per_token", 6e-5), ("energy_per_step_joules", 0.03), ("x_bytes", 6e10)]
    assert [text.figure(*each) for each in figures] == ["612 W", "60.0 uJ", "30.0 mJ", "60.0 GB"]
    assert [text.figure(*each) for each in (("dram_utilization", 0.5), ("power_watts", None))] == ["0.5", "-"]


@pytest.mark.parametrize(
    ("ratios", "texts"),
    [
        ((1.05,), ["+5.0 %"]),
        ((4.5, 0.5, 9.9), ["+350.0 %", "-50.0 %", "+890.0 %"]),
        ((4.577, 0.019, 1101.1), ["4.58x", "0.019x", "1,101x"]),  # all alike: -98.1 % to 1101.1x is no range
        ((0.05, 0.04, 0.06), ["0.05x", "0.04x", "0.06x"]),
        ((0.0,), ["-100.0 %"]),
    ],
)
def test_changes_are_percent_up_to_ten_times(ratios: tuple[float, ...], texts: list[str]) -> None:
    assert text.changes(*ratios) == texts


def test_other_figures() -> None:
    assert [text.percent(f) for f in (None, 0.0, 0.0001, 0.0142, 1.0)] == ["-", "0.0 %", "<0.1 %", "1.4 %", "100.0 %"]
    assert [text.factor(f) for f in (None, 1.0, 1.234, 2.34, 18.4)] == ["-", "1.00x", "1.23x", "2.3x", "18x"]
    assert text.scaled(746.9e12, "FLOP/s") == "747 TFLOP/s"
    assert text.scaled(134_217_728, "B") == "134 MB"
    assert text.scaled(2e18, "B") == "2000 PB"
    assert text.moment(1_700_000_000_000_000_000) == "2023-11-14 22:13 UTC"
    assert [text.counted(n, "step") for n in (1, 2, 12_000)] == ["1 step", "2 steps", "12,000 steps"]


def test_untrusted_names_are_one_line_without_what_cannot_be_seen() -> None:
    shown = text.plain("a\nb\x1b[31m\u202ec\u200bd\ud800e\U000e0041")
    assert shown == "a\\nb\\x1b[31m\\u202ec\\u200bd\\ud800e\\U000e0041"
    long = text.plain("x" * 3000, 100)
    assert (len(long), "..." in long) == (100, True)
    assert text.brief("void at::native::(anonymous namespace)::k<c10::Half>(int)", 60) == "k<Half>(int)"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.5, "0.5 us"), (999.4, "999 us"), (999.9, "1 ms"), (999_960, "1 s"), (3.2e9, "3,200 s"), (-5000, "-5 ms")],
)
def test_times_in_sentences(value: float, expected: str) -> None:
    assert text.short_time(value) == expected


def test_counts_in_sentences() -> None:
    assert [text.how_often(n) for n in (1, 1.0001, 2, 1 / 3, 2653)] == [
        "once",
        "once",
        "2 times",
        "0.333 times",
        "2,653 times",
    ]
    assert [text.counted(n, "value") for n in (1, 0.5, 1200)] == ["1 value", "0.5 values", "1,200 values"]
    assert [text.counted(n, "more launch") for n in (1, 3)] == ["1 more launch", "3 more launches"]
    assert [text.number(n) for n in (0, 0.00002, 1234567, 12.34, -2650)] == [
        "0",
        "0.00002",
        "1,234,567",
        "12.3",
        "-2,650",
    ]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::vectorized_elementwise_kernel<8, at::native::F>(int)", "vectorized_elementwise_kernel"),
        ("nvjet_sm90_tst_64x8", "nvjet_sm90_tst_64x8"),
        ("aten::mm", "aten::mm"),
        ("autograd::engine::evaluate_function: MmBackward0", "autograd::engine::evaluate_function: MmBackward0"),
        ("<lambda>", "<lambda>"),
        ("void at::native::(anonymous namespace)::k<float>(int)", "k"),
        ("__global__ spin(long, int)", "spin"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("train.py(12): step", "train.py(12): step"),
        ("x" * 3000, "x" * 77 + "..."),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert text.short_name(name) == short
