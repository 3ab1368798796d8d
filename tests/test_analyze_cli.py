"""`proftrack analyze`: what it refuses, what it leaves out of a folder, how kernels came to be launched."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import msgspec
import pytest
from calls import Shown, show
from traces import TraceBuilder

import proftrack
from proftrack.errors import NotATraceError, NotFoundError, TraceError, UsageError
from proftrack.trace.reader import read


def call(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Shown:
    return show(capsys, "analyze", *words)


def trace(rank: int | str | None = None, names: tuple[str, ...] = ("gemm",), base: float = 0.0) -> TraceBuilder:
    """One step of 1000 us with a kernel of 50 us for each name, launched 10 us before it by aten::mm."""
    builder = TraceBuilder().step(1, at=base, dur=1000)
    if rank is not None:
        builder.member(distributedInfo={"rank": rank, "world_size": 2})
    for i, name in enumerate(names):
        at = base + 10 + 60 * i
        builder.op("aten::mm", at=at - 1, dur=5).work(i + 1, launch=at, at=at + 10, dur=50, name=name)
    return builder


def ranks(folder: Path) -> Path:
    folder.mkdir()
    for rank in range(2):
        trace(rank).write(folder / f"r{rank}.json")
    return folder


# ---- what --json may write over --------------------------------------------------------------------------------------


def test_a_trace_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace().write(tmp_path / "good.json")
    (tmp_path / "link.json").symlink_to(path)
    before = path.read_bytes()
    for target in (path, tmp_path / "link.json", tmp_path / "x" / ".." / "link.json"):
        (tmp_path / "x").mkdir(exist_ok=True)
        code, _, error = call(capsys, path, "--json", target)
        assert (code, error.count("\n")) == (2, 1)
        assert error == f"proftrack: --json {target}: would overwrite a trace that is read; name another file\n"
    folder = ranks(tmp_path / "ranks")
    assert call(capsys, folder, "--json", folder / "r1.json")[0] == 2
    assert path.read_bytes() == before


def test_a_target_is_refused_before_anything_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"traceEvents": [{"ph"')
    assert "--json" in call(capsys, broken, "--json", broken)[2]


def test_a_result_in_the_folder_is_no_trace_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Written, left out by the next call, written over by the one after."""
    folder = ranks(tmp_path / "ranks")
    target = folder / "out.json"
    assert call(capsys, folder, "--json", target)[::2] == (0, "")
    first = target.read_bytes()
    code, shown, error = call(capsys, folder)
    assert (code, error) == (0, f"proftrack: {target}: skipped, not a trace\n")
    assert "of the 2 ranks" in shown
    assert call(capsys, folder, "--json", target)[0] == 0
    assert target.read_bytes() == first


def test_what_looks_like_a_result_and_is_a_trace_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ranks(tmp_path / "ranks")
    path = folder / "r1.json"
    path.write_text(json.dumps({"joint": {}, **trace(1).document()}))
    before = path.read_bytes()
    assert call(capsys, folder, "--json", path)[0] == 2
    assert path.read_bytes() == before


def test_json_that_is_no_trace_fails_where_it_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"a": 1}')
    code, _, error = call(capsys, other)
    assert code == 1
    assert "JSON of another kind" in error
    code, _, error = call(capsys, tmp_path)
    assert code == 2
    assert error == f"proftrack: {tmp_path}: no JSON file in this folder is a trace; name a trace\n"
    (tmp_path / "cut.json").write_text('{"traceEvents": [{"ph"')
    code, _, error = call(capsys, tmp_path)  # a broken trace is none that may be left out
    assert (code, error.count("\n")) == (1, 2)
    with pytest.raises(NotATraceError) as raised:
        read(other)
    assert pickle.loads(pickle.dumps(raised.value)).path == other  # as from a process that reads


# ---- step times ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["nan", "inf", "-inf", "0", "-3", "1e300"])
def test_no_time_of_a_step(given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace().write(tmp_path / "t.json")
    code, _, error = call(capsys, path, "--step-time-us", given)
    assert (code, error.count("\n")) == (2, 1)
    assert f"{float(given)} is not a valid step time" in error
    with pytest.raises(UsageError, match="is not a valid step time"):
        proftrack.analyze(path, step_time_us=float(given))


def test_a_step_time_from_python_is_a_number(tmp_path: Path) -> None:
    path = trace().write(tmp_path / "t.json")
    for given in ("12", True, 10**400, [1.0]):
        with pytest.raises(UsageError, match="is not a valid step time"):
            proftrack.analyze(path, step_time_us=given)  # type: ignore[arg-type]
    assert proftrack.analyze(path, step_time_us=2000).record.times.step_time_us == 2000.0


# ---- --kernel --------------------------------------------------------------------------------------------------------


def test_more_kernels_than_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(names=tuple(f"gemm_{i:02}" for i in range(15))).write(tmp_path / "t.json")
    _, shown, _ = call(capsys, path, "--kernel", "GEMM")
    assert shown.count("50.0 us in 1 call,") == 10
    assert "and 5 more kernels with that name" in shown
    assert "more kernel" not in call(capsys, path, "--kernel", "gemm_0")[1]


def test_rows_that_are_not_shown_are_counted_to_the_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(names=tuple(f"gemm_{i:03}" for i in range(120))).write(tmp_path / "t.json")
    assert "and 115 more rows: proftrack report shows 100, and record.json all" in call(capsys, path)[1]
    path = trace(names=tuple(f"gemm_{i:03}" for i in range(12))).write(tmp_path / "t.json")
    assert "and 7 more rows: proftrack report shows all" in call(capsys, path)[1]


def test_every_block_says_its_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, shown, _ = call(capsys, ranks(tmp_path / "ranks"), "--kernel", "gemm")
    assert [line.split(":")[0].strip() for line in shown.splitlines() if " us in " in line] == ["rank 0", "rank 1"]


def test_cycles_are_one_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twice 50 us by aten::mm in the first cycle, 50 us by another operator in the second: two thirds by aten::mm."""
    first = tmp_path / "h_1.1700000000000000.pt.trace.json"
    second = tmp_path / "h_1.1700000000900000.pt.trace.json"
    trace(names=("gemm", "gemm")).write(first)
    other = TraceBuilder().step(2, at=5000, dur=1000).op("aten::addmm", at=5009, dur=5)
    other.work(1, launch=5010, at=5020, dur=50).write(second)
    _, shown, _ = call(capsys, first, second, "--kernel", "gemm")
    assert shown.count("150 us in 3 calls") == 1
    assert "aten::mm" in shown
    assert "launched like this for 66.7 % of its time; 2 ways in total" in shown


def test_a_kernel_and_json_do_not_share_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace().write(tmp_path / "t.json")
    code, shown, error = call(capsys, path, "--kernel", "gemm", "--json", "-")
    assert (code, shown, error.count("\n")) == (2, "", 1)
    code, shown, _ = call(capsys, path, "--kernel", "gemm", "--json", tmp_path / "out.json")
    assert code == 0
    assert "50.0 us in 1 call" in shown
    assert json.loads((tmp_path / "out.json").read_bytes())["kernels"][0]["name"] == "gemm"


def test_long_names_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = tuple(f"void at::native::vectorized_elementwise_kernel<4, at::native::{f}Functor>" for f in ("Mul", "Add"))
    path = trace(names=names).write(tmp_path / "t.json")
    code, _, error = call(capsys, path, "--kernel", "softmax")
    assert code == 2
    assert "vectorized_elementwise_kernel<4, AddFunctor>" in error
    assert "vectorized_elementwise_kernel<4, MulFunctor>" in error


# ---- from Python -----------------------------------------------------------------------------------------------------


def test_several_ranks_are_what_the_command_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ranks(tmp_path / "ranks")
    (folder / "other.json").write_text("{}")
    analyzed = proftrack.analyze([folder], step_time_us=2000)
    printed = json.loads(call(capsys, folder, "--step-time-us", "2000", "--json", "-")[1])
    assert msgspec.to_builtins(analyzed.joint) == printed["joint"]
    assert [msgspec.to_builtins(each.record) for each in analyzed.ranks] == printed["records"]
    assert [each.rank for each in analyzed.ranks] == [0, 1]
    assert analyzed.left_out == [folder / "other.json"]
    assert list(analyzed.ranks[1].kernels["name"]) == ["gemm"]
    assert repr(analyzed) == f"<proftrack ranks: {' '.join(f['text'] for f in printed['joint']['findings'])}>"
    by_path = proftrack.analyze(str(folder), step_time_us=2000)
    by_name = proftrack.analyze([folder / "r1.json", folder / "r0.json"], step_time_us=2000, rank_from=r"r(\d)")
    assert by_path.joint == by_name.joint == analyzed.joint


def test_a_folder_and_a_list_of_one_are_ranks_too(tmp_path: Path) -> None:
    """What analyze() returns follows from how it is called, not from what lies in a folder."""
    path = trace().write(tmp_path / "t.json")
    alone = proftrack.analyze(path)
    for given in (tmp_path, [str(path)]):
        analyzed = proftrack.analyze(given)  # type: ignore[arg-type]
        assert analyzed.joint is None
        assert [(each.rank, each.record) for each in analyzed.ranks] == [(None, alone.record)]
    with pytest.raises(UsageError, match="no trace given"):
        proftrack.analyze([])
    with pytest.raises(NotFoundError, match=r"nowhere\.json"):
        proftrack.analyze([tmp_path / "nowhere.json"])


def test_empty_tables_have_their_columns(tmp_path: Path) -> None:
    path = TraceBuilder().row("python_function", "main.py(1): f", 0, 10).write(tmp_path / "t.json")
    found = proftrack.analyze(path)
    for frame, column in ((found.kernels, "name"), (found.steps, "step"), (found.regions, "gpu_busy_us")):
        assert list(frame[column]) == []
    full = proftrack.analyze(trace().write(tmp_path / "full.json"))
    assert list(full.kernels.columns) == list(found.kernels.columns)
    assert list(full.ops.columns) == list(found.ops.columns)


def test_the_bound_on_json_is_the_callers(tmp_path: Path) -> None:
    path = trace().write(tmp_path / "t.json")
    size = path.stat().st_size
    assert proftrack.analyze(path, max_bytes=size).record.totals.kernels == 1
    with pytest.raises(TraceError, match=f"more than {size - 1} bytes"):
        proftrack.analyze(path, max_bytes=size - 1)


@pytest.mark.parametrize("name", ["mlp_train", "two_streams", "llama_train"])
def test_the_events_of_a_trace_as_a_data_frame(name: str) -> None:
    """Threads of one process share its pid: the column's categories name it once."""
    path = Path(__file__).parent / "data" / f"{name}.json.gz"
    frame, table = proftrack.analyze(path).events, read(path).table
    assert len(frame) == len(table)
    assert frame["pid"].astype("string").tolist() == [table.threads[thread][0] for thread in table.thread.tolist()]
    assert frame["pid"].cat.categories.is_unique
