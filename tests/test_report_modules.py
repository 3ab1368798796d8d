"""What is said of modules: terminal, Markdown, MLflow's description, tables, pictures, `analyze --module`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import module_rows
import msgspec
import pytest
from calls import show
from module_rows import llama, module, record
from msgspec.structs import replace
from run_folders import make_record, write_folder
from traces import TraceBuilder

import proftrack
from proftrack import record as records
from proftrack.analysis.pipeline import Analysis, analyze_trace
from proftrack.record import Record
from proftrack.record.figures import Totals
from proftrack.record.modules import Graph, Module
from proftrack.record.owners import ModuleTime, matching
from proftrack.recorder import write as run_folder
from proftrack.report import artifacts, html, markdown, terminal, tiles
from proftrack.report.document import Document, Icicle
from proftrack.report.pages import full, modules, run
from proftrack.report.pages.note import NOTE_CHARS, note

DATA = Path(__file__).parent / "data"


def small() -> Record:
    """data/modules.json: 300 us in three steps; layers.0 108, layers.1 144, the root 9, SGD 33, nothing 6."""
    rows = msgspec.json.decode((DATA / "modules.json").read_bytes(), type=list[Module])
    return record(rows)


def lines_of(text: str, start: str) -> list[list[str]]:
    """The lines of a block from its heading to the next empty line, as words."""
    found = text.partition(start)[2].partition("\n\n")[0]
    return [line.split() for line in found.splitlines()[1:]]


# ---- terminal --------------------------------------------------------------------------------------------------------


def test_the_overview_has_passes_and_the_largest_at_the_depth_of_blocks() -> None:
    text = terminal.text(run.overview(small()))
    passes = [line[:4] for line in lines_of(text, "GPU time per step, by pass")]
    assert passes == [
        ["forward", "27.0", "us", "27.0"],  # 6 + 30 + 6 + 30 + 9 of 300
        ["backward", "48.0", "us", "48.0"],
        ["recompute", "12.0", "us", "12.0"],
        ["optimizer", "11.0", "us", "11.0"],
        ["other", "2.00", "us", "2.0"],
    ]
    # Owned: all but the root's 9 and nobody's 6.
    assert "Modules (95.0 % of GPU time has an owner at the depth of a block or deeper):" in text
    table = [" ".join(line) for line in lines_of(text, "Modules (95.0 %")]
    assert table == [
        "module share per step forward backward recompute optimizer class",
        "layers.* (2) 84.0 % 84.0 us 24.0 us 48.0 us 12.0 us - Block",
        "layers.*.up (2) 70.0 % 70.0 us 20.0 us 40.0 us 10.0 us - Linear",
        "SGD.group 0 11.0 % 11.0 us - - - 11.0 us optimizer",
        "Net 3.0 % 3.00 us 3.00 us - - - Net",
        "no owner 2.0 % 2.00 us - - - -",
    ]


def test_the_result_of_a_run_has_the_table_only() -> None:
    text = terminal.text(run.result(small()))
    assert "by pass" not in text
    assert "layers.*.up (2)" in text
    assert text.index("Modules (") < text.index("GPU work")


def test_inference_needs_no_columns_of_passes() -> None:
    text = terminal.text(run.overview(record(module_rows.mlp())))
    [first, *_] = lines_of(text, "Modules (90.0 %")
    assert " ".join(first) == "module share per step class"


def test_without_modules_nothing_is_said() -> None:
    plain = make_record()
    for text in (terminal.text(run.overview(plain)), note(plain), html.render(full.report(plain, None))):
        assert "odules" not in text
    assert tiles.tiles(plain) is None
    assert tiles.tiles(record([module("a")])) is None


def test_without_a_gpu_it_is_self_cpu_time() -> None:
    totals = msgspec.structs.replace(make_record().totals, gpu_events=0, self_cuda_time_total_us=None, gpu_busy_us=None)
    assert isinstance(totals, Totals)
    on_cpu = msgspec.structs.replace(small(), totals=totals)
    assert "% of self CPU time has an owner" in terminal.text(run.overview(on_cpu))
    page = html.render(full.report(on_cpu, None))
    assert "All of the self CPU time by owner." in page
    assert "self CPU time per step by pass and module" in page


def test_owners_without_modules_are_told_as_such() -> None:
    """Of a trace without marks or stacks, optimizers and the backward pass are known."""
    rows = [module("SGD", kind="optimizer", optimizer_us=30), Module(kind="none", backward_us=60.0)]
    bare = record([*rows, module("zero", kind="region")])
    table = [" ".join(line) for line in lines_of(terminal.text(run.overview(bare)), "Owners (the trace has no")]
    assert [line.split("  ")[0] for line in table[1:]] == [
        "no owner 66.7 % 20.0 us 20.0 us -",
        "SGD 33.3 % 10.0 us - 10.0 us optimizer",
    ]
    assert "GPU time by owner: `no owner` 66.7 % and `SGD` 33.3 %." in note(bare)
    page = html.render(full.report(bare, None))
    assert "The trace has no modules: record it with <code>proftrack run</code>" in page
    assert "depth of a block" not in page
    assert "the module whose forward it follows from" not in page


def test_a_module_without_time_can_be_asked_for() -> None:
    idle = record([module("a", "Net"), module("a.b", "Linear")])
    assert "a: 0 us per step, 0.0 % of GPU time" in terminal.text(modules.one(idle, matching(idle.modules, "a"), "a"))
    assert "odules" not in terminal.text(run.overview(idle))


def test_a_rank_is_named() -> None:
    nodes = matching(small().modules, "SGD.group 0")
    assert "rank 3: SGD.group 0: 11.0 us per step" in terminal.text(modules.one(small(), nodes, "SGD", 3))


def test_of_backward_work_is_spoken_where_there_is_some() -> None:
    sentence = "Backward work belongs to"
    assert sentence in html.render(full.report(small(), None))
    assert sentence not in html.render(full.report(record(module_rows.mlp()), None))


def test_without_steps_nothing_is_said_per_step() -> None:
    """Then the times are those of the whole recording."""
    whole = msgspec.structs.replace(small(), per_step=[])
    text = terminal.text(run.overview(whole))
    assert "GPU time, by pass:" in text
    table = [" ".join(line) for line in lines_of(text, "Modules (95.0 %")]
    assert table[0] == "module share time forward backward recompute optimizer class"
    assert table[1].startswith("layers.* (2) 84.0 % 252 us")
    found = tiles.tiles(whole)
    assert found is not None
    assert (found.tiles[0].name, found.tiles[0].us, tiles.data(found)["per"]) == ("all", 300, "")
    [node] = matching(whole.modules, "SGD.group 0")
    assert "SGD.group 0: 33.0 us, 11.0 % of GPU time" in terminal.text(modules.one(whole, [node], "SGD"))


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_it_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    long = record([*llama(2, True), module("a" * 300 + ".b" * 200, "C" * 200, 5000)])
    for page in (
        run.overview(long),
        run.result(long),
        modules.one(long, matching(long.modules, "model.layers.1"), "x"),
    ):
        assert max(map(len, terminal.text(page).splitlines())) <= columns


def test_a_path_of_nothing_but_dots_is_no_failure() -> None:
    deep = record([module("." * 5000, "Odd", 5), module(".".join("a" * 2000), "Odd", 5)])
    for text in (terminal.text(run.overview(deep)), html.render(full.report(deep, None))):
        assert "Odd" in text


# ---- graphs ----------------------------------------------------------------------------------------------------------


def graph(named: bool, problem: str = "", capture: str = "") -> Graph:
    return Graph(kernels=2, replays=3, total_us=6.0, named=named, problem=problem, capture=capture)


@pytest.mark.parametrize(
    ("graphs", "said"),
    [
        (
            [graph(True, capture="a.json"), graph(True, capture="a.json")],
            "The work of 2 replayed CUDA graphs is named by the capture in `a.json`.",
        ),
        ([graph(True)], "The work of 1 replayed CUDA graph is named."),
        (
            [graph(True, capture="a.json"), graph(False, "It has two branches."), graph(False, "It has two branches.")],
            "The work of 1 of 3 replayed CUDA graphs is named by the capture in `a.json`. "
            "That of 2 has no operators. It has two branches.",
        ),
        ([graph(False)], "The work of 1 replayed CUDA graph has no operators."),
    ],
)
def test_graphs_are_told_in_a_line(graphs: list[Graph], said: str) -> None:
    for made in (make_record(graphs=graphs), record(module_rows.cnn(), graphs=graphs)):
        for text in (terminal.text(run.overview(made)), markdown.render(run.summary(made)), note(made)):
            assert said in " ".join(text.split())
        assert said.replace("`a.json`", "<code>a.json</code>") in html.render(full.report(made, None))


# ---- Markdown and MLflow's description -------------------------------------------------------------------------------


def test_a_description_names_the_largest_in_few_lines() -> None:
    text = note(small())
    assert (
        "GPU time by module: `layers.* (2)` 84.0 %, `SGD.group 0` 11.0 %, `Net` 3.0 % and `no owner` 2.0 %. "
        "By pass: forward 27.0 %, backward 48.0 %, recompute 12.0 %, optimizer 11.0 % and other 2.0 %."
    ) in text
    odd = record(
        module_rows.hostile(("<script>`x`|](http://x)" * 40, "`" * 90)), graphs=[graph(False, "p" * 9000)] * 50
    )
    assert len(note(odd)) <= NOTE_CHARS
    assert "<script" not in note(odd)


def test_the_icicle_has_its_passes_in_every_form() -> None:
    found = tiles.tiles(small())
    assert found is not None
    page = Document("", [Icicle("By pass", found)])
    for text in (terminal.text(page), markdown.render(page), html.render(page)):
        assert re.search(r"recompute\D*12\.0 us\D*12\.0 %", text)


# ---- tiles -----------------------------------------------------------------------------------------------------------


def test_tiles_lie_within_their_parents_and_fill_the_whole() -> None:
    for rows in (llama(4, True), module_rows.cnn(), module_rows.compiled(), module_rows.by_torch(), module_rows.mlp()):
        found = tiles.tiles(record(rows))
        assert found is not None
        ends = [0.0] * len(found.tiles)
        for i, tile in enumerate(found.tiles):
            above = found.tiles[tile.parent] if i else tile
            assert tile.depth == (above.depth + 1 if i else 0)
            assert above.start - 1e-9 <= tile.start and tile.start + tile.share <= above.start + above.share + 1e-9
            ends[tile.parent if i else 0] += tile.share if i else 0.0
        assert ends[0] == pytest.approx(1)  # the passes are all there is
        assert sum(tile.own_us for tile in found.tiles) == pytest.approx(sum(r.busy_us for r in rows) / 3)


def test_the_largest_tiles_are_kept_and_none_loses_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "MOST_TILES", 60)
    found = tiles.tiles(record(llama(32)))
    assert found is not None
    assert len(found.tiles) == 60
    assert found.left_out > 500
    assert all(tile.parent < i for i, tile in enumerate(found.tiles))
    assert all(tile.parent >= 0 for tile in found.tiles[1:])
    assert f"{found.left_out} tiles are too small" in html.render(Document("", [Icicle("", found)]))


def test_of_equal_tiles_the_one_above_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of modules, each of which has all the time; and a picture without what is under a thousandth."""
    monkeypatch.setattr(tiles, "MOST_TILES", 4)
    found = tiles.tiles(record([module("a.b.c.d", "Linear", 10)]))
    assert found is not None
    assert [(tile.name, tile.parent) for tile in found.tiles] == [
        ("whole step", -1),
        ("forward", 0),
        ("a", 1),
        ("b", 2),
    ]
    monkeypatch.undo()
    found = tiles.tiles(record([module("a", "Linear", 10_000), module("b", "Linear", 9)]))
    assert found is not None
    assert [tile.name for tile in found.tiles] == ["whole step", "forward", "a", "b"]
    assert [tile.name for tile in found.drawn] == ["whole step", "forward", "a"]


def test_what_the_script_draws_is_what_the_record_has() -> None:
    found = tiles.tiles(small())
    assert found is not None
    data = tiles.data(found)
    rows = [
        (data["names"][name], data["parts"][part] if part >= 0 else "", us, own)
        for name, part, us, own in zip(data["name"], data["part"], data["us"], data["own"], strict=True)
    ]
    assert rows[:3] == [("whole step", "", 100, 0), ("forward", "forward", 27, 0), ("Net", "forward", 27, 3)]
    assert rows[3] == ("layers", "forward", 24, 0)
    owner = data["owners"][data["owner"][rows.index(("up", "backward", 20, 20))]]
    operator, kernel, part, calls, us = owner[4][0]
    assert (data["names"][owner[0]], data["names"][owner[1]], owner[2]) == ("layers.0.up", "Linear", 1)
    assert owner[3] == [10, 20, 0, 0, 0]
    assert (data["names"][operator], data["names"][kernel]) == ("aten::mm", "gemm")
    assert (data["parts"][part], calls, us) == ("backward", 2, 20)


# ---- the report's tables ---------------------------------------------------------------------------------------------


def test_blocks_that_have_most_of_the_time_are_rows_of_their_own() -> None:
    section = modules.section(record(llama(32)))
    assert section is not None
    page = html.render(Document("", [section]))
    _, summed, each = page.split("<table")[:1] + page.split("<table")[1:3]
    assert "model.layers.*.mlp.gate_proj (32)" in summed
    assert "model.layers.5<" in each
    # A layer has 930 of 31407 us, 2.96 %: 30 of them have 88.8 %, 31 have 91.8 %.
    assert each.count("<tr>") == 1 + 31
    assert "10 more rows, 8.2 % of the time, in record.json." in page


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_run_folder_has_the_table_and_the_picture(tmp_path: Path) -> None:
    found = analyze_trace(
        TraceBuilder().step(1, at=0, dur=100).work(1, launch=5, at=10, dur=20).write(tmp_path / "t.json")
    )
    analysis = Analysis(msgspec.structs.replace(found.record, modules=small().modules), found.tables)
    (tmp_path / "run").mkdir()
    run_folder.write(analysis, tmp_path / "run")
    table = json.loads((tmp_path / "run" / "tables" / "modules.json").read_text())
    assert table["columns"][:7] == ["path", "kind", "class", "calls", "busy_us", "inclusive_us", "share"]
    rows = {row[0] or row[1]: dict(zip(table["columns"], row, strict=True)) for row in table["data"]}
    assert (rows["layers.0"]["busy_us"], rows["layers.0"]["inclusive_us"], rows["layers.0"]["share"]) == (18, 108, 0.36)
    assert rows["layers.0.up"]["largest"] == "aten::mm gemm"
    assert rows["module"]["inclusive_us"] == 261  # the root, and both layers
    (tmp_path / "none").mkdir()
    run_folder.write(Analysis(msgspec.structs.replace(found.record, modules=[]), found.tables), tmp_path / "none")
    assert not (tmp_path / "none" / "tables" / "modules.json").exists()


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = artifacts.pictures(record(module_rows.hostile(("$x$", "<b>", "\u202e"))), None, tmp_path)
    assert (tmp_path / "modules.png") in written


def test_a_data_frame_of_modules(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, at=0, dur=100).write(tmp_path / "t.json")
    found = proftrack.analyze(trace)
    assert list(found.modules.columns)[:3] == ["path", "kind", "class"]
    found.record = small()
    assert found.modules["busy_us"].sum() == 300
    assert list(found.modules.columns) == [field.encode_name for field in msgspec.structs.fields(ModuleTime)]


# ---- analyze --module ------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    records.save(record(llama(4, checkpointed=True)), tmp_path / "record.json")
    return tmp_path / "record.json"


def test_one_module_of_a_record(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = show(capsys, "analyze", saved, "--module", "2.mlp")
    assert code == 0
    # 190 + 380 + 190 of 4 x 1240 and 90 + 6 + 72 + 18 + 900 + 492 + 60 + 9.
    assert f"model.layers.2.mlp: 253 us per step, {100 * 760 / (4 * 1240 + 1647):.1f} % of GPU time" in text
    assert "LlamaMLP, forward 63.3 us, backward 127 us, recompute 63.3 us, calls 1" in text
    assert [line[0] for line in lines_of(text, "Below it")][1:] == ["gate_proj", "up_proj", "down_proj", "act_fn"]
    work = [" ".join(line) for line in lines_of(text, "Operators and kernels")]
    assert work[1] == "aten::mm gemm_128x128 backward 3 120 us 47.4 %"
    assert work[2] == "aten::mm gemm_128x64 forward 3 60.0 us 23.7 %"
    assert "The other 73.3 us are smaller pieces" in text


@pytest.mark.parametrize("name", ["layers.*.mlp", "LlamaMLP", "*.mlp"])
def test_several_modules_are_summed_and_each_is_shown(
    saved: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, text, _ = show(capsys, "analyze", saved, "--module", name)
    assert code == 0
    assert f"{name} (4): 1.01 ms per step" in text.replace("LlamaMLP (4)", f"{name} (4)")
    assert [line[0] for line in lines_of(text, "Each")][1:] == [f"model.layers.{i}.mlp" for i in range(4)]
    assert "gate_proj (4)" in text


def test_what_lies_inside_another_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nested = record([module("a", "Sequential", 30), module("a.0", "Sequential", 60), module("b", "Linear", 90)])
    records.save(nested, tmp_path / "r.json")
    _, text, _ = show(capsys, "analyze", tmp_path / "r.json", "--module", "Sequential")
    assert "30.0 us per step, 50.0 % of GPU time" in text


def test_an_optimizer_and_a_region(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = show(capsys, "analyze", saved, "--module", "AdamW")
    assert "AdamW: 164 us per step" in text
    assert "multi_tensor" in text
    assert "clip: 20.0 us per step" in show(capsys, "analyze", saved, "--module", "clip")[1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "mlp",
            "--module mlp: 4 modules end in that (model.layers.0.mlp, model.layers.1.mlp, model.layers.2.mlp, ...); "
            "name one of them, or all as **.mlp or their class",
        ),
        ("layers.9", "--module layers.9: no module, optimizer or region with that name; name another, like layers"),
        ("LlamaMPL", "name another, like LlamaMLP"),
    ],
)
def test_a_name_that_says_too_little(saved: Path, capsys: pytest.CaptureFixture[str], name: str, said: str) -> None:
    code, text, error = show(capsys, "analyze", saved, "--module", name)
    assert (code, text, error.count("\n")) == (2, "", 1)
    assert said in error


def test_a_run_folder_and_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "run", small())
    assert "Net: 87.0 us per step" in show(capsys, "analyze", folder, "--module", "Net")[1]
    trace = TraceBuilder().step(1, at=0, dur=100).write(tmp_path / "t.json")
    code, _, error = show(capsys, "analyze", trace, "--module", "Net")
    assert (code, error.count("\n")) == (2, 1)
    assert "--module Net: the trace has no modules; record it with `proftrack run`" in error
    code, _, error = show(capsys, "analyze", folder, "--module", "Net", "--captured-in", trace)
    assert (code, error.count("\n"), "was analyzed before, so that no trace is read" in error) == (2, 1, True)


@pytest.mark.parametrize(
    ("marked", "said"),
    [
        ({"modules": True}, "no module was called in the recorded steps; call the model"),
        (
            {"modules": False},
            "modules were not marked (profiler.modules is false); measure again with `--modules true`",
        ),
        ({}, "the trace has no modules; record it with `proftrack run`"),
    ],
)
def test_why_a_run_has_no_modules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], marked: dict[str, bool], said: str
) -> None:
    """Who has recorded with proftrack is not told to do so."""
    bare = record([module("AdamW", kind="optimizer", optimizer_us=9)] if not marked.get("modules") else [])
    assert bare.run is not None
    records.save(replace(bare, run=replace(bare.run, profiler=marked)), tmp_path / "r.json")
    code, _, error = show(capsys, "analyze", tmp_path / "r.json", "--module", "Net")
    assert (code, error.count("\n")) == (2, 1)
    assert f"--module Net: {said}" in error
    assert ("or name another owner (AdamW)" in error) == (not marked.get("modules"))


def test_a_narrow_table_keeps_the_end_of_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which tells projections of one attention apart."""
    monkeypatch.setenv("COLUMNS", "60")
    paths = [f"encoder.transformer.layer.self_attention.{part}_proj" for part in "qkvo"]
    made = record([module(path, "Linear", 9, 9) for path in paths])
    shown = [line[0] for line in lines_of(terminal.text(run.overview(made)), "Modules (") if "Linear" in line]
    assert [(name[:3], name[-6:]) for name in shown] == [("...", f"{part}_proj") for part in "qkvo"]


def test_a_module_shares_stdout_with_nothing(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(capsys, "analyze", saved, "--module", "x", "--json", "-").code == 2
    assert show(capsys, "analyze", saved, "--module", "x", "--kernel", "y").code == 2
    code, _, error = show(capsys, "analyze", saved, "--module", "lm_head", "--log")
    assert (code, "analyzed before" in error) == (2, True)
