"""report.html and the pictures as files: whole, small, inert, whatever the trace."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import re
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from costs import growth
from run_folders import make_record
from traces import TraceBuilder

from proftrack.analysis.pipeline import Analysis, analyze_trace
from proftrack.record.ceilings import Ceilings
from proftrack.record.figures import Kernel
from proftrack.recorder import write as run_folder
from proftrack.report import artifacts, plots
from proftrack.report.events import details
from proftrack.report.html import LARGEST_BYTES, render
from proftrack.report.pages.full import report
from proftrack.store.references import References
from proftrack.trace.parquet import read_events, write_events
from proftrack.trace.table import EventTable

DATA = Path(__file__).parent / "data"


def page_of(analysis: Analysis) -> str:
    return render(report(analysis.record, details(analysis.tables, analysis.record.kernels)))


def data_of(page: str) -> Any:
    return json.loads(page.partition('id="lanes-data">')[2].partition("</script>")[0])


def made(trace: TraceBuilder, tmp_path: Path) -> Analysis:
    return analyze_trace(trace.write(tmp_path / "trace.json"))


@pytest.fixture(scope="module")
def page() -> str:
    return page_of(analyze_trace(DATA / "mlp_train.json.gz"))


def test_it_names_no_other_file_and_no_address(page: str) -> None:
    outside = re.sub(r"(?s)<script.*?</script>|<style>.*?</style>", "", page)
    assert not re.search(r"""\b(?:src|href|action|data|srcset|poster)\s*=\s*["']?(?!["'#])""", outside)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert "http://www.w3.org/2000/svg" in page  # a name, not an address
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", outside)


def test_its_policy_names_the_hash_of_its_own_script_and_style(page: str) -> None:
    policy = html.unescape(re.findall(r'Content-Security-Policy" content="([^"]*)"', page)[0])
    assert policy.startswith("default-src 'none';")
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        [text] = re.findall(rf"(?s)<{tag}>(.*?)</{tag}>", page)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"\sstyle=", page)  # which that policy would drop
    assert not re.search(r"\son\w+=", page)


def test_the_data_is_inert_json(tmp_path: Path) -> None:
    name = "</script><!--<script>\u2028&"
    page = page_of(made(TraceBuilder().step(1, at=0, dur=10).op(name, at=1, dur=2), tmp_path))
    raw = page.partition('id="lanes-data">')[2].partition("</script>")[0]
    assert not set("<>&\u2028") & set(raw)
    assert "</script><!--<script>\\u2028&" in data_of(page)["names"]


def test_the_timelines_data_says_what_the_trace_says(tmp_path: Path) -> None:
    trace = TraceBuilder().step(3, at=0, dur=100).op("aten::mm", at=10, dur=30)
    trace.work(1, launch=20, at=30, dur=40)
    data = data_of(page_of(made(trace, tmp_path)))
    assert data["focus"] == [0, 100_000]
    marks = [
        (data["names"][n] if n >= 0 else None, data["start"][i], data["dur"][i], data["self"][i])
        for i, n in enumerate(data["name"])
    ]
    assert ("aten::mm", 10_000, 30_000, 29_000) in marks
    assert ("gemm", 30_000, 40_000, -1) in marks
    assert data["links"] == [[marks.index(("cudaLaunchKernel", 20_000, 1000, 1000)), 3, 21_000]]


def big_names(path: Path) -> Analysis:
    trace = TraceBuilder().step(1, at=0, dur=100_000)
    for i in range(3000):
        name = f"<&\"'日本{i}" + "長\u202e" * 200
        trace.op(name, at=1 + 30 * i, dur=20).launch(at=5 + 30 * i, correlation=i + 1)
        trace.kernel(name, at=12 + 30 * i, dur=10, correlation=i + 1).region(name, at=2 + 30 * i, dur=9)
    return made(trace, path)


def test_thousands_of_long_names_make_no_heavy_page(tmp_path: Path) -> None:
    page = page_of(big_names(tmp_path))
    assert len(page.encode()) < LARGEST_BYTES


def test_thousands_of_steps_make_no_heavy_page(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for i in range(3000):
        trace.step(i, at=10 * i, dur=10).work(i + 1, launch=10 * i + 1, at=10 * i + 3, dur=5)
    page = page_of(made(trace, tmp_path))
    assert len(page.encode()) < LARGEST_BYTES
    assert "2,900 more rows" in page


@pytest.mark.slow
def test_a_million_events_make_a_page_and_cost_no_more_than_their_number(tmp_path: Path) -> None:
    """377,649 events of llama_decode took 0.5 s; here are more, made without a file of a hundred megabytes."""
    record = make_record()
    many, fewer = repeated(200_000, tmp_path), repeated(50_000, tmp_path)
    assert len(many) > 800_000
    page = render(report(record, details([many], record.kernels)))
    assert len(page.encode()) < LARGEST_BYTES
    assert "are drawn as" in page
    # Four times the events: 4 where each costs the same, 16 where each looks at all the others.
    assert growth(lambda: details([fewer], record.kernels), lambda: details([many], record.kernels)) < 8


def repeated(times: int, folder: Path) -> EventTable:
    """A small step's table with its rows so many times, 50 us apart, as events.parquet gives it."""
    small = TraceBuilder()
    small.step(1, at=0, dur=40).op("aten::mm", at=1, dur=30).op("aten::add", at=2, dur=10)
    small.work(1, launch=5, at=8, dur=20)
    table = made(small, folder).tables[0]
    big = table.take(np.tile(np.arange(len(table)), times))
    shift = np.repeat(np.arange(times), len(table)) * 50_000
    is_step = big.name == table.names.index("ProfilerStep#1")
    columns = {
        "ts": big.ts + shift,
        "dur": np.where(is_step, times * 50_000, big.dur),
        "correlation": np.where(big.correlation >= 0, shift // 50_000 + 1, -1),
    }
    write_events([dataclasses.replace(big, **columns).take(~is_step | (shift == 0))], folder / "events.parquet")
    [back] = read_events(folder / "events.parquet")
    return back


def test_what_is_not_known_is_not_shown(tmp_path: Path) -> None:
    page = page_of(made(TraceBuilder(sms=None).op("aten::mm", at=0, dur=10), tmp_path))
    for absent in ("split", "launches", "roofline", "steps", "regions", "chains"):
        assert f'<section id="{absent}"' not in page
    assert ">None<" not in page
    assert "nan" not in re.sub(r"(?s)<script.*?</script>|<style>.*?</style>", "", page).lower()


def test_a_roofline_has_the_devices_rates_and_the_kernels() -> None:
    """Ridge at 100 FLOPs per byte; a kernel at the roof and one at half the bandwidth."""
    ceilings = Ceilings(device="X", flops_per_s={"bfloat16": 1e14, "float64": 1e12}, bytes_per_s=1e12)
    kernels = [
        _kernel("matmul", total_us=10.0, flops=10**9, size=10**6),
        _kernel("add", total_us=20.0, flops=10**6, size=10**7),
        _kernel("unknown", total_us=5.0, flops=None, size=None),
    ]
    page = render(report(make_record(ceilings=ceilings, kernels=kernels), None))
    section = page.partition('<section id="roofline"')[2].partition("</section>")[0]
    assert "bfloat16 100 TFLOP/s" in section
    assert "1.00 TB/s" in section
    hints = re.findall(r"<circle[^>]*><title>([^<]*)</title>", section)
    assert hints == ["matmul: 1,000 FLOPs per byte, 100 TFLOP/s", "add: 0.1 FLOPs per byte, 50.0 GFLOP/s"]


def _kernel(name: str, *, total_us: float, flops: int | None, size: int | None) -> Kernel:
    return Kernel(
        name=name, kind="matmul", calls=1, total_us=total_us, mean_us=total_us, min_us=total_us, max_us=total_us,
        share=0.5, limit="arithmetic", flops=flops, bytes=size,
    )  # fmt: skip


def test_sums_and_shares_are_the_records(page: str) -> None:
    record = analyze_trace(DATA / "mlp_train.json.gz").record
    assert record.split is not None
    whole = record.window.duration_us or 0.0
    section = page.partition('<section id="split"')[2].partition("</section>")[0]
    assert f"{100 * record.split.idle_us / whole:.1f} %" in section
    widths = re.findall(r'<rect class="(\S+)" x="[\d.]+%" width="([\d.]+)%"', section)
    assert dict(widths)["compute"] == f"{100 * record.split.compute_us / whole:.3f}"


# ---- pictures --------------------------------------------------------------------------------------------------------


def size_of(png: Path) -> tuple[int, int]:
    head = png.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", head[16:24])
    return width, height


@pytest.mark.parametrize("name", ["matmul_add_4096", "mlp_train", "tracelens_vllm_graph"])
def test_pictures_are_800_wide(name: str, tmp_path: Path) -> None:
    found = analyze_trace(DATA / f"{name}.json.gz")
    written = artifacts.pictures(found.record, details(found.tables, found.record.kernels), tmp_path)
    assert {path.stem for path in written} >= {"lanes", "split"}
    for path in written:
        width, height = size_of(path)
        assert (width, 100 < height < 2000) == (800, True)
        assert path.stat().st_size < 300_000


def test_pictures_of_a_whole_record(tmp_path: Path) -> None:
    ceilings = Ceilings(device="X $\\frac{", flops_per_s={"bfloat16": 1e14}, bytes_per_s=1e12)
    record = make_record(ceilings=ceilings, kernels=[_kernel("$\\alpha_{", total_us=1.0, flops=10**8, size=10**6)])
    written = artifacts.pictures(record, None, tmp_path)
    assert sorted(path.name for path in written) == ["counters.png", "roofline.png", "steps.png"]


def test_names_are_no_mathematics_and_need_no_font(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, at=0, dur=1000)
    for i, name in enumerate(("$x^{", "日本語", "\x1b[31m", "a" * 3000, "%s{0}")):
        trace.op(name, at=10 + 100 * i, dur=90).work(i + 1, launch=20 + 100 * i, at=30 + 100 * i, dur=80, name=name)
    found = made(trace, tmp_path)
    assert artifacts.pictures(found.record, details(found.tables, found.record.kernels), tmp_path / "plots")


def test_matplotlibs_own_state_is_left_alone(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    artifacts.pictures(make_record(), None, tmp_path)
    assert dict(matplotlib.rcParams) == before


# ---- in a run folder -------------------------------------------------------------------------------------------------


def test_a_run_folder_has_them(tmp_path: Path) -> None:
    found = analyze_trace(DATA / "mlp_train.json.gz")
    run_folder.write(found, tmp_path / "run")
    assert (tmp_path / "run" / "report.html").read_text(encoding="utf-8") == page_of(found)
    assert {path.name for path in (tmp_path / "run" / "plots").iterdir()} == {
        "lanes.png",
        "modules.png",
        "split.png",
        "steps.png",
    }


def test_without_matplotlib_there_are_no_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "available", lambda: False)
    run_folder.write(analyze_trace(DATA / "matmul_add_64.json.gz"), tmp_path / "run")
    assert (tmp_path / "run" / "report.html").is_file()
    assert not (tmp_path / "run" / "plots").exists()


def test_a_defect_in_a_picture_loses_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(artifacts.html, "render", lambda *_: 1 / 0)
    run_folder.write(analyze_trace(DATA / "matmul_add_64.json.gz"), tmp_path / "run")
    assert (tmp_path / "run" / "record.json").is_file()
    assert "could not be made (ZeroDivisionError" in capsys.readouterr().err


def test_it_is_the_same_from_the_kept_events_as_from_the_trace(tmp_path: Path) -> None:

    found = analyze_trace(DATA / "mlp_train.json.gz")
    run_folder.write(found, tmp_path / "run")
    kept = References().read(str(tmp_path / "run"))
    again = render(report(kept.record, details(kept.tables, kept.record.kernels)))
    assert data_of(again) == data_of(page_of(found))
    assert msgspec.json.encode(kept.record) == msgspec.json.encode(found.record)
