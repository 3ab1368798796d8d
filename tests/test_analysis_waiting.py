"""Who waits for whom: only within a process group, only where all its ranks are there, and not from a late start."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from traces import TraceBuilder

from proftrack import cli
from proftrack.analysis import waiting
from proftrack.analysis.pipeline import JointAnalysis, analyze_traces
from proftrack.analysis.trace_files import find
from proftrack.analysis.waiting import Seen
from proftrack.errors import UsageError
from proftrack.record.ranks import Collective, Joint
from proftrack.report import terminal
from proftrack.report.pages import ranks as ranks_page
from proftrack.trace.groups import configured, ranks_in, world_size
from proftrack.trace.ranks import by_tensor_parallel, rank_of

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECEIVE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


class Meets:
    """One collective of each step: it ends at `until` and takes `takes` (one value, or one a step)."""

    def __init__(self, takes: float | Sequence[float], *, until: float = 960, name: str = ALL_REDUCE, **args: Any):
        self.takes, self.until, self.name, self.args = takes, until, name, args

    def of(self, step: int) -> float:
        return self.takes[step] if isinstance(self.takes, Sequence) else self.takes


def group(name: str, ranks: str | None, size: int | None = None, collective: str = "allreduce") -> dict[str, Any]:
    """What torch writes beside a collective of this group."""
    stated = {"Collective name": collective, "Process Group Name": name, "Process Group Ranks": ranks}
    return stated if size is None else {**stated, "Group size": size}


def rank_trace(
    *collectives: Meets, rank: int | None = None, world: int | None = None, steps: int = 4, **info: Any
) -> Any:
    """Steps of 1000 us, each with a kernel that fills the time up to the first collective.

    host  |-#1: [mm][nccl]---------------|-#2 ...
    GPU      ===mm====[nccl    ]
    """
    trace = TraceBuilder()
    if world is not None:
        trace.members["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world, **info}
    for step in range(steps):
        at, id = 1000 * step, 100 * (step + 1)
        trace.step(step + 1, at=at, dur=1000)
        begins = min((c.until - c.of(step) for c in collectives), default=900)
        trace.work(id, launch=at + 5, at=at + 15, dur=begins - 25, name="gemm")
        for n, c in enumerate(collectives, 1):
            trace.work(
                id + n,
                launch=at + 10 + n,
                at=at + c.until - c.of(step),
                dur=c.of(step),
                name=c.name,
                stream=20 + n,
                **c.args,
            )
    return trace


def write(folder: Path, *traces: TraceBuilder, name: str = "rank{}.json") -> list[Path]:
    """The traces as files of one folder, numbered from 0."""
    return [trace.write(folder / name.format(n)) for n, trace in enumerate(traces)]


def analyzed(*given: Path, **options: Any) -> JointAnalysis:
    return analyze_traces(find(given), **options)


def joint_of(folder: Path, *traces: TraceBuilder) -> Joint:
    joint = analyzed(*write(folder, *traces)).joint
    assert joint is not None
    return joint


def of_two(folder: Path, *takes: float | Sequence[float]) -> Joint:
    """Of a rank for each of `takes`: the two are one group, as their collectives state."""
    return joint_of(
        folder, *(rank_trace(Meets(us, **group("0", "[0, 1]", 2)), rank=n, world=2) for n, us in enumerate(takes))
    )


def texts(joint: Joint) -> dict[str, str]:
    return {finding.code: finding.text for finding in joint.findings}


def codes(joint: Joint) -> list[str]:
    return [finding.code for finding in joint.findings]


def waits(joint: Joint) -> list[float | None]:
    return [rank.waiting_us for rank in joint.ranks]


# ---- process groups --------------------------------------------------------------------------------------------------


def test_disjoint_pairs_of_one_name_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Both groups are called tp; 0 and 1 transfer for 50 us, 2 and 3 for 400, and nobody waits."""
    pairs = [("[0, 1]", 50), ("[0, 1]", 50), ("[2, 3]", 400), ("[2, 3]", 400)]
    joint = joint_of(
        tmp_path,
        *(rank_trace(Meets(us, **group("tp", ranks, 2)), rank=n, world=4) for n, (ranks, us) in enumerate(pairs)),
    )
    assert joint.waited_for_rank is None
    assert waits(joint) == [0.0] * 4
    assert set(texts(joint)) == {"step_times", "no_waiting"}


def test_a_straggler_in_one_group_of_two(tmp_path: Path) -> None:
    """Rank 3 arrives 300 us after rank 2; the pair of 0 and 1 knows nothing of it."""
    pairs = [("[0, 1]", 50), ("[0, 1]", 50), ("[2, 3]", 400), ("[2, 3]", 100)]
    joint = joint_of(
        tmp_path,
        *(rank_trace(Meets(us, **group("tp", ranks, 2)), rank=n, world=4) for n, (ranks, us) in enumerate(pairs)),
    )
    assert joint.waited_for_rank == 3
    assert waits(joint) == [0.0, 0.0, 300.0, 0.0]
    assert texts(joint)["waited_for"].startswith("Rank 2 waits for rank 3: rank 2 spends 300 us per step")
    assert [rank.waits_for for rank in joint.ranks] == [None, None, 3, None]


def test_tensor_and_data_parallel_groups_in_one_trace(tmp_path: Path) -> None:
    """Rank 3 is 300 us late. In tp, 2 waits for it; then in dp 1 waits for 3, and 0 for 2, which comes as late."""
    tp, dp = {0: 50, 1: 50, 2: 350, 3: 50}, {0: 320, 1: 320, 2: 20, 3: 20}
    traces = [
        rank_trace(
            Meets(tp[n], until=500 + (300 if n > 1 else 0), **group("1", "[0, 1]" if n < 2 else "[2, 3]", 2)),
            Meets(dp[n], until=900, **group("2", "[0, 2]" if n % 2 == 0 else "[1, 3]", 2)),
            rank=n,
            world=4,
        )
        for n in range(4)
    ]
    joint = joint_of(tmp_path, *traces)
    assert waits(joint) == [300.0, 300.0, 300.0, 0.0]
    assert [rank.waits_for for rank in joint.ranks] == [3, 3, 3, None]
    assert joint.waited_for_rank == 3
    assert "The other ranks wait for rank 3" in texts(joint)["waited_for"]


def test_two_stragglers_of_two_groups_are_both_named(tmp_path: Path) -> None:
    pairs = [("[0, 1]", 350), ("[0, 1]", 50), ("[2, 3]", 100), ("[2, 3]", 400)]
    joint = joint_of(
        tmp_path,
        *(rank_trace(Meets(us, **group("tp", ranks, 2)), rank=n, world=4) for n, (ranks, us) in enumerate(pairs)),
    )
    assert joint.waited_for_rank is None
    said = [finding.text for finding in joint.findings if finding.code == "waited_for"]
    assert [text.split(":")[0] for text in said] == ["Rank 0 waits for rank 1", "Rank 3 waits for rank 2"]


def test_a_name_without_ranks_does_not_make_a_group(tmp_path: Path) -> None:
    """Both pairs call theirs tp, and nothing says which ranks or how many are in it."""
    joint = joint_of(
        tmp_path,
        *(rank_trace(Meets(us, **group("tp", None)), rank=n, world=4) for n, us in enumerate((50, 400, 400, 400))),
    )
    assert joint.waited_for_rank is None
    assert "groups_unknown" in texts(joint)


def test_a_list_of_ranks_that_torch_shortened(tmp_path: Path) -> None:
    """64 ranks in two groups of 32: list and size together say which, and so which are not here."""
    lists = ["[0, 1, 2, ..., 31]", "[32, 33, 34, ..., 63]"]
    joint = joint_of(
        tmp_path,
        *(rank_trace(Meets(us, **group("fsdp", lists[n // 2], 32)), rank=n) for n, us in enumerate((50, 50, 400, 400))),
    )
    assert joint.waited_for_rank is None
    assert waits(joint) == [None] * 4
    assert "ranks 4 to 63" in texts(joint)["missing_ranks"]


def test_a_shortened_list_that_says_too_little_still_tells_groups_apart(tmp_path: Path) -> None:
    """Uneven ranks: the groups of three are whole, since three ranks state each."""
    lists = ["[0, 2, ..., 3]", "[1, 4, ..., 5]"]
    joint = joint_of(
        tmp_path,
        *(
            rank_trace(Meets(us, **group("dp", lists[n in (1, 4, 5)], 3)), rank=n, world=6)
            for n, us in enumerate((50, 400, 350, 350, 400, 400))
        ),
    )
    assert joint.waited_for_rank == 0
    assert waits(joint) == [0.0, 0.0, 300.0, 300.0, 0.0, 0.0]
    assert texts(joint)["waited_for"].startswith("Ranks 2 and 3 wait for rank 0")


def test_a_shortened_list_is_read_from_the_metadata(tmp_path: Path) -> None:
    config = [{"pg_name": "7", "pg_desc": "fsdp", "pg_size": 3, "ranks": [0, 1, 2]}]
    joint = joint_of(
        tmp_path,
        *(
            rank_trace(Meets(us, **group("7", "[0, ..., 2]", 3)), rank=n, world=3, pg_config=config)
            for n, us in enumerate((300, 300, 50))
        ),
    )
    assert joint.waited_for_rank == 2
    assert waits(joint) == [250.0, 250.0, 0.0]


def test_the_only_group_of_the_metadata(tmp_path: Path) -> None:
    """The kernels state nothing: one group of all ranks is in the metadata, beside each rank's own of one."""
    traces = [
        rank_trace(
            Meets(us),
            rank=n,
            world=3,
            pg_config=[
                {"pg_name": "0", "pg_size": 3, "ranks": [0, 1, 2]},
                {"pg_name": str(n + 1), "pg_size": 1, "ranks": [n]},
            ],
        )
        for n, us in enumerate((300, 60, 300))
    ]
    assert joint_of(tmp_path, *traces).waited_for_rank == 1


def test_several_groups_of_the_metadata_leave_it_open(tmp_path: Path) -> None:
    traces = [
        rank_trace(
            Meets(us),
            rank=n,
            world=4,
            pg_config=[
                {"pg_name": "0", "pg_size": 4, "ranks": [0, 1, 2, 3]},
                {"pg_name": "1", "pg_size": 2, "ranks": [0, 1] if n < 2 else [2, 3]},
            ],
        )
        for n, us in enumerate((50, 400, 400, 400))
    ]
    joint = joint_of(tmp_path, *traces)
    assert joint.waited_for_rank is None
    assert waits(joint) == [None] * 4
    assert "groups_unknown" in texts(joint)
    assert "no_waiting" not in texts(joint)


@pytest.mark.parametrize("joined_by", ["kernel", "launch", "time"])
def test_a_kernel_is_joined_with_the_operator_that_states_its_group(tmp_path: Path, joined_by: str) -> None:
    """As before torch 2.4: record_param_comms has the group. Kernel or launch have its External id, or lie in it."""
    traces = []
    for n, us in enumerate((50, 400, 50, 400)):
        trace = rank_trace(steps=0, rank=n, world=4)
        for step in range(3):
            at, id = 1000 * step, 10 * (step + 1)
            trace.step(step + 1, at=at, dur=1000)
            stated = group("9", "[0, 2]" if n % 2 == 0 else "[1, 3]", 2)
            ids = {"External id": 7 * id}
            trace.op("record_param_comms", at=at + 2, dur=30 if joined_by == "time" else 1, **ids, **stated)
            trace.launch(at=at + 5, correlation=id, **(ids if joined_by == "launch" else {}))
            given = {"correlation": id, "stream": 20, **(ids if joined_by == "kernel" else {})}
            trace.kernel(ALL_REDUCE, at=at + 960 - us, dur=us, **given)
        traces.append(trace)
    joint = joint_of(tmp_path, *traces)
    assert waits(joint) == [0.0] * 4
    assert set(texts(joint)) == {"step_times", "no_waiting"}


def test_ranks_are_paired_by_sequence_where_one_recorded_more(tmp_path: Path) -> None:
    """Rank 1 recorded steps 1 to 4, rank 0 only 1 to 3; each all-reduce has its number in the group."""

    def numbered(steps: int, us: float) -> list[Collective]:
        return [
            Collective("AllReduce", 1000.0 * n, us, step=None, members=(0, 1), group="0", sequence=40 + n)
            for n in range(steps)
        ]

    found = waiting.find([Seen(0, numbered(3, 300), 1000.0), Seen(1, numbered(4, 100), 1000.0)])
    assert found.waiting_us == {0: 600.0, 1: 0.0}
    assert found.not_compared_us == {0: 0.0, 1: 100.0}
    assert found.counts == (3, 4)


def test_ranks_are_paired_by_name_where_one_recorded_fewer() -> None:
    """Rank 1 recorded no all-reduce, but the all-gather behind it, in which it waits 50 us."""
    first = [Collective(name, at, us, step=1, members=(0, 1)) for name, at, us in (("AR", 0, 300), ("AG", 400, 50))]
    second = [Collective("AG", 350, 100, step=1, members=(0, 1))]
    found = waiting.find([Seen(0, first, 1000.0), Seen(1, second, 1000.0)])
    assert (found.waiting_us, found.not_compared_us) == ({0: 0.0, 1: 50.0}, {0: 300.0, 1: 0.0})


@pytest.mark.parametrize("sequence", [None, 7])
def test_two_groups_of_the_same_ranks_are_paired_each_for_itself(sequence: int | None) -> None:
    """Side by side on two streams, they begin in another order on rank 1.

    rank 0  a |------------|        0 .. 300       rank 1  a        |----|         200 .. 300
            b               |--|    400 .. 450             b     |------------|    150 .. 450
    """

    def collective(group: str, start: float, us: float) -> Collective:
        return Collective("AllReduce", start, us, step=1, members=(0, 1), group=group, sequence=sequence)

    first = [collective("a", 0, 300), collective("b", 400, 50)]
    second = [collective("b", 150, 300), collective("a", 200, 100)]
    assert waiting.find([Seen(0, first, 1000.0), Seen(1, second, 1000.0)]).waiting_us == {0: 200.0, 1: 250.0}


def test_what_earlier_steps_launched_is_paired_with_nothing(tmp_path: Path) -> None:
    """Rank 0's host ran ahead: an all-reduce of the step before runs in the first one, and would shift all others."""
    traces = [rank_trace(Meets(us, **group("0", "[0, 1]", 2)), rank=n, world=2) for n, us in enumerate((400, 100))]
    traces[0].kernel(ALL_REDUCE, at=2, dur=8, stream=21, correlation=7)
    joint = joint_of(tmp_path, *traces)
    assert waits(joint) == [300.0, 0.0]
    assert set(texts(joint)) == {"step_times", "waited_for"}


@pytest.mark.parametrize(
    ("value", "ranks"),
    [
        ("[0, 1]", (0, 1)), ([4, 2], (2, 4)), ("[]", None), ("[0, 1, ..., 63]", None), (None, None), ("[0, -1]", None),
        (7, None), ("[[", None), ("[" * 100_000, None), ('["3"]', (3,)),
    ],
)  # fmt: skip
def test_ranks_as_torch_writes_them(value: object, ranks: tuple[int, ...] | None) -> None:
    assert ranks_in(value) == ranks


@pytest.mark.parametrize(
    ("text", "size", "ranks"),
    [
        ("[4, 5, 6, ..., 35]", 32, tuple(range(4, 36))),
        ("[0, 8, 16, ..., 504]", 64, tuple(range(0, 512, 8))),
        ("[0, ..., 31]", 32, tuple(range(32))),
        ("[0, 1, 2, ..., 63]", 32, None),
        ("[0, 1, 3, ..., 63]", 64, None),
        ("[0, 1, 2, ..., 63]", None, None),
        ("[3, 2, ..., 1]", 3, None),
        ("[ , ..., 1]", 2, None),
        (f"[{'9' * 5000}, ..., 1]", 2, None),
        ("[0, 1, ..., 999999999]", 10**9, None),
    ],
)
def test_shortened_lists(text: str, size: int | None, ranks: tuple[int, ...] | None) -> None:
    assert ranks_in(text, size) == ranks


def test_groups_of_the_metadata() -> None:
    entries: list[Any] = [
        {"pg_name": "0", "pg_size": 4, "ranks": []},
        {"pg_name": "1", "pg_size": 2, "ranks": [2, 3]},
        {"pg_name": "2", "pg_size": 1, "ranks": [2]},
        {"pg_name": "3", "pg_size": 2},
        "nonsense",
    ]
    assert configured({"world_size": 4, "pg_config": entries}) == {"0": (0, 1, 2, 3), "1": (2, 3)}
    assert configured(None) == configured({"pg_config": {"0": 1}}) == {}
    assert world_size({"world_size": "8"}) == 8
    assert world_size({"world_size": 10**9}) is world_size({"world_size": True}) is world_size(None) is None


# ---- groups that nothing states --------------------------------------------------------------------------------------


def test_one_straggler_of_ranks_whose_group_is_not_stated(tmp_path: Path) -> None:
    """As old traces of a data-parallel run are: every other rank waits for rank 2, which waits for nobody."""
    joint = joint_of(tmp_path, *(rank_trace(Meets(us), rank=n, world=4) for n, us in enumerate((400, 400, 60, 400))))
    assert joint.waited_for_rank == 2
    assert waits(joint) == [340.0, 340.0, 0.0, 340.0]


@pytest.mark.parametrize("takes", [(50, 50, 400, 400), (50, 400, 50, 400), (50, 400, 380, 50)])
def test_what_two_unstated_pairs_would_show_as_well_is_not_said(tmp_path: Path, takes: tuple[float, ...]) -> None:
    joint = joint_of(tmp_path, *(rank_trace(Meets(us), rank=n, world=4) for n, us in enumerate(takes)))
    assert joint.waited_for_rank is None
    assert waits(joint) == [None] * 4
    assert "do not state which process group" in texts(joint)["groups_unknown"]
    assert "no_waiting" not in texts(joint)


def test_ends_that_do_not_coincide_belong_to_no_common_collective(tmp_path: Path) -> None:
    """Rank 0 would be the straggler, but its all-reduces end up to 250 us before and after the others'."""
    traces = [rank_trace(Meets(400), rank=n, world=3, steps=3) for n in range(2)]
    for event in traces[0].events:
        if event["name"] == ALL_REDUCE:
            step = int(event["ts"] // 1000)
            event.update(ts=1000 * step + (500, 300, 800)[step], dur=50)
    joint = joint_of(tmp_path, *traces, rank_trace(Meets(400), rank=2, world=3, steps=3))
    assert joint.waited_for_rank is None
    assert "groups_unknown" in texts(joint)


def test_durations_that_vary_while_ends_coincide_are_of_one_group(tmp_path: Path) -> None:
    """Two ranks arrive late at times; that all four meet is shown by ends that coincide, on clocks 300 us apart."""
    takes = [(400, 300, 500, 350), (380, 420, 350, 500), (50, 60, 50, 60), (90, 70, 60, 80)]
    traces = [rank_trace(Meets(us, until=960), rank=n, world=4) for n, us in enumerate(takes)]
    for event in traces[3].events:
        event["ts"] += 300
    joint = joint_of(tmp_path, *traces)
    # Beyond the least of each (rank 2's): 350, 240, 450 and 290; 330, 360, 300 and 440; 40, 10, 10 and 20.
    assert waits(joint) == [332.5, 357.5, 0.0, 20.0]
    assert joint.waited_for_rank == 2
    assert texts(joint)["waited_for"].startswith("Ranks 0 and 1 wait for rank 2: rank 1 spends 358 us per step")


def test_ranks_with_other_counts_are_not_one_unstated_group(tmp_path: Path) -> None:
    traces = [rank_trace(Meets(us), rank=n, world=4) for n, us in enumerate((50, 400, 400))]
    joint = joint_of(tmp_path, *traces, rank_trace(Meets(400), Meets(30, until=400), rank=3, world=4))
    assert joint.waited_for_rank is None
    assert texts(joint)["different_counts"] == "The ranks recorded different numbers of collectives (4 to 8)."


# ---- sends and receives ----------------------------------------------------------------------------------------------


def test_stages_of_a_pipeline_do_not_wait_in_a_collective(tmp_path: Path) -> None:
    """Rank 0 sends for 60 us, rank 1 receives for 500: it waits for its predecessor, which is no straggler."""
    send, receive = group("0", "[0, 1]", 2, "send"), group("0", "[0, 1]", 2, "recv")
    joint = joint_of(
        tmp_path,
        rank_trace(Meets(60, name=SEND_RECEIVE, **send), rank=0, world=2),
        rank_trace(Meets(500, name=SEND_RECEIVE, **receive), rank=1, world=2),
    )
    assert joint.waited_for_rank is None
    assert waits(joint) == [None, None]
    assert "rank 1 500 us per step" in texts(joint)["point_to_point"]
    assert "no_waiting" not in texts(joint)


def test_sends_that_state_nothing_are_left_out_beside_an_all_reduce(tmp_path: Path) -> None:
    """As batch_isend_irecv writes them; the all-reduce of the same ranks is compared: 10 us of waiting."""
    stated = group("0", "[0, 1]", 2)
    joint = joint_of(
        tmp_path,
        *(
            rank_trace(Meets(us, name=SEND_RECEIVE, until=600), Meets(40 - us / 50, **stated), rank=n, world=2)
            for n, us in enumerate((500, 0))
        ),
    )
    assert waits(joint) == [0.0, 10.0]
    assert joint.waited_for_rank is None
    assert set(texts(joint)) == {"step_times", "point_to_point"}


@pytest.mark.parametrize(("title", "waited_for"), [("nccl:all_to_all", 1), ("nccl:send 0->1", None), (None, None)])
def test_all_to_all_runs_in_the_same_kernel(tmp_path: Path, title: str | None, waited_for: int | None) -> None:
    traces = [rank_trace(Meets(us, name=SEND_RECEIVE), rank=n, world=2) for n, us in enumerate((400, 100))]
    for trace in traces if title else []:
        trace.region(str(title), at=6, dur=4)
    assert joint_of(tmp_path, *traces).waited_for_rank == waited_for


# ---- ranks that are missing ------------------------------------------------------------------------------------------


def test_two_of_eight_ranks_say_nothing_of_waiting(tmp_path: Path) -> None:
    stated = group("0", "[0, 1, 2, 3, 4, 5, 6, 7]", 8)
    joint = joint_of(tmp_path, *(rank_trace(Meets(us, **stated), rank=n, world=8) for n, us in enumerate((500, 100))))
    assert joint.waited_for_rank is None
    assert waits(joint) == [None, None]
    assert texts(joint)["missing_ranks"].startswith("There is no trace of ranks 2 to 7, so who waits")
    assert set(texts(joint)) == {"step_times", "missing_ranks"}


def test_a_group_names_missing_ranks_where_the_metadata_do_not(tmp_path: Path) -> None:
    traces = [rank_trace(Meets(us, **group("0", "[0, 1, 2]", 3))) for us in (500, 100)]
    joint = joint_of(tmp_path, *traces)
    assert joint.waited_for_rank is None
    assert texts(joint)["missing_ranks"].startswith("There is no trace of rank 2, so")


def test_ranks_of_another_numbering_are_all_there(tmp_path: Path) -> None:
    """The files are numbered from 1; the traces say that they are ranks 0 and 1 of two."""
    traces = [rank_trace(Meets(us, **group("0", "[0, 1]", 2)), rank=n, world=2) for n, us in enumerate((500, 100))]
    for n, trace in enumerate(traces, 1):
        trace.write(tmp_path / f"gpu{n}.json")
    joint = analyzed(tmp_path, rank_from=r"gpu(\d)").joint
    assert joint is not None
    assert "missing_ranks" not in texts(joint)
    assert joint.waited_for_rank == 2


def test_names_that_count_from_one(tmp_path: Path) -> None:
    traces = [rank_trace(Meets(us, **group("0", "[0, 1]", 2))) for us in (500, 100)]
    for n, trace in enumerate(traces, 1):
        trace.write(tmp_path / f"rank{n}.json")
    joint = analyzed(tmp_path).joint
    assert joint is not None
    assert "missing_ranks" not in texts(joint)
    assert joint.waited_for_rank == 2


# ---- a late start, and what one step shows ---------------------------------------------------------------------------


def test_a_rank_that_only_started_late_is_no_straggler(tmp_path: Path) -> None:
    """Rank 0 waits 800 us in the first of four steps, 200 a step in the mean, and then no more."""
    joint = of_two(tmp_path, (850, 50, 50, 50), 50)
    assert waits(joint) == [200.0, 0.0]
    assert joint.waited_for_rank is joint.slowest_rank is None
    assert texts(joint)["started_late"].startswith("Rank 0 waits 800 us for rank 1 in the first recorded step only")
    assert set(texts(joint)) == {"step_times", "started_late"}


def test_a_late_start_does_not_hide_the_straggler_of_all_other_steps(tmp_path: Path) -> None:
    """Rank 1 starts 850 us late, and then waits 200 us for rank 0 in each step."""
    joint = of_two(tmp_path, (900, 50, 50, 50), (50, 250, 250, 250))
    assert joint.waited_for_rank == 0
    assert "for rank 1 in the first recorded step only" in texts(joint)["started_late"]


def test_a_single_wait_later_on_is_no_straggler_either(tmp_path: Path) -> None:
    joint = of_two(tmp_path, (50, 50, 850, 50), 50)
    assert joint.waited_for_rank is None
    assert texts(joint)["waited_once"].startswith("Rank 0 waits 800 us for rank 1 in ProfilerStep#3 only")


def test_one_step_does_not_tell_a_slow_rank_from_a_late_one(tmp_path: Path) -> None:
    stated = group("0", "[0, 1, 2]", 3)
    traces = [rank_trace(Meets(us, **stated), rank=n, world=3, steps=1) for n, us in enumerate((500, 100, 450))]
    joint = joint_of(tmp_path, *traces)
    assert joint.waited_for_rank == 1
    assert "may only have started later: one step shows no more than that" in texts(joint)["one_step"]
    assert "waited_for" not in texts(joint)
    first = analyzed(*sorted(tmp_path.iterdir()), step_time_us=900.0).ranks[0].record.verdict
    assert first.cause == "rank 1"
    assert first.advice[0].startswith("Record several steps: in one, rank 1 may only have started later.")


def test_without_steps_it_is_the_first_collective_that_may_be_a_late_start(tmp_path: Path) -> None:
    """Five all-reduces and no step: rank 0 waits 700 us in the first one. Then with 100 us in each of the others."""

    def trace(takes: Sequence[float]) -> TraceBuilder:
        builder = TraceBuilder()
        for n, us in enumerate(takes):
            builder.work(
                n + 1, launch=1000 * n, at=1000 * n + 900 - us, dur=us, name=ALL_REDUCE, **group("0", "[0, 1]")
            )
        return builder

    late = joint_of(tmp_path, trace((750, 50, 50, 50, 50)), trace((50,) * 5))
    assert (late.waited_for_rank, "started_late" in texts(late)) == (None, True)
    slow = joint_of(tmp_path, trace((750, 150, 150, 150, 150)), trace((50,) * 5))
    assert slow.waited_for_rank == 1


def test_ranks_that_are_late_in_turns(tmp_path: Path) -> None:
    """Each waits 300 us in every other step: the mean is equal, and yet it is no transfer."""
    joint = of_two(tmp_path, (350, 50, 350, 50), (50, 350, 50, 350))
    assert joint.waited_for_rank is None
    assert texts(joint)["wait_in_turns"] == "Ranks 0 and 1 wait for each other in turns, each at least 150 us per step."
    assert "no_waiting" not in texts(joint)


def test_ranks_that_recorded_different_steps_do_not_compare(tmp_path: Path) -> None:
    stated = group("0", "[0, 1]", 2)
    early, late = (rank_trace(Meets(us, **stated), rank=n, world=2) for n, us in enumerate((400, 100)))
    for event in late.events:
        event["name"] = event["name"].replace("Step#", "Step#2")
    joint = joint_of(tmp_path, early, late)
    assert joint.waited_for_rank is None
    assert texts(joint)["different_steps"].startswith("The ranks recorded different steps (1 to 4 and 21 to 24)")


# ---- who is the slowest ----------------------------------------------------------------------------------------------


def test_an_outlier_is_no_part_of_a_ranks_row(tmp_path: Path) -> None:
    """Rank 1 begins step 1 only after 8000 us; later steps take 1000 us, 60 of them in a collective on both ranks.

    rank 0  |-#1: [mm 900][   wait 8000    ][60]-|-#2: [mm 900][60]-|-#3 ...
    rank 1  |-#1: ........ 8000 ...[mm 900][60]--|-#2: [mm 900][60]-|-#3 ...
    """
    stated = group("0", "[0, 1]", 2)

    def trace(rank: int) -> TraceBuilder:
        late = 8000.0 if rank == 1 else 0.0
        trace = TraceBuilder().step(1, at=0, dur=9000)
        trace.work(1, launch=late + 5, at=late + 20, dur=900)
        trace.work(2, launch=late + 10, at=late + 920, dur=8060 - late, name=ALL_REDUCE, stream=20, **stated)
        for n in range(1, 6):
            at = 8000 + 1000 * n
            trace.step(n + 1, at=at, dur=1000).work(10 * n, launch=at + 5, at=at + 20, dur=900)
            trace.work(10 * n + 1, launch=at + 10, at=at + 920, dur=60, name=ALL_REDUCE, stream=20, **stated)
        trace.members["distributedInfo"] = {"rank": rank, "world_size": 2}
        return trace

    joint = joint_of(tmp_path, trace(0), trace(1))
    assert codes(joint) == ["step_times", "started_late"]
    assert "waits 8 ms for rank 1 in the first recorded step only" in texts(joint)["started_late"]
    for figures in joint.ranks:
        assert (figures.steps, figures.outlier_steps, figures.step_time_us) == (6, 1, 1000.0)
        assert (figures.communication_us, figures.exposed_communication_us, figures.waiting_us) == (60.0, 60.0, 0.0)


def test_collectives_that_kernels_hide_are_not_exposed(tmp_path: Path) -> None:
    """Two collectives of 100 us overlap by 40; a kernel covers the first 30 us: 130 us are exposed, of 200."""
    one, two = group("0", "[0, 1]", 2), group("0", "[0, 1]", 2, collective="allgather")
    trace = TraceBuilder().step(1, at=0, dur=1000).work(1, launch=1, at=500, dur=130)
    trace.work(2, launch=2, at=600, dur=100, name=ALL_REDUCE, stream=20, **one)
    trace.work(3, launch=3, at=660, dur=100, name=ALL_REDUCE.replace("Reduce", "Gather"), stream=21, **two)
    ranks = joint_of(tmp_path, trace, trace).ranks
    assert [(r.communication_us, r.exposed_communication_us) for r in ranks] == [(200.0, 130.0)] * 2


def test_steps_that_one_rank_has_not_recorded_do_not_thin_the_waiting(tmp_path: Path) -> None:
    """Rank 0 recorded six steps, rank 1 four: in those, rank 0 waits 300 us each."""
    stated = group("0", "[0, 1]", 2)
    joint = joint_of(
        tmp_path,
        rank_trace(Meets(400, **stated), rank=0, world=2, steps=6),
        rank_trace(Meets(100, **stated), rank=1, world=2, steps=4),
    )
    assert (joint.waited_for_rank, waits(joint)) == (1, [300.0, 0.0])
    assert "300 us per step" in texts(joint)["waited_for"]


def test_a_group_of_one_rank_launches_no_collective(tmp_path: Path) -> None:
    """The host's rows of NCCL take 60 and 10 us. No kernel is launched: nobody communicates, and nobody waits."""

    def trace(us: float) -> TraceBuilder:
        built = rank_trace(rank=0 if us > 50 else 1, world=2)
        for step in range(4):
            built.op("nccl:all_reduce", at=1000 * step + 50, dur=us)
        return built

    joint = joint_of(tmp_path, trace(60), trace(10))
    assert [(r.communication_us, r.exposed_communication_us, r.waiting_us) for r in joint.ranks] == [(None,) * 3] * 2
    assert codes(joint) == ["step_times"]


def test_a_rank_that_waits_is_not_told_to_overlap_collectives(tmp_path: Path) -> None:
    """Rank 0 is compute-bound, with 300 of its 400 us in collectives waiting for rank 1; so is rank 2 at 150 of 250."""
    stated = group("0", "[0, 1, 2]", 3)
    traces = [rank_trace(Meets(us, **stated), rank=rank, world=3) for rank, us in enumerate((400, 100, 250))]
    ranks = analyzed(*write(tmp_path, *traces)).ranks
    assert {rank.record.verdict.regime for rank in ranks} == {"compute-bound"}
    advice = [" ".join(rank.record.verdict.advice) for rank in ranks]
    assert "300 us of the 400 us per step in collectives are waiting for rank 1" in advice[0]
    assert "Look at rank 1, which other ranks wait for; on its own it is compute-bound" in advice[0]
    assert "150 us of the 250 us" in advice[2]
    assert ["overlap them" in text for text in advice] == [False, True, False]


@pytest.mark.parametrize(
    ("takes", "whom", "look"),
    [
        (([900.0, 60.0], [60.0, 60.0]), "rank 1 in the beginning only", "Record more steps"),
        (([900.0, 60.0] * 2, [60.0, 900.0] * 2), "other ranks, in turns", "work that differs between ranks"),
    ],
)
def test_other_waits_are_no_transfer_either(
    tmp_path: Path, takes: tuple[list[float], list[float]], whom: str, look: str
) -> None:
    """By its own trace rank 0 is communication-bound: 480 of 975 us are collectives. 420 of these are waiting."""
    stated = group("0", "[0, 1]", 2)
    traces = [rank_trace(Meets(us, **stated), rank=r, world=2, steps=len(us)) for r, us in enumerate(takes)]
    verdict = analyzed(*write(tmp_path, *traces)).ranks[0].record.verdict
    assert verdict.regime == "communication-bound"
    assert verdict.summary.endswith(f"and 88% of that is waiting for {whom}.")
    assert verdict.cause == "communication"
    assert look in verdict.advice[0]
    assert not any("verlap collectives" in text for text in verdict.advice)


def test_all_ranks_that_are_waited_for_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [group("a", "[0, 1]", 2)] * 2 + [group("b", "[2, 3]", 2)] * 2
    traces = [
        rank_trace(Meets(us, **stated), rank=rank, world=4)
        for rank, (us, stated) in enumerate(zip((400, 100, 100, 400), pairs, strict=True))
    ]
    terminal.show(ranks_page.page(joint_of(tmp_path, *traces)))
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines() if line.endswith("(waited for)")] == ["1", "2"]


def test_a_waiting_rank_is_not_the_slowest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The GPU work of rank 0 ends 10 us after its last step, but 300 us of each step are waiting for rank 1."""
    stated = group("0", "[0, 1]", 2)
    joint = joint_of(
        tmp_path,
        rank_trace(Meets(400, until=1010, **stated), rank=0, world=2),
        rank_trace(Meets(100, until=1000, **stated), rank=1, world=2),
    )
    assert joint.ranks[0].step_time_us > joint.ranks[1].step_time_us  # type: ignore[operator]
    assert (joint.slowest_rank, joint.waited_for_rank) == (1, 1)
    terminal.show(ranks_page.page(joint))
    shown = capsys.readouterr().out
    assert "slowest" not in shown
    assert [line.split()[0] for line in shown.splitlines() if line.endswith("(waited for)")] == ["1"]


def test_the_slowest_is_named_only_if_it_differs(tmp_path: Path) -> None:
    """No collectives: device windows of 900 and 910 us differ by noise, of 700 and 900 do not."""

    def trace(us: float) -> TraceBuilder:
        return TraceBuilder().step(1, at=0, dur=us).work(1, launch=1, at=5, dur=us - 5)

    assert joint_of(tmp_path, trace(900), trace(910)).slowest_rank is None
    assert joint_of(tmp_path, trace(700), trace(900)).slowest_rank == 1


# ---- traces that are no ranks ----------------------------------------------------------------------------------------


def cpu_only(rank: int | None = None, world: int | None = None) -> TraceBuilder:
    trace = TraceBuilder()
    if world is not None:
        trace.members["distributedInfo"] = {"rank": rank, "world_size": world}
    return trace.step(1, at=0, dur=1000).op("aten::empty", at=10, dur=50)


@pytest.mark.parametrize("states", [{}, {"rank": 0, "world": 2}])
@pytest.mark.parametrize("name", ["node7_4411.async_llm.json", "coordinator_rank0.json"])
def test_a_coordinator_is_no_rank(tmp_path: Path, name: str, states: dict[str, int]) -> None:
    """Its name or its metadata may even say rank 0: a trace without GPU work beside ranks that have it."""
    stated = group("0", "[0, 1]", 2)
    write(tmp_path, *(rank_trace(Meets(us, **stated), rank=n, world=2) for n, us in enumerate((400, 100))))
    cpu_only(**states).write(tmp_path / name)
    both = analyzed(tmp_path)
    assert both.joint is not None
    assert [rank.rank for rank in both.joint.ranks] == [analysis.rank for analysis in both.ranks] == [0, 1]
    assert texts(both.joint)["coordinator"].startswith(f"{name} has no GPU work, the others do")
    assert both.joint.waited_for_rank == 1


def test_one_rank_and_its_coordinator(tmp_path: Path) -> None:
    rank_trace(Meets(50)).write(tmp_path / "a.json")
    cpu_only().write(tmp_path / "b.json")
    only = analyzed(tmp_path)
    assert [path.name for analysis in only.ranks for path in analysis.paths] == ["a.json"]
    assert only.joint is not None
    assert list(texts(only.joint)) == ["coordinator", "assumed_ranks"]


def test_ranks_without_any_gpu_work_are_all_ranks(tmp_path: Path) -> None:
    joint = joint_of(tmp_path, cpu_only(), cpu_only())
    assert [rank.rank for rank in joint.ranks] == [0, 1]
    assert "coordinator" not in texts(joint)


def test_a_rank_whose_kernels_were_not_recorded_is_a_rank(tmp_path: Path) -> None:
    """It launched work, so it is no coordinator: the profiler saw none of it run."""
    blind = cpu_only().launch(at=20, correlation=1)
    joint = joint_of(tmp_path, rank_trace(Meets(50)), blind)
    assert [rank.rank for rank in joint.ranks] == [0, 1]


# ---- stages of a rank ------------------------------------------------------------------------------------------------


def test_stages_of_a_rank_are_kept_apart(tmp_path: Path) -> None:
    """While decoding, rank 0 waits 200 us for rank 1; in the prompts' stage nobody waits."""
    for rank in range(2):
        for stage, us in (("EXTEND", 100), ("DECODE", 300 - 200 * rank)):
            rank_trace(Meets(us)).write(tmp_path / f"1759.5-TP-{rank}-{stage}.trace.json.gz")
    four = analyzed(tmp_path)
    assert four.joint is not None
    assert [(r.stage, r.rank, r.waiting_us) for r in four.joint.ranks] == [
        ("DECODE", 0, 200.0), ("DECODE", 1, 0.0), ("EXTEND", 0, 0.0), ("EXTEND", 1, 0.0),
    ]  # fmt: skip
    assert [analysis.record.window.steps for analysis in four.ranks] == [4] * 4
    assert (four.joint.waited_for_rank, four.joint.slowest_rank, four.joint.spread) == (None, None, None)
    said = [finding.text for finding in four.joint.findings]
    assert said[0] == "The traces are of 2 stages (DECODE and EXTEND), which are compared separately."
    assert any(text.startswith("DECODE: The other ranks wait for rank 1") for text in said)
    assert any(text.startswith("EXTEND: No rank waits") for text in said)


def test_stages_beside_ranks_in_the_name(tmp_path: Path) -> None:
    for name in ("prefill_rank0", "decode_rank0", "prefill_rank1", "decode_rank1"):
        rank_trace(Meets(50)).write(tmp_path / f"{name}.json")
    joint = analyzed(tmp_path).joint
    assert joint is not None
    assert [(r.stage, r.rank) for r in joint.ranks] == [("DECODE", 0), ("DECODE", 1), ("PREFILL", 0), ("PREFILL", 1)]
    shown = CliRunner().invoke(cli.group, ["analyze", str(tmp_path)], catch_exceptions=False).output
    assert "0 PREFILL" in shown


def test_other_words_tell_files_of_every_rank_apart(tmp_path: Path) -> None:
    """Recorded one after the other, they would else be taken for cycles of one process."""
    for rank in range(2):
        for n, kind in enumerate(("train", "validate")):
            trace = rank_trace(Meets(50), rank=rank, world=2)
            for event in trace.events:
                event["ts"] += 1e6 * n
            trace.write(tmp_path / f"rank{rank}_{kind}.json")
    joint = analyzed(tmp_path).joint
    assert joint is not None
    assert [(r.stage, r.rank, r.steps) for r in joint.ranks] == [
        ("TRAIN", 0, 4), ("TRAIN", 1, 4), ("VALIDATE", 0, 4), ("VALIDATE", 1, 4),
    ]  # fmt: skip


def test_cycles_whose_names_differ_in_numbers_are_one_record(tmp_path: Path) -> None:
    for rank in range(2):
        for cycle in range(2):
            trace = rank_trace(Meets(50), rank=rank, world=2)
            for event in trace.events:
                event["ts"] += 1e6 * cycle
            trace.write(tmp_path / f"run.cycle{cycle}.rank{rank}.json")
    joint = analyzed(tmp_path).joint
    assert joint is not None
    assert [(r.stage, r.rank, r.steps) for r in joint.ranks] == [(None, 0, 8), (None, 1, 8)]


def test_one_stage_of_all_ranks_is_nothing_special(tmp_path: Path) -> None:
    for rank in range(2):
        rank_trace(Meets(50)).write(tmp_path / f"decode-TP-{rank}.json")
    joint = analyzed(tmp_path).joint
    assert joint is not None
    assert [(r.stage, r.rank) for r in joint.ranks] == [(None, 0), (None, 1)]
    assert set(texts(joint)) == {"step_times", "no_waiting"}


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["x-TP-1.json", "x-TP-0.json"], [1, 0]),
        (["x-TP-0-DP-0.json", "x-TP-1-DP-1.json"], [0, 1]),
        (["x-TP-0-PP-0.json", "x-TP-0-PP-1.json"], [None, None]),
        (["x-TP-0.json", "y.json"], [None, None]),
        (["http-0.json", "http-1.json"], [None, None]),
    ],
)
def test_a_tensor_parallel_rank_only_where_it_tells_all_files_apart(names: list[str], ranks: list[int | None]) -> None:
    assert by_tensor_parallel([(name, None) for name in names]) == ranks


# ---- one folder a rank -----------------------------------------------------------------------------------------------


def in_folders(root: Path, *folders: str, name: str = "trace.json") -> list[Path]:
    """One rank a folder, all with the same file name; the rank of the last one is waited for."""
    paths = []
    for n, folder in enumerate(folders):
        (root / folder).mkdir(parents=True)
        takes = 100 if n == len(folders) - 1 else 400
        paths.append(rank_trace(Meets(takes)).write(root / folder / name))
    return paths


@pytest.mark.parametrize(
    ("folders", "ranks"),
    [
        (("rank_1", "rank_0"), [0, 1]),
        (("run/rank2/profile", "run/rank3/profile"), [2, 3]),
        (("b", "a"), [0, 1]),
        (("10", "9"), [9, 10]),
    ],
)
def test_one_folder_a_rank_with_one_file_name(tmp_path: Path, folders: tuple[str, ...], ranks: list[int]) -> None:
    """They are no cycles of one process. Without a rank in a folder's name, the folders' order numbers them."""
    joint = analyzed(*in_folders(tmp_path, *folders)).joint
    assert joint is not None
    assert [rank.rank for rank in joint.ranks] == ranks
    assert [rank.steps for rank in joint.ranks] == [4, 4]
    assert sorted(rank.files[0] for rank in joint.ranks) != ["trace.json", "trace.json"]


def test_torchs_own_names_in_several_folders(tmp_path: Path) -> None:
    name = "host_12.1700000000000000.pt.trace.json"
    assert len(analyzed(*in_folders(tmp_path, "x", "y", name=name)).ranks) == 2


def test_a_pattern_sees_the_path(tmp_path: Path) -> None:
    """The file name is the same everywhere, and has a number of its own."""
    paths = in_folders(tmp_path, "node0/gpu1", "node0/gpu0", name="trace_7.json")
    joint = analyzed(*paths, rank_from=r"(?:gpu)(\d+)").joint
    assert joint is not None
    assert [(rank.rank, rank.files) for rank in joint.ranks] == [
        (0, ["gpu0/trace_7.json"]), (1, ["gpu1/trace_7.json"]),
    ]  # fmt: skip
    assert joint.waited_for_rank == 0
    with pytest.raises(UsageError, match=r"does not match gpu1/trace_7\.json"):
        analyzed(*paths, rank_from=r"rank(\d+)")


def test_a_pattern_still_sees_the_bare_name_first() -> None:
    assert rank_of(Path("node3/rank5.json"), None, r"(\d+)") == 5
    assert rank_of(Path("node3/rank5.json"), None, r"^rank(\d+)") == 5
    assert rank_of(Path("node3/trace.json"), None, r"(\d+)") == 3
    assert rank_of(Path("gpu3/trace_1.json"), None, r"(\d+)", shared_name=True) == 3


def test_a_folder_of_folders_stands_for_their_traces(tmp_path: Path) -> None:
    in_folders(tmp_path / "run", "rank0", "rank1")
    shown = CliRunner().invoke(cli.group, ["analyze", str(tmp_path / "run"), "--json", "-"], catch_exceptions=False)
    joint = json.loads(shown.output)["joint"]
    assert [rank["files"] for rank in joint["ranks"]] == [["rank0/trace.json"], ["rank1/trace.json"]]
    assert joint["waited_for_rank"] == 1
    assert {finding["code"] for finding in joint["findings"]} == {"step_times", "waited_for"}


# ---- traces of two H200s ---------------------------------------------------------------------------------------------

RECORDED = Path(__file__).parent / "data" / "ranks"
STEPS = 4


def recorded(name: str) -> list[Path]:
    return [RECORDED / f"{name}_rank{rank}.json.gz" for rank in (0, 1)]


def stated_collectives(path: Path) -> list[tuple[str, float]]:
    """(process group, microseconds) of each NCCL kernel that states one, in order; leaked ones state none."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel" and e["name"].startswith("ncclDevKernel")]
    kernels.sort(key=lambda e: e["ts"])
    named = [(e["args"].get("Process Group Name"), e["dur"]) for e in kernels]
    return [(group, us) for group, us in named if group is not None]


@pytest.mark.parametrize("name", ["two_groups", "straggler"])
def test_waiting_in_a_recording_equals_a_plain_reading(name: str) -> None:
    """Collectives of one group meet in their order; what exceeds the shorter of the two is waiting."""
    sides: list[dict[str, list[float]]] = []
    for path in recorded(name):
        durations: dict[str, list[float]] = {}
        for group_name, us in stated_collectives(path):
            durations.setdefault(group_name, []).append(us)
        sides.append(durations)
    assert {key: len(each) for key, each in sides[0].items()} == {key: len(each) for key, each in sides[1].items()}
    pairs = [pair for key in sides[0] for pair in zip(sides[0][key], sides[1][key], strict=True)]
    expected = [sum(pair[rank] - min(pair) for pair in pairs) / STEPS for rank in (0, 1)]
    joint = analyzed(*recorded(name)).joint
    assert joint is not None
    assert waits(joint) == pytest.approx(expected, abs=0.01)


def test_a_rank_that_sleeps_3_ms_a_step_is_waited_for() -> None:
    joint = analyzed(*recorded("straggler")).joint
    assert joint is not None
    assert joint.waited_for_rank == 0
    assert [rank.regime for rank in joint.ranks] == ["host-bound", "communication-bound"]


def test_two_process_groups_in_one_recording() -> None:
    """DDP's all-reduces, three a step, and one a step in a second group; rank 0 also has three of earlier steps."""
    assert [group_name for group_name, _ in stated_collectives(recorded("two_groups")[0])].count("1") == STEPS
    for analysis in analyzed(*recorded("two_groups")).ranks:
        groups = [each.group for each in analysis.collectives if each.step is not None]
        assert (groups.count("0"), groups.count("1")) == (3 * STEPS, STEPS)
