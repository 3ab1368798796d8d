"""What a person sees in MLflow's own UI: a real server, a real browser, two runs of matmul_add (n=64 and n=4096)."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import pytest
from browser import launched
from calls import PATIENCE_S
from mlflow_server import SharedServer
from run_folders import make_record

from proftrack.analysis.pipeline import Analysis, analyze_trace
from proftrack.record import Record
from proftrack.record.figures import CpuWork
from proftrack.recorder import write as run_folder
from proftrack.store import columns, connect, keys, sync

DATA = Path(__file__).parent / "data"


def test_the_view_has_the_columns_that_tell_runs_apart() -> None:
    wanted = columns.columns(make_record())
    assert wanted == [
        "tags.`regime`",
        "tags.`regime.confidence`",
        "metrics.`step_time_us`",
        "metrics.`gpu_busy_per_step_us`",
        "metrics.`gpu_busy_fraction`",
        "tags.`regime.cause`",
        "tags.`conclusion`",
        "params.`n`",
        "params.`dtype`",
        "params.`compile`",
        "params.`seed`",
        "tags.`git.commit`",
    ]
    assert json.loads(columns.view_state(wanted))["selectedColumns"] == wanted


def test_a_cpu_runs_columns_are_its_own() -> None:
    cpu = CpuWork(operators=9, operators_us=300.0, working_us={})
    assert columns.columns(make_record(cpu=cpu))[2:5] == [
        "metrics.`step_time_us`",
        "metrics.`cpu_work_per_step_us`",
        "metrics.`cpu_work_fraction`",
    ]


def test_columns_of_other_runs_stay() -> None:
    before = columns.view_state(["tags.`regime`", "params.`batch`", "tags.`git.commit`"])
    after = json.loads(columns.view_state(["tags.`regime`", "params.`n`", "tags.`git.commit`"], before))
    assert after["selectedColumns"] == ["tags.`regime`", "params.`n`", "params.`batch`", "tags.`git.commit`"]
    assert after["columnOrder"][2:] == after["selectedColumns"]


@pytest.mark.parametrize(
    "known", ["", "deflate;xyz", "[]", "null", '{"selectedColumns": 5}', '{"selectedColumns": [1]}']
)
def test_a_view_in_another_form_is_replaced(known: str) -> None:
    assert json.loads(columns.view_state(["tags.`regime`"], known))["selectedColumns"] == ["tags.`regime`"]


def test_an_experiment_of_ours_gets_view_kind_and_description(store_uri: str) -> None:
    here = connect.resolve()
    client = connect.connect(here)
    ours, other = client.create_experiment("matmul_add"), client.create_experiment("somebody's")
    for experiment in (ours, other):
        columns.prepare(here, client, experiment, make_record())
    tags = client.get_experiment(ours).tags
    assert json.loads(tags["mlflow.sharedViewState.proftrack"])["selectedColumns"][0] == "tags.`regime`"
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    assert "gpu_busy_fraction" in tags["mlflow.note.content"]
    # Somebody else's experiment keeps its own description and kind.
    assert set(client.get_experiment(other).tags) == {"mlflow.sharedViewState.proftrack"}


def test_what_a_person_wrote_stays(store_uri: str) -> None:
    here = connect.resolve()
    client = connect.connect(here)
    experiment = client.create_experiment(
        "matmul_add", tags={"mlflow.note.content": "mine", keys.EXPERIMENT_KIND_TAG: "automl"}
    )
    columns.prepare(here, client, experiment, make_record())
    tags = client.get_experiment(experiment).tags
    assert (tags["mlflow.note.content"], tags[keys.EXPERIMENT_KIND_TAG]) == ("mine", "automl")


def test_a_store_that_refuses_ends_no_run(store_uri: str) -> None:
    here = connect.resolve()
    columns.prepare(here, connect.connect(here), "no such experiment", make_record())


# ---- in the UI -------------------------------------------------------------------------------------------------------


class Ui(NamedTuple):
    """A server with two runs in an experiment of their own, and a page on it."""

    url: str
    experiment: str
    page: Any
    small: str
    large: str
    pictures: Path

    def show(self, address: str) -> Any:
        self.page.goto("about:blank")  # an address that differs behind its # alone loads nothing anew
        self.page.goto(self.url + address)
        return self.page

    def runs(self, *, order: str = "attributes.start_time") -> Any:
        """The list of runs with our view, or sorted in ascending order."""
        sorting = f"&orderByKey={quote(order)}&orderByAsc=true" if order != "attributes.start_time" else ""
        view = f"viewStateShareKey={keys.VIEW}&workflowType=machine_learning"
        page = self.show(f"/#/experiments/{self.experiment}/runs?{view}")
        page.get_by_role("gridcell", name="overhead-bound").wait_for()
        if sorting:
            page.goto(page.url.replace("orderByKey=attributes.start_time&orderByAsc=false", sorting.lstrip("&")))
        return page

    def regimes(self) -> list[str]:
        """As they stand in the list, from the top; the grid's rows are in no order in the page."""
        rows = self.page.locator(".ag-center-cols-container .ag-row").all()
        cells = [(row.get_attribute("row-index"), row.locator("[col-id='tags.`regime`']").inner_text()) for row in rows]
        return [text.strip() for _, text in sorted(cells, key=lambda cell: int(cell[0] or 0))]

    def picture(self, name: str) -> None:
        self.page.screenshot(path=str(self.pictures / f"{name}.png"))


def _run(name: str, n: int, step_time_us: float) -> Analysis:
    found = analyze_trace(DATA / f"{name}.json.gz", step_time_us=step_time_us)
    facts = make_record().run
    assert facts is not None
    facts = msgspec.structs.replace(
        facts,
        experiment="ui",  # no other test's runs are among them
        params={**facts.params, "n": n},
        display_name=f"matmul_add n={n} bfloat16 eager",
        started_ns=10**18 + n,
    )
    return Analysis(msgspec.structs.replace(found.record, run=facts), found.tables)


@pytest.fixture(scope="module")
def ui(shared_server: SharedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    folder = tmp_path_factory.mktemp("ui")
    done = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{shared_server.folder / 'mlflow.db'}")
        here = connect.resolve()
        client = connect.connect(here)
        for name, n, step_time_us in (("matmul_add_64", 64, 51.0), ("matmul_add_4096", 4096, 231.0)):
            kept = folder / f"kept{n}"
            run_folder.write(_run(name, n, step_time_us), kept)
            (kept / "trace").mkdir()
            shutil.copyfile(DATA / f"{name}.json.gz", kept / "trace" / f"{name}.json.gz")
            done.append(sync.sync_folder(here, client, kept))
    # Look at them: PROFTRACK_SCREENSHOTS=/tmp/pictures pytest tests/test_report_mlflow.py
    pictures = Path(os.environ.get("PROFTRACK_SCREENSHOTS") or tmp_path_factory.mktemp("pictures"))
    pictures.mkdir(parents=True, exist_ok=True)
    with launched() as browser:
        context = browser.new_context(viewport={"width": 1600, "height": 1000})
        context.set_default_timeout(20_000)
        small, large = (each.run_id for each in done)
        yield Ui(shared_server.url, done[0].experiment_id, context.new_page(), small, large, pictures)
        context.close()


def _record(name: str) -> Record:
    return analyze_trace(DATA / f"{name}.json.gz", step_time_us=51.0).record


@pytest.mark.slow
def test_the_view_shows_regimes_side_by_side(ui: Ui, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", ui.url)
    page = ui.show(columns.address(connect.resolve(), ui.experiment).removeprefix(ui.url))
    page.get_by_role("gridcell", name="overhead-bound").wait_for()
    page.get_by_role("gridcell", name="compute-bound").wait_for()
    places = [
        page.locator(f"[role=columnheader][col-id='{column}']").get_attribute("aria-colindex")
        for column in columns.columns(make_record())[:4]
    ]
    assert [int(place) for place in places] == sorted(int(place) for place in places)
    assert page.get_by_text("One run is one profiled workload.").count() == 1
    ui.picture("runs")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "order"),
    [
        ("tags.`regime`", ["compute-bound", "overhead-bound"]),
        ("metrics.`gpu_busy_fraction`", ["overhead-bound", "compute-bound"]),
    ],
)
def test_runs_sort_by_regime_and_by_busy_fraction(ui: Ui, column: str, order: list[str]) -> None:
    ui.runs(order=column)
    end = time.monotonic() + PATIENCE_S
    while ui.regimes() != order and time.monotonic() < end:
        time.sleep(0.2)
    ui.picture("sorted-" + column.split("`")[1])
    assert ui.regimes() == order


@pytest.mark.slow
def test_a_runs_page_has_its_name_and_its_verdict(ui: Ui, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", ui.url)
    page = ui.show(connect.resolve().run_url(ui.experiment, ui.small).removeprefix(ui.url))
    page.get_by_role("link", name="Model registry").wait_for()  # the training view has it, that for prompts has not
    page.get_by_role("heading", name="matmul_add n=64 bfloat16 eager").wait_for()
    page.get_by_text(_record("matmul_add_64").verdict.summary).wait_for()
    page.get_by_text("gpu_busy_fraction", exact=True).first.wait_for()
    ui.picture("run")


@pytest.mark.slow
def test_the_report_works_among_the_artifacts(ui: Ui) -> None:
    page = ui.show(f"/#/experiments/{ui.experiment}/runs/{ui.large}/artifacts/report.html")
    frame = page.frame_locator("iframe")
    frame.locator("#lanes[data-ready=yes]").wait_for()
    frame.locator("rect[data-mark].arithmetic").first.hover()
    tip = frame.locator("#lanes-tip").inner_text()
    assert "nvjet" in tip
    assert "duration" in tip
    frame.locator("#timeline").scroll_into_view_if_needed()
    ui.picture("report")


@pytest.mark.slow
def test_the_pictures_show(ui: Ui) -> None:
    page = ui.show(f"/#/experiments/{ui.experiment}/runs/{ui.large}/artifacts/plots/lanes.png")
    page.locator("img[src^=blob]").first.wait_for()
    assert 800 in page.evaluate("[...document.images].map(i => i.naturalWidth)")
    ui.picture("lanes")


@pytest.mark.slow
def test_two_runs_selected_are_compared(ui: Ui) -> None:
    page = ui.runs()
    boxes = page.locator(".ag-row .ag-checkbox-input")
    for i in range(2):
        boxes.nth(i).click()
    page.get_by_role("button", name="Compare").click()
    page.get_by_text("Comparing 2 Runs").wait_for()
    for text in ("matmul_add n=64 bfloat16 eager", "matmul_add n=4096 bfloat16 eager"):
        page.get_by_text(text).first.wait_for()
    ui.picture("compared")
