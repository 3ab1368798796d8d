"""Workloads: how they are found, what they may be, and how their failures are told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from proftrack import experiment
from proftrack.errors import ProftrackError, UsageError, WorkloadError
from proftrack.experiment import workload

DEVICE = "the device"  # build gets what it is given: no torch is needed here


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def _load(code: str, name: str = "build", params: str = "{}", file: str = "w.py", folder: str = "a") -> Any:
        home = tmp_path / folder
        home.mkdir(exist_ok=True)
        (home / file).write_text(code)
        yaml = home / "e.yaml"
        yaml.write_text(f"workload: {file}:{name}\nparams: {params}\n")
        return workload.load(experiment.load(str(yaml)))

    return _load


def run(build: Any, **params: Any) -> Any:
    with workload.open_step(build, DEVICE, params) as step:
        return step()


@pytest.mark.parametrize(
    "code",
    [
        "def build(device, n):\n    return lambda: (device, n)\n",
        "build = lambda **given: lambda: (given['device'], given['n'])\n",
        "class build:\n    def __init__(self, device, n): self.given = device, n\n"
        "    def __call__(self): return self.given\n",
        "import contextlib\n@contextlib.contextmanager\ndef build(device, n):\n    yield lambda: (device, n)\n",
        "class Manager:\n    def __init__(self, *given): self.given = given\n    def __exit__(self, *error): pass\n"
        "    def __enter__(self): return lambda: self.given\n"
        "def build(*, device, n, more=0):\n    return Manager(device, n)\n",
    ],
    ids=["function", "keywords", "class", "contextmanager", "manager-object"],
)
def test_every_form_of_a_workload_gives_its_step(load: Any, code: str) -> None:
    assert run(load(code, params="{n: 3}"), n=3) == (DEVICE, 3)


def test_a_plain_callable_can_be_opened(load: Any) -> None:
    assert run(lambda device: lambda: device) == DEVICE


def test_a_step_may_say_how_many_tokens_it_handles() -> None:
    def step() -> None:
        pass

    assert workload.tokens_of(step) is None
    step.tokens_per_step = 4 * 512  # type: ignore[attr-defined]
    assert workload.tokens_of(step) == 2048


@pytest.mark.parametrize("tokens", [0, -1, float("nan"), float("inf"), True, "many", [1]])
def test_tokens_are_a_number_above_zero(tokens: Any) -> None:
    def step() -> None:
        pass

    step.tokens_per_step = tokens  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"tokens_per_step=.* is not allowed; it must be a number above 0"):
        workload.tokens_of(step)


def test_a_module_path_is_a_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "somepackage"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text("def make(device): return lambda: 'made'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yaml = tmp_path / "e.yaml"
    yaml.write_text("workload: somepackage.model:make\n")
    assert run(workload.load(experiment.load(str(yaml)))) == "made"
    yaml.write_text("workload: somepackage.modle:make\n")
    with pytest.raises(UsageError, match=r"there is no module somepackage\.modle; install it"):
        workload.load(experiment.load(str(yaml)))


def test_neighbours_are_importable_while_loading_building_and_running(load: Any, tmp_path: Path) -> None:
    for folder, answer in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "neighbour_x.py").write_text(f"ANSWER = {answer}\n")
        (tmp_path / folder / "neighbour_y.py").write_text(f"ANSWER = {answer * 10}\n")
    code = (
        "import neighbour_x\n"
        "def build(device):\n"
        "    import neighbour_y\n"
        "    def step():\n"
        "        import neighbour_y as late\n"
        "        return neighbour_x.ANSWER, neighbour_y.ANSWER, late.ANSWER\n"
        "    return step\n"
    )
    before = list(sys.path)
    assert run(load(code, folder="a")) == (1, 10, 10)
    assert run(load(code, folder="b")) == (2, 20, 20)
    assert sys.path == before


def test_a_file_hides_no_module_of_its_name(load: Any) -> None:
    import json

    build = load("def build(device): return lambda: __name__\n", file="json.py")
    assert run(build).startswith("proftrack_workload_json_")
    assert sys.modules["json"] is json


def test_a_class_of_the_workload_can_be_looked_up_by_its_module(load: Any) -> None:
    code = "import pickle\nclass Thing: pass\ndef build(device): return lambda: pickle.loads(pickle.dumps(Thing()))\n"
    assert type(run(load(code))).__name__ == "Thing"


def test_a_file_that_changed_is_read_again(load: Any) -> None:
    assert run(load("def build(device): return lambda: 1\n")) == 1
    assert run(load("def build(device): return lambda: 'two'\n")) == "two"


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "params", "kind", "words"),
    [
        ("def biuld(device): ...", "{}", UsageError, ["no callable build", "available: biuld", "did you mean biuld?"]),
        ("build = 3", "{}", UsageError, ["build is not a callable", "available: none"]),
        ("def build(device, n): ...", "{m: 1}", UsageError, ["w.py:build", "no parameter m", "takes device, n"]),
        ("def build(device, n, k): ...", "{n: 1}", UsageError, ["needs a parameter k", "params"]),
        ("def build(n): ...", "{n: 1}", UsageError, ["no parameter device"]),
        ("import nosuch_", "{}", WorkloadError, ["importing ", "w.py raised ModuleNotFoundError", "nosuch_"]),
        ("def build(:\n", "{}", WorkloadError, ["SyntaxError", "w.py, line 1"]),
        ("1 / 0", "{}", WorkloadError, ["ZeroDivisionError: division by zero"]),
        ("import sys; sys.exit()", "{}", WorkloadError, ["importing ", "w.py ended the process with sys.exit()"]),
    ],
)
def test_refused_when_loaded(load: Any, code: str, params: str, kind: type[ProftrackError], words: list[str]) -> None:
    before = set(sys.modules)
    with pytest.raises(kind) as caught:
        load(code, params=params)
    check_words(str(caught.value), words)
    if kind is WorkloadError:
        assert not any(module.startswith("proftrack_workload") for module in set(sys.modules) - before)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    yaml = tmp_path / "e.yaml"
    yaml.write_text("workload: trian.py:build\n")
    with pytest.raises(UsageError) as caught:
        workload.load(experiment.load(str(yaml)))
    check_words(str(caught.value), ["workload=trian.py:build", "there is no file", "did you mean train.py?"])


def check_words(message: str, words: list[str]) -> None:
    assert "\n" not in message
    assert [word for word in words if word not in message] == [], message


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("raise ValueError(f'n must be 1 or more, not {n}')", UsageError, ["w.py:build: n must be 1 or more, not -3"]),
        ("raise ValueError('n is too small')", UsageError, ["w.py:build rejects n=-3: n is too small"]),
        ("raise ValueError('-30 is no size for n')", UsageError, ["rejects n=-3: -30 is"]),
        ("raise ValueError('no')", UsageError, ["rejects n=-3, dtype=b: no"]),
        ("raise TypeError('bad\\nworse')", WorkloadError, ["w.py: build(n=-3, dtype='b') raised TypeError: bad"]),
        ("raise RuntimeError", WorkloadError, ["raised RuntimeError: (no message)"]),
        ("import sys; sys.exit(0)", WorkloadError, ["sys.exit()"]),
        ("return None", WorkloadError, ["w.py:build returns a NoneType", "callable that runs one step"]),
        ("yield", WorkloadError, ["w.py:build yields", "contextmanager"]),
        ("import asyncio; return asyncio.sleep(0)", WorkloadError, ["returns a coroutine"]),
    ],
)
def test_failures_of_build(load: Any, code: str, kind: type[ProftrackError], words: list[str]) -> None:
    build = load(f"def build(device, n, dtype):\n    {code}\n", params="{n: -3, dtype: b}")
    with pytest.raises(kind) as caught:
        run(build, n=-3, dtype="b")
    check_words(str(caught.value), words)
    assert type(caught.value) is kind


def test_a_value_can_be_refused_in_a_context_manager(load: Any) -> None:
    code = "import contextlib\n@contextlib.contextmanager\ndef build(device, n):\n    raise ValueError('n: no')\n"
    code += "    yield\n"
    with pytest.raises(UsageError, match="n=1"):
        run(load(code, params="{n: 1}"), n=1)


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(143)])
def test_interrupts_pass(stop: BaseException) -> None:
    def build(device: Any) -> Any:
        raise stop

    with pytest.raises(type(stop)):
        run(build)


# ---- closing -------------------------------------------------------------------------------------------------------

CLOSING = """\
import contextlib
events = []
@contextlib.contextmanager
def build(device, mood):
    try:
        yield events.append
    except BaseException as error:
        events.append(type(error).__name__)
        if mood == "swallow":
            return
        raise OSError("in closing") if mood == "worse" else error
    finally:
        events.append("closed")
    if mood == "late":
        raise OSError("in closing")
"""


@pytest.mark.parametrize("mood", ["honest", "swallow", "worse"])
def test_the_workload_is_closed_and_the_first_error_is_the_one_told(load: Any, mood: str) -> None:
    build = load(CLOSING, params="{mood: text}")
    with pytest.raises(WorkloadError, match="the step"), workload.open_step(build, DEVICE, {"mood": mood}):
        raise WorkloadError("the step")
    assert sys.modules[build.build.__module__].events == ["WorkloadError", "closed"]


def test_an_error_in_closing_is_told(load: Any) -> None:
    with (
        pytest.raises(WorkloadError, match=r"w\.py:build: closing the workload raised OSError: in closing"),
        workload.open_step(load(CLOSING, params="{mood: text}"), DEVICE, {"mood": "late"}),
    ):
        pass


# ---- the workload that comes with the project ----------------------------------------------------------------------


def test_matmul_add_computes_what_it_says() -> None:
    torch = pytest.importorskip("torch")
    loaded = experiment.load("matmul_add", {"n": "3", "dtype": "float64", "seed": "7"})
    with workload.open_step(workload.load(loaded), torch.device("cpu"), loaded.params) as step:
        first, second = step(), step()
        assert not torch.is_grad_enabled()
    generator = torch.Generator().manual_seed(7)
    x, w, b = (torch.randn(3, 3, generator=generator, dtype=torch.float64) for _ in range(3))
    by_hand = [[sum(x[i, k] * w[k, j] for k in range(3)) + b[i, j] for j in range(3)] for i in range(3)]
    torch.testing.assert_close(first, torch.tensor(by_hand, dtype=torch.float64))
    torch.testing.assert_close(first, second)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("n", "-3", ["n=-3", "1 or more"]),
        ("n", "0", ["n=0"]),
        ("seed", "-1", ["seed=-1"]),
        ("dtype", "bfloat17", ["dtype=bfloat17", "did you mean bfloat16?", "float32"]),
        ("compile", "foo", ["compile=foo", "none, default, reduce-overhead, max-autotune"]),
        ("compile", "max-autotun", ["did you mean max-autotune?"]),
    ],
)
def test_matmul_add_refuses(key: str, value: str, words: list[str]) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError) as caught:
        loaded = experiment.load("matmul_add", {key: value})
        with workload.open_step(workload.load(loaded), torch.device("cpu"), loaded.params):
            pass
    check_words(str(caught.value), words)
