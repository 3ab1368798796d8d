"""The CPU verdict: by recorded timings of several CPUs, and by small cases with one thing wrong each."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from cpu_fixtures import judged, machines
from msgspec import structs
from traces import BACKWARD, TraceBuilder

from proftrack.capture.cpu_load import Reading, Task, load_between, read_load
from proftrack.measures import measure
from proftrack.measures.origins import origins
from proftrack.measures.view import view
from proftrack.measures.work import cpu_calls, cpu_work, operator_costs
from proftrack.record.ceilings import PARALLEL, Ceilings, StepWork
from proftrack.record.figures import CpuCalls, CpuTrace, CpuWork
from proftrack.record.timing import Load, Timing
from proftrack.record.verdict import Verdict
from proftrack.verdict.context import Context
from proftrack.verdict.judge import Judgement, judge

MACHINES = machines()


# -- recorded timings: nobody knows them better than the labels, which were written before they were recorded


@pytest.mark.parametrize("name", MACHINES)
def test_no_wrong_verdict_above_low_confidence(name: str) -> None:
    outcomes = list(judged(name, MACHINES[name]))
    print(f"{name}: {dict(Counter(each.outcome for each in outcomes))}")
    for each in outcomes:
        where = f"{each.case.case}, {each.case.setting}, ceilings {each.ceilings}"
        assert each.outcome != "wrong", f"{where}: {each.verdict.summary}"
        assert each.verdict.confidence != "high", where
        assert each.verdict.reasons, where


@pytest.mark.parametrize("name", MACHINES)
def test_nor_where_the_system_does_not_count_the_load(name: str) -> None:
    """macOS, Windows and some containers: what does not fit must show in the times alone."""
    machine = MACHINES[name]
    cases = []
    for known in machine.cases:
        assert known.timing.load is not None
        unseen = structs.replace(known.timing.load, waited_us=None, thread_waited_us=None, others_us=None)
        cases.append(structs.replace(known, timing=structs.replace(known.timing, load=unseen)))
    for each in judged(name, structs.replace(machine, cases=cases)):
        assert each.outcome != "wrong", f"{each.case.case}, {each.case.setting}: {each.verdict.summary}"


def test_the_machines_and_settings() -> None:
    assert len(MACHINES) >= 2
    for machine in MACHINES.values():
        assert {"cpu", "torch", "date", "command", "cores"} <= set(machine.machine)
        assert {case.setting for case in machine.cases} == {"one", "all", "loaded"} == set(machine.ceilings)


# -- by hand: steps of 1000 us, of which one operator works 900 us; 10 us of it are the price of its call

CEILINGS = Ceilings(
    device="test", flops_per_s={"float32": 1e9}, bytes_per_s=1e9, dispatch_us=1.0, call_us={"aten::mm": 10.0}
)
WORK = StepWork(flops_by_dtype={"float32": 800_000}, bytes=10_000, source="counted")
"""R = 800 us."""


def timing(*blocks: float, latency: float | None = None, load: Load | None = None) -> Timing:
    middle = sorted(blocks)[len(blocks) // 2]
    single = middle if latency is None else latency
    return Timing(
        mode="throughput",
        step_time_us=middle,
        step_latency_us=single,
        step_time_p95_us=single,
        steps_per_block=10,
        block_step_times_us=list(blocks),
        step_latencies_us=[single],
        load=load,
    )


def load(**parts: Any) -> Load:
    """A second on four cores, all of it this thread's, with what is given."""
    idle = {"thread_waited_us": 0.0, "waited_us": 0.0, "others_us": 0.0, "python_threads_us": 0.0}
    return Load(**{"wall_us": 1e6, "cores": 4, "thread_us": 1e6, "process_us": 1e6, **idle, **parts})


def case(
    *,
    traced: float = 1000,
    working: float = 890,
    least: float | None = None,
    limit: str = "arithmetic",
    operators: int = 1,
    inside: float | None = None,
    timed: Timing | None = None,
    work: StepWork | None = WORK,
    ceilings: Ceilings = CEILINGS,
    threads: int = 1,
    **context: Any,
) -> Judgement:
    """Three steps of `traced` us; work and time within operators in microseconds a step."""
    trace = TraceBuilder()
    for i in range(3):
        trace.step(i, at=i * traced, dur=traced).op("aten::mm", at=i * traced, dur=min(working, traced))
    cpu = CpuWork(
        operators=3 * operators,
        operators_us=3 * (working + 10 if inside is None else inside),
        working_us={limit: 3 * working} if working else {},
        least_working_us={limit: 3 * (working if least is None else least)},
        threads=threads,
    )
    measures = replace(trace.measures(), cpu=cpu)
    return judge(measures, Context(timing=timed or timing(1000, 1000, 1000), ceilings=ceilings, work=work, **context))


def is_inconclusive(verdict: Verdict, *words: str) -> None:
    """With these words in its first reason, and in its one sentence."""
    assert (verdict.regime, verdict.confidence) == ("inconclusive", "low")
    for word in words:
        assert word in verdict.reasons[0]
        assert word.lower() in verdict.summary.lower()


def is_unsure(verdict: Verdict, *words: str) -> None:
    assert verdict.regime == "compute-bound"
    assert verdict.confidence == "low"
    assert all(any(word in reason for reason in verdict.reasons) for word in words)


def test_what_fits_is_judged() -> None:
    verdict = case(timed=timing(1000, 1010, 1020, load=load())).verdict
    assert (verdict.regime, verdict.confidence, verdict.cause) == ("compute-bound", "medium", "arithmetic")
    assert case(limit="bandwidth").verdict.regime == "memory-bound"
    assert case(working=0, inside=990).verdict.regime == "overhead-bound"
    assert case(working=0, inside=100).verdict.regime == "host-bound"  # 900 us for one operator


def test_blocks_that_spread() -> None:
    is_inconclusive(case(timed=timing(900, 1000, 1900)).verdict, "blocks differ by a factor of 2.1")
    is_unsure(case(timed=timing(900, 1000, 1300)).verdict, "blocks differ by a factor of 1.4")


def test_back_to_back_and_one_by_one() -> None:
    is_inconclusive(
        case(timed=timing(1000, 1000, 1000, latency=400)).verdict, "1 ms back to back and 400 us one by one"
    )
    is_inconclusive(case(timed=timing(1000, 1000, 1000, latency=1600)).verdict, "back to back and 1.6 ms one by one")
    is_unsure(case(timed=timing(1000, 1000, 1000, latency=1300)).verdict, "one by one")


def test_reading_the_clock_is_no_misfit() -> None:
    small = case(traced=20, working=0, inside=9, operators=3, work=None, timed=timing(10, 10, 10, latency=14.9))
    assert (small.verdict.regime, small.verdict.confidence) == ("overhead-bound", "medium")


def test_a_roofline_above_the_step() -> None:
    more = StepWork(flops_by_dtype={"float32": 1_100_000}, bytes=None, source="counted")
    is_inconclusive(case(work=more).verdict, "roofline time of 1.1 ms exceeds the step's 1 ms", "caches")


def test_more_load_than_cores() -> None:
    held_up = load(waited_us=3e5, others_us=3.5e6)
    is_inconclusive(
        case(timed=timing(1000, 1000, 1000, load=held_up)).verdict,
        "More load than cores",
        "waited 30% of the time for a core; other processes used 3.5 of 4 cores",
    )
    is_unsure(case(timed=timing(1000, 1000, 1000, load=load(waited_us=1e5))).verdict, "waited 10%")
    # Others may do what they like on cores that nobody here needs.
    beside = load(others_us=2.5e6)
    assert case(timed=timing(1000, 1000, 1000, load=beside)).verdict.confidence == "medium"


def test_load_where_waiting_is_not_counted() -> None:
    def with_others(us: float, own: float) -> Verdict:
        seen = load(waited_us=None, thread_waited_us=None, others_us=us, process_us=own)
        return case(timed=timing(1000, 1000, 1000, load=seen)).verdict

    is_inconclusive(with_others(2e6, 2e6), "no core was free")
    is_unsure(with_others(5e5, 3.4e6), "no core was free")
    assert with_others(2e6, 1e6).confidence == "medium"


def test_ceilings_of_a_busy_machine_are_doubted() -> None:
    is_unsure(case(ceilings=structs.replace(CEILINGS, waited=0.4)).verdict, "measured on a busy machine")


def test_operators_that_do_not_fit_into_the_step() -> None:
    is_inconclusive(case(traced=1400, working=1300).verdict, "1.3 ms per step) does not fit into a step of 1 ms")
    is_unsure(case(traced=1400, working=1100).verdict, "does not fit")


def test_a_step_that_is_shorter_in_the_trace() -> None:
    is_inconclusive(case(traced=600, working=590).verdict, "1 ms without the profiler and 600 us with it")
    is_unsure(case(traced=820, working=815).verdict, "profiling only lengthens")


def test_a_step_that_is_much_longer_in_the_trace() -> None:
    is_inconclusive(case(traced=3500).verdict, "something else ran while steps were recorded")
    # A thousand operators, at four dispatches each, account for as much.
    assert case(traced=3500, operators=1000, inside=950).verdict.regime == "compute-bound"


def test_what_lies_between_operators_may_be_the_freeing_of_their_results() -> None:
    """Of 1000 us, 300 move memory and 690 lie between operators: over twice as long, and the host's own. 400: not."""
    assert case(working=300, limit="bandwidth").verdict.regime == "host-bound"
    is_inconclusive(
        case(working=400, limit="bandwidth").verdict, "590 us between operators", "freeing their results", "400 us"
    )
    assert case(working=400, limit="arithmetic").verdict.regime == "host-bound"


def test_operators_that_do_not_add_up_to_the_step() -> None:
    """Of 1000 us operators take 700, and 700 of 900 in the trace; then 550, and 550 of 670: 120 us for the 450."""
    assert case(traced=900, working=690).verdict.regime == "host-bound"
    is_inconclusive(case(traced=670, working=540).verdict, "550 us", "do not add up to the step's 1 ms", "120 us")


def test_the_price_of_a_call_that_decides() -> None:
    is_inconclusive(case(least=100).verdict, "The cost of a call decides", "compute-bound", "overhead-bound")


def test_unrecorded_threads() -> None:
    waiting = load(thread_us=1e5, python_threads_us=9e5)
    outcome = case(working=0, inside=10, timed=timing(1000, 1000, 1000, load=waiting))
    is_inconclusive(outcome.verdict, "used 90% of a core", "not in the trace")
    assert [flag.code for flag in outcome.flags] == ["other_threads"]
    assert "host-bound" not in outcome.verdict.summary
    assert not any("numpy" in advice for advice in outcome.verdict.advice)
    recorded = case(working=0, inside=10, timed=timing(1000, 1000, 1000, load=waiting), all_threads=True)
    assert recorded.verdict.regime == "host-bound"
    assert not recorded.flags


def test_next_to_no_operators_and_nothing_known_of_threads() -> None:
    """49 of 1000 us in operators; the rest may be Python's, or operators in threads of the program's own."""
    verdict = case(working=0, inside=49).verdict
    is_inconclusive(verdict, "Operators take 49 us of a 1 ms step", "the work may be in them")
    assert any("0 us of it is work of the recorded threads" in item.text for item in verdict.evidence)
    assert case(working=0, inside=51).verdict.regime == "host-bound"
    for known in ({"all_threads": True}, {"timed": timing(1000, 1000, 1000, load=load())}):
        assert case(working=0, inside=49, **known).verdict.regime == "host-bound"


@pytest.mark.parametrize(("operator", "said"), [(0, True), (1, True), (1490, True), (1600, False)])
def test_a_bare_trace_that_shows_next_to_nothing_says_where_work_may_be(operator: float, said: bool) -> None:
    """Steps of 30.7 ms with one operator; 5 % of a step are 1535 us."""
    trace = TraceBuilder()
    for i in range(3):
        trace.step(i, at=i * 30_700, dur=30_700).region("loop", at=i * 30_700, dur=30_690)
        if operator:
            trace.op("aten::add", at=i * 30_700 + 5, dur=operator)
    for context in (Context(), Context(step_time_us=30_700)):
        verdict = judge(trace.measures(), context).verdict
        assert verdict.regime == "inconclusive"
        assert any("profile_all_threads" in reason for reason in verdict.reasons) == said
    assert not any(
        "profile_all_threads" in r for r in judge(trace.measures(), Context(all_threads=True)).verdict.reasons
    )


def test_threads_that_were_recorded_leave_the_roofline_out() -> None:
    outcome = case(threads=3, work=StepWork(flops_by_dtype={"float32": 9e9}, bytes=None, source="counted"))
    assert outcome.verdict.regime == "compute-bound"
    assert outcome.roofline_us is None
    assert any("ran on 3 threads" in reason for reason in outcome.verdict.reasons)


def test_time_in_the_loader_is_input() -> None:
    """100 operators in 200 us, 600 of 1000 us in the loader's own Python: 8 us for each operator are no host work."""
    trace = TraceBuilder()
    for i in range(3):
        at = i * 1000
        trace.step(i, at=at, dur=1000).op("aten::mm", at=at, dur=200)
        trace.region("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at=at + 300, dur=600)
    cpu = CpuWork(operators=300, operators_us=600, working_us={}, least_working_us={})
    context = Context(timing=timing(1000, 1000, 1000), ceilings=CEILINGS)
    verdict = judge(replace(trace.measures(), cpu=cpu), context).verdict
    assert (verdict.regime, verdict.cause, verdict.confidence) == ("input-bound", "input", "medium")


def test_waiting_is_not_overhead() -> None:
    away = load(thread_us=5e5)
    verdict = case(working=0, inside=990, timed=timing(1000, 1000, 1000, load=away)).verdict
    is_inconclusive(verdict, "off the processor for 50% of the time")


def test_near_a_limit() -> None:
    assert any("close to the limit of 0.8" in r for r in case(working=820).verdict.reasons)
    near = case(working=0, inside=70, operators=7).verdict  # 133 us for each, the limit is 100
    assert (near.regime, near.confidence) == ("host-bound", "low")


def test_a_type_without_a_ceiling() -> None:
    half = StepWork(flops_by_dtype={"float16": 800_000}, bytes=10_000, source="counted")
    outcome = case(limit="unknown", work=half)
    is_inconclusive(outcome.verdict, "no ceiling was measured for float16")
    assert outcome.roofline_us is None


def test_a_narrower_type_is_advised_only_where_it_was_measured_to_be_faster() -> None:
    def advice(rates: dict[str, float]) -> str:
        return " ".join(case(ceilings=structs.replace(CEILINGS, flops_per_s=rates)).verdict.advice)

    assert "bfloat16 computes 3.0 times as fast as float32 here" in advice({"float32": 1e9, "bfloat16": 3e9})
    assert "bfloat16" not in advice({"float32": 1e9, "bfloat16": 1e7})
    assert "narrower" not in advice({"float32": 1e9})


# -- what of the operators' time is work


def call(name: str, self_us: float, calls: int = 1, **more: Any) -> CpuCalls:
    return CpuCalls(name=name, calls=calls, self_us=self_us, **more)


def test_work_is_what_a_call_has_over_its_price() -> None:
    ceilings = structs.replace(
        CEILINGS, call_us={"aten::add": 1.0, "aten::mm": 4.0, "aten::gelu": 20.0, PARALLEL: 10.0}
    )
    trace = CpuTrace(
        calls=[
            call("aten::mm", 104, 2, flops=1e5, bytes=100.0, dtype="float32"),  # 100 us of arithmetic
            call("aten::add", 64, flops=10.0, bytes=6e4, dtype="float32"),  # 60 us of traffic
            call("aten::odd", 10),  # the median price: 4
        ],
        threads=1,
    )
    work = cpu_work(trace, ceilings)
    assert work.working_us == {"arithmetic": 200.0, "bandwidth": 60.0, "unknown": 6.0}
    assert work.least_working_us == {"arithmetic": 148.0, "bandwidth": 34.0}  # 30 us each
    assert (work.operators, work.operators_us) == (4, 282.0)
    halved = cpu_work(structs.replace(trace, overlap=0.5, threads=2), ceilings)
    assert halved.working_us == {"arithmetic": 100.0, "bandwidth": 30.0, "unknown": 3.0}
    assert halved.operators_us == 141.0


@pytest.mark.parametrize(
    ("name", "flops", "size", "dtype", "limit"),
    [
        ("aten::mm", 1e5, 4e4, "float32", "arithmetic"),
        ("aten::mm", 1e5, 6e4, "float32", "unknown"),  # near the ridge
        ("aten::add", 1e3, 6e4, "float32", "bandwidth"),
        ("aten::tanh", 1e3, 6e4, "float32", "unknown"),  # 100 us where its traffic takes 60
        ("aten::tanh", 1e3, 9e4, "float32", "bandwidth"),
        ("aten::mm", 1e5, 1e3, "float16", "unknown"),  # no ceiling
        ("aten::index", 0.0, 6e4, "other", "bandwidth"),
    ],
)
def test_the_limit_of_an_operator(name: str, flops: float, size: float, dtype: str, limit: str) -> None:
    one = CpuTrace(calls=[call(name, 100, flops=flops, bytes=size, dtype=dtype)], threads=1)
    assert set(cpu_work(one, CEILINGS).working_us) == {limit}


def test_threads_that_work_at_once_count_once() -> None:
    """0 to 100 us on one thread, 50 to 150 on another: 200 us of operators in 150."""
    trace = TraceBuilder().step(0, at=0, dur=200).op("aten::mm", at=0, dur=100)
    trace.op("aten::mm", at=50, dur=100, thread=BACKWARD)
    table = trace.table()
    found = cpu_calls(table, view(table).forest, operator_costs(origins(view(table), [])))
    assert [(c.name, c.calls, c.self_us) for c in found.calls] == [("aten::mm", 2, 100.0)]
    assert (found.threads, found.overlap) == (2, 0.75)
    measured = measure(table, CEILINGS).cpu
    assert measured is not None and measured.operators_us == 150.0


# -- the load while timing


def reading(wall: int, tasks: dict[int, Task], *, process: int, busy: int | None = None, **more: Any) -> Reading:
    known = {"thread": tasks[1].ran, "cores": 2, "own_id": 1, "python_ids": frozenset[int]()}
    return Reading(wall=wall, process=process, busy=busy, tasks=tasks, **{**known, **more})


SECOND = 10**9


def test_the_load_between_two_readings() -> None:
    """A worker of OpenMP (2) and a thread of Python's (3): only the second is the program's own."""
    before = reading(0, {1: Task(0, 0), 2: Task(0, 0), 3: Task(0, 0)}, process=0, busy=0)
    tasks = {1: Task(SECOND // 2, 0), 2: Task(SECOND, SECOND // 4), 3: Task(SECOND // 10, 0)}
    after = reading(SECOND, tasks, process=SECOND * 16 // 10, busy=2 * SECOND, python_ids=frozenset({3}))
    found = load_between(before, after)
    assert (found.share(found.thread_us), found.share(found.waited_us), found.thread_waited_us) == (0.5, 0.25, 0.0)
    assert found.share(found.others_us) == pytest.approx(0.4)
    assert found.share(found.python_threads_us) == pytest.approx(0.1)


def test_threads_that_ended_meanwhile_are_the_programs_own() -> None:
    before = reading(0, {1: Task(0, 0)}, process=0)
    after = reading(SECOND, {1: Task(SECOND // 10, 0)}, process=SECOND)
    found = load_between(before, after)
    assert found.share(found.python_threads_us) == pytest.approx(0.89)  # less what counters may lag behind
    assert found.others_us is None


def test_a_reading_of_this_process() -> None:
    before = read_load()
    found = load_between(before, read_load())
    assert before.cores >= 1
    assert 0 <= found.thread_us <= found.wall_us + 1e4
    assert found.others_us is None  # too short a time for the system's ticks
