"""Several traces as one run: ranks, cycles, who waits for whom."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from calls import PATIENCE_S
from click.testing import CliRunner

from proftrack.analysis import pool
from proftrack.analysis.pipeline import Analysis, JointAnalysis, analyze_trace, analyze_traces
from proftrack.analysis.ranks import Part, _step_times, join, join_ranks
from proftrack.analysis.trace_files import find
from proftrack.cli import group
from proftrack.errors import TraceError, UsageError
from proftrack.record import Record, dump
from proftrack.record.ranks import Joint
from proftrack.report import terminal
from proftrack.report.pages import ranks as ranks_page
from proftrack.trace.ranks import numbered, rank_of, stated_rank, worker_of


def row(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    gpu = cat == "kernel"
    return {
        "ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur,
        "pid": 0 if gpu else 77, "tid": 7 if gpu else 77, "args": args,
    }  # fmt: skip


def rank_trace(reduce_start: float, *, rank: int | None = None, base: float = 0.0) -> dict[str, Any]:
    """One step of 1000 us: a matmul, then an all-reduce that ends for all ranks at 900."""
    events = [
        row("user_annotation", "ProfilerStep#1", base, 1000),
        row("cuda_runtime", "cudaLaunchKernel", base + 10, 5, correlation=1),
        row("kernel", "gemm", base + 20, reduce_start - 30, correlation=1, device=0, stream=7),
        row("cuda_runtime", "cudaLaunchKernel", base + 20, 5, correlation=2),
        row(
            "kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            base + reduce_start, 900 - reduce_start, correlation=2, device=0, stream=20,
        ),
    ]  # fmt: skip
    document: dict[str, Any] = {"traceEvents": events}
    if rank is not None:
        document["distributedInfo"] = {"rank": rank, "world_size": 2}
    return document


def write(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document))
    return path


def analyzed(*paths: Path, **options: Any) -> JointAnalysis:
    return analyze_traces(find(paths), **options)


def joint_of(*paths: Path, **options: Any) -> Joint:
    joint = analyzed(*paths, **options).joint
    assert joint is not None
    return joint


def said(joint: Joint) -> str:
    return " ".join(finding.text for finding in joint.findings)


def codes(joint: Joint) -> list[str]:
    return [finding.code for finding in joint.findings]


def part(analysis: Analysis, rank: int, record: Record | None = None) -> Part:
    return Part(rank=rank, record=record or analysis.record, collectives=analysis.collectives)


def test_a_spread_of_more_than_ten_times_is_a_factor() -> None:
    assert _step_times(238.07, 8)[0].text == "Step times of the 8 ranks differ by up to 239x."
    assert _step_times(0.123, 8)[0].text == "Step times of the 8 ranks differ by up to 12.3 %."


def test_the_rank_that_arrives_last_is_waited_for(tmp_path: Path) -> None:
    """Rank 0 reaches the all-reduce at 300 and spends 600 us in it, rank 1 at 800 and spends 100."""
    paths = [write(tmp_path / "a.json", rank_trace(300, rank=0)), write(tmp_path / "b.json", rank_trace(800, rank=1))]
    joint = joint_of(*paths)
    assert [r.rank for r in joint.ranks] == [0, 1]
    assert [r.communication_us for r in joint.ranks] == [600.0, 100.0]
    assert [r.waiting_us for r in joint.ranks] == [500.0, 0.0]
    assert joint.waited_for_rank == 1
    # Exposed: the all-reduce alone, since nothing else runs beside it.
    assert [r.exposed_communication_us for r in joint.ranks] == [600.0, 100.0]
    assert "wait for rank 1" in said(joint)


def test_a_rank_that_waits_is_told_for_whom(tmp_path: Path) -> None:
    """Rank 0 computes 290 us of 1000 and is in the all-reduce for 600: communication-bound, by its own trace."""
    paths = [write(tmp_path / "a.json", rank_trace(300, rank=0)), write(tmp_path / "b.json", rank_trace(800, rank=1))]
    first, second = analyzed(*paths, step_time_us=900.0).ranks
    alone = [analyze_trace(path, step_time_us=900.0) for path in paths]
    assert alone[0].record.verdict.regime == "communication-bound"
    told = first.record.verdict
    assert (told.regime, told.cause) == ("communication-bound", "rank 1")
    assert "83% of that is waiting for rank 1" in told.summary
    assert told.evidence[-1].value == 500.0
    assert not any("Overlap collectives" in line for line in told.advice)
    assert second.record == alone[1].record
    records, _ = join_ranks([part(alone[0], rank) for rank in range(2)])
    assert records == [alone[0].record] * 2


def test_ranks_that_arrive_together_wait_for_nobody(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{i}.json", rank_trace(300, rank=i)) for i in range(2)]
    joint = joint_of(*paths)
    assert joint.waited_for_rank is None
    assert joint.spread == 0.0
    assert "transfer" in said(joint)


def test_where_the_rank_comes_from() -> None:
    assert rank_of(Path("x.json"), 3) == 3
    assert rank_of(Path("job_rank12.pt.trace.json"), None) == 12
    assert rank_of(Path("job_rank-2.json.gz"), None) == 2
    assert rank_of(Path("trace.json"), None) is None
    assert rank_of(Path("node5_gpu3.json"), 0, r"gpu(\d)") == 3
    with pytest.raises(UsageError, match="does not match"):
        rank_of(Path("a.json"), None, r"gpu(\d)")
    with pytest.raises(UsageError, match="one group"):
        rank_of(Path("gpu1.json"), None, r"gpu\d")


def test_names_of_one_process_belong_together() -> None:
    first, second = (
        Path("host_1234.1700000000000000.pt.trace.json"),
        Path("host_1234.1700000005000000.pt.trace.json.gz"),
    )
    assert worker_of(first) == worker_of(second) == "host_1234"
    assert worker_of(Path("host_99.1700000000000000.pt.trace.json")) != worker_of(first)
    assert worker_of(Path("matmul_add.cycle1.pt.trace.json.gz")) == worker_of(
        Path("matmul_add.cycle2.pt.trace.json.gz")
    )


def test_cycles_of_one_rank_are_one_record(tmp_path: Path) -> None:
    first = write(tmp_path / "h_1.1700000000000000.pt.trace.json", rank_trace(300))
    second = write(tmp_path / "h_1.1700000000900000.pt.trace.json", rank_trace(300, base=5000.0))
    [only] = analyzed(second, first).ranks
    assert [p.name for p in only.paths] == [first.name, second.name]
    assert only.record.window.cycles == 2
    assert only.record.totals.kernels == 4


def test_two_processes_with_one_rank_are_refused(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.json", rank_trace(300, rank=0)) for name in "ab"]
    with pytest.raises(UsageError, match="overlap in time"):
        analyzed(*paths)


def test_several_processes_give_the_same_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write(tmp_path / f"{n}.json", rank_trace(300 + n, rank=n)) for n in range(3)]
    alone = analyzed(*paths)
    monkeypatch.setattr(pool, "PAYS_FROM_BYTES", 0)
    together = analyzed(*paths, processes=2)
    assert [dump(each.record) for each in together.ranks] == [dump(each.record) for each in alone.ranks]
    (tmp_path / "other.json").write_text("{}")
    left_out: list[Path] = []
    assert analyzed(tmp_path, processes=2, on_left_out=left_out.append).joint == alone.joint
    assert left_out == [tmp_path / "other.json"]
    (tmp_path / "1.json").write_text('{"traceEvents": [{"ph"')
    with pytest.raises(TraceError, match=r"1\.json, byte 22"):
        analyzed(*paths, processes=2)


def test_as_many_processes_as_pay_and_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = [tmp_path / f"{n}.json.gz" for n in range(5)]
    for path in traces:
        path.write_bytes(bytes(1 << 20))
    monkeypatch.setattr(pool, "_free_bytes", lambda: 10 << 30)
    assert pool._workers(traces, 8) == 5
    assert pool._workers(traces, 2) == 2
    assert pool._workers(traces[:1], 8) == 1
    assert pool._workers(traces[:3], 8) == 1  # three megabytes
    monkeypatch.setattr(pool, "_free_bytes", lambda: 700 << 20)  # a reader takes 112
    assert pool._workers(traces, 8) == 3
    monkeypatch.setattr(pool, "_free_bytes", lambda: 0)
    assert pool._workers(traces, 8) == 1


def test_a_folder_on_the_command_line(tmp_path: Path) -> None:
    write(tmp_path / "a.json", rank_trace(300, rank=0))
    write(tmp_path / "b.json", rank_trace(800, rank=1))
    shown = CliRunner().invoke(group, ["analyze", str(tmp_path)], catch_exceptions=False)
    assert "wait for rank 1" in " ".join(shown.output.split())
    written = CliRunner().invoke(group, ["analyze", str(tmp_path), "--json", "-"], catch_exceptions=False)
    document = json.loads(written.output)
    assert document["joint"]["waited_for_rank"] == 1
    assert len(document["records"]) == 2


def test_unranked_traces_take_the_free_numbers(tmp_path: Path) -> None:
    assert numbered([1, None, 3, None, None]) == [1, 0, 3, 2, 4]
    write(tmp_path / "with.json", rank_trace(300, rank=1))
    for name in ("y.json", "z.json"):
        write(tmp_path / name, rank_trace(300))
    written = CliRunner().invoke(group, ["analyze", str(tmp_path), "--json", "-"], catch_exceptions=False)
    joint = json.loads(written.output)["joint"]
    assert [(r["rank"], r["files"]) for r in joint["ranks"]] == [(0, ["y.json"]), (1, ["with.json"]), (2, ["z.json"])]
    assert joint["findings"][-1]["text"] == "The ranks of 2 traces are assumed from the order of the file names."


@pytest.mark.parametrize(
    ("stated", "rank"),
    [(0, 0), (7, 7), ("0", 0), ("12", 12), (-1, None), (True, None), ("", None), ("a", None), ("9" * 5000, None),
     (10**30, None), (1.0, None), (None, None)],
)  # fmt: skip
def test_the_rank_that_a_trace_states(stated: object, rank: int | None) -> None:
    assert stated_rank(stated) == rank


def test_a_rank_too_large_for_any(tmp_path: Path) -> None:
    digits = "9" * 30
    assert rank_of(Path(f"rank{digits}.json"), None) is None
    with pytest.raises(UsageError, match="matches a rank"):
        rank_of(Path(f"gpu{digits}.json"), None, r"gpu(\d+)")


def test_missing_ranks_are_listed_without_counting_to_the_last(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.json", rank_trace(300, rank=r)) for n, r in enumerate((0, 2, 3_000_000_000))]
    unknown = "so who waits for whom is unknown."
    assert joint_of(*paths).findings[-1].text == f"There is no trace of ranks 1 and 3 to 2999999999, {unknown}"
    assert joint_of(*paths[:2]).findings[-1].text == f"There is no trace of rank 1, {unknown}"


def test_a_trace_read_in_part_is_not_compared(tmp_path: Path) -> None:
    """Ranks 0 and 1 as above; of rank 2 only the step and the first launch with its kernel are left."""
    paths = [write(tmp_path / f"{n}.json", rank_trace(at, rank=n)) for n, at in enumerate((300, 800, 500))]
    text = paths[2].read_text().replace('"distributedInfo": {"rank": 2, "world_size": 2}', '"traceName": "t"')
    head = '{"distributedInfo": {"rank": 2, "world_size": 3}, '
    paths[2].write_text((head + text[1:])[: (head + text[1:]).index('{"ph": "X", "cat": "kernel", "name": "nccl') + 9])
    joint = joint_of(*paths, salvage=True)
    assert [r.partial for r in joint.ranks] == [False, False, True]
    whole = joint_of(*paths[:2])
    assert (joint.spread, joint.slowest_rank, joint.waited_for_rank) == (whole.spread, whole.slowest_rank, 1)
    assert [r.waiting_us for r in joint.ranks] == [500.0, 0.0, None]
    assert joint.findings[0].text.startswith("Step times of the 2 ranks")
    left_out = "The trace of rank 2 was read only in part and is left out of the comparison."
    assert joint.findings[-1].text == left_out
    alone = joint_of(*paths[1:], salvage=True)
    assert (alone.spread, alone.slowest_rank) == (None, None)


def test_collectives_that_nothing_pairs_show_no_waiting(tmp_path: Path) -> None:
    """One all-reduce on rank 0, two on rank 1."""
    more = rank_trace(300, rank=1)
    more["traceEvents"].append({**more["traceEvents"][-1], "ts": 920, "dur": 10})
    paths = [write(tmp_path / "a.json", rank_trace(300, rank=0)), write(tmp_path / "b.json", more)]
    joint = joint_of(*paths)
    assert [r.waiting_us for r in joint.ranks] == [None, None]
    assert [f.text for f in joint.findings[1:]] == ["The ranks recorded different numbers of collectives (1 to 2)."]


def test_why_a_rank_is_inconclusive_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [write(tmp_path / f"{n}.json", rank_trace(300, rank=n)) for n in range(3)]
    ranks = analyzed(*paths).ranks
    verdict = msgspec.structs.replace(ranks[0].record.verdict, regime="inconclusive", reasons=["Nothing\nis known."])
    unclear = [msgspec.structs.replace(each.record, verdict=verdict) for each in ranks[:2]]
    joint = join([part(ranks[n], n, record) for n, record in enumerate([*unclear, ranks[2].record])])
    assert [r.reasons for r in joint.ranks[:2]] == [["Nothing\nis known."]] * 2
    terminal.show(ranks_page.page(joint))
    shown = capsys.readouterr().out
    assert "Ranks 0, 1 are inconclusive because:\n  ? Nothing\\nis known.\n" in shown
    assert joint.ranks[2].regime == "communication-bound"
    assert "Rank 2" not in shown


_GLOO = """
import os, sys, time, torch, torch.distributed as dist
from torch.profiler import profile, schedule
rank, port, target = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
x = torch.ones(1000)
with profile(schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
             on_trace_ready=lambda p: p.export_chrome_trace(target)) as p:
    for _ in range(5):
        if rank == 1:
            time.sleep(0.2)
        dist.all_reduce(x)
        p.step()
dist.barrier()
os._exit(0)  # gloo's threads sometimes abort the interpreter's own end
"""


def test_two_gloo_ranks(tmp_path: Path) -> None:
    """Rank 1 sleeps 200 ms before each all-reduce: rank 0 waits for it. Real traces, made by torch.distributed."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = tmp_path / "ranks.py"
    script.write_text(_GLOO)
    targets = [tmp_path / f"trace_rank{rank}.json" for rank in range(2)]
    ranks = [
        subprocess.Popen([sys.executable, str(script), str(rank), str(port), str(target)], stderr=subprocess.DEVNULL)
        for rank, target in enumerate(targets)
    ]
    try:
        assert [rank.wait(timeout=PATIENCE_S) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    joint = joint_of(*targets)
    assert [r.rank for r in joint.ranks] == [0, 1]
    assert joint.ranks[0].steps == 3
    waiting = [r.waiting_us or 0.0 for r in joint.ranks]
    assert waiting[0] > 2 * waiting[1]
    assert joint.waited_for_rank == 1
