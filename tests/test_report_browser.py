"""report.html in a real Chromium: it draws, answers to mouse, touch and keys, asks for nothing, runs no name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import module_rows
import msgspec
import pytest
from browser import Watched, launched
from msgspec.structs import replace
from run_folders import COUNTERS, make_record
from traces import TraceBuilder

from proftrack.analysis.pipeline import analyze_trace
from proftrack.record import Record
from proftrack.report.document import Document, Table
from proftrack.report.events import details
from proftrack.report.html import LARGEST_BYTES, render
from proftrack.report.pages import full

pytestmark = pytest.mark.slow

DATA = Path(__file__).parent / "data"
HOSTILE = (
    "<script>window.hurt=1</script>",
    "</script><script>window.hurt=2</script>",
    '"><img src=x onerror="window.hurt=3">',
    "' onmouseover='window.hurt=4",
    "<!--<script>",
    "]]><svg onload=window.hurt=5>",
    "javascript:window.hurt=6",
    "{{7*7}}{% raw %}",
    "a\u202egnp.exe\u2028b\u0000c\ud800d",
    "=cmd()|' /C calc'!A0",
    "../" * 20 + "etc/passwd",
    "k" * 3000,
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with launched() as browser:
        yield browser


@pytest.fixture
def watch(chromium: Any) -> Iterator[Callable[..., Watched]]:
    """Opens pages that are watched; none of them may have complained or asked anybody for anything."""
    opened: list[Watched] = []

    def open_one(**options: Any) -> Watched:
        opened.append(Watched(chromium, **options))
        return opened[-1]

    yield open_one
    for watched in opened:
        assert watched.complaints == []
        assert [url for url in watched.requests if not url.startswith("file:")] == []
        assert len(watched.requests) == 1
        watched.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], str]:
    """The address of a trace's report; each is made once."""
    folder, made = tmp_path_factory.mktemp("reports"), {}

    def report(trace: Path) -> str:
        if trace not in made:
            found = analyze_trace(trace)
            page = folder / f"{len(made)}.html"
            document = full.report(found.record, details(found.tables, found.record.kernels))
            page.write_text(render(document), encoding="utf-8")
            assert page.stat().st_size < LARGEST_BYTES
            made[trace] = page.as_uri()
        return made[trace]

    return report


def hostile_trace(path: Path) -> Path:
    """Every kind of name in every place where a report shows one."""
    trace = TraceBuilder()
    trace.step(1, at=0, dur=1000)
    for i, name in enumerate(HOSTILE):
        at = 10 + 60 * i
        trace.region(name, at=at, dur=50).op(name, at=at + 1, dur=40).call(name, at=at + 2, dur=1, correlation=900 + i)
        trace.launch(at=at + 5, correlation=i + 1).kernel(name, at=at + 20, dur=25, correlation=i + 1, stream=name[:60])
    trace.sync(at=900, dur=50)
    trace.member(deviceProperties=[{"id": 0, "name": HOSTILE[2], "numSms": 100}])
    return trace.write(path)


def two_kernels(path: Path) -> Path:
    """
    host  step 0-100:  op aten::mm 10-40 [launch 30-35], op aten::add 50-70 [launch 60-65]
    GPU   gemm 40-80,  add 80-85; a wait of 30 behind the step, of which the GPU works 0
    """
    trace = TraceBuilder().step(7, at=0, dur=100).op("aten::mm", at=10, dur=30).op("aten::add", at=50, dur=20)
    trace.launch(at=30, dur=5, correlation=1).kernel("gemm", at=40, dur=40, correlation=1)
    trace.launch(at=60, dur=5, correlation=2).kernel("add", at=80, dur=5, correlation=2)
    return trace.sync(at=100, dur=20).write(path)


def said(page: Any) -> list[str]:
    return str(page.locator("#lanes-tip").inner_text()).splitlines()


# ---- mouse, touch, keys ----------------------------------------------------------------------------------------------


def test_hover_says_which_kernel_and_how_long(
    watch: Callable[..., Watched], reports: Callable[[Path], str], tmp_path: Path
) -> None:
    page = watch().show(reports(two_kernels(tmp_path / "t.json")))
    page.locator("rect[data-mark].arithmetic").hover()
    assert said(page)[0] == "gemm"
    # The kernel starts 5 us behind its launch call, which ends at 35.
    assert said(page)[1:] == [
        "start 40 us after ProfilerStep#7 began",
        "duration 40 us",
        "launched by cudaLaunchKernel, 5 us after that call ended",
    ]
    assert page.locator("path.arrow.strong").count() == 1
    assert page.locator("rect.chosen").count() == 1


def test_hover_says_what_runs_in_an_operator_and_why_the_gpu_idles(
    watch: Callable[..., Watched], reports: Callable[[Path], str], tmp_path: Path
) -> None:
    page = watch().show(reports(two_kernels(tmp_path / "t.json")))
    page.locator("rect[data-mark].operator").first.hover()
    assert said(page) == ["aten::mm", "start 10 us after ProfilerStep#7 began", "duration 30 us", "self time 25 us"]
    page.locator("rect[data-mark].idle-dispatch").first.hover()
    assert said(page)[0] == "GPU idle: dispatch"
    assert said(page)[-1] == "duration 40 us"
    page.locator("[data-do=all]").click()
    page.locator("rect[data-mark].wait").hover()
    assert "the GPU was busy for 0.0 % of it" in said(page)


def test_a_tap_keeps_what_it_points_at(
    watch: Callable[..., Watched], reports: Callable[[Path], str], tmp_path: Path
) -> None:
    page = watch(has_touch=True, width=400).show(reports(two_kernels(tmp_path / "t.json")))
    page.locator("rect[data-mark].launch").first.tap()
    assert said(page)[0] == "cudaLaunchKernel"
    assert "launched gemm" in said(page)


def test_keys_go_from_mark_to_mark(
    watch: Callable[..., Watched], reports: Callable[[Path], str], tmp_path: Path
) -> None:
    page = watch().show(reports(two_kernels(tmp_path / "t.json")))
    picture = page.locator("#lanes-picture")
    names = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowUp", "ArrowUp", "ArrowUp", "ArrowUp", "Home", "End"):
        picture.press(key)
        names.append(said(page)[0])
    mm = ["gemm", "add", "gemm", "cudaLaunchKernel", "aten::add", "ProfilerStep#7", "ProfilerStep#7"]
    assert names == [*mm, "ProfilerStep#7", "ProfilerStep#7"]
    picture.press("Escape")
    assert page.locator("#lanes-tip").is_hidden()


def test_zoom_and_pan_show_another_stretch(
    watch: Callable[..., Watched], reports: Callable[[Path], str], tmp_path: Path
) -> None:
    page = watch().show(reports(two_kernels(tmp_path / "t.json")))

    def view() -> tuple[int, int]:
        low, high = str(page.locator("#lanes").get_attribute("data-view")).split()
        return int(low), int(high)

    assert view() == (0, 100_000)
    page.locator("[data-do=in]").click()
    assert view() == (25_000, 75_000)
    page.locator("[data-do=right]").click()
    assert view() == (50_000, 100_000)
    page.locator("[data-do=all]").click()
    assert view() == (0, 120_000)
    picture = page.locator("#lanes-picture")
    picture.press("0")
    assert view() == (0, 100_000)
    picture.press("ArrowRight")
    picture.press("Enter")  # gemm from 40 to 80, a tenth of it to both sides
    assert view() == (36_000, 84_000)
    picture.press("-")
    assert view() == (12_000, 108_000)


def test_tables_sort_both_ways(watch: Callable[..., Watched], reports: Callable[[Path], str]) -> None:
    page = watch().show(reports(DATA / "mlp_train.json.gz"))
    table = page.locator("table.sortable", has=page.get_by_role("button", name="GPU work")).first

    def column(name: str) -> list[str]:
        at = [text.strip() for text in table.locator("th").all_inner_texts()].index(name)
        return [str(text) for text in table.locator(f"tbody tr td:nth-child({at + 1})").all_inner_texts()]

    def calls() -> list[int]:
        return [int(text.replace(",", "")) for text in column("calls")]

    as_made = calls()
    assert as_made != sorted(as_made)
    table.get_by_role("button", name="calls").click()
    assert calls() == sorted(as_made, reverse=True)
    assert table.locator("th[aria-sort=descending]").inner_text().strip() == "calls"
    table.get_by_role("button", name="calls").press("Enter")
    assert calls() == sorted(as_made)
    table.get_by_role("button", name="GPU work").click()
    assert column("GPU work") == sorted(column("GPU work"), key=str.lower)
    assert table.locator("th[aria-sort]").count() == 1


# ---- safety and looks ------------------------------------------------------------------------------------------------


def test_a_wide_table_scrolls_on_a_phone(watch: Callable[..., Watched], tmp_path: Path) -> None:
    """Names are not squeezed to a letter a line, as in a comparison's table of modules."""
    cells = ["model.layers.0.mlp.down_proj", *["20.8 ms"] * 3, "backward 20.3 ms", "aten::linalg_vector_norm +3.41 ms"]
    table = Table("", ["module", "before", "after", "change", "of it", "what changed most"], [cells], code=True)
    shown = Table("", [*table.columns[:4], *(replace(column, kind="text") for column in table.columns[4:])], [cells])
    (tmp_path / "page.html").write_text(render(Document("wide", [shown])), encoding="utf-8")
    page = watch(width=390).show((tmp_path / "page.html").as_uri())
    widths = page.locator("td.code, td.text").evaluate_all("cells => cells.map(cell => cell.offsetWidth)")
    assert len(widths) == 3
    assert min(widths) > 140
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_no_name_runs_or_leaves_its_place(
    watch: Callable[..., Watched], reports: Callable[[Path], str], tmp_path: Path
) -> None:
    page = watch().show(reports(hostile_trace(tmp_path / "hostile.json")))
    for mark in page.locator("rect[data-mark]").all()[:60]:
        mark.hover(force=True)
    picture = page.locator("#lanes-picture")
    for key in ("ArrowRight", "ArrowUp", "ArrowRight", "ArrowUp", "ArrowRight", "Enter"):
        picture.press(key)
    for head in page.locator("table.sortable button").all():
        head.click()
    assert page.evaluate("window.hurt") is None
    assert page.locator("img, iframe, object, embed, link, base").count() == 0
    assert page.locator("script").count() == 2
    assert page.locator("body *[onerror], body *[onload], body *[onmouseover]").count() == 0
    text = str(page.locator("main").inner_text())
    assert "<script>window.hurt=1</script>" in text
    assert "\u202e" not in text
    assert "\\u202e" in text


def test_its_policy_stops_scripts_that_get_in_all_the_same(
    chromium: Any, reports: Callable[[Path], str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    made = Path(reports(two_kernels(tmp_path / "t.json")).removeprefix("file://")).read_text(encoding="utf-8")
    page.write_text(made.replace("</main>", "<script>window.hurt=1</script><img src=x onerror=window.hurt=2></main>"))
    watched = Watched(chromium)
    try:
        assert watched.show(page.as_uri()).evaluate("window.hurt") is None
        assert any("Content Security Policy" in complaint for complaint in watched.complaints)
    finally:
        watched.close()


def test_it_works_in_the_sandboxed_frame_of_a_server(
    chromium: Any, reports: Callable[[Path], str], tmp_path: Path
) -> None:
    """MLflow shows it with `sandbox="allow-scripts"`: an origin of its own, no storage, no parent."""
    made = Path(reports(two_kernels(tmp_path / "t.json")).removeprefix("file://")).read_text(encoding="utf-8")
    outer = tmp_path / "outer.html"
    outer.write_text("<!doctype html><iframe id=f sandbox=allow-scripts width=1000 height=3000></iframe>")
    watched = Watched(chromium)
    try:
        page = watched.show(outer.as_uri())
        page.evaluate("html => document.getElementById('f').srcdoc = html", made)
        frame = page.frame_locator("#f")
        frame.locator("#lanes[data-ready=yes]").wait_for()
        frame.locator("rect[data-mark].arithmetic").hover()
        assert "gemm" in frame.locator("#lanes-tip").inner_text()
        assert watched.complaints == []
    finally:
        watched.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_can_be_read_by_everybody(
    watch: Callable[..., Watched], reports: Callable[[Path], str], dark: bool, width: int
) -> None:
    """axe-core: contrast, names of controls, order of headings, what can be reached by keys, ..."""
    from axe_playwright_python.sync_playwright import Axe

    watched = watch(dark=dark, width=width, bypass_csp=True)
    page = watched.show(reports(DATA / "matmul_add_4096.json.gz"))
    found = Axe().run(page)
    assert [(v["id"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found.response["violations"]] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 300) == dark


@pytest.mark.parametrize(
    "name", ["matmul_add_64", "matmul_add_4096", "mlp_train", "llama_train", "tracelens_vllm_graph"]
)
def test_reports_of_real_traces_draw(watch: Callable[..., Watched], reports: Callable[[Path], str], name: str) -> None:
    page = watch().show(reports(DATA / f"{name}.json.gz"))
    page.locator("rect[data-mark]").first.wait_for()
    order = page.eval_on_selector_all("main > section", "all => all.map(s => s.id)")
    wanted = (
        "verdict times schedule timeline split modules tables launches roofline steps regions chains environment next"
    )
    assert order == [name for name in wanted.split() if name in order]
    assert {"verdict", "times", "timeline", "split", "tables", "launches", "environment", "next"} <= set(order)


def test_a_large_step_is_thinned_and_its_close_up_is_not(
    watch: Callable[..., Watched], reports: Callable[[Path], str]
) -> None:
    page = watch().show(reports(DATA / "kineto_resnet50_workers0.json.gz"))
    data = json.loads(page.locator("#lanes-data").inner_text())
    assert "are drawn as" in page.locator(".note").first.inner_text()
    for _ in range(4):
        page.locator("[data-do=in]").click()
    page.locator("rect.hatch").first.wait_for()
    page.locator("[data-do=close]").click()
    low, high = data["close"]
    inside = [i for i, start in enumerate(data["start"]) if start < high and start + data["dur"][i] > low]
    several = dict(data["several"])
    assert inside
    assert all(i not in several for i in inside if low <= data["start"][i] < high)


def test_a_real_profile_of_the_cpu_draws(
    watch: Callable[..., Watched], reports: Callable[[Path], str], tmp_path: Path
) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    x = torch.ones(64, 64)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            torch.mm(x, x).add_(1.0)
            profiler.step()
    profiler.export_chrome_trace(str(tmp_path / "cpu.json"))
    page = watch().show(reports(tmp_path / "cpu.json"))
    page.locator("rect[data-mark].operator").first.wait_for()
    assert "aten::mm" in page.locator("#tables").inner_text()


def test_a_run_on_the_cpu_has_a_timeline_without_a_gpu(
    watch: Callable[..., Watched], reports: Callable[[Path], str], tmp_path: Path
) -> None:
    trace = TraceBuilder(sms=None)
    for number, at in ((1, 0), (2, 100)):
        trace.step(number, at=at, dur=100).op("aten::linear", at=at + 5, dur=80).op("aten::addmm", at=at + 10, dur=70)
    page = watch().show(reports(trace.write(tmp_path / "cpu.json")))
    assert page.locator("rect[data-mark].operator").count() == 2
    assert page.locator("#split, #launches, #roofline").count() == 0
    page.locator("rect[data-mark].operator").nth(1).hover()
    assert said(page) == ["aten::addmm", "start 10 us after ProfilerStep#1 began", "duration 70 us", "self time 70 us"]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("use", [0.2, 0.99])
def test_bars_of_counters_have_their_names_and_figures_inside_the_picture(
    watch: Callable[..., Watched], tmp_path: Path, use: float, dark: bool
) -> None:
    """Whether the units are idle or at their limit, no text is cut off or covers another."""
    shares = dict.fromkeys(COUNTERS.shares, use * 0.4)
    counters = msgspec.structs.replace(COUNTERS, shares=shares, reachable={"dram": 0.2, "tensor": 0.91, "fp32": 1.0})
    (tmp_path / "r.html").write_text(render(full.report(make_record(counters=counters), None)), encoding="utf-8")
    page = watch(dark=dark).show((tmp_path / "r.html").as_uri())
    chart = page.locator("#counters svg.chart")
    picture = chart.bounding_box()
    texts = [each.bounding_box() for each in chart.locator("text").all() if each.text_content()]
    assert len(texts) == 8 + 3 + 6 + 1  # units, shares of what is reachable, ticks, the axis
    for at, box in enumerate(texts):
        assert picture["x"] <= box["x"] and box["x"] + box["width"] <= picture["x"] + picture["width"]
        for other in texts[:at]:
            assert not _overlap(box, other)
    assert "DRAM" in chart.get_attribute("aria-label")


def _overlap(a: dict[str, float], b: dict[str, float]) -> bool:
    beside = a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
    return not beside and a["y"] + a["height"] > b["y"] and b["y"] + b["height"] > a["y"]


# ---- the icicle of modules -------------------------------------------------------------------------------------------


@pytest.fixture
def page_of(tmp_path: Path) -> Callable[[Record], str]:
    """The address of a record's report."""

    def page(record: Record) -> str:
        text = render(full.report(record, None))
        assert len(text.encode()) < LARGEST_BYTES
        (tmp_path / "record.html").write_text(text, encoding="utf-8")
        return (tmp_path / "record.html").as_uri()

    return page


def shown_tiles(page: Any) -> list[str]:
    """The labels that are drawn, from the top down."""
    return [str(text) for text in page.locator("#icicle-picture text").all_text_contents()]


def told(page: Any) -> list[str]:
    return [line for line in str(page.locator("#icicle-about").inner_text()).splitlines() if line]


def crumbs(page: Any) -> list[str]:
    return [str(text) for text in page.locator("#icicle-path button").all_inner_texts()]


def tile_named(page: Any, label: str, nth: int = 0) -> Any:
    """The rectangle below a label, by the place of the text: labels let a click through."""
    text = page.locator("#icicle-picture text").get_by_text(label, exact=True).nth(nth).bounding_box()
    area = page.locator("#icicle-picture").bounding_box()
    return {"x": text["x"] - area["x"] + 2, "y": text["y"] - area["y"] + 5}


def test_the_icicle_is_as_wide_as_b_and_tells_of_each_tile(
    watch: Callable[..., Watched], page_of: Callable[[Record], str]
) -> None:
    """Of 480 us per step in cnn(): forward 460 / 3, backward 910 / 3, optimizer 70 / 3."""
    page = watch(width=1400).show(page_of(module_rows.record(module_rows.cnn())))
    picture = page.locator("#icicle-picture")
    widths = page.eval_on_selector_all(
        "rect[data-tile]", "all => all.map(r => [Number(r.getAttribute('y')), Number(r.getAttribute('width'))])"
    )
    whole = picture.bounding_box()["width"]
    assert sum(width for y, width in widths if y == 22) == pytest.approx(whole, rel=0.01)  # the passes fill it
    assert shown_tiles(page)[0] == "whole step: 480 us, 100.0 %"
    assert told(page)[:2] == ["whole step", "480 us per step, 100.0 % of the GPU time"]
    picture.hover(position=tile_named(page, "layer1", 1))
    assert told(page) == [
        "layer1",
        "In backward 133 us per step, 27.8 % of the GPU time, itself 0 us",
        "forward 66.7 us",
        "backward 133 us",
        "together 200 us, 41.7 %",
    ]
    assert page.locator("rect.same").count() == 1  # the same module in forward


def test_a_click_zooms_in_and_the_path_leads_back(
    watch: Callable[..., Watched], page_of: Callable[[Record], str]
) -> None:
    page = watch(width=1400).show(page_of(module_rows.record(module_rows.llama(8, checkpointed=True))))
    picture = page.locator("#icicle-picture")
    assert page.locator(".pass-recompute[data-tile]").count() > 8
    picture.click(position=tile_named(page, "layers", 1))
    picture.click(position=tile_named(page, "3"))
    assert crumbs(page) == ["whole step", "backward", "LlamaForCausalLM", "model", "layers", "3"]
    assert {"mlp", "self_attn", "gate_proj", "q_proj"} <= set(shown_tiles(page))
    picture.click(position=tile_named(page, "mlp"))
    assert told(page)[0] == "model.layers.3.mlp LlamaMLP 1 call per step"
    # Three projections of 120 us in three steps.
    assert told(page)[-1] == "120 us aten::mm \u203a gemm_128x128 3 calls per step"
    page.locator("#icicle-path button").nth(1).click()
    assert crumbs(page) == ["whole step", "backward"]
    picture.click(position=tile_named(page, shown_tiles(page)[0]))
    assert crumbs(page) == ["whole step"]


def test_keys_walk_the_icicle(watch: Callable[..., Watched], page_of: Callable[[Record], str]) -> None:
    page = watch(width=1400).show(page_of(module_rows.record(module_rows.llama(4))))
    picture = page.locator("#icicle-picture")
    names = []
    for key in ("ArrowDown", "ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowRight", "ArrowUp"):
        picture.press(key)
        names.append(told(page)[0].split(" ")[0])
    assert names == ["forward", "backward", "LlamaForCausalLM", "model", "lm_head", "model", "LlamaForCausalLM"]
    assert page.locator("rect.chosen").count() == 1
    picture.press("Enter")
    assert crumbs(page) == ["whole step", "backward", "LlamaForCausalLM"]
    picture.press("Escape")
    assert crumbs(page) == ["whole step", "backward"]
    picture.press("Home")
    assert crumbs(page) == ["whole step"]
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.id") == "icicle-picture"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_tap_zooms_on_a_phone_and_no_label_leaves_its_tile(
    watch: Callable[..., Watched], page_of: Callable[[Record], str]
) -> None:
    page = watch(width=390, has_touch=True).show(page_of(module_rows.record(module_rows.llama(32, True))))
    page.locator("#icicle-picture").tap(position=tile_named(page, "model", 1))
    assert crumbs(page)[-1] == "model"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    rects = {(r["y"], r["x"]): r["x"] + r["width"] for r in boxes(page, "rect[data-tile]")}
    for text in boxes(page, "#icicle-picture text"):
        around = [right for (y, x), right in rects.items() if y <= text["y"] + 8 < y + 22 and x <= text["x"]]
        assert text["x"] + text["width"] <= max(around) + 0.5


def boxes(page: Any, selector: str) -> list[dict[str, float]]:
    found: list[dict[str, float]] = page.eval_on_selector_all(
        selector, "all => all.map(e => e.getBoundingClientRect()).map(b => ({x: b.x, y: b.y, width: b.width}))"
    )
    return found


def test_no_name_of_a_module_runs(watch: Callable[..., Watched], page_of: Callable[[Record], str]) -> None:
    page = watch(width=1400).show(page_of(module_rows.record(module_rows.hostile(HOSTILE))))
    picture = page.locator("#icicle-picture")
    for key in ["ArrowDown", "ArrowDown", *["ArrowRight"] * 30, "Enter", "ArrowDown", "Enter"]:
        picture.press(key)
    assert page.evaluate("window.hurt") is None
    assert page.locator("img, iframe, object, embed, link, base").count() == 0
    assert page.locator("script").count() == 2  # the data and the script
    text = str(page.locator("#modules").inner_text())
    assert "<script>window.hurt=1</script>" in text
    assert "\u202e" not in text


def test_without_a_script_there_is_a_picture_and_a_table(
    watch: Callable[..., Watched], page_of: Callable[[Record], str]
) -> None:
    watched = watch(java_script_enabled=False, width=800)
    page = watched.show(page_of(module_rows.record(module_rows.cnn())))
    picture = page.locator("#icicle-picture")
    assert picture.locator("rect").count() > 20
    box, whole = picture.locator("rect.pass-backward").first.bounding_box(), picture.bounding_box()
    assert box["width"] / whole["width"] == pytest.approx(910 / 1440, rel=0.02)
    assert page.locator("#icicle-path, #icicle-about, #icicle-help").first.is_hidden()
    assert "layer1.0.conv1" in page.locator("#modules table").last.inner_text()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_icicle_can_be_read_by_everybody(
    watch: Callable[..., Watched], page_of: Callable[[Record], str], dark: bool, width: int
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = watch(dark=dark, width=width, bypass_csp=True).show(page_of(module_rows.record(module_rows.llama(4, True))))
    for key in ("ArrowDown", "ArrowRight", "ArrowDown", "Enter"):
        page.locator("#icicle-picture").press(key)
    found = Axe().run(page)
    assert [(v["id"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found.response["violations"]] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_two_thousand_modules_are_drawn_as_fast_as_they_are_zoomed(
    watch: Callable[..., Watched], page_of: Callable[[Record], str]
) -> None:
    """Of 2,100 modules only tiles that can be seen are drawn; each can be reached."""
    page = watch(width=1000).show(page_of(module_rows.record(module_rows.many())))
    assert page.locator("rect[data-tile]").count() < 2_000
    # Blocks below a share of 0.4 pixels are not gone, but one pale rectangle.
    assert 0 < page.locator("rect.narrow").count() < 100
    picture = page.locator("#icicle-picture")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown", *["ArrowRight"] * 98, "Enter"):
        picture.press(key)
    assert crumbs(page)[-1] == "98"
    assert "part19" in shown_tiles(page)
    assert page.locator("rect[data-tile]").count() == 5 + 20


def test_the_icicle_works_in_the_sandboxed_frame_of_a_server(
    chromium: Any, page_of: Callable[[Record], str], tmp_path: Path
) -> None:
    made = Path(page_of(module_rows.record(module_rows.cnn())).removeprefix("file://")).read_text(encoding="utf-8")
    outer = tmp_path / "outer.html"
    outer.write_text("<!doctype html><iframe id=f sandbox=allow-scripts width=1000 height=3000></iframe>")
    watched = Watched(chromium)
    try:
        page = watched.show(outer.as_uri())
        page.evaluate("html => document.getElementById('f').srcdoc = html", made)
        frame = page.frame_locator("#f")
        frame.locator("#icicle[data-ready=yes]").wait_for()
        frame.locator("rect[data-tile].pass-backward").nth(1).click()
        assert "ResNet" in frame.locator("#icicle-path").inner_text()
        assert watched.complaints == []
    finally:
        watched.close()
