"""Busy time by operator, shapes and kernel: its parts add up to B, whatever runs at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import TraceBuilder

from proftrack.measures import measure, sites
from proftrack.measures.sites import bounded, merged, shared_time


def test_work_alone_has_all_of_its_time_and_work_at_once_shares_it() -> None:
    """0-6 and 4-9: 4 + 1 and 1 + 3."""
    assert shared_time(np.array([0, 4]), np.array([6, 9])).tolist() == [5.0, 4.0]
    assert shared_time(np.array([0, 0, 3]), np.array([6, 6, 3])).tolist() == [3.0, 3.0, 0.0]
    assert shared_time(np.array([], dtype=np.int64), np.array([], dtype=np.int64)).tolist() == []


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=30))
def test_shares_add_up_to_the_union(work: list[tuple[int, int]]) -> None:
    start = np.array([at for at, _ in work])
    end = start + np.array([length for _, length in work])
    busy = {moment for at, length in work for moment in range(at, at + length)}
    assert shared_time(start, end).sum() == pytest.approx(len(busy))


def test_a_site_is_an_operator_its_shapes_and_a_kernel() -> None:
    trace = TraceBuilder()
    for number, at in ((2, 0), (3, 100)):
        trace.step(number, at=at, dur=100)
        for correlation, (shapes, us) in enumerate((([[8, 8]], 10), ([[4, 4]], 5), ([[8, 8]], 10))):
            begin = at + 20 * correlation
            trace.op("aten::mm", at=begin, dur=10, Input_Dims=shapes)
            trace.work(number * 10 + correlation, launch=begin + 2, at=begin + 5, dur=us)
    found = trace.measures()
    assert [(s.operator, s.shapes, s.kernel, s.kind, s.calls, s.busy_us) for s in found.sites] == [
        ("aten::mm", "[[8,8]]", "gemm", "matmul", 4, 40.0),
        ("aten::mm", "[[4,4]]", "gemm", "matmul", 2, 10.0),
    ]
    assert sum(site.busy_us for site in found.sites) == found.busy_us


def test_what_a_step_launches_itself_is_the_same_in_every_step() -> None:
    trace = TraceBuilder()
    for number, at in ((2, 0), (3, 100)):
        trace.step(number, at=at, dur=100).work(number, launch=at + 10, at=at + 15, dur=40)
    (site,) = trace.measures().sites
    assert (site.operator, site.calls, site.busy_us) == ("ProfilerStep", 2, 80.0)


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_sites_add_up_to_busy_time_in_any_trace(data: st.DataObject) -> None:
    trace = TraceBuilder()
    numbers = range(2, 2 + data.draw(st.integers(1, 4)))
    for number in numbers:
        trace.step(number, at=number * 100, dur=100)
    for correlation in range(1, data.draw(st.integers(1, 25)) + 1):
        at = data.draw(st.integers(100, 600))
        launch = data.draw(st.integers(150, 590))
        name, stream = data.draw(st.sampled_from("abc")), data.draw(st.sampled_from([7, 8]))
        trace.op(f"aten::{name}", at=launch - 2, dur=5)
        trace.work(correlation, launch=launch, at=at, dur=data.draw(st.integers(0, 80)), name=name, stream=stream)
    found = measure(trace.table())
    assert sum(site.busy_us for site in found.sites) == pytest.approx(found.busy_us or 0.0, abs=1e-6)


def test_many_sites_are_joined_by_kernel_and_still_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "MOST", 2)
    one = sites.Site(operator="a", shapes="[]", kernel="k", kind="matmul", calls=1, busy_us=1.0)
    many = [sites.Site(operator=f"op{i}", shapes="", kernel="k", kind="matmul", calls=1, busy_us=i) for i in range(5)]
    kept = bounded([one, *many])
    assert [(site.operator, site.busy_us) for site in kept] == [("op4", 4), ("op3", 3), (sites.OTHERS, 4.0)]
    assert [(site.calls, site.busy_us) for site in merged([one, one])] == [(2, 2.0)]
