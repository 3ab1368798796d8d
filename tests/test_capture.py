"""Capture: the arithmetic of timing with a clock that is moved by hand, and real captures on the CPU."""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from team import missing

from proftrack import experiment
from proftrack.capture import profiling, timing, trace_file
from proftrack.capture.device import CpuDevice
from proftrack.errors import CaptureError, ProftrackError, UsageError, WorkloadError
from proftrack.experiment import Schedule, TimingOptions
from proftrack.report.progress import Bars, Lines, Silent

QUICK = "timing: {min_steps: 5, min_seconds: 0.02, max_seconds: 5}\n"

# ---- timing with a clock of our own --------------------------------------------------------------------------------


class Simulated:
    """A GPU and its host in nanoseconds: a step takes `host` to launch and `gpu` to run, a synchronisation `sync`."""

    is_gpu = True

    def __init__(self, host: int, gpu: int, sync: int = 0) -> None:
        self.host, self.gpu, self.sync = host, gpu, sync
        self.now = self.busy_until = self.steps = self.synchronisations = 0
        self.log: list[str] = []

    def step(self) -> None:
        self.now += self.host
        self.busy_until = max(self.now, self.busy_until) + self.gpu
        self.steps += 1

    def synchronize(self) -> None:
        self.now = max(self.now, self.busy_until) + self.sync
        self.synchronisations += 1

    def clock(self) -> int:
        return self.now

    def watch(self) -> timing.Stopwatch:
        return timing.Stopwatch(self.step, self, clock=self.clock)  # type: ignore[arg-type]


def test_step_time_is_pipelined_and_latency_is_not() -> None:
    simulated = Simulated(host=100_000, gpu=300_000, sync=10_000)
    found, notes = timing.time_steps(simulated.watch(), TimingOptions(), step_seconds=300e-6)
    # A block of k steps: the first launch (100 us), then k kernels of 300 us, then one synchronisation (10 us).
    k = found.steps_per_block
    assert k == 167  # 50 ms a block: a tenth of min_seconds, over 300 us, rounded up
    assert found.step_time_us == pytest.approx((100 + 300 * k + 10) / k)
    assert found.step_latency_us == pytest.approx(100 + 300 + 10)
    assert found.step_time_p95_us == pytest.approx(410)
    assert len(found.block_step_times_us) == 10
    assert notes == []
    assert found.chosen.us == found.step_time_us


def test_latency_mode_chooses_the_other_time() -> None:
    found, _ = timing.time_steps(Simulated(1000, 2000).watch(), TimingOptions(mode="latency"), step_seconds=2e-6)
    assert found.chosen.us == found.step_latency_us == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("step_seconds", "blocks", "per_block"),
    [
        (0.0001, 10, 500),  # 50 ms blocks
        (0.001, 10, 50),
        (0.02, 10, 10),  # never under ten steps, where time allows
        (0.2, 10, 10),  # 100 steps in the 20 s there are
        (0.4, 5, 10),  # 50 steps: fewer blocks, not shorter ones
        (1.0, 5, 4),  # 20 steps
        (3.0, 6, 1),  # 6 steps
        (60.0, 3, 1),  # three, whatever they cost
    ],
)
def test_plan_of_the_blocks(step_seconds: float, blocks: int, per_block: int) -> None:
    assert timing.plan(step_seconds, TimingOptions()) == (blocks, per_block)


def test_plan_meets_min_steps() -> None:
    blocks, per_block = timing.plan(0.001, TimingOptions(min_steps=5000, min_seconds=0))
    assert blocks * per_block >= 5000


def test_slow_steps_are_timed_three_times_and_the_notes_say_so() -> None:
    simulated = Simulated(host=0, gpu=60 * 10**9)
    found, notes = timing.time_steps(simulated.watch(), TimingOptions(), step_seconds=60)
    assert simulated.steps == 3
    assert found.block_step_times_us == found.step_latencies_us == [60e6] * 3
    assert notes[0].startswith("Only 3 of 30 steps were timed: more would have taken over 20 s")
    assert "each was timed alone" in notes[1]


def test_a_guess_that_was_too_slow_is_made_up_for() -> None:
    simulated = Simulated(host=0, gpu=10_000)
    found, _ = timing.time_steps(simulated.watch(), TimingOptions(), step_seconds=100e-6)
    assert len(found.block_step_times_us) * found.steps_per_block * 10e-6 >= 0.5


def test_a_guess_that_was_too_fast_ends_at_max_seconds() -> None:
    simulated = Simulated(host=0, gpu=10**9)
    found, notes = timing.time_steps(simulated.watch(), TimingOptions(), step_seconds=0.1)
    assert found.steps_per_block == 10
    assert len(found.block_step_times_us) == 2  # 10 s each
    assert notes


def test_latencies_are_bounded() -> None:
    found, _ = timing.time_steps(Simulated(0, 1000).watch(), TimingOptions(), step_seconds=1e-6)
    assert len(found.step_latencies_us) == timing.MOST_LATENCIES


@pytest.mark.parametrize(
    ("singles", "latency", "p95"),
    [([1.0], 1.0, 1.0), ([20.0, 0.0, 10.0], 10.0, 19.0), ([0.0, 10.0], 5.0, 9.5), ([], None, None)],
)
def test_a_timing_by_its_samples(singles: list[float], latency: float | None, p95: float | None) -> None:
    """The percentile lies between the two values around its rank: 0.95 of the way from 0 to 10."""
    found = timing.timing_of("throughput", timing.Samples([3.0, 1.0, 2.0]), 10, timing.Samples(singles))
    assert (found.step_time_us, found.step_latency_us, found.step_time_p95_us) == (2.0, latency, p95)


def test_blocks_of_one_step_are_the_synchronised_steps() -> None:
    found = timing.timing_of("latency", timing.Samples([3.0, 1.0, 2.0]), 1, timing.Samples([]))
    assert (found.step_latency_us, found.step_latencies_us) == (2.0, [3.0, 1.0, 2.0])


def test_warm_up_waits_for_the_clocks() -> None:
    simulated = Simulated(host=0, gpu=0)

    def step() -> None:  # a tenth slower in the first 100 ms
        simulated.gpu = 1_100_000 if simulated.now < 100_000_000 else 1_000_000
        simulated.step()

    watch = timing.Stopwatch(step, simulated, clock=simulated.clock)  # type: ignore[arg-type]
    warm = timing.warm_up(watch, timing.GPU_WARM_UP)
    assert warm.settled
    assert simulated.now >= 300_000_000
    assert warm.step_seconds == pytest.approx(0.001)
    assert warm.steps == simulated.steps


def test_warm_up_that_never_settles_ends_and_says_so() -> None:
    simulated = Simulated(host=0, gpu=0)

    def step() -> None:
        simulated.gpu = 30_000_000 if simulated.steps % 2 else 60_000_000
        simulated.step()

    watch = timing.Stopwatch(step, simulated, clock=simulated.clock)  # type: ignore[arg-type]
    warm = timing.warm_up(watch, timing.WarmUp(max_seconds=2.0))
    assert not warm.settled
    assert 2.0 <= simulated.now / 1e9 < 2.1


def test_warm_up_of_a_very_slow_step_is_one_step() -> None:
    simulated = Simulated(host=0, gpu=60 * 10**9)
    warm = timing.warm_up(simulated.watch(), timing.GPU_WARM_UP)
    assert (warm.steps, warm.settled, warm.step_seconds) == (1, True, 60.0)


# ---- schedule, names, traces ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        (Schedule(), [{2, 3, 4}]),
        (Schedule(skip_first=2, wait=1, warmup=1, active=2, repeat=2), [{4, 5}, {8, 9}]),
        (Schedule(wait=0, warmup=0, active=1, repeat=3), [{0}, {1}, {2}]),
    ],
)
def test_windows_are_those_of_torch(schedule: Schedule, steps: list[set[int]]) -> None:
    assert [window.steps for window in profiling.windows(schedule)] == steps
    torch_profiler = pytest.importorskip("torch.profiler")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warmup 0
        action = torch_profiler.schedule(
            skip_first=schedule.skip_first,
            wait=schedule.wait,
            warmup=schedule.warmup,
            active=schedule.active,
            repeat=schedule.repeat,
        )
    recorded = {number for number in range(schedule.total_steps + 5) if action(number).name.startswith("RECORD")}
    assert recorded == set().union(*steps)


@pytest.mark.parametrize(
    ("name", "file", "region"),
    [
        ("matmul_add", "matmul_add", "matmul_add"),
        ('we"ird\\ name', "we_ird_name-da13499e", "we_ird_ name"),
        ("../../etc/x", "etc_x-56da1a2e", "../../etc/x"),
        ("größe", "groe-d353a267", "gr__e"),
        ("???", "x-a03b221c", "???"),
    ],
)
def test_names_are_safe(name: str, file: str, region: str) -> None:
    found = trace_file.file_name(name, 2)
    assert found.endswith(".cycle2.pt.trace.json.gz")
    assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", found)
    assert trace_file.region_name(name) == region
    assert found.removesuffix(".cycle2.pt.trace.json.gz") == file


ROWS = """{"traceEvents": [
  {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", "ts": 1, "dur": 1},
  { "ph":"X","cat":"user_annotation","name":"ProfilerStep#13","ts":1,"dur":1},
  {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#2", "ts": 1, "dur": 1},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 1},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 1, "dur": 1},
  {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernelEx", "ts": 1, "dur": 1},
  {"ph": "X", "cat": "cuda_runtime", "name": "hipExtModuleLaunchKernel", "ts": 1, "dur": 1},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "ts": 1, "dur": 1},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchHostFunc", "ts": 1, "dur": 1},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "ts": 1, "dur": 1},
  {"ph": "X", "cat": "kernel", "name": "a "bad" name", "ts": 1, "dur": 1},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy", "ts": 1, "dur": 1}
]}
"""


@pytest.mark.parametrize("piece", [64, 600, 1 << 20])
def test_a_trace_is_counted_in_pieces_and_kept_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(trace_file, "_PIECE", piece)
    target = tmp_path / "x.json.gz"
    counts = trace_file.export(lambda path: Path(path).write_text(ROWS) and None, target)
    assert (counts.steps, counts.launches, counts.gpu_work) == ({2, 13}, 5, 2)
    assert gzip.decompress(target.read_bytes()).decode() == ROWS
    assert names_in(tmp_path) == ["x.json.gz"]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def cut_short(path: str) -> None:
    Path(path).write_text(ROWS[:400])


def never_written(path: str) -> None:
    pass


@pytest.mark.parametrize(("save", "words"), [(cut_short, "disk full"), (never_written, "No such file")])
def test_a_trace_that_torch_did_not_write_whole_is_an_error(
    tmp_path: Path, save: Callable[[str], None], words: str
) -> None:
    with pytest.raises(CaptureError, match=words):
        trace_file.export(save, tmp_path / "x.json.gz")
    assert names_in(tmp_path) == []


# ---- real captures on the CPU --------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Any:
    pytest.importorskip("torch")

    def _run(code: str, output: Path | None = None, progress: Any = None, name: str = "e", **overrides: str) -> Any:
        from proftrack.capture import capture

        (tmp_path / "w.py").write_text(code)
        yaml = tmp_path / "e.yaml"
        yaml.write_text(f"name: {json.dumps(name)}\nworkload: w.py:build\ndevice: cpu\n{QUICK}")
        loaded = experiment.load(str(yaml), overrides)
        return capture(loaded, output=output or tmp_path / "out", progress=progress or Silent())

    return _run


def read(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return rows


def but_for_load(notes: list[str]) -> list[str]:
    """Notes without the one that a busy machine adds."""
    return [note for note in notes if "were still changing" not in note]


def profiler_is_off() -> bool:
    import torch

    return not torch.autograd.profiler._is_profiler_enabled


ADD = "import torch\ndef build(device):\n    x = torch.ones(8, device=device)\n    return lambda: x + x\n"


def process_state() -> dict[str, Any]:
    """What a library could leave changed for everybody in the process."""
    import torch

    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in sorted(logging.Logger.manager.loggerDict))]
    return {
        "environment": dict(os.environ),
        "path": sys.path[:],
        "warnings": warnings.filters[:],
        "loggers": {each.name: (each.level, each.disabled, each.handlers[:]) for each in loggers if each.handlers},
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "profiler": torch.autograd.profiler.profile._prepare_trace,
        "capture": torch.cuda.CUDAGraph.capture_begin,
    }


def test_a_capture_leaves_the_process_as_it_was(run: Any, tmp_path: Path) -> None:
    """But for what it does once, filters for three warnings of torch's profiler; see proftrack.capture."""
    run(ADD)  # what is done once a process has been done
    before = process_state()
    run(ADD, output=tmp_path / "again")
    assert process_state() == before


def test_a_capture_has_the_tokens_that_its_step_handles(run: Any, tmp_path: Path) -> None:
    assert run(ADD).tokens_per_step is None
    says = ADD.replace("return lambda: x + x", "step = lambda: x + x\n    step.tokens_per_step = 8\n    return step")
    assert run(says, output=tmp_path / "again").tokens_per_step == 8


def test_every_cycle_leaves_its_own_trace(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from proftrack.capture import capture

    loaded = experiment.load("matmul_add", {"n": "8", "active": "2", "repeat": "2", "min_seconds": "0.05"})
    found = capture(loaded, output=tmp_path, progress=Silent())
    assert [cycle.trace.name for cycle in found.cycles] == [
        "matmul_add.cycle1.pt.trace.json.gz",
        "matmul_add.cycle2.pt.trace.json.gz",
    ]
    steps = []
    for cycle in found.cycles:
        rows = read(cycle.trace)
        steps.append([row["name"] for row in rows if row["name"].startswith("ProfilerStep#")])
        regions = [row for row in rows if row["name"] == "matmul_add" and row.get("cat") == "user_annotation"]
        products = [row for row in rows if row["name"] == "aten::mm"]
        assert len(regions) == len(products) == cycle.expected_steps == 2
    assert steps == [["ProfilerStep#2", "ProfilerStep#3"], ["ProfilerStep#6", "ProfilerStep#7"]]
    assert names_in(tmp_path / "trace") == [cycle.trace.name for cycle in found.cycles]

    timed = found.timing
    assert len(timed.block_step_times_us) >= 5
    assert len(timed.block_step_times_us) * timed.steps_per_block >= 30
    assert len(timed.step_latencies_us) >= 30
    assert 0 < min(timed.block_step_times_us) <= timed.step_time_us <= max(timed.block_step_times_us)
    assert timed.first_step_time_us is not None and timed.build_time_us is not None
    assert timed.warmup_steps >= 3
    assert (found.device, found.peak_memory_bytes, but_for_load(found.notes)) == ("cpu", None, [])
    assert 0 < found.started_ns < found.ended_ns
    assert profiler_is_off()


def test_torch_has_nothing_to_say_to_the_user(tmp_path: Path) -> None:
    """In a process of its own: kineto reads how much to write to stderr once, when it is first used."""
    pytest.importorskip("torch")
    code = (
        "from pathlib import Path\n"
        "from proftrack import experiment\n"
        "from proftrack.capture import capture\n"
        "from proftrack.report.progress import Silent\n"
        "given = {'n': '8', 'repeat': '2', 'warmup': '0', 'min_seconds': '0.02'}\n"
        f"capture(experiment.load('matmul_add', given), output=Path({str(tmp_path)!r}), progress=Silent())\n"
    )
    root = Path(experiment.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_phases_come_in_order_and_nothing_is_timed_after_profiling(run: Any, tmp_path: Path) -> None:
    code = (
        "import contextlib, pathlib, torch\n"
        "seen = []\n"
        "@contextlib.contextmanager\n"
        "def build(device):\n"
        "    seen.append('build')\n"
        "    yield lambda: seen.append('on' if torch.autograd.profiler._is_profiler_enabled else 'off')\n"
        f"    pathlib.Path({str(tmp_path / 'seen')!r}).write_text(' '.join(seen))\n"
    )
    stream = io.StringIO()
    found = run(code, progress=Lines(stream))
    lines = [re.sub(r"\s+", " ", line).strip() for line in stream.getvalue().splitlines()]
    over = [re.match(r"proftrack: (.*?) [0-9.]+ s(, |$)", line) for line in lines]  # a slow one is announced, too
    phases = [match[1] for match in over if match]
    before = ["start the profiler", "build", "first step", "count a step's work", "ceilings of the device"]
    assert phases == [*before, "warm-up", "timing without the profiler", "profiling"]
    seen = (tmp_path / "seen").read_text().split()
    latencies = len(found.timing.step_latencies_us)
    blocks = len(found.timing.block_step_times_us) * found.timing.steps_per_block
    unprofiled = 2 + found.timing.warmup_steps + blocks + latencies  # the first one, and the one that is counted
    # Two steps of the schedule are not recorded (wait 1, warmup 1), then come the three active ones, then nothing.
    assert seen == ["build", *["off"] * (unprofiled + 2), *["on"] * 3]


def test_a_gpu_is_warm_and_synchronised_where_each_window_begins(tmp_path: Path) -> None:
    """The real profiler on the CPU, with a device that keeps a log as a GPU would have it."""
    torch = pytest.importorskip("torch")
    log: list[str] = []

    class Gpu(CpuDevice):
        is_gpu = True

        def synchronize(self) -> None:
            log.append("sync")

    def step() -> None:
        log.append("recorded" if torch.autograd.profiler._is_profiler_enabled else "step")

    loaded = experiment.load("matmul_add", {"active": "2", "repeat": "2"})
    found = profiling.profile_steps(step, Gpu(), loaded, tmp_path, step_seconds=0.04)
    # 0.1 s of steps that take 0.04 s each: three more than the schedule has.
    cycle = ["step", "step", *["step"] * 3, "sync", "recorded", "recorded"]
    assert log == ["sync", *cycle, *cycle]
    assert [recorded.counts.steps for recorded in found] == [{2, 3}, {6, 7}]


def test_no_warm_up_and_a_window_at_once(run: Any) -> None:
    found = run(ADD, skip_first="0", wait="0", warmup="0", active="2", repeat="3", with_stack="true")
    assert [cycle.expected_steps for cycle in found.cycles] == [2, 2, 2]
    names = [[row["name"] for row in read(cycle.trace) if "ProfilerStep" in row["name"]] for cycle in found.cycles]
    assert names == [[f"ProfilerStep#{k}", f"ProfilerStep#{k + 1}"] for k in (0, 2, 4)]
    assert any("schedule.warmup is 0" in note for note in found.notes)


def test_a_name_that_would_break_the_trace_does_not(run: Any) -> None:
    found = run(ADD, name='a "quoted" \\ größe')
    rows = read(found.cycles[0].trace)
    assert sum(row["name"] == "a _quoted_ _ gr__e" for row in rows) == 3


def test_earlier_traces_are_not_overwritten(run: Any, tmp_path: Path) -> None:
    kept = tmp_path / "out" / "trace" / "e.cycle1.pt.trace.json.gz"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"earlier")
    with pytest.raises(UsageError, match="already exists"):
        run(ADD)
    assert kept.read_bytes() == b"earlier"


def test_an_output_that_cannot_be_made_is_refused(run: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be created"):
        run(ADD, output=tmp_path / "file")


STEP = """\
import contextlib, torch
from torch.profiler import profile, ProfilerActivity
calls = []
@contextlib.contextmanager
def build(device):
    def step():
        calls.append(1)
        {code}
    try:
        yield step
    finally:
        open({closed!r}, "w").close()
"""


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("1 / 0", WorkloadError, ["e: first step: the step raised ZeroDivisionError: division by zero"]),
        ("assert len(calls) < 3, 'a\\nb'", WorkloadError, ["e: warm-up: the step raised AssertionError: a"]),
        (
            "assert not torch.autograd.profiler._is_profiler_enabled, 'x'",
            WorkloadError,
            ["e: profiling: the step raised"],
        ),
        ("raise SystemExit", WorkloadError, ["first step", "sys.exit()"]),
        ("return (i for i in ())", WorkloadError, ["returns a generator", "has not done its work"]),
        ("with profile(activities=[ProfilerActivity.CPU]): pass", CaptureError, ["starts a torch profiler of its own"]),
        ("if len(calls) > 1: raise KeyboardInterrupt", KeyboardInterrupt, []),
        ("if torch.autograd.profiler._is_profiler_enabled: raise SystemExit(143)", SystemExit, ["143"]),
    ],
)
def test_a_step_that_fails(run: Any, tmp_path: Path, code: str, kind: type[BaseException], words: list[str]) -> None:
    with pytest.raises(kind) as caught:
        run(STEP.format(code=code, closed=str(tmp_path / "closed")))
    message = str(caught.value)
    assert [word for word in words if word not in message] == [], message
    if issubclass(kind, ProftrackError):
        assert "\n" not in message
    assert names_in(tmp_path / "out" / "trace") == []  # half a window is no trace
    assert profiler_is_off()
    assert (tmp_path / "closed").exists()


def test_inside_a_running_profiler_capture_refuses(run: Any) -> None:
    import torch

    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        pytest.raises(CaptureError, match="already running"),
    ):
        run(ADD)


def test_fewer_steps_than_promised(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    """A profiler that loses rows, as one whose buffers ran over does: the traces are real, the count is not."""
    real = trace_file.export
    lost = {1: set[int](), 2: {7}}

    def lossy(save: Callable[[str], None], target: Path) -> trace_file.Counts:
        counts = real(save, target)
        cycle = int(re.findall(r"cycle(\d+)", target.name)[0])
        return trace_file.Counts(counts.steps - lost[cycle])

    monkeypatch.setattr(profiling, "export", lossy)
    found = run(ADD, repeat="2")
    assert [cycle.trace.name for cycle in found.cycles] == ["e.cycle1.pt.trace.json.gz"]
    (note,) = but_for_load(found.notes)
    assert note.startswith("The profiler recorded 5 of the 6 scheduled steps")
    assert "e.cycle2.pt.trace.json.gz" in note


def test_no_whole_cycle_is_an_error(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    monkeypatch.setattr(profiling, "export", lambda save, target: trace_file.Counts({2}))
    with pytest.raises(CaptureError, match="recorded 1 of the 3 scheduled steps"):
        run(ADD)


def test_a_gpu_that_launches_and_shows_no_work_was_not_measured() -> None:
    from proftrack.capture import measurement

    device = Simulated(0, 0)
    loaded = experiment.load("matmul_add")
    window = profiling.windows(loaded.schedule)[0]

    def notes(**counts: int) -> list[str]:
        found = profiling.Recorded(window, Path("x"), trace_file.Counts(window.steps, **counts))
        return measurement.recorded_notes([found], device, loaded)  # type: ignore[arg-type]

    assert "has 9 launches but no GPU work" in notes(launches=9)[0]
    assert "neither launches nor GPU work" in notes()[0]
    assert notes(launches=9, gpu_work=9) == []


def test_a_gpu_that_is_not_there_is_refused_with_a_remedy(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"device=cuda, but .*; .* or set device=cpu"):
        run(ADD, device="cuda")
    assert run(ADD, device="auto").device == "cpu"


@pytest.mark.slow
def test_a_compiled_step(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if shutil.which("c++") is None and shutil.which("g++") is None:
        missing("torch.compile needs a C++ compiler on the CPU", "install g++")
    from proftrack.capture import capture

    loaded = experiment.load("matmul_add", {"n": "8", "compile": "default", "min_seconds": "0.02", "device": "cpu"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its compiler's imports
        found = capture(loaded, output=tmp_path, progress=Silent())
    assert found.timing.first_step_time_us is not None
    assert found.timing.first_step_time_us > 20 * found.timing.step_time_us  # it holds the compilation
    assert any("Torch-Compiled Region" in row["name"] for row in read(found.cycles[0].trace))


@pytest.mark.gpu
def test_a_capture_on_the_gpu(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from proftrack.capture import capture

    loaded = experiment.load("matmul_add", {"n": "1024", "repeat": "2", "device": "cuda"})
    found = capture(loaded, output=tmp_path, progress=Silent())
    assert found.device == "cuda"
    assert found.peak_memory_bytes is not None and found.peak_memory_bytes >= 3 * 1024 * 1024 * 2
    for cycle in found.cycles:
        rows = read(cycle.trace)
        kernels = [row for row in rows if row.get("cat") == "kernel"]
        begin = min(row["ts"] for row in rows if row["name"].startswith("ProfilerStep#"))
        assert len(kernels) == 2 * cycle.expected_steps
        assert all(row["ts"] >= begin for row in kernels)  # nothing queued before leaked in


# ---- progress ------------------------------------------------------------------------------------------------------


def test_progress_in_a_log_is_a_line_a_phase() -> None:
    stream = io.StringIO()
    progress = Lines(stream)
    with progress.phase("build"):
        progress.advance()
    with pytest.raises(KeyError), progress.phase("first step"):
        raise KeyError
    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(r"proftrack: build +\d+\.\d s", first)
    assert re.fullmatch(r"proftrack: first step +failed after \d+\.\d s", second)


def test_progress_on_a_terminal_draws_only_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    stream = io.StringIO()
    before = threading.active_count()
    progress = Bars(Console(file=stream, force_terminal=True, width=80))
    with progress.phase("profiling [1]", total=2):
        drawn = len(stream.getvalue())
        assert threading.active_count() == before
        progress.advance()
        progress.advance()
        assert len(stream.getvalue()) > drawn
    assert "profiling [1]" in stream.getvalue()


def test_progress_says_what_is_left_once_it_is_known() -> None:
    stream = io.StringIO()
    progress = Lines(stream)
    progress.expect(1000)
    with progress.phase("warm-up"):
        pass
    assert re.fullmatch(r"proftrack: warm-up +\d+\.\d s, about \d+ s left\n", stream.getvalue())


def test_a_long_phase_is_announced_where_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proftrack.report.progress._PATIENCE_SECONDS", 0.0)
    announced = threading.Event()

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            if "..." in text:
                announced.set()
            return super().write(text)

    stream = Stream()
    with Lines(stream).phase("first step", live=True):
        assert announced.wait(60)
    first, second = stream.getvalue().splitlines()
    assert first == "proftrack: first step ..."
    assert second.startswith("proftrack: first step  ")


def test_progress_survives_a_closed_stream() -> None:
    stream = io.StringIO()
    progress = Lines(stream)
    stream.close()
    with progress.phase("build"):
        pass


# ---- imports -------------------------------------------------------------------------------------------------------


def test_the_result_alone_loads_no_torch() -> None:
    code = "import sys, proftrack.capture.result, proftrack.capture.environment; print('torch' in sys.modules)"
    root = Path(experiment.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_cpu_is_a_device() -> None:
    device = CpuDevice()
    device.synchronize()
    device.reset_peak_memory()
    assert (device.is_gpu, device.type, device.peak_memory_bytes()) == (False, "cpu", None)
    assert device.name
