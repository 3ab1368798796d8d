"""`--counters ncu`: Nsight Compute is called, read and explained; its figures join kernels, operators and shapes."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import fake_ncu
import msgspec
import psutil
import pytest
import recorded_captures as captures
from calls import show
from fake_ncu import EXPONENTIAL, PRODUCT, Ncu, named
from msgspec import structs
from traces import TraceBuilder

import proftrack.capture.replay as replaying
import proftrack.capture.replayed_step as stepping
from proftrack import record as records
from proftrack.analysis import replay as joining
from proftrack.analysis.pipeline import analyze_trace
from proftrack.capture import ncu
from proftrack.capture.device import CpuDevice
from proftrack.capture.ncu import Launch, Selection
from proftrack.capture.replay import Replayed
from proftrack.errors import UsageError
from proftrack.experiment import Experiment, load
from proftrack.process import this_process
from proftrack.record.counters import KernelCounters, Replay
from proftrack.report import terminal
from proftrack.report.chains import Chain
from proftrack.report.pages import full, tables
from proftrack.report.pages.run import overview, summary

ADD = (
    "_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_15CUDAFunctor_addIN3c108BFloat16EEESt5arrayIPcLm3EEEEviT0_T1_"
)
ADD_IN_TRACE = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)


NVJET = Selection(["nvjet"], None)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ncu:
    tool = Ncu(tmp_path / "tool")
    monkeypatch.setenv(ncu.VARIABLE, str(tool.path))
    return tool


@pytest.fixture
def experiment() -> Experiment:
    return load("matmul_add", {"counters": "ncu", "n": "64"})


# ---- where it is -----------------------------------------------------------------------------------------------------


def test_the_variable_comes_before_the_path_and_the_path_before_cuda(
    fake: Ncu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Ncu(tmp_path / "other")
    monkeypatch.setenv("PATH", str(other.path.parent), prepend=os.pathsep)
    assert ncu.find_ncu() == fake.path
    monkeypatch.delenv(ncu.VARIABLE)
    assert ncu.find_ncu() == other.path
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(ncu, "_PLACES", (f"{tmp_path}/oth*/ncu",))
    assert ncu.find_ncu() == other.path
    other.path.chmod(stat.S_IRUSR)
    if not os.access(other.path, os.X_OK):
        assert ncu.find_ncu() is None
    monkeypatch.setattr(ncu, "_PLACES", ())
    assert ncu.find_ncu() is None


def test_of_several_installed_versions_the_newest_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for version in ("2024.1.0", "2025.3.1", "2023.2.0"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "ncu").touch(0o755)
    monkeypatch.delenv(ncu.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ncu, "_PLACES", (f"{tmp_path}/*/ncu",))
    assert ncu.find_ncu() == tmp_path / "2025.3.1" / "ncu"


def test_a_grid_has_as_many_blocks_as_its_sides_give() -> None:
    assert [ncu._blocks(text) for text in ("(2, 66, 1)", "(132, 1, 1)", "")] == [132, 132, None]


def test_a_variable_that_names_no_program_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ncu.VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(UsageError, match="not an executable file"):
        ncu.find_ncu()


def test_title(fake: Ncu, tmp_path: Path) -> None:
    assert ncu.title(fake.path) == "Nsight Compute 2025.3.1"
    assert ncu.title(tmp_path / "missing") == "Nsight Compute"


# ---- names -----------------------------------------------------------------------------------------------------------

MANGLED = (
    ADD,
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT",
    "_ZN7cutlass7Kernel2I45cutlass_80_simt_sgemm_256x128_8x4_nn_align1EEvNT_6ParamsE",
    # an anonymous namespace, a lambda, an enumerator, std::plus
    "_ZN12_GLOBAL__N_121softmax_forward_innerIfLb1EEEvPKT_i",
    "_ZN2at6native27unrolled_elementwise_kernelIZZZNS0_15exp_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE_clEvENKUlvE_clEvEUldE_EEviT_",
    "_ZN5cudnn19engines_precompiled16nchwToNhwcKernelIfL21cudnnKernelDataType_t0EEEvPT_",
    "_ZN2at6native32tensor_kernel_scan_innermost_dimIfSt4plusIfEEEvPT_PKS4_jjjS4_T0_",
    "triton_poi_fused_add_0",
)


@pytest.mark.parametrize("name", MANGLED)
def test_the_pattern_of_a_traces_name_matches_the_mangled_name_and_no_other(name: str) -> None:
    pattern = ncu.pattern([ncu.demangled(name)])
    assert [other for other in MANGLED if re.search(pattern, other)] == [name]


def test_names_are_demangled_as_a_trace_has_them() -> None:
    assert ncu.demangled(ADD) == ADD_IN_TRACE
    assert ncu.demangled("nvjet_sm90_tst") == "nvjet_sm90_tst"


def test_a_name_without_cplusplus_matches_as_a_whole() -> None:
    pattern = ncu.pattern(["gemm", "a.b$1"])
    assert [name for name in ("gemm", "sgemm", "gemm2", "a.b$1", "acb$1") if re.search(pattern, name)] == [
        "gemm",
        "a.b$1",
    ]
    long = "_Z" + "9something" * 200
    assert re.search(ncu.pattern([long]), long)
    assert len(ncu.pattern([long])) < 400


# ---- what it prints --------------------------------------------------------------------------------------------------


def test_the_table_is_read_with_units_and_separators() -> None:
    output = ncu.parse(fake_ncu.table([("nvjet", named(PRODUCT)), (ADD, named(EXPONENTIAL))]))
    assert output.messages == []
    assert [launch.kernel for launch in output.launches] == ["nvjet", ADD]
    assert output.launches[0].counters == KernelCounters(
        launches=1,
        duration_us=180.032,
        dram_bytes=175_342_080,
        shares={"dram": 0.2024, "tensor": 0.9035, "fp64": 0.0, "fp32": 0.0003, "integer": 0.0263},
        sm_share=0.9035,
        achieved_occupancy=0.1463,
        theoretical_occupancy=0.1875,
        waves=1.0,
        registers=168,
    )
    assert output.launches[0].counters.dram_bytes_per_s == pytest.approx(0.974e12, rel=0.001)


def test_units_are_those_of_the_second_row() -> None:
    units = {**fake_ncu.UNITS, "gpu__time_duration.sum": "msecond", "dram__bytes.sum": "Mbyte"}
    figures = {**named(PRODUCT), "gpu__time_duration.sum": "1.5", "dram__bytes.sum": "2,000.5"}
    [launch] = ncu.parse(fake_ncu.table([("k", figures)], units=units)).launches
    assert (launch.counters.duration_us, launch.counters.dram_bytes) == (1500.0, 2_000_500_000)


@pytest.mark.parametrize(
    ("units", "microseconds"),
    [("ns nsecond", 0.002), ("us usecond", 2), ("ms msecond", 2000), ("s second", 2e6)],
)
def test_units_of_time(units: str, microseconds: float) -> None:
    figures = {**named(PRODUCT), "gpu__time_duration.sum": "2"}
    for unit in units.split():
        given = {**fake_ncu.UNITS, "gpu__time_duration.sum": unit}
        [launch] = ncu.parse(fake_ncu.table([("k", figures)], units=given)).launches
        assert launch.counters.duration_us == pytest.approx(microseconds)


@pytest.mark.parametrize(
    ("unit", "size"), [("byte", 2), ("Kbyte", 2000), ("Mbyte", 2e6), ("Gbyte", 2e9), ("Tbyte", 2e12)]
)
def test_units_of_size(unit: str, size: float) -> None:
    units = {**fake_ncu.UNITS, "dram__bytes.sum": unit}
    [launch] = ncu.parse(fake_ncu.table([("k", {**named(PRODUCT), "dram__bytes.sum": "2"})], units=units)).launches
    assert launch.counters.dram_bytes == size


def test_figures_that_do_not_exist_are_absent_and_shares_are_at_most_one() -> None:
    figures = {
        **named(PRODUCT),
        "dram__bytes.sum": "n/a",
        "launch__waves_per_multiprocessor": "nan",
        "sm__pipe_fp64_cycles_active.avg.pct_of_peak_sustained_elapsed": "",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed": "104.2",
    }
    [launch] = ncu.parse(fake_ncu.table([("k", figures)])).launches
    counters = launch.counters
    assert counters.dram_bytes is None
    assert counters.dram_bytes_per_s is None
    assert counters.waves is None
    assert "fp64" not in counters.shares
    assert counters.shares["dram"] == 1.0


def test_a_launch_without_a_time_is_no_launch() -> None:
    assert ncu.parse(fake_ncu.table([("k", {**named(PRODUCT), "gpu__time_duration.sum": "n/a"})])).launches == []


def test_messages_between_the_rows() -> None:
    text = fake_ncu.table([("a", named(PRODUCT)), ("b", named(PRODUCT))])
    first, last = text.rstrip("\n").rsplit("\n", 1)
    output = ncu.parse(f"{first}\n==ERROR== Something broke.\n{last}\n==WARNING== No more.\n")
    assert [launch.kernel for launch in output.launches] == ["a", "b"]
    assert output.messages == ["Something broke."]


@pytest.mark.parametrize("text", ["", "\n", fake_ncu.NOTHING, "nonsense", '"ID","Kernel Name"\n'])
def test_nothing_printed(text: str) -> None:
    assert ncu.parse(text) == ncu.Output([], [])


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (fake_ncu.NO_PERMISSION, "NVreg_RestrictProfilingToAdminUsers=0"),
        ("==ERROR== LibraryNotLoaded", "sandbox"),
        (
            "==ERROR== Driver resource was unavailable. Ensure that no other tool (like DCGM) is",
            "dcgmi profile --pause",
        ),
        ("==ERROR== unrecognised option '--rename'. Use --help for further details.", "too old"),
        ("==ERROR== Profiling is not supported on device 0.", "does not support this GPU"),
    ],
)
def test_each_error_has_its_reason(message: str, said: str) -> None:
    problem, remedy = ncu.explained(ncu.parse(message).messages) or ("", None)
    assert said in f"{problem}; {remedy}"


def test_an_unknown_error_is_quoted_and_the_programs_own_exit_code_is_none() -> None:
    own = "The application returned an error code (1)."
    assert ncu.explained(["The moon is full.", own]) is None
    assert ncu.quoted([own, "The moon is full."]) == "Nsight Compute says: The moon is full"
    assert ncu.quoted([own]) is None


# ---- one replay ------------------------------------------------------------------------------------------------------


def test_launches_are_replayed(fake: Ncu, experiment: Experiment) -> None:
    fake.plan(fake_ncu.table([("nvjet", named(PRODUCT))]))
    replayed = replaying.replay(experiment, Selection(["nvjet", ADD_IN_TRACE], [1, 3]))
    assert [launch.kernel for launch in replayed.launches] == ["nvjet"]
    assert replayed.complete
    about = replayed.about
    assert (about.tool, about.launches, about.problem) == ("Nsight Compute 2025.3.1", 1, None)
    [arguments] = fake.calls
    options = dict(pairwise(arguments))
    assert options["--profile-from-start"] == "off"
    assert options["--clock-control"] == "none"
    assert options["--kernel-id"] == f"::regex:{ncu.pattern(['nvjet', ADD_IN_TRACE])}:1|3"
    assert options["--kernel-name-base"] == options["--print-kernel-base"] == "mangled"
    assert options["--metrics"].split(",") == list(ncu.METRICS)


def test_a_metric_that_the_gpu_lacks_is_left_out(fake: Ncu, experiment: Experiment) -> None:
    missing = "sm__pipe_fp64_cycles_active.avg.pct_of_peak_sustained_elapsed"
    fake.plan(f"==ERROR== Failed to find metric {missing}\n", fake_ncu.table([("nvjet", named(PRODUCT))]))
    assert replaying.replay(experiment, NVJET).about.launches == 1
    first, second = (call[call.index("--metrics") + 1].split(",") for call in fake.calls)
    assert set(first) - set(second) == {missing}


def test_what_is_printed_without_a_metric_is_not_asked_for_again(fake: Ncu, experiment: Experiment) -> None:
    missing = "sm__pipe_fp64_cycles_active.avg.pct_of_peak_sustained_elapsed"
    fake.plan(f"==ERROR== Failed to find metric {missing}\n" + fake_ncu.table([("nvjet", named(PRODUCT))]))
    assert len(replaying.replay(experiment, NVJET).launches) == 1
    assert len(fake.calls) == 1


def test_a_missing_metric_may_be_named_as_a_pattern() -> None:
    output = ncu.Output([], [r"Failed to find metric regex:^dram__bytes\.(sum|min|max|avg|pct|ratio|max_rate)$"])
    assert ncu.unknown_metrics(output, ncu.METRICS) == ["dram__bytes.sum"]


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"state": {"stage": "replay a step"}, "code": 1}, "NVreg_RestrictProfilingToAdminUsers=0"),
        ({}, "may not read"),
        ({"printed": "==ERROR== unrecognised option '--x'.", "code": 1, "state": {}}, "too old"),
    ],
)
def test_a_refusal_is_explained(fake: Ncu, experiment: Experiment, plan: dict[str, Any], said: str) -> None:
    fake.plan(fake_ncu.NO_PERMISSION, **plan)
    replayed = replaying.replay(experiment, NVJET)
    assert replayed.launches == []
    assert said in str(replayed.about.problem)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"stage": "close the workload", "done": True}, "launched none of the largest kernels"),
        (
            {"stage": "build the workload", "error": "matmul_add: no"},
            r"failed in a process of its own \(matmul_add: no\)",
        ),
        ({"stage": "build the workload", "stopped": True}, "only 60 s .* to build the workload; allow more"),
        ({"stage": "run the first step"}, "exit code 0, when it was to run the first step"),
    ],
)
def test_nothing_replayed_is_explained(fake: Ncu, experiment: Experiment, state: dict[str, Any], said: str) -> None:
    fake.plan(fake_ncu.NOTHING, state=state)
    assert re.search(f"^No kernel was replayed: .*{said}", str(replaying.replay(experiment, NVJET).about.problem))


def test_what_was_replayed_before_the_time_was_up_is_kept(fake: Ncu, experiment: Experiment) -> None:
    fake.plan(fake_ncu.table([("nvjet", named(PRODUCT))] * 3), state={"stage": "replay a step", "stopped": True})
    replayed = replaying.replay(experiment, NVJET)
    assert len(replayed.launches) == 3
    assert not replayed.complete
    assert replayed.about.problem == (
        "Only 3 launches could be replayed: there were only 60 s (timing.ncu_seconds) to replay a step; "
        "allow more with --ncu_seconds."
    )


def test_the_launch_that_was_cut_off_is_not_the_reason(fake: Ncu, experiment: Experiment) -> None:
    """As seen when the process ended itself: its last launch failed to be profiled, those before it are printed."""
    cut = '==ERROR== Failed to profile "vectorized_elementwise_kernel" in process 1177\n'
    state = {"stage": "replay a step", "stopped": True}
    fake.plan(cut + fake_ncu.table([("nvjet", named(PRODUCT))]), state=state, code=1)
    assert "only 60 s" in str(replaying.replay(experiment, NVJET).about.problem)
    fake.plan(cut + fake_ncu.table([("nvjet", named(PRODUCT))]))
    assert "Failed to profile" in str(replaying.replay(experiment, NVJET).about.problem)


def test_a_workload_that_fails_in_the_replayed_step_leaves_what_was_replayed(fake: Ncu, experiment: Experiment) -> None:
    fake.plan(fake_ncu.table([("nvjet", named(PRODUCT))]), state={"stage": "replay a step", "error": "no"}, code=1)
    replayed = replaying.replay(experiment, NVJET)
    assert (len(replayed.launches), replayed.complete) == (1, False)
    assert "Only 1 launch could be replayed: the workload failed" in str(replayed.about.problem)


def test_without_ncu_or_without_kernels(experiment: Experiment, fake: Ncu, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the trace has no kernels" in str(replaying.replay(experiment, Selection([], None)).about.problem)
    monkeypatch.setattr(ncu, "find_ncu", lambda: None)
    assert "Nsight Compute was not found" in str(replaying.replay(experiment, NVJET).about.problem)
    monkeypatch.undo()
    monkeypatch.setenv(ncu.VARIABLE, "/missing/ncu")
    assert "/missing/ncu: not an executable file" in str(replaying.replay(experiment, NVJET).about.problem)
    assert fake.calls == []


def test_a_program_that_cannot_be_started(experiment: Experiment, fake: Ncu) -> None:
    fake.path.write_text("no program")
    assert "Exec format error" in str(replaying.replay(experiment, NVJET).about.problem)


def log_of(call: list[str]) -> Path:
    return Path(call[call.index("--log-file") + 1])


def are_gone(pids: list[int]) -> bool:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
            return True
        time.sleep(0.05)
    return False


def test_when_the_time_is_up_all_of_its_processes_are_killed(
    fake: Ncu, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is up once it hangs, however long it took to start."""
    fake.plan(state={"stage": "run the first step"}, hangs=True)

    def out_of_time(self: Any, timeout: float) -> int:
        assert 0 < timeout < 60  # what the version took is gone
        until = time.monotonic() + 20
        while not (fake.calls and log_of(fake.calls[0]).exists()) and time.monotonic() < until:
            time.sleep(0.02)
        monkeypatch.undo()
        raise subprocess.TimeoutExpired("ncu", timeout)

    monkeypatch.setattr("subprocess.Popen.wait", out_of_time)
    monkeypatch.setattr(ncu, "title", lambda _: "ncu")  # which waits for a process of its own
    replayed = replaying.replay(experiment, NVJET)
    assert "there were only 60 s (timing.ncu_seconds) to run the first step" in str(replayed.about.problem)
    assert len(fake.pids) == 2
    assert are_gone(fake.pids)


def test_the_steps_process_knows_when_to_end(fake: Ncu, experiment: Experiment) -> None:
    """Of 60 s from the epoch's second 1000 on 48 for the step, 57 in all; ncu's own time has been up for long."""
    folder = fake.path.parent
    assert replaying._call(fake.path, experiment, NVJET, ncu.METRICS, folder, 1000.0).code is None
    request = msgspec.json.decode((folder / "request.json").read_bytes())
    assert (request["started"], request["stop_at"], request["end_at"]) == (1000.0, 1048.0, 1057.0)


def test_the_steps_process_has_no_run_of_mlflow_to_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "1234")
    monkeypatch.setenv("ZORP", "5")
    names = [*ncu.ENVIRONMENT, "ZORP", "MLFLOW_RUN_ID"]
    code = f"import os; print(*(os.environ.get(name) for name in {names}))"
    with (tmp_path / "out").open("w+") as file, replaying._running([sys.executable, "-c", code], file.fileno()) as it:
        assert it.wait() == 0
        file.seek(0)
        assert file.read().split() == [*ncu.ENVIRONMENT.values(), "5", "None"]


def test_an_interruption_kills_them_too(fake: Ncu, experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.plan(hangs=True)

    def interrupted(self: Any, timeout: float) -> int:
        until = time.monotonic() + 20
        while not fake.calls and time.monotonic() < until:
            time.sleep(0.02)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("subprocess.Popen.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replaying._call(fake.path, experiment, NVJET, ncu.METRICS, fake.path.parent, time.time())
    assert are_gone(fake.pids)


# ---- the step's process ----------------------------------------------------------------------------------------------


class Steps:
    """A workload and the switch of a profiler, which note what is called."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch.cuda.profiler as switch

        self.log: list[str] = []
        self.state = stepping.State()
        self.request = stepping.Request(
            experiment={}, state=tmp_path / "state.json", parent=this_process(), started=0, stop_at=4e9, end_at=5e9
        )
        monkeypatch.setattr(stepping, "open_device", lambda _: (CpuDevice(), []))
        monkeypatch.setattr(stepping.workload, "load", lambda _: lambda device, **_: self.step)
        monkeypatch.setattr(switch, "start", lambda: self.log.append("start"))
        monkeypatch.setattr(switch, "stop", lambda: self.log.append("stop"))

    def step(self) -> None:
        self.log.append("step")


def test_one_warm_step_is_between_start_and_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment: Experiment
) -> None:
    steps = Steps(tmp_path, monkeypatch)
    stepping._replay(experiment, steps.request, steps.state)
    assert steps.log == ["step"] * (1 + stepping.WARM_STEPS) + ["start", "step", "stop"]
    assert json.loads(steps.request.state.read_text()) == {
        "stage": "close the workload", "done": True, "stopped": False, "error": None
    }  # fmt: skip


def test_slow_steps_are_not_warmed_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment: Experiment
) -> None:
    steps = Steps(tmp_path, monkeypatch)
    late = structs.replace(steps.request, stop_at=1.0)
    stepping._replay(experiment, late, steps.state)
    assert steps.log == ["step", "step", "start", "step", "stop"]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the process would have ended."""
    over = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda _: over.set())
    monkeypatch.setattr(stepping, "_POLL_S", 0.01)
    return over


def test_the_step_is_interrupted_when_the_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: threading.Event
) -> None:
    steps, now = Steps(tmp_path, monkeypatch), time.time()
    monkeypatch.setattr("_thread.interrupt_main", lambda: steps.log.append("interrupt"))
    steps.state.stage = "replay a step"
    stepping._watch(structs.replace(steps.request, stop_at=now - 1, end_at=now + 0.2), steps.state, ended)
    assert (steps.log, steps.state.stopped) == (["interrupt"], True)


def test_an_interrupted_step_ends_its_process_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment: Experiment
) -> None:
    steps = Steps(tmp_path, monkeypatch)
    now = time.time()
    request = structs.replace(
        steps.request, experiment=stepping.as_plain(experiment), started=now, stop_at=now + 1.5, end_at=now + 60
    )
    asked = tmp_path / "request.json"
    asked.write_bytes(msgspec.json.encode(request, enc_hook=str))
    monkeypatch.setattr("sys.argv", ["-c", "", str(asked)])

    def step() -> None:
        steps.step()
        while "start" in steps.log:
            time.sleep(0.01)

    monkeypatch.setattr(stepping.workload, "load", lambda _: lambda device, **_: step)
    stepping.main()
    assert steps.log[-2:] == ["start", "step"]
    assert json.loads(request.state.read_text())["stopped"]


def test_a_workload_that_is_not_built_in_time_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: threading.Event
) -> None:
    steps = Steps(tmp_path, monkeypatch)
    monkeypatch.setattr("_thread.interrupt_main", ended.set)
    steps.state.stage = "build the workload"
    stepping._watch(structs.replace(steps.request, stop_at=1.0), steps.state, ended)
    assert steps.state.stopped
    assert ended.is_set()


def test_it_ends_with_the_process_that_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: threading.Event
) -> None:
    steps = Steps(tmp_path, monkeypatch)
    gone = structs.replace(this_process(), started="long ago")
    stepping._watch(structs.replace(steps.request, parent=gone), steps.state, ended)
    assert not steps.state.stopped


def test_the_experiment_arrives_as_it_was(experiment: Experiment) -> None:
    text = msgspec.json.encode(stepping.as_plain(experiment), enc_hook=str)
    assert msgspec.convert(msgspec.json.decode(text), Experiment, dec_hook=stepping._path) == experiment


# ---- joined with the trace -------------------------------------------------------------------------------------------

WIDE, TALL = [[8, 512], [512, 8]], [[512, 8], [8, 512]]


def two_products(steps: int = 2) -> TraceBuilder:
    """Steps that each launch `gemm` three times, of two shapes, and `add` once; the GPU runs them in another order."""
    trace = TraceBuilder()
    for number in range(steps):
        at, first = 1000.0 * number, 10 * number
        trace.step(number, at=at, dur=900)
        for index, (shapes, name, operator) in enumerate(
            [
                (WIDE, "gemm", "aten::mm"),
                (TALL, "gemm", "aten::mm"),
                (WIDE, "gemm", "aten::mm"),
                (WIDE, "add", "aten::add"),
            ]
        ):
            begin = at + 50 + 100 * index
            trace.op(operator, at=begin, dur=20, Input_Dims=shapes)
            trace.work(1 + first + index, launch=begin + 2, at=begin + 30, dur=60, name=name, stream=7 + index)
    return trace


def counted(us: float, dram: float = 0.5, **more: Any) -> KernelCounters:
    return KernelCounters(launches=1, duration_us=us, dram_bytes=round(us * 1000), shares={"dram": dram}, **more)


def replayed(*launches: tuple[str, KernelCounters], complete: bool = True, blocks: int | None = None) -> Replayed:
    found = [Launch(name, blocks, counters) for name, counters in launches]
    return Replayed(launches=found, about=Replay(tool="t", launches=len(found)), complete=complete)


def join(
    tmp_path: Path, trace: TraceBuilder, result: Replayed, wanted: list[str], numbers: list[int] | None = None
) -> records.Record:
    analysis = analyze_trace(trace.write(tmp_path / "trace.json"))
    planned = joining.plan(analysis, 100, 1e9)
    assert planned.selection.numbers is None
    return joining.joined(analysis, result, planned._replace(selection=Selection(wanted, numbers))).record


def test_launches_join_by_name_and_by_their_number_within_the_step(tmp_path: Path) -> None:
    result = replayed(
        ("gemm", counted(10, 0.2)), ("gemm", counted(30, 0.8)), ("gemm", counted(20, 0.5)), ("add", counted(4))
    )
    record = join(tmp_path, two_products(), result, ["gemm", "add"])
    by_kernel = {kernel.name: kernel.counters for kernel in record.kernels}
    gemm = by_kernel["gemm"]
    assert gemm is not None
    # (10 * 0.2 + 30 * 0.8 + 20 * 0.5) / 60
    assert (gemm.launches, gemm.duration_us, gemm.dram_bytes) == (3, 20.0, 20_000)
    assert gemm.shares == {"dram": 0.6}
    assert by_kernel["add"] == counted(4)
    by_site = {(site.kernel, site.shapes): site.counters for site in record.sites}
    wide, tall = by_site["gemm", "[[8,512],[512,8]]"], by_site["gemm", "[[512,8],[8,512]]"]
    assert wide is not None
    assert (wide.launches, wide.duration_us, wide.shares) == (2, 15.0, {"dram": 0.4})  # (10 * 0.2 + 20 * 0.5) / 30
    assert tall == counted(30, 0.8)
    assert record.replay is not None
    assert record.replay.problem is None


def test_another_number_of_launches_joins_by_name_alone(tmp_path: Path) -> None:
    record = join(tmp_path, two_products(), replayed(("gemm", counted(10)), ("gemm", counted(10))), ["gemm"])
    assert record.kernels[0].counters is not None
    assert all(site.counters is None for site in record.sites)


def test_a_replay_that_was_stopped_joins_the_first_launches(tmp_path: Path) -> None:
    result = replayed(("gemm", counted(10, 0.2)), ("gemm", counted(30, 0.8)), complete=False)
    record = join(tmp_path, two_products(), result, ["gemm"])
    by_shapes = {site.shapes: site.counters for site in record.sites if site.kernel == "gemm"}
    assert by_shapes == {"[[8,512],[512,8]]": counted(10, 0.2), "[[512,8],[8,512]]": counted(30, 0.8)}


def test_kernels_that_were_not_launched_again_are_named(tmp_path: Path) -> None:
    record = join(tmp_path, two_products(), replayed(("gemm", counted(10))), ["gemm", "add"])
    assert record.replay is not None
    assert record.replay.problem == "The step that was replayed launched none of these: add."
    record = join(tmp_path, two_products(), replayed(("gemm", counted(10))), ["gemm", *"abcde"])
    assert record.replay is not None
    assert record.replay.problem == "The step that was replayed launched none of these: a, b, c and 2 more."


def test_a_graphs_kernels_join_in_the_order_in_which_they_run(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, at=0, dur=500)
    trace.call("cudaGraphLaunch", at=10, dur=5, correlation=1)
    for index, name in enumerate(["a", "b", "a"]):
        trace.kernel(name, at=20 + 50 * index, dur=40, correlation=1)
    result = replayed(("a", counted(10, 0.2)), ("b", counted(5)), ("a", counted(10, 0.4)))
    record = join(tmp_path, trace, result, ["a", "b"])
    assert {kernel.name: kernel.counters and kernel.counters.shares["dram"] for kernel in record.kernels} == {
        "a": pytest.approx(0.3),
        "b": 0.5,
    }


def test_mangled_names_join_the_traces_names(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, at=0, dur=200).work(1, launch=10, at=20, dur=100, name=ADD_IN_TRACE)
    trace.work(2, launch=130, at=140, dur=10, name=MANGLED[3])  # too long for Kineto, say
    record = join(tmp_path, trace, replayed((ADD, counted(1)), (MANGLED[3], counted(2))), [ADD_IN_TRACE])
    assert [kernel.counters for kernel in record.kernels] == [counted(1), counted(2)]


def test_the_largest_kernels_are_chosen_without_copies_and_collectives(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, at=0, dur=1000)
    trace.launch(at=5, correlation=1).memcpy("Memcpy DtoD (Device -> Device)", at=10, dur=300, correlation=1)
    trace.work(2, launch=310, at=320, dur=200, name="ncclDevKernel_AllReduce")
    trace.work(3, launch=530, at=540, dur=50, name="small").work(4, launch=600, at=610, dur=100, name="large")
    analysis = analyze_trace(trace.write(tmp_path / "trace.json"))
    assert joining.plan(analysis, 6, 60).selection == Selection(["large", "small"], None)
    assert joining.plan(analysis, 1, 60).selection == Selection(["large"], None)


def many(
    shapes: list[list[list[int]]],
    *,
    name: str = "gemm",
    grids: list[int] | None = None,
    times: list[float] | None = None,
) -> TraceBuilder:
    """One step with a launch for each of these shapes, of 10 us if `times` does not say."""
    trace = TraceBuilder().step(0, at=0, dur=100.0 * len(shapes) + 100)
    for index, each in enumerate(shapes):
        at = 50.0 + 100 * index
        trace.op("aten::mm", at=at, dur=20, Input_Dims=each)
        blocks = grids[index] if grids else 1000
        trace.work(
            1 + index, launch=at + 2, at=at + 30, dur=times[index] if times else 10, name=name, grid=[blocks, 1, 1]
        )
    return trace


def test_if_there_is_no_time_for_all_each_operator_and_shapes_comes_first(tmp_path: Path) -> None:
    trace = many([WIDE] * 20 + [TALL] + [WIDE] * 9)
    analysis = analyze_trace(trace.write(tmp_path / "trace.json"))
    a_launch = joining.LAUNCH_SECONDS + joining.PASSES * 10e-6
    assert joining.plan(analysis, 1, 0).selection.numbers == [1]
    assert joining.plan(analysis, 1, 2.5 * a_launch).selection.numbers == [1, 21]
    assert joining.plan(analysis, 1, 4.5 * a_launch).selection.numbers == [1, 2, 3, 21]
    assert joining.plan(analysis, 1, 30.5 * a_launch).selection.numbers is None


def test_what_takes_longest_comes_first(tmp_path: Path) -> None:
    """Two launches of 10 us of one shape, one of 50 us of another."""
    trace = many([WIDE, TALL, TALL, [[16, 512], [512, 16]]], times=[10, 10, 10, 50])
    analysis = analyze_trace(trace.write(tmp_path / "trace.json"))
    assert joining.plan(analysis, 1, 2.5 * joining.LAUNCH_SECONDS).selection.numbers == [1, 4]


def test_launches_join_those_of_a_typical_step(tmp_path: Path) -> None:
    """The first step takes ten times as long, and begins with another shape."""
    trace, at = TraceBuilder(), 0.0
    for number in range(5):
        dur = 5000 if number == 0 else 500
        trace.step(number, at=at, dur=dur)
        for index, shapes in enumerate([TALL, WIDE] if number == 0 else [WIDE, TALL]):
            begin = at + 50 + 100 * index
            trace.op("aten::mm", at=begin, dur=20, Input_Dims=shapes)
            trace.work(1 + 2 * number + index, launch=begin + 2, at=begin + 30, dur=60, name="gemm")
        at += dur
    record = join(tmp_path, trace, replayed(("gemm", counted(10)), ("gemm", counted(30))), ["gemm"])
    assert [step.outlier is not None for step in record.per_step] == [True] + [False] * 4
    by_shapes = {site.shapes: site.counters for site in record.sites}
    assert by_shapes == {"[[8,512],[512,8]]": counted(10), "[[512,8],[8,512]]": counted(30)}


def test_the_same_numbers_are_taken_of_each_kernel_and_all_of_them_are_paid_for(tmp_path: Path) -> None:
    trace = many([WIDE, TALL])
    for index in range(2):
        trace.work(10 + index, launch=110 + index, at=170 + 5 * index, dur=4, name="add")
    analysis = analyze_trace(trace.write(tmp_path / "trace.json"))
    # The first launches of both, then there is no time for two more.
    assert joining.plan(analysis, 2, 3.5 * joining.LAUNCH_SECONDS).selection.numbers == [1]
    assert joining.plan(analysis, 2, 4.5 * joining.LAUNCH_SECONDS).selection.numbers is None


def test_selected_launches_join_by_their_numbers_and_stand_for_the_others(tmp_path: Path) -> None:
    trace = many([WIDE] * 3 + [TALL])
    result = replayed(("gemm", counted(10, 0.2)), ("gemm", counted(50, 0.8)), blocks=1000)
    record = join(tmp_path, trace, result, ["gemm"], [1, 4])
    by_shapes = {site.shapes: site.counters for site in record.sites}
    assert by_shapes == {"[[8,512],[512,8]]": counted(10, 0.2), "[[512,8],[8,512]]": counted(50, 0.8)}
    gemm = record.kernels[0].counters
    assert gemm is not None
    # Three launches like the first and one like the second: (3 * 10 * 0.2 + 50 * 0.8) / 80, (3 * 10 + 50) / 4
    assert (gemm.shares["dram"], gemm.duration_us, gemm.launches) == (0.575, 20.0, 2)


def test_numbers_may_be_counted_for_each_grid(tmp_path: Path) -> None:
    """ncu 2025.3 counts a name's launches; its later documentation says a name's with one grid."""
    trace = many([WIDE, WIDE, TALL, TALL], grids=[64, 64, 128, 128])
    launches = [Launch("gemm", 64, counted(10, 0.2)), Launch("gemm", 128, counted(50, 0.8))]
    result = Replayed(launches=launches, about=Replay(tool="t", launches=2), complete=True)
    by_shapes = {site.shapes: site.counters for site in join(tmp_path, trace, result, ["gemm"], [1]).sites}
    assert by_shapes == {"[[8,512],[512,8]]": counted(10, 0.2), "[[512,8],[8,512]]": counted(50, 0.8)}


def test_other_grids_than_recorded_join_by_name_alone(tmp_path: Path) -> None:
    trace = many([WIDE, TALL], grids=[64, 128])
    launches = [Launch("gemm", 128, counted(10)), Launch("gemm", 64, counted(10))]
    result = Replayed(launches=launches, about=Replay(tool="t", launches=2), complete=True)
    record = join(tmp_path, trace, result, ["gemm"])
    assert record.kernels[0].counters is not None
    assert all(site.counters is None for site in record.sites)


def test_figures_that_only_some_launches_have() -> None:
    both = joining.merged([counted(10, waves=2.0, achieved_occupancy=0.5), counted(30, waves=None, registers=64)])
    assert (both.waves, both.achieved_occupancy, both.registers, both.theoretical_occupancy) == (2.0, 0.5, 64, None)
    assert joining.merged([counted(10), KernelCounters(launches=1, duration_us=5)]).shares == {}


def test_modules_around_the_launches(tmp_path: Path) -> None:
    """Two of three launches of one shape are in Linear_0, and one is in no module but its operator."""
    trace = many([WIDE, WIDE, TALL, WIDE])
    trace.python("nn.Module: MLP_0", at=40, dur=240).python("nn.Module: Linear_0", at=45, dur=130)
    result = replayed(*[("gemm", counted(10))] * 4)
    record = join(tmp_path, trace, result, ["gemm"])
    assert {site.shapes: site.modules for site in record.sites} == {
        "[[8,512],[512,8]]": ["Linear_0"],
        "[[512,8],[8,512]]": ["(MLP)"],
    }
    assert [row[1].text for row in tables.replayed(record, by_site=True).cells] == [
        "aten::mm [[8,512],[512,8]] in Linear_0",
        "aten::mm [[512,8],[8,512]] in (MLP)",
    ]


def test_the_module_with_most_time_comes_first(tmp_path: Path) -> None:
    """One launch of 50 us in one module, two of 10 us in another."""
    trace = many([WIDE] * 3, times=[50, 10, 10])
    trace.python("nn.Module: Linear_0", at=45, dur=60).python("nn.Module: Linear_1", at=140, dur=150)
    record = join(tmp_path, trace, replayed(*[("gemm", counted(10))] * 3), ["gemm"])
    assert [site.modules for site in record.sites] == [["Linear_0", "Linear_1"]]


# ---- the command -----------------------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    return show(capsys, "run", "matmul_add", "--n", "4096", "--no-mlflow", *arguments)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if on a GPU: a capture of a real trace."""
    captures.replace_machine(monkeypatch)
    captures.replace_capture(monkeypatch, captures.LARGE)
    monkeypatch.setattr(replaying, "refuse_impossible", lambda _: None)


def test_run_joins_shows_and_keeps_the_figures(
    fake: Ncu, measured: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = captures.DATA / "matmul_add_4096.json.gz"
    names = [kernel.name for kernel in analyze_trace(trace).record.kernels]
    product = next(name for name in names if "nvjet" in name or "gemm" in name)
    fake.plan(fake_ncu.table([(product, named(PRODUCT)), (ADD, named(EXPONENTIAL))]))
    shown = run(capsys, "--counters", "ncu", "--output", tmp_path / "run")
    assert shown.code == 0
    assert "Replayed one by one" in shown.out
    assert "90.3 %" in shown.out
    record = records.load(tmp_path / "run" / "record.json")
    for later in (overview(record), summary(record)):  # `proftrack report --format text|markdown`
        assert "90.3 %" in terminal.text(later)
    kernel = next(kernel for kernel in record.kernels if kernel.name == product)
    assert kernel.counters is not None
    assert kernel.counters.dram_bytes == 175_342_080
    site = next(site for site in record.sites if site.kernel == product)
    assert site.counters == kernel.counters
    table = json.loads((tmp_path / "run" / "tables" / "kernels.json").read_text())
    assert dict(zip(table["columns"], table["data"][0], strict=True))["counters_launches"] == 1
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Replayed kernels" in page
    assert "Nsight Compute 2025.3.1" in page


def test_run_finishes_without_permission_and_says_so(
    fake: Ncu, measured: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.plan(fake_ncu.NO_PERMISSION, code=1)
    shown = run(capsys, "--counters", "ncu", "--output", tmp_path / "run")
    assert shown.code == 0
    assert "NVreg_RestrictProfilingToAdminUsers=0" in " ".join(shown.out.split())
    record = records.load(tmp_path / "run" / "record.json")
    assert record.run is not None
    assert "ERR_NVGPUCTRPERM" in record.run.notes[-1]
    assert all(kernel.counters is None for kernel in record.kernels)


def test_nothing_is_replayed_unless_it_is_asked_for(
    fake: Ncu, measured: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "--output", tmp_path / "run").code == 0
    assert fake.calls == []
    assert records.load(tmp_path / "run" / "record.json").replay is None


def test_what_is_impossible_is_refused_before_anything_runs(
    fake: Ncu, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--counters", "ncu", "--output", tmp_path / "run")
    on_cpu = run(capsys, *arguments, "--device", "cpu")
    assert (on_cpu.code, on_cpu.err.count("\n")) == (2, 1)
    assert "device=cpu" in on_cpu.err

    class Gpu(CpuDevice):
        is_gpu = True

    monkeypatch.setattr(replaying, "open_device", lambda _: (Gpu(), []))
    monkeypatch.setattr(ncu, "find_ncu", lambda: None)
    without = run(capsys, *arguments)
    assert without.code == 2
    assert "Nsight Compute was not found" in without.err
    assert not (tmp_path / "run").exists()


def test_without_a_gpu_it_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "open_device", lambda _: (CpuDevice(), []))
    shown = run(capsys, "--counters", "ncu")
    assert (shown.code, "torch finds none here" in shown.err) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("sweep", "matmul_add", "-P", "n=64,128", "--counters", "ncu", "--no-mlflow"),
        ("variants", "matmul_add", "-P", "n=64", "--variants", "eager,compile", "--counters", "ncu", "--no-mlflow"),
        ("run", "--counters", "ncu", "--no-mlflow", __file__),
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_cannot_build_its_workload_again_refuses(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROFTRACK_SPOOL", str(tmp_path))
    shown = show(capsys, *arguments)
    assert shown.code == 2
    assert "cannot replay kernels; use proftrack run EXPERIMENT" in shown.err


def test_an_unknown_kind_of_counters_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--counters", "all").code == 2


# ---- the report ------------------------------------------------------------------------------------------------------


def test_the_report_has_a_row_for_each_operator_and_shapes(tmp_path: Path) -> None:
    result = replayed(("gemm", counted(10)), ("gemm", counted(30)), ("gemm", counted(20)), ("add", counted(4)))
    record = join(tmp_path, two_products(), result, ["gemm"])
    shown = [[row[i].text for i in (0, 1, 2, 3)] for row in tables.replayed(record, by_site=True).cells]
    assert shown == [
        ["gemm", "aten::mm [[8,512],[512,8]]", "2", "15.0 us"],
        ["gemm", "aten::mm [[512,8],[8,512]]", "1", "30.0 us"],
        ["add", "aten::add [[8,512],[512,8]]", "1", "4.00 us"],
    ]
    assert next(row[1].text for row in tables.replayed(record).cells) == "aten::mm [[8,512],[512,8]] and 1 other"


def test_waves_that_ncu_rounds_to_0_are_shown_as_few(tmp_path: Path) -> None:
    """ncu prints two decimals: a block on 132 multiprocessors that hold two each is 0.00379 waves."""
    result = replayed(("gemm", counted(10, waves=0.0)), ("add", counted(4, waves=0.24)))
    table = tables.replayed(join(tmp_path, two_products(), result, ["gemm", "add"]))
    column = [each.label for each in table.columns].index("waves")
    assert {row[0].text: row[column].text for row in table.cells} == {"gemm": "<0.01", "add": "0.24"}


def test_how_a_replayed_kernel_is_launched_stands_beside_what_it_uses() -> None:
    chain = Chain(kernel="gemm", links=["step", "aten::mm"], share=1.0, ways=1)
    counters = counted(10, 0.9)
    shares = {"dram": 0.9, "tensor": 0.11, "fp32": 0.04}
    assert full._way(chain, structs.replace(counters, shares=shares)).text == "replayed: dram 90.0 %, tensor 11.0 %"
    assert full._way(chain, None).text == ""


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if ncu.find_ncu() is None:
        pytest.skip("Nsight Compute is not installed")
    shown = run(capsys, "--counters", "ncu", "--no-calibrate", "--output", tmp_path / "run")
    record = records.load(tmp_path / "run" / "record.json")
    assert shown.code == 0
    if record.replay is not None and record.replay.problem is not None:
        pytest.skip(record.replay.problem)
    product = record.kernels[0].counters
    assert product is not None
    assert product.duration_us == pytest.approx(record.kernels[0].mean_us, rel=0.2)
    assert product.shares["tensor"] > 0.5
    # Two factors and the product, once each.
    assert product.dram_bytes is not None
    assert 0.5 < product.dram_bytes / (3 * 4096 * 4096 * 2) < 4
