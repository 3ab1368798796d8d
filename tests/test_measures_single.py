"""What only one step shows: which part of the typical time that is. Values by hand."""

from __future__ import annotations

import pytest
from traces import TraceBuilder, clean

from proftrack.measures import combine


def loop(*lengths: float, busy: float = 400) -> TraceBuilder:
    """Steps of these lengths, one after the other; each launches a kernel of `busy` us 5 us before it starts."""
    trace, at = TraceBuilder(), 0.0
    for i, length in enumerate(lengths):
        trace.step(i, at=at, dur=length).work(i + 1, launch=at, at=at + 5, dur=busy)
        at += length
    return trace


def test_the_longest_of_several_steps() -> None:
    part = loop(1000, 2600, 1000).measures().single
    assert part is not None
    assert (part.step, part.time_us, part.busy_us) == ("ProfilerStep#1", 2600, 400)
    # 5 us until its kernel starts, and 2195 behind it, up to the next step's launch.
    assert part.idle_us == {"dispatch": 5, "host": 2195}


def test_an_outlier_is_not_looked_at() -> None:
    part = loop(1000, 1000, 9000, 1500).measures().single
    assert part is not None
    assert (part.step, part.time_us) == ("ProfilerStep#3", 1500)


@pytest.mark.parametrize(("length", "behind"), [(3000, 2595), (405, 0), (100, 0)])
def test_the_end_of_the_only_step(length: float, behind: float) -> None:
    part = loop(length).measures().single
    assert part is not None
    assert (part.step, part.time_us, part.busy_us) == (None, behind, 0)
    assert sum(part.idle_us.values()) == behind


def test_nothing_without_steps_or_without_gpu_work() -> None:
    assert TraceBuilder().work(1, launch=0, at=5, dur=10).measures().single is None
    assert TraceBuilder().step(1, at=0, dur=100).op("aten::mm", at=0, dur=50).measures().single is None


def test_cycles_of_one_step_each_show_its_end_more_than_once() -> None:
    assert combine([loop(3000).measures(), loop(3000).measures()]).single is None
    both = combine([clean().measures(), loop(1000, 1200).measures()]).single
    assert both is not None
    assert both.time_us == 1200
