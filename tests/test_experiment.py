"""Experiment files: what is accepted, what is refused and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from proftrack import experiment
from proftrack.errors import UsageError

MINIMAL = "workload: w.py:build\n"
FULL = """\
name: demo
description: What it is for.
workload: w.py:build
params: {n: 64, lr: 0.5, dtype: bfloat16, fused: false, shape: [1, 2], extra: null, compile: none, seed: 0}
variant_params: [compile]
sweep: {n: [1, 2], lr: [1, 2.5]}
schedule: {skip_first: 1, wait: 2, warmup: 3, active: 4, repeat: 5}
profiler: {record_shapes: false, with_stack: true, profile_memory: true}
timing: {mode: latency, min_steps: 10, min_seconds: 1, max_seconds: 2.5}
device: cpu
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def _write(text: str | bytes, name: str = "demo.yaml") -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return _write


def test_every_key_is_read(write: Any) -> None:
    loaded = experiment.load(write(FULL))
    assert (loaded.name, loaded.description, loaded.workload, loaded.device) == (
        "demo",
        "What it is for.",
        "w.py:build",
        "cpu",
    )
    assert loaded.params == {
        "n": 64,
        "lr": 0.5,
        "dtype": "bfloat16",
        "fused": False,
        "shape": [1, 2],
        "extra": None,
        "compile": "none",
        "seed": 0,
    }
    assert loaded.variant_params == ["compile"]
    assert loaded.sweep == {"n": [1, 2], "lr": [1.0, 2.5]}
    assert type(loaded.sweep["lr"][0]) is float
    assert loaded.schedule == experiment.Schedule(skip_first=1, wait=2, warmup=3, active=4, repeat=5)
    assert loaded.schedule.total_steps == 1 + 5 * (2 + 3 + 4)
    assert loaded.profiler == experiment.ProfilerOptions(record_shapes=False, with_stack=True, profile_memory=True)
    assert loaded.timing == experiment.TimingOptions(mode="latency", min_steps=10, min_seconds=1.0, max_seconds=2.5)


def test_defaults_are_those_of_the_design(write: Any) -> None:
    loaded = experiment.load(write(MINIMAL, "short.yaml"))
    assert loaded.name == "short"
    assert loaded.schedule == experiment.Schedule(skip_first=0, wait=1, warmup=1, active=3, repeat=1)
    assert loaded.profiler == experiment.ProfilerOptions(record_shapes=True, with_stack=False, profile_memory=False)
    assert loaded.timing == experiment.TimingOptions(mode="throughput", min_steps=30, min_seconds=0.5, max_seconds=20)
    assert loaded.device == "auto"
    assert loaded.path.is_absolute()


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("n", "4096", 4096),
        ("params.n", " 4096 ", 4096),
        ("n", "010", 10),
        ("n", "-08", -8),
        ("n", "1_000", 1000),
        ("n", "0x10", 16),
        ("n", "0b11", 3),
        ("lr", "1", 1.0),
        ("lr", "08.5", 8.5),
        ("lr", "08", 8.0),
        ("lr", "1e-3", 0.001),
        ("dtype", "float32", "float32"),
        ("dtype", "123", "123"),
        ("fused", "yes", True),
        ("fused", "FALSE", False),
        ("shape", "3,4,5", [3, 4, 5]),
        ("shape", "[3, 4]", [3, 4]),
        ("shape", "010,2", [10, 2]),
        ("extra", "7", 7),
        ("extra", "[010]", [10]),
        ("extra", "1:30", "1:30"),
        ("extra", "1:30.5", "1:30.5"),
        ("extra", "1e-3", 0.001),
        ("extra", "word", "word"),
    ],
)
def test_an_override_takes_the_type_of_the_files_value(write: Any, key: str, text: str, value: Any) -> None:
    found = experiment.load(write(FULL), {key: text}).params[key.removeprefix("params.")]
    assert found == value
    assert type(found) is type(value)


def test_settings_are_overridden_bare_or_dotted(write: Any) -> None:
    loaded = experiment.load(
        write(FULL),
        {"active": "7", "schedule.wait": "0", "with-stack": "false", "timing.mode": "throughput", "max_seconds": "9"},
    )
    assert (loaded.schedule.active, loaded.schedule.wait, loaded.profiler.with_stack) == (7, 0, False)
    assert (loaded.timing.mode, loaded.timing.max_seconds) == ("throughput", 9.0)
    assert experiment.load(write(FULL), {"device": "cuda"}).device == "cuda"


def test_settings_are_held_against_each_other_when_all_are_known(write: Any) -> None:
    path = write(MINIMAL)
    loaded = experiment.load(path, {"min_seconds": "30", "max_seconds": "40"})
    assert (loaded.timing.min_seconds, loaded.timing.max_seconds) == (30.0, 40.0)
    check_refused(path, ["timing.max_seconds=20 is below timing.min_seconds=30"], {"min_seconds": "30"})
    # What is left of a budget may be less, and is nobody's mistake.
    assert msgspec.structs.replace(loaded.timing, max_seconds=0.0).max_seconds == 0


def test_numbers_of_another_library_are_pythons_own() -> None:
    numpy = pytest.importorskip("numpy")
    described = experiment.described({"workload": "w.py:loop", "params": {"lr": numpy.float64(0.5)}}, Path("w.py"))
    assert type(described.params["lr"]) is float


def test_a_refusal_keeps_the_remedy_apart(write: Any) -> None:
    with pytest.raises(UsageError) as caught:
        experiment.load(write(MINIMAL), {"repeat": "0"})
    assert caught.value.problem.endswith("demo.yaml: schedule.repeat=0 is not allowed")
    assert caught.value.remedy == "it must be a whole number, 1 or more (0 would never end)"


def test_a_parameter_goes_before_a_setting_of_the_same_name(write: Any) -> None:
    reference = write(MINIMAL + "params: {active: 100}\n")
    loaded = experiment.load(reference, {"active": "5", "schedule.active": "2"})
    assert loaded.params["active"] == 5
    assert loaded.schedule.active == 2


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"n": "abc"}, ["n=abc", "whole number", "64"]),
        ({"n": "1.5"}, ["n=1.5", "whole number"]),
        ({"n": "1:30"}, ["n=1:30", "whole number"]),
        ({"lr": "1:30.5"}, ["lr=1:30.5", "finite number"]),
        ({"active": "1:30"}, ["schedule.active=1:30", "whole number"]),
        ({"n": "99999999999999999999"}, ["n=99999999999999999999", "64 bits"]),
        ({"lr": "nan"}, ["lr=nan", "finite"]),
        ({"fused": "maybe"}, ["fused=maybe", "true or false"]),
        ({"shape": "1,x"}, ["shape=1,x", "list"]),
        ({"active": "0"}, ["schedule.active=0", "1 or more"]),
        ({"active": "three"}, ["schedule.active=three", "whole number"]),
        ({"schedule.wait": "-1"}, ["schedule.wait=-1", "0 or more"]),
        ({"repeat": "0"}, ["schedule.repeat=0", "1 or more", "never end"]),
        ({"mode": "latancy"}, ["timing.mode=latancy", "throughput, latency", "did you mean latency?"]),
        ({"min_steps": "1"}, ["timing.min_steps=1", "3 or more"]),
        ({"max_seconds": "0.1"}, ["timing.max_seconds=0.1", "timing.min_seconds=1"]),
        ({"with_stack": "2"}, ["profiler.with_stack=2", "true or false"]),
        ({"device": "gpu"}, ["device=gpu", "auto, cuda, cpu"]),
        ({"dtyp": "float32"}, ["dtyp=float32", "n, lr, dtype", "did you mean dtype?"]),
        ({"activ": "1"}, ["activ=1", "did you mean active?"]),
        ({"zzz": "1"}, ["zzz=1", "parameters: n, lr", "settings: skip_first"]),
    ],
)
def test_refused_overrides_name_key_value_and_what_is_allowed(
    write: Any, overrides: dict[str, str], words: list[str]
) -> None:
    check_refused(write(FULL), words, overrides)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["empty", "workload"]),
        ("- a\n- b\n", ["holds a list"]),
        ("just words\n", ["holds a str"]),
        ("name: x\n", ["workload is missing"]),
        ("workload: w.py\n", ["workload=w.py", "file.py:callable"]),
        ("workload: 3\n", ["workload=3", "must be file.py:callable"]),
        (MINIMAL + "naem: x\n", ["unknown key naem", "did you mean name?"]),
        (MINIMAL + "schedule: {actve: 3}\n", ["unknown key actve in schedule", "did you mean active?"]),
        (MINIMAL + "schedule: {active: 3.0}\n", ["schedule.active=3.0", "whole number"]),
        (MINIMAL + "schedule: {active: true}\n", ["schedule.active=True", "whole number"]),
        (MINIMAL + "schedule: {wait: -1}\n", ["schedule.wait=-1"]),
        (MINIMAL + "schedule: [1]\n", ["schedule=[1]", "keys with values"]),
        (MINIMAL + "profiler: {with_stack: 1}\n", ["profiler.with_stack=1", "true or false"]),
        (MINIMAL + "timing: {max_seconds: .inf}\n", ["timing.max_seconds=inf"]),
        (MINIMAL + "params: [n]\n", ["params=['n']"]),
        (MINIMAL + "params: {a-b: 1}\n", ["a-b", "Python name"]),
        (MINIMAL + "params: {off: 1}\n", ["False", "quote it"]),
        (MINIMAL + "params: {device: cpu}\n", ["params.device", "top-level key"]),
        (MINIMAL + "params: {n: {a: 1}}\n", ["params.n", "list of these"]),
        (MINIMAL + "params: {when: 2024-01-01}\n", ["params.when"]),
        (MINIMAL + "params: {n: 1}\nvariant_params: [m]\n", ["variant_params", "unknown", "m", "allowed: n"]),
        (MINIMAL + "variant_params: n\n", ["variant_params=n", "a list"]),
        (MINIMAL + "params: {n: 1}\nsweep: {n: 3}\n", ["sweep.n=3", "a list"]),
        (MINIMAL + "params: {n: 1}\nsweep: {n: [a]}\n", ["sweep.n=a", "whole number"]),
        (MINIMAL + "params: {n: 1}\nsweep: {m: [1]}\n", ["sweep", "m", "allowed: n"]),
        (MINIMAL + "params: {k: a}\nchoices: {k: a}\n", ["choices.k=a", "a list"]),
        (MINIMAL + "params: {k: a}\nchoices: {k: [1]}\n", ["choices.k=1", "text, like params.k"]),
        (MINIMAL + "params: {k: a}\nchoices: {m: [a]}\n", ["choices", "m", "allowed: k"]),
        (MINIMAL + "params: {k: c}\nchoices: {k: [a, b]}\n", ["k=c is not allowed; it must be one of a, b"]),
        (MINIMAL + "params: {k: a}\nchoices: {k: [a]}\nsweep: {k: [a, b]}\n", ["k=b is not allowed"]),
        (MINIMAL + "params: {k: a}\nchoices: {k: [a]}\nvariants: {v: {k: b}}\n", ["k=b is not allowed"]),
        (MINIMAL + 'name: "two\\nlines"\n', ["name=", "printable line"]),
        (MINIMAL + "device: tpu\n", ["device=tpu", "auto, cuda, cpu"]),
        (MINIMAL + "name: a\nname: b\n", [":3", "'name' is given twice"]),
        (MINIMAL + "params: {n: 1, n: 2}\n", [":2", "'n' is given twice"]),
        (MINIMAL + "params: {n: [1}\n", [":2", "not valid YAML"]),
        (MINIMAL + "x: !!python/object/apply:os.system ['true']\n", [":2", "not valid YAML"]),
        (b"workload: w.py:build\nname: \xff\n", ["not UTF-8", "byte 27"]),
    ],
)
def test_refused_files_get_one_sentence(write: Any, text: str | bytes, words: list[str]) -> None:
    check_refused(write(text), ["demo.yaml", *words])


def check_refused(reference: str, words: list[str], overrides: dict[str, str] | None = None) -> None:
    with pytest.raises(UsageError) as caught:
        experiment.load(reference, overrides or {})
    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == [], message


def test_numbers_with_an_exponent_are_numbers(write: Any) -> None:
    assert experiment.load(write(MINIMAL + "params: {lr: 1e-3, big: 2E4}\n")).params == {"lr": 0.001, "big": 20000.0}


def test_bare_names_are_found_here_first_and_then_in_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project = experiment.load("matmul_add")
    assert project.path.parent.name == "experiments"
    assert project.params == {"n": 64, "dtype": "auto", "compile": "none", "seed": 0}
    (tmp_path / "experiments").mkdir()
    own = tmp_path / "experiments" / "matmul_add.yaml"
    own.write_text(MINIMAL)
    assert experiment.load("matmul_add").path == own
    assert experiment.load("matmul_add.yaml").path == own
    assert experiment.load("experiments/matmul_add").path == own
    assert experiment.load(str(own)).path == own


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("matmul_ad", ["'matmul_ad'", "known: ", "did you mean matmul_add?"]),
        ("no/such.yaml", ["no/such.yaml: no such file"]),
        ("  ", ["empty"]),
        ("program.py", ["program.py", "not a YAML file"]),
    ],
)
def test_a_missing_experiment_says_which_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text("")
    check_refused(reference, words)


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        ("{n: 4096, dtype: bfloat16, compile: none, seed: 0}", "demo n=4096 bfloat16 eager"),
        ("{n: 64, compile: reduce-overhead}", "demo n=64 reduce-overhead"),
        ("{compile: default, fused: true, shape: [1, 2], lr: 0.5}", "demo compile=default fused=true shape=1,2 lr=0.5"),
        ("{mode: none}", "demo mode=none"),
        ("{}", "demo"),
    ],
)
def test_display_name(write: Any, params: str, shown: str) -> None:
    assert experiment.load(write(f"{MINIMAL}name: demo\nparams: {params}\n")).display_name == shown


def test_display_name_has_an_end(write: Any) -> None:
    assert len(experiment.load(write(FULL), {"dtype": "x" * 1000}).display_name) == 200


def test_fingerprint_leaves_out_what_may_differ(write: Any) -> None:
    def of(device: str = "H200", **overrides: str) -> str:
        return experiment.fingerprint(experiment.load(write(FULL), overrides), device)[0]

    same = of()
    assert len(same) == 12
    assert of(compile="default") == same
    assert of(max_seconds="9") == same
    assert len({same, of(n="65"), of(active="9"), of(with_stack="false"), of(mode="throughput"), of("H100")}) == 6


def test_threads_belong_to_the_fingerprint_where_they_are_given(write: Any) -> None:
    """They are given for a CPU alone."""
    one, two, none = (experiment.fingerprint(experiment.load(write(FULL)), "CPU", cpu_threads=n) for n in (1, 2, None))
    assert len({one[0], two[0], none[0]}) == 3
    assert (one[1]["threads"], two[1]["threads"], "threads" in none[1]) == (1, 2, False)


def test_fingerprint_keys_are_flat_and_named(write: Any) -> None:
    _, keys = experiment.fingerprint(experiment.load(write(FULL)), "H200")
    assert keys["params.n"] == 64
    assert keys["schedule.active"] == 4
    assert keys["profiler.with_stack"] is True
    assert keys["timing.mode"] == "latency"
    assert keys["device"] == "H200"
    assert "params.compile" not in keys


def test_a_parameter_with_choices_takes_one_of_them(write: Any) -> None:
    path = write(MINIMAL + "params: {k: fast, n: 1}\nchoices: {k: [fast, slow], n: [1, 2]}\n")
    assert experiment.load(path, {"k": "slow"}).params["k"] == "slow"
    assert experiment.load(path).choices == {"k": ["fast", "slow"], "n": [1, 2]}
    check_refused(path, ["k=slwo is not allowed; it must be one of fast, slow; did you mean slow?"], {"k": "slwo"})
    check_refused(path, ["n=3 is not allowed; it must be one of 1, 2"], {"n": "3"})


def test_a_parameter_in_the_wrong_case_is_told_the_right_one(write: Any) -> None:
    path = write(MINIMAL + "params: {n: 1}\n")
    check_refused(path, ["unknown parameter N=2", "did you mean n?"], {"N": "2"})


def test_the_choices_of_our_experiments_are_what_their_workloads_take() -> None:
    """`auto` is resolved before the workload sees it."""
    import ast

    shared = ast.parse((Path(__file__).parents[1] / "experiments" / "shared.py").read_text())
    texts = {node.value for node in ast.walk(shared) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for name in ("ddp", "linear", "llm", "matmul_add", "mlp"):
        choices = experiment.load(name).choices
        for key in {"dtype", "compile"} & choices.keys():
            assert set(choices[key]) - {"auto"} <= texts
        assert "auto" in choices["dtype"]
