"""What somebody types who has not read the manual: one sentence at once, with what was meant. The texts are exact."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from calls import show

from proftrack import rundir

ROOT = Path(__file__).parents[1]
MATMUL_ADD = ROOT / "experiments" / "matmul_add.yaml"
KNOWN = "known: data_pipeline, ddp, linear, llm, matmul_add, mlp"
FORMS = "name an MLflow run id, a run folder, a record.json or a trace (.json, .json.gz)"

TRIES: list[tuple[str, int, str]] = [
    (
        "run matmul_add --parm n=256",
        2,
        "--parm: neither an option nor a parameter; did you mean --param n=256?",
    ),
    ("run matmul_add --no-mlfow", 2, "--no-mlfow has no value; write --no-mlfow VALUE, or --no-mlfow=VALUE for a value "
     "that starts with --; did you mean --no-mlflow?"),
    ("run --no-mlfow matmul_add", 2, "--no-mlfow: neither an option nor a parameter; did you mean --no-mlflow?"),
    ("run matmul_add N=256", 2, "N=256: a parameter needs -P before it; did you mean -P n=256?"),
    ("run n=256", 2, "n=256: a parameter needs -P before it; did you mean -P n=256?"),
    ("sweep matmul_add N=64,512", 2, "N=64,512: a parameter needs -P before it; did you mean -P n=64,512?"),
    ("variants mlp Width=32", 2, "Width=32: a parameter needs -P before it; did you mean -P width=32?"),
    (
        "run matmul_add -P dtype=float99",
        2,
        f"{MATMUL_ADD}: dtype=float99 is not allowed; it must be one of auto, bfloat16, float16, float32, float64; did "
        "you mean float64?",
    ),
    (
        "sweep matmul_add -P dtype=float32,bf16",
        2,
        f"{MATMUL_ADD}: dtype=bf16 is not allowed; it must be one of auto, bfloat16, float16, float32, float64; did "
        "you mean bfloat16?",
    ),
    ("run -P n", 2, "-P n: not a parameter; write it as -P name=value"),
    ("run matmul_add 256", 2, "got unexpected extra argument (256); see proftrack run --help"),
    ("run matmul_ad", 2, f"no experiment 'matmul_ad' under experiments/; {KNOWN}; did you mean matmul_add?"),
    ("run nosuch.yaml", 2, f"nosuch.yaml: no such file, here or under experiments/; {KNOWN}"),
    ("run nosuch.py", 2, "nosuch.py: no such file"),
    ("run trace.json", 2, "trace.json: not a YAML file; to analyze a trace, run proftrack analyze trace.json"),
    ("run mine", 2, "mine: a folder, not an experiment; name a YAML file, such as mine/model.yaml"),
    ("matmul_add", 2, "matmul_add: an experiment, not a command; did you mean proftrack run matmul_add?"),
    ("train.py", 2, "train.py: an experiment, not a command; did you mean proftrack run train.py?"),
    ("trace.json", 2, "trace.json: a trace, not a command; did you mean proftrack analyze trace.json?"),
    ("runn", 2, "runn: no such command; did you mean run?"),
    ("frobnicate", 2, "frobnicate: no such command; see proftrack --help"),
    ("analyze", 2, "TRACE... is missing; write proftrack analyze TRACE... (see proftrack analyze --help)"),
    ("analyze nosuch", 1, "nosuch: no such file"),
    ("analyze trase.json", 1, "trase.json: no such file; did you mean trace.json?"),
    ("analyze mine", 2, "mine: no .json or .json.gz file in this folder; name a trace or its folder"),
    ("analyze trace.json --jsn x", 2, "--jsn: proftrack analyze has no such option; did you mean --json?"),
    ("report nosuch", 2, f"nosuch: no such file, and not a run id; {FORMS}"),
    ("report mine", 2, f"mine: not a run folder (no record.json in it); {FORMS}"),
    ("open nosuch", 2, f"nosuch: no such file, and not a run id; {FORMS}"),
    ("compare", 2, "[BASELINE] CANDIDATE is missing; write proftrack compare [BASELINE] CANDIDATE (see proftrack "
     "compare --help)"),
    ("compare nosuch", 1, "nosuch: not a file, not a run id, and not a git ref of the repository in {here}"),
    ("compare trace.json.gz", 2, "trace.json.gz: a bare trace has no baseline in the store; name one before it: "
     "BASELINE trace.json.gz"),
    ("compare trase.json trace.json.gz", 1, "trase.json: no such file; did you mean trace.json?"),
]  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a trace, a folder of one's own and a script; neither torch nor mlflow can be imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.yaml").write_text("workload: model.py:build\n")
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    shutil.copyfile(ROOT / "tests" / "data" / "matmul_add_64.json.gz", tmp_path / "trace.json.gz")
    for name in ("torch", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
    return tmp_path


@pytest.mark.parametrize(("words", "code", "sentence"), TRIES, ids=[words for words, _, _ in TRIES])
def test_a_try_is_answered_with_what_was_meant(
    here: Path, capsys: pytest.CaptureFixture[str], words: str, code: int, sentence: str
) -> None:
    assert show(capsys, *words.split()) == (code, "", f"proftrack: {sentence.format(here=here)}\n")
    assert not rundir.spool_root().exists()


def test_a_script_without_steps_says_what_a_step_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(sum(range(4)))\n")
    assert show(capsys, "run", "--no-mlflow", "--device", "cpu", "train.py") == (
        1,
        "6\n",
        "proftrack: train: no step was seen, so nothing was recorded: steps are those of the program's optimizers, "
        "or the calls of --step MODULE:FUNCTION; name such a function, or mark the steps with proftrack.profile in the "
        "program\n",
    )
