"""Golden files for what other people rely on: record.json, command output, names in MLflow.

    goldens/records/  one record per schema version, as first written
    goldens/shapes/   field names, nesting and types of everything written as JSON
    goldens/figures/  figures of records as JSON; the structure and the numbers, with units, of each text
    goldens/names/    MLflow params, metrics, tags and artifacts; table columns; options; report sections
    goldens/texts/    what commands print, word for word

Nothing is measured: traces from data/ and hand-written timings go through the real commands (recorded_captures.py).
When you reword a sentence, run `REGENERATE=texts python -m pytest tests/test_goldens.py` to rewrite texts/; everything
else must still pass. When a field, figure or name changes on purpose, REGENERATE=all rewrites everything except
existing records (a record is added if its version has none). Read the diff before you commit it.
"""

from __future__ import annotations

import contextlib
import html
import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import recorded_captures as captures
from calls import call
from recorded_captures import DATA, LARGE, ON_CPU, REPLAYED, SMALL, TRAINING, Recorded

from proftrack.record.model import SCHEMA_VERSION

pytest.importorskip("torch")

GOLDENS = Path(__file__).parent / "goldens"
REGENERATE = os.environ.get("REGENERATE", "")

EXPERIMENT = """\
name: matmul_add
workload: matmul_add.py:build
params: {n: 64, dtype: bfloat16, compile: none}
variant_params: [compile]
schedule: {skip_first: 0, wait: 1, warmup: 1, active: 3, repeat: 1}
"""
BY_LATENCY = f"{EXPERIMENT}timing: {{mode: latency}}\n"
ON_A_CPU = EXPERIMENT.replace("n: 64, dtype: bfloat16", "n: 256, dtype: float32") + "device: cpu\n"

T_AND_LATENCY = Recorded(
    trace="matmul_add_64",
    n=64,
    block_us=[98.0, 99.0, 100.0, 101.0, 102.0],
    latency_us=[118.0, 119.0, 120.0, 121.0, 122.0],
)
SLOWER_LATENCY = Recorded(
    trace="matmul_add_64",
    n=64,
    block_us=[98.0, 99.0, 100.0, 101.0, 102.0],
    latency_us=[238.0, 239.0, 240.0, 241.0, 242.0],
)
"""Back to back it takes as long as T_AND_LATENCY, synchronised after each step twice as long."""


class Shown(NamedTuple):
    """Exit code and output of one command."""

    code: int
    out: str
    err: str


class Made(NamedTuple):
    """A working directory after every command has run once."""

    folder: Path
    shown: dict[str, Shown]
    """By the name of its golden."""
    store: str


def shown(*arguments: str) -> Shown:
    """Run a command with its output piped."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = call(*arguments)
    texts = []
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
        texts.append(stream.read())
    return Shown(code, *texts)


def golden(name: str, text: str) -> None:
    """Compare a text with its golden file, or rewrite the file if REGENERATE says so."""
    path = GOLDENS / name
    if REGENERATE in ("all", name.partition("/")[0]):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), (
        f"goldens/{name} differs; the head of test_goldens.py says what to do"
    )


def rank_trace(rank: int, reduce_start: int) -> dict[str, Any]:
    """One step of 1000 us of one of two ranks: a matmul, then an all-reduce that ends for both at 900."""

    def row(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
        lane = {"pid": 0, "tid": 7} if cat == "kernel" else {"pid": 77, "tid": 77}
        return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, **lane, "args": args}

    reduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return {
        "distributedInfo": {"rank": rank, "world_size": 2},
        "traceEvents": [
            row("user_annotation", "ProfilerStep#1", 0, 1000),
            row("cuda_runtime", "cudaLaunchKernel", 10, 5, correlation=1),
            row("kernel", "gemm", 20, reduce_start - 30, correlation=1, device=0, stream=7),
            row("cuda_runtime", "cudaLaunchKernel", 20, 5, correlation=2),
            row("kernel", reduce, reduce_start, 900 - reduce_start, correlation=2, device=0, stream=20),
        ],
    }


def _inputs(folder: Path) -> None:
    """Experiments, traces and records, all in the working directory."""
    (folder / "matmul_add.yaml").write_text(EXPERIMENT)
    (folder / "latency.yaml").write_text(BY_LATENCY)
    (folder / "on_cpu.yaml").write_text(ON_A_CPU)
    (folder / "training.yaml").write_text(EXPERIMENT.replace("n: 64", "n: 1024"))
    (folder / "matmul_add.py").write_text("def build(device, n, dtype, compile): return lambda: None\n")
    shutil.copyfile(DATA / "mlp_train.json.gz", folder / "mlp_train.json.gz")
    for name in ("a", "b", "launches", "compiled", "item", "larger"):
        shutil.copyfile(DATA / "changes" / f"{name}.json", folder / f"{name}.json")
    (folder / "strict.yaml").write_text("min_samples: 50\nmetrics: {step_time_us: {max_increase_pct: 5}}\n")
    newer = {**json.loads((folder / "a.json").read_text()), "schema_version": 99}
    (folder / "newer.json").write_text(json.dumps(newer))
    for rank, reduce_start in ((0, 300), (1, 800)):
        (folder / f"rank{rank}.json").write_text(json.dumps(rank_trace(rank, reduce_start)))


def _commands(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Shown]]:
    captures.replace_machine(monkeypatch)
    captures.replace_capture(monkeypatch, SMALL)
    yield "run", shown("run", "matmul_add.yaml", "--no-mlflow", "--output", "kept")
    captures.replace_capture(monkeypatch, TRAINING)
    yield "run_training", shown("run", "training.yaml", "--no-mlflow", "--output", "trained")
    captures.replace_capture(monkeypatch, ON_CPU)
    yield "run_on_cpu", shown("run", "on_cpu.yaml", "--no-mlflow", "--output", "on_cpu")
    captures.replace_capture(monkeypatch, T_AND_LATENCY)
    yield "run_latency", shown("run", "latency.yaml", "--no-mlflow", "--output", "latency")
    captures.replace_capture(monkeypatch, SLOWER_LATENCY)
    yield "run_latency_slower", shown("run", "latency.yaml", "--no-mlflow", "--output", "latency_slower")

    def point(overrides: dict[str, str]) -> Recorded | str:
        n = int(overrides["n"])
        return "matmul_add.py:build refuses n=13: unlucky" if n == 13 else SMALL if n < 1000 else LARGE

    captures.replace_points(monkeypatch, "matmul_add.yaml", point)
    values = ("matmul_add.yaml", "-P", "n=13,64,4096", "--find-crossover", "--tolerance", "4")
    yield "sweep", shown("sweep", *values, "--no-mlflow", "--output", "swept")
    captures.replace_points(monkeypatch, "latency.yaml", lambda _: T_AND_LATENCY)
    yield "sweep_latency", shown("sweep", "latency.yaml", "-P", "n=64,65", "--no-mlflow", "--output", "swept_latency")
    refused = "its step cannot be compiled: no code of it is Python's"
    captures.replace_variants(monkeypatch, {"eager": SMALL, "compile": refused, "cuda-graph": REPLAYED})
    yield "variants", shown("variants", "matmul_add.yaml", "--no-mlflow", "--output", "varied")

    yield "report", shown("report", "kept", "--format", "text")
    yield "report_training", shown("report", "trained", "--format", "text")
    yield "report_on_cpu", shown("report", "on_cpu", "--format", "text")
    yield "report_markdown", shown("report", "kept", "--format", "markdown")
    yield "analyze", shown("analyze", "mlp_train.json.gz")
    yield "analyze_step_time", shown("analyze", "mlp_train.json.gz", "--step-time-us", "700")
    yield "analyze_kernel", shown("analyze", "mlp_train.json.gz", "--kernel", "nvjet")
    yield "analyze_ranks", shown("analyze", "rank0.json", "rank1.json")
    yield "compare", shown("compare", "a.json", "launches.json", "--format", "text")
    yield "compare_faster", shown("compare", "kept", "varied/runs/cuda-graph", "--format", "text")
    yield "compare_latency", shown("compare", "latency", "latency_slower", "--format", "text")
    yield "gate_pass", shown("gate", "compiled.json", "--baseline", "a.json", "--noise-floor", "1", "--format", "text")
    yield "gate_fail", shown("gate", "item.json", "--baseline", "a.json", "--format", "text")
    yield (
        "gate_inconclusive",
        shown("gate", "b.json", "--baseline", "a.json", "--policy", "strict.yaml", "--format", "text"),
    )
    yield "gate_refused", shown("gate", "larger.json", "--baseline", "a.json", "--format", "text")
    yield "gate_markdown", shown("gate", "launches.json", "--baseline", "a.json")
    yield "gate_latency", shown("gate", "latency_slower", "--baseline", "latency", "--noise-floor", "1")

    yield "newer_record", shown("report", "newer.json", "--format", "text")

    yield "json/analyze", shown("analyze", "mlp_train.json.gz", "--json", "-")
    yield "json/analyze_ranks", shown("analyze", "rank0.json", "rank1.json", "--json", "-")
    yield "json/compare", shown("compare", "a.json", "launches.json", "--format", "json")
    yield "json/compare_latency", shown("compare", "latency", "latency_slower", "--format", "json")
    yield "json/gate", shown("gate", "launches.json", "--baseline", "a.json", "--format", "json")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("goldens")
    store = f"sqlite:///{folder}/store/mlflow.db"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
        _inputs(folder)
        yield Made(folder, dict(_commands(monkeypatch)), store)


TEXTS = """
    run run_training run_on_cpu run_latency sweep sweep_latency variants report report_training report_on_cpu
    report_markdown analyze analyze_step_time analyze_kernel analyze_ranks compare compare_faster compare_latency
    gate_pass gate_fail gate_inconclusive gate_refused gate_markdown gate_latency newer_record
""".split()


def text_of(made: Made, name: str) -> str:
    """Exit code and output of a command, without paths that differ between machines."""
    code, out, err = made.shown[name]
    text = f"$ exit {code}\n{out}" + (f"$ stderr\n{err}" if code == 1 else "")
    text = text.replace(str(made.folder), "FOLDER")
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


@pytest.mark.parametrize("name", TEXTS)
def test_texts(made: Made, name: str) -> None:
    golden(f"texts/{name}.txt", text_of(made, name))


@pytest.mark.parametrize("name", TEXTS)
def test_figures_of_texts(made: Made, name: str) -> None:
    golden(f"figures/{name}.txt", figures(text_of(made, name)))


# ---- a text without its words ----------------------------------------------------------------------------------------

_UNITS = "x|%|[kMGTP]?FLOP/s|[kMGTP]?B/s|[kMGTP]?B|MHz|[num]?s"
_NUMBER = re.compile(
    rf"(?<![\w.,<\[#/:;-])([-+]?)(\d{{1,3}}(?:,\d{{3}})+|\d+(?:\.\d+)?)(?: ?({_UNITS}))?(?![\w>]|[-:.,]\d)"
)
_REGIME = re.compile(r"\b[a-z]+-bound\b|\binconclusive\b")
_CODE = re.compile(r"^[a-z]+(?:_[a-z]+)+\b")
_ITEM = re.compile(r"(?:  ([-?>!]) |- )")
_COLUMNS = re.compile(r"\S {2,}\S|^\|")


def figures(text: str) -> str:
    """The structure and the numbers of a text, independent of its wording.

    Blocks stay in order. A table row gives its numbers in order; a sentence gives its distinct numbers, sorted, after
    its bullet and flag code. Regimes count as numbers. Lines with none of these are dropped, so headings may change.
    51 us and 51.0 us are the same number.
    """
    blocks = ["\n".join(_lines(block.splitlines())) for block in re.split(r"\n\s*\n", text)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _lines(lines: list[str]) -> Iterator[str]:
    sentence = ""
    for line in [*lines, ""]:
        is_row, is_item = bool(_COLUMNS.search(line.strip())), bool(_ITEM.match(line))
        if sentence and (is_row or is_item or not line):
            yield from _sentence(sentence)
            sentence = ""
        if is_row and not is_item:
            yield from filter(None, [" ".join(_numbers(line))])
        else:
            sentence += f" {line.strip()}" if sentence else line
    yield from ()


def _sentence(text: str) -> Iterator[str]:
    item = _ITEM.match(text)
    words = text[item.end() :] if item else text
    code = _CODE.match(words) if item and item[1] == "!" else None
    parts = [item[0].strip()] if item else []
    parts += [code[0]] if code else []
    parts += sorted(set(_numbers(words)))
    yield from filter(None, [" ".join(parts)])


def _numbers(text: str) -> list[str]:
    found = [(m.start(), f"{m[1]}{float(m[2].replace(',', '')):g}{m[3] or ''}") for m in _NUMBER.finditer(text)]
    found += [(m.start(), m[0].lower()) for m in _REGIME.finditer(text.lower())]
    return [word for _, word in sorted(found)]


def test_figures_do_not_depend_on_words_and_wrapping() -> None:
    first = (
        "Overhead-bound: 2.79 us of a 51 us step (5%).\n\nIt rests on:\n  - It is\n    1,200 us.\n\nT  step  51.0 us"
    )
    other = "The 51.0 us step is overhead-bound: 2.79 us work, 5 %.\n\nEvidence\n  - 1200 us.\n\nT  time  51 us  #"
    assert figures(first) == "2.79us 5% 51us overhead-bound\n\n- 1200us\n\n51us\n"
    assert figures(other) == figures(first)


# ---- JSON ------------------------------------------------------------------------------------------------------------


def shape(value: Any) -> str:
    """One line per field: path and type. List elements are merged; differing types are joined by a bar."""
    types: dict[str, set[str]] = {}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict):
            types.setdefault(path or ".", set()).add("object")
            for name, inner in value.items():
                walk(f"{path}.{name}" if path else name, inner)
        elif isinstance(value, list):
            types.setdefault(path or ".", set()).add("list")
            for inner in value:
                walk(f"{path}[]", inner)
        else:
            name = {str: "text", bool: "bool", int: "int", float: "float", type(None): "null"}[type(value)]
            types.setdefault(path, set()).add(name)

    walk("", value)
    return "".join(f"{path}: {'|'.join(sorted(names))}\n" for path, names in types.items())


def _json(made: Made, name: str) -> Any:
    if name.startswith("json/"):
        assert made.shown[name].code in (0, 3)
        return json.loads(made.shown[name].out)
    return json.loads((made.folder / name).read_text())


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("record_of_trace", "json/analyze"),
        ("record_of_run", "kept/record.json"),
        ("record_of_training", "trained/record.json"),
        ("record_on_cpu", "on_cpu/record.json"),
        ("ranks", "json/analyze_ranks"),
        ("compare", "json/compare"),
        ("gate", "json/gate"),
        ("sweep", "swept/sweep.json"),
        ("sweep_group", "swept/group.json"),
        ("variants", "varied/variants.json"),
    ],
)
def test_shapes(made: Made, name: str, source: str) -> None:
    value = _json(made, source)
    assert set(re.findall(r'"schema_version": (\d+)', json.dumps(value))) <= {"1", str(SCHEMA_VERSION)}
    golden(f"shapes/{name}.txt", shape(value))


@pytest.mark.parametrize(
    ("name", "source"),
    [("mlp_train", "json/analyze"), ("matmul_add_run", "kept/record.json"), ("on_cpu", "on_cpu/record.json")],
)
def test_figures_of_records(made: Made, name: str, source: str) -> None:
    record = _json(made, source)
    verdict = dict(record["verdict"])
    for words in ("summary", "advice", "reasons"):
        del verdict[words]
    verdict["evidence"] = [{k: each[k] for k in ("name", "value", "unit")} for each in verdict["evidence"]]
    kept = {name: record[name] for name in ("window", "totals", "times", "rates", "idle", "split", "launch")}
    kept |= {"fingerprint": (record["run"] or {}).get("fingerprint")}
    kept |= {"per_step": record["per_step"], "kernels": record["kernels"][:5], "ops": record["ops"][:5]}
    kept |= {"quality": [{k: flag[k] for k in ("code", "count")} for flag in record["quality"]], "verdict": verdict}
    golden(f"figures/{name}.json", json.dumps(_rounded(kept), indent=1) + "\n")


def _rounded(value: Any) -> Any:
    """Floats to nine significant digits."""
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


# ---- records of each schema version ----------------------------------------------------------------------------------


def test_records_written_today_have_the_shape_of_their_version(made: Made) -> None:
    """If the shape changes, raise the schema version; the new record gets its own golden next to the old ones."""
    record = _json(made, "kept/record.json")
    path = GOLDENS / "records" / f"record-{record['schema_version']}.json"
    if REGENERATE == "all" and not path.exists():
        path.parent.mkdir(exist_ok=True)
        shutil.copyfile(made.folder / "kept" / "record.json", path)
    assert shape(record) == shape(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_a_record_of_every_version_loads(version: int) -> None:
    """`run` above wrote today's, so its report shows today's figures; an older one may lack some of them."""
    path = GOLDENS / "records" / f"record-{version}.json"
    report = shown("report", str(path), "--format", "text")
    assert report.code == 0, report.err
    if version == SCHEMA_VERSION:
        assert figures(f"$ exit 0\n{report.out}") == (GOLDENS / "figures" / "report.txt").read_text(encoding="utf-8")


def test_a_record_of_a_newer_version_is_rejected_in_one_sentence(made: Made) -> None:
    code, out, err = made.shown["newer_record"]
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert re.fullmatch(rf"proftrack: newer\.json: .*\b99\b.*\b{SCHEMA_VERSION}\b.*\bupgrade\b.*\n", err)


# ---- MLflow ----------------------------------------------------------------------------------------------------------


class Logged(NamedTuple):
    """The runs of a store, by kind: `kept`, `sweep`, `sweep n=64`, ..."""

    client: Any
    ids: dict[str, str]


@pytest.fixture(scope="module")
def logged(made: Made) -> Iterator[Logged]:
    """Every folder synced into one store, plus one run logged directly."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(made.folder)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", made.store)
        ids = {name: _synced(name)[-1] for name in ("kept", "latency", "trained", "on_cpu")}
        for name in ("swept", "varied"):
            _synced(name)
        made.shown["history"] = shown("history", "matmul_add", "--dirty", "--format", "text")
        made.shown["json/history"] = shown("history", "matmul_add", "--dirty", "--format", "json")
        captures.replace_capture(monkeypatch, SMALL)
        measured = shown("run", "matmul_add.yaml")
        ids["logged"] = re.findall(r"^Run +([0-9a-f]{32})$", measured.out, re.MULTILINE)[0]

        from mlflow import MlflowClient

        client = MlflowClient(made.store)
        [experiment] = client.search_experiments(filter_string="name = 'matmul_add'")
        for run in client.search_runs([experiment.experiment_id]):
            ids.setdefault(_part(client, run) or run.info.run_id, run.info.run_id)
        yield Logged(client, ids)


def _synced(folder: str) -> list[str]:
    """Ids of the runs that `sync` logged a folder as."""
    done = shown("sync", folder)
    assert done.code == 0, done.err
    return re.findall(r"as run ([0-9a-f]{32})", done.out)


def _part(client: Any, run: Any) -> str | None:
    """`sweep` for a parent, `sweep n=64` for its child, None for any other run."""
    tags = run.data.tags
    if "mlflow.parentRunId" not in tags:
        return tags.get("proftrack.kind")
    params = run.data.params
    part = params.get("variant") or f"n={params['n']}"
    return f"{client.get_run(tags['mlflow.parentRunId']).data.tags['proftrack.kind']} {part}"


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("run_synced", "kept"),
        ("run_logged", "logged"),
        ("run_training", "trained"),
        ("run_on_cpu", "on_cpu"),
        ("sweep_parent", "sweep"),
        ("sweep_child", "sweep n=64"),
        ("variants_parent", "variants"),
        ("variants_child", "variants cuda-graph"),
    ],
)
def test_names_in_mlflow(logged: Logged, name: str, which: str) -> None:
    golden(f"names/{name}.txt", "".join(f"{line}\n" for line in _names(logged.client, logged.ids[which])))


def _names(client: Any, run_id: str) -> Iterator[str]:
    run = client.get_run(run_id)
    experiment = client.get_experiment(run.info.experiment_id)
    yield f"experiment {experiment.name}"
    yield from (f"experiment tag {name}" for name in sorted(experiment.tags))
    yield f"status {run.info.status}"
    yield from (f"param {name}" for name in sorted(run.data.params))
    for name in sorted(run.data.metrics):
        steps = [str(each.step) for each in client.get_metric_history(run_id, name)]
        yield f"metric {name}" + (f" at steps {', '.join(steps)}" if steps != ["0"] else "")
    yield from (f"tag {name}" for name in sorted(run.data.tags))
    yield from (f"artifact {path}" for path in sorted(_artifacts(client, run_id)))


def _artifacts(client: Any, run_id: str, below: str | None = None) -> Iterator[str]:
    for each in client.list_artifacts(run_id, below):
        if each.is_dir:
            yield from _artifacts(client, run_id, each.path)
        else:
            yield each.path


def test_a_sweep_and_variants_have_all_their_children(logged: Logged) -> None:
    assert {name for name in logged.ids if " " in name} == {
        *(f"sweep n={n}" for n in (64, 512, 1536, 4096)),
        *("variants eager", "variants cuda-graph"),
    }


def test_history_text(made: Made, logged: Logged) -> None:
    text = text_of(made, "history")
    for run_id in logged.ids.values():
        text = text.replace(run_id, "f" * 32).replace(run_id[:8], "f" * 8)
    golden("texts/history.txt", text)
    golden("figures/history.txt", figures(text))
    golden("shapes/history.txt", shape(json.loads(made.shown["json/history"].out)))


@pytest.mark.parametrize(
    ("name", "which"),
    [("run", "kept"), ("training", "trained"), ("on_cpu", "on_cpu"), ("sweep", "sweep"), ("variants", "variants")],
)
def test_descriptions_in_mlflow(logged: Logged, name: str, which: str) -> None:
    text = logged.client.get_run(logged.ids[which]).data.tags["mlflow.note.content"] + "\n"
    golden(f"texts/note_of_{name}.txt", text)
    golden(f"figures/note_of_{name}.txt", figures(text))


# ---- other files and interfaces --------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["kept", "trained", "on_cpu"])
def test_sections_of_a_report(made: Made, folder: str) -> None:
    page = (made.folder / folder / "report.html").read_text(encoding="utf-8")
    golden(
        f"names/report_of_{folder}.txt", "".join(f"{name}\n" for name in re.findall(r'<section id="([\w-]+)"', page))
    )


def test_columns_of_tables(made: Made) -> None:
    """Tables of run folders, events.parquet, and the DataFrames of `proftrack.analyze`."""
    from pyarrow import parquet

    import proftrack

    tables = [made.folder / name for name in ("kept/tables/ops.json", "kept/tables/kernels.json")]
    tables += [made.folder / name for name in ("swept/tables/sweep.json", "varied/tables/variants.json")]
    columns = {each.name: json.loads(each.read_text(encoding="utf-8"))["columns"] for each in tables}
    schema = parquet.read_schema(made.folder / "kept" / "events.parquet")
    columns["events.parquet"] = [f"{field.name}: {field.type}" for field in schema]
    trace = proftrack.analyze(made.folder / "mlp_train.json.gz")
    columns |= {
        f"analyze().{name}": list(getattr(trace, name)) for name in ("ops", "kernels", "steps", "regions", "modules")
    }
    golden(
        "names/columns.txt", "".join(f"{table}\n" + "".join(f"    {c}\n" for c in columns[table]) for table in columns)
    )


def test_key_averages(made: Made) -> None:
    """The format is torch's own."""
    golden("figures/key_averages.txt", (made.folder / "trained" / "tables" / "key_averages.txt").read_text("utf-8"))


def test_commands_options_and_flags() -> None:
    commands = re.findall(r"^  ([a-z]+)  ", shown("--help").out.partition("Commands:")[2], re.MULTILINE)
    assert "analyze" in commands
    lines = []
    for command in commands:
        page = shown(command, "--help").out
        lines += [" ".join(page.splitlines()[0].split()[1:])]
        options = page.partition("\nOptions:\n")[2].partition("\n\n")[0]
        lines += [f"    {option}" for option in re.findall(r"^  (-.*?)(?:  |$)", options, re.MULTILINE)]
    flags = re.findall(r"^\w+$", shown("analyze", "--list-flags").out, re.MULTILINE)
    golden("names/options.txt", "\n".join([*lines, "flags", *(f"    {flag}" for flag in flags)]) + "\n")


# ---- timing.mode: latency --------------------------------------------------------------------------------------------
# In latency mode T is the synchronised step time: 120 us in this fixture. Back to back, a step takes 100 us. Both come
# from one record that the pipeline made; 100 us may appear only where it is labelled "back to back".

_STEP_100 = re.compile(r"(?<![\d.,])100(?:\.0+)? us")


def _page(made: Made, *, pictures: bool = False) -> str:
    """The text of the latency run's report, without markup."""
    page = (made.folder / "latency" / "report.html").read_text(encoding="utf-8")
    page = re.sub(rf"<(script|style{'' if pictures else '|svg'})\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def _without_back_to_back(text: str) -> str:
    """Text without the row that shows the other step time, named as such."""
    return re.sub(r"step, back to back +100 us", "", text)


def test_latency_is_what_the_record_judges(made: Made) -> None:
    record = _json(made, "latency/record.json")
    timing, verdict = record["timing"], record["verdict"]
    assert (timing["mode"], timing["step_time_us"], timing["step_latency_us"]) == ("latency", 100.0, 120.0)
    busy = record["times"]["gpu_busy_per_step_us"]
    assert verdict["gpu_busy_fraction"] == pytest.approx(busy / 120)
    assert record["rates"]["tflops"] == pytest.approx(2 * 64**3 / 120e-6 / 1e12)


@pytest.mark.parametrize("name", ["run_latency", "sweep_latency"])
def test_latency_in_the_terminal(made: Made, name: str) -> None:
    text = made.shown[name].out
    assert re.search(r"^(T  |64\b).*\b120 us\b", text, re.MULTILINE)
    assert not _STEP_100.search(_without_back_to_back(text))


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_latency_in_a_report_as_text(made: Made, form: str) -> None:
    text = shown("report", str(made.folder / "latency"), "--format", form).out
    assert "120 us" in text
    assert not _STEP_100.search(_without_back_to_back(text))


def test_latency_in_the_bars_of_a_report(made: Made) -> None:
    assert re.search(r"\bT step time[^0-9]*120 us", _page(made))


def test_latency_in_the_step_chart_of_a_report(made: Made) -> None:
    assert re.findall(r"\bT ([\d.]+ us)", _page(made, pictures=True)) == ["120 us"]


def test_a_report_shows_the_step_back_to_back_only_as_such(made: Made) -> None:
    """Pictures are left out: an axis may have a tick at 100 us."""
    text = _page(made)
    places = [match.start() for match in _STEP_100.finditer(text)]
    assert places
    assert all("back to back" in text[max(0, place - 80) : place] for place in places)


def test_latency_in_the_description_of_a_run(logged: Logged) -> None:
    text = logged.client.get_run(logged.ids["latency"]).data.tags["mlflow.note.content"]
    assert re.search(r"\bT\b[^|]*\| 120 us", text)
    assert not _STEP_100.search(text)


def test_latency_in_the_metrics_of_a_run(logged: Logged) -> None:
    """step_time_us and step_latency_us mean the same in both modes; figures derived from T use the mode's own."""
    metrics = logged.client.get_run(logged.ids["latency"]).data.metrics
    assert (metrics["step_time_us"], metrics["step_latency_us"]) == (100.0, 120.0)
    busy = metrics["gpu_busy_per_step_us"]
    assert metrics["gpu_idle_per_step_us"] == pytest.approx(120 - busy)
    assert metrics["gpu_busy_fraction"] == pytest.approx(busy / 120, rel=1e-5)
    assert metrics["profiler_overhead_ratio"] == pytest.approx(metrics["step_time_profiled_us"] / 120, rel=1e-5)


def test_latency_in_a_comparison(made: Made) -> None:
    """The two runs differ only in latency: 120 and 240 us."""
    text = made.shown["compare_latency"].out
    assert re.search(r"^T  .*\b120 us +240 us +\+100\.0 %", text, re.MULTILINE)
    assert not _STEP_100.search(text)
    gate = made.shown["gate_latency"]
    assert gate.code == 3
    assert re.search(r"step_time_us.*\b120 us \| 240 us", gate.out)
    assert not _STEP_100.search(gate.out)


def test_latency_of_the_two_sides_of_a_comparison(made: Made) -> None:
    sides = _json(made, "json/compare_latency")
    assert [sides[name]["step_time_us"] for name in ("baseline", "candidate")] == [120.0, 240.0]


# ---- history ---------------------------------------------------------------------------------------------------------


def test_a_long_history_says_what_its_picture_leaves_out() -> None:
    """All runs are searched for changes; only the picture is limited to the newest 1,000."""
    lines = [line for line in captures.long_history() if re.search(r"\b1,000\b", line)]
    assert lines
    assert not any(re.search(r"look|search", line) for line in lines)
