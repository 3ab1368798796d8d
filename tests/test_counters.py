"""Hardware counters and energy, from a GPU that keeps its own time: windows, alignment, and what is absent and why."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from fake_nvml import FakeNvml, Gpu, NvmlError, Work, install

from proftrack import experiment
from proftrack.capture import counters, loop, measurement, reachable
from proftrack.capture.budget import Budget, Plan
from proftrack.capture.counters import EnergyReading, Meter, count, power
from proftrack.capture.device import CpuDevice
from proftrack.capture.loads import copy
from proftrack.capture.lockstep import PacedStopwatch
from proftrack.capture.timing import Stopwatch, time_steps
from proftrack.errors import WorkloadError
from proftrack.experiment import TimingOptions
from proftrack.record.ceilings import Ceilings
from proftrack.record.counters import Counters

PRODUCT = {"SM_UTIL": 95.0, "ANY_TENSOR_UTIL": 90.0, "HMMA_TENSOR_UTIL": 90.0, "DRAM_BW_UTIL": 20.0}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return install(monkeypatch)


def counted(gpu: FakeNvml, work: Work) -> Counters | None:
    with Meter(Gpu()) as meter:
        return count(gpu.watch(work), meter, work.seconds)


# ---- a window --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.00005, 0.001, 0.013, 0.3])
def test_a_window_holds_these_steps_alone(gpu: FakeNvml, seconds: float) -> None:
    """A copy ran until just before, and the counters still show it; 600 W for a step of so many seconds."""
    gpu.run(Work(0.5, watts=400.0, DRAM_BW_UTIL=85.0))
    found = counted(gpu, Work(seconds, watts=600.0, PCIE_RX_PER_SEC=3.0, **PRODUCT))
    assert found is not None and found.source == "gpm"
    assert found.window_s >= 0.99
    assert found.shares == pytest.approx(
        {
            "sm_active": 0.95,
            "tensor": 0.9,
            "hmma": 0.9,
            "dram": 0.2,
            **dict.fromkeys(("occupancy", "imma", "dmma", "fp64", "fp32", "fp16", "integer"), 0.0),
        }
    )
    assert found.link_bytes_per_s == pytest.approx(
        {"pcie_tx": 0.0, "pcie_rx": 3 * 1024 * 1024, "nvlink_tx": 0.0, "nvlink_rx": 0.0}
    )
    assert found.power_watts == pytest.approx(600, rel=0.01)
    assert found.energy_joules_per_step == pytest.approx(600 * seconds, rel=0.01)


def test_steps_that_leave_the_gpu_idle_use_less_of_it(gpu: FakeNvml) -> None:
    """Half a millisecond of work in each millisecond: the shares are those of the whole time."""
    work = [Work(0.0005, **PRODUCT), Work(0.0005, watts=100.0)]
    watch = Stopwatch(lambda: [gpu.run(each) for each in work], Gpu(), clock=lambda: round(gpu.now * 1e9))
    with Meter(Gpu()) as meter:
        found = count(watch, meter, 0.001)
    assert found is not None and found.shares["tensor"] == pytest.approx(0.45)
    assert found.energy_joules_per_step == pytest.approx(0.35, rel=0.01)
    assert found.utilization("tensor", 0.5) == pytest.approx(0.9)


def test_what_the_gpu_does_not_count_is_absent(gpu: FakeNvml) -> None:
    gpu.unsupported = {"FP16_UTIL", "NVLINK_TOTAL_RX_PER_SEC", "NVLINK_TOTAL_TX_PER_SEC", "DMMA_TENSOR_UTIL"}
    found = counted(gpu, Work(0.001, DFMA_TENSOR_UTIL=88.0, INTEGER_UTIL=float("nan"), FP32_UTIL=float("inf")))
    assert found is not None
    assert set(found.link_bytes_per_s) == {"pcie_tx", "pcie_rx"}
    assert not {"fp16", "integer", "fp32"} & set(found.shares)
    assert found.shares["dmma"] == pytest.approx(0.88)  # what this GPU calls the product of float64


def test_a_share_is_at_most_1(gpu: FakeNvml) -> None:
    found = counted(gpu, Work(0.001, DRAM_BW_UTIL=100.4))
    assert found is not None and found.shares["dram"] == 1.0


@pytest.mark.parametrize(("seconds", "there"), [(0.05, False), (0.25, False), (0.35, True)])
def test_a_short_window_is_refused(gpu: FakeNvml, seconds: float, there: bool) -> None:
    with Meter(Gpu()) as meter:
        gpu.run(Work(0.3, **PRODUCT))
        with meter.window():
            gpu.run(Work(seconds, **PRODUCT))
        found = meter.count(1, seconds)
    assert (found is not None) == there
    if found is not None:
        assert found.shares["tensor"] == pytest.approx(0.9)
        assert found.energy_joules_per_step is None  # 100 ms more or less would be a third of it


def test_a_counter_that_stops_answering_leaves_energy(gpu: FakeNvml) -> None:
    with Meter(Gpu()) as meter:
        with meter.window():
            gpu.run(Work(6.0, **PRODUCT))
            gpu.gpm = NvmlError(15, "GPU is lost")
        found = meter.count(6, 6.0)
        assert meter.notes() == [
            "Hardware counters were not measured: the GPU's counters stopped answering; check nvidia-smi."
        ]
    assert found is not None and (found.source, found.shares) == ("nvml", {})
    assert found.energy_joules_per_step == pytest.approx(600, rel=0.02)


# ---- energy ----------------------------------------------------------------------------------------------------------


def readings(*rows: tuple[float, int]) -> list[EnergyReading]:
    return [EnergyReading(seconds, joules * 1000) for seconds, joules in rows]


def test_power_is_taken_between_two_updates() -> None:
    # Updates between 0.098 and 0.1 s and between 0.498 and 0.5 s: 240 J in 0.4 s.
    often = readings((0, 50), (0.098, 50), (0.1, 110), (0.3, 230), (0.498, 290), (0.5, 350), (0.55, 350))
    assert power(often) == pytest.approx(600)


@pytest.mark.parametrize(
    ("rows", "watts"),
    [
        ([], None),
        ([(0, 50)], None),
        ([(0, 50), (0.5, 350)], None),  # a fifth of the window is uncertain
        ([(0, 50), (5, 3050)], 600),  # a fiftieth
        ([(0, 50), (0.098, 50), (0.1, 110), (0.5, 110)], None),  # one update, and no end
        ([(0, 50), (0.098, 50), (0.1, 110), (0.198, 110), (0.2, 170)], None),  # 0.1 s are too short
        ([(0, 50), (0.098, 50), (0.1, 110), (0.45, 110), (0.5, 350)], None),  # somewhere in 50 ms
        ([(0, 7), (1, 7), (5, 7)], None),  # it does not move, or too seldom
    ],
)
def test_power_that_is_uncertain_is_none(rows: list[tuple[float, int]], watts: float | None) -> None:
    assert power(readings(*rows)) == (None if watts is None else pytest.approx(watts))


def test_a_counter_that_never_moves_is_no_energy(gpu: FakeNvml) -> None:
    gpu.update_s = 100.0
    gpu.gpm = False
    assert counted(gpu, Work(0.001)) is None


def test_energy_repeats(gpu: FakeNvml) -> None:
    """However the windows lie to the counter's updates."""
    found = []
    for pause in (0.0, 0.013, 0.051, 0.077, 0.098):
        gpu.run(Work(pause + 1e-6, watts=80.0))
        result = counted(gpu, Work(0.0002, watts=650.0))
        assert result is not None and result.energy_joules_per_step is not None
        found.append(result.energy_joules_per_step)
    assert found == pytest.approx([0.13] * 5, rel=0.01)


def test_the_thread_reads_until_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thread, with a counter that every reading moves."""
    real = (counters.beside, counters.time)
    gpu = install(monkeypatch)
    monkeypatch.setattr(counters, "beside", real[0])
    monkeypatch.setattr(counters, "time", real[1])
    with Meter(Gpu()) as meter:
        with meter.reading_energy():
            end = time.monotonic() + 30
            while len(meter._energy) < 3 and time.monotonic() < end:
                gpu.run(Work(0.2))
                time.sleep(0.001)
        seen = len(meter._energy)
        assert seen >= 3
        assert [reading.seconds for reading in meter._energy] == sorted(r.seconds for r in meter._energy)
        assert len(meter._energy) == seen


# ---- what is absent, and why -----------------------------------------------------------------------------------------


def test_nothing_is_left_open(gpu: FakeNvml) -> None:
    with Meter(Gpu()) as meter:
        assert (meter.has_gpm, meter.has_energy, meter.missing, meter.works) == (True, True, None, True)
        assert (gpu.opened, gpu.samples) == (1, 2)
    assert (gpu.opened, gpu.samples, meter.works) == (0, 0, False)


def test_a_driver_that_is_lost_meanwhile_ends_nothing(gpu: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise NvmlError(15, "GPU is lost")

    with Meter(Gpu()) as meter, meter.window():
        for name in ("nvmlShutdown", "nvmlGpmSampleGet", "nvmlGpmSampleFree", "nvmlDeviceGetTotalEnergyConsumption"):
            monkeypatch.setattr(gpu, name, fails)
    assert meter.count(1, 6.0) is None


def test_an_older_gpu_has_energy_alone_and_no_run_complains(gpu: FakeNvml) -> None:
    gpu.gpm = False
    with Meter(Gpu()) as meter:
        assert (meter.has_gpm, meter.has_energy, meter.notes()) == (False, True, [])
        found = count(gpu.watch(Work(0.001)), meter, 0.001)
    assert found is not None and (found.source, found.shares, found.link_bytes_per_s) == ("nvml", {}, {})
    assert found.energy_joules_per_step == pytest.approx(0.6, rel=0.01)


def test_who_may_not_read_counters_is_told_what_to_do(gpu: FakeNvml) -> None:
    gpu.gpm = NvmlError(4, "Insufficient Permissions")
    with Meter(Gpu()) as meter:
        assert (meter.has_gpm, meter.has_energy) == (False, True)
        (note,) = meter.notes()
    assert note == (
        "Hardware counters were not measured: this user may not read the GPU's counters; run as root, or load "
        "the driver with NVreg_RestrictProfilingToAdminUsers=0."
    )
    assert (gpu.opened, gpu.samples) == (0, 0)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"others": 1}, "1 other process on this GPU, whose counters are not one process's; end"),
        ({"others": 3}, "3 other processes on this GPU"),
        ({"divided": True}, "divided into instances"),
        ({"unknown": True}, r"NVML does not know this GPU \(Not Found\)"),
    ],
)
def test_what_is_not_this_processs_is_not_read(gpu: FakeNvml, answers: dict[str, Any], said: str) -> None:
    for name, value in answers.items():
        setattr(gpu, name, value)
    with Meter(Gpu()) as meter:
        assert not meter.works
        assert meter.missing is not None and not meter.missing.by_nature
        with pytest.raises(AssertionError, match=said):
            raise AssertionError(meter.notes()[0])
        assert count(gpu.watch(Work(0.01)), meter, 0.01) is None
    assert gpu.opened == 0


def test_idle_companions_are_no_other_processes(gpu: FakeNvml) -> None:
    gpu.others = 1
    with Meter(Gpu(), companions=1) as meter:
        assert meter.works


def test_steps_on_several_gpus_have_no_counters(gpu: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gpu, "used", 2)
    with Meter(Gpu()) as meter:
        assert count(gpu.watch(Work(0.01)), meter, 0.01) is None
        assert "the steps use 2 GPUs" in meter.notes()[0]


def test_a_process_that_comes_later_is_noticed(gpu: FakeNvml) -> None:
    with Meter(Gpu()) as meter:
        assert meter.works
        gpu.others = 1
        assert count(gpu.watch(Work(0.01)), meter, 0.01) is None
        assert "1 other process on this GPU" in meter.notes()[0]


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with Meter(Gpu()) as meter:
        assert not meter.works
        assert meter.notes() == [
            "Hardware counters and energy were not measured: the package nvidia-ml-py is not installed; "
            "pip install 'proftrack[nvidia]'."
        ]


def test_without_a_driver_it_says_so(gpu: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise NvmlError(9, "Driver Not Loaded")

    monkeypatch.setattr(gpu, "nvmlInit", fails)
    with Meter(Gpu()) as meter:
        assert "NVML does not answer (Driver Not Loaded)" in meter.notes()[0]


@pytest.mark.parametrize("hip", [False, True])
def test_a_cpu_and_other_gpus_are_no_reason_to_complain(
    gpu: FakeNvml, monkeypatch: pytest.MonkeyPatch, hip: bool
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.version, "hip", "6.4" if hip else None)
    device = Gpu()
    device.type = "cuda" if hip else "cpu"
    with Meter(device) as meter:
        assert (meter.works, meter.notes()) == (False, [])
        assert meter.missing is not None


# ---- the device ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uuid", "known", "asked"),
    [
        ("1234", {"GPU-1234"}, ["GPU-1234"]),
        ("1234", {"MIG-1234"}, ["GPU-1234", "MIG-1234"]),
        ("GPU-1234", {"GPU-1234"}, ["GPU-1234"]),
    ],
)
def test_the_device_is_found_by_its_uuid(
    monkeypatch: pytest.MonkeyPatch, uuid: str, known: set[str], asked: list[str]
) -> None:
    from proftrack.capture import nvml

    torch = pytest.importorskip("torch")
    seen: list[str] = []

    def by_uuid(text: str) -> str:
        seen.append(text)
        if text not in known:
            raise NvmlError(6, "Not Found")
        return text

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=uuid))
    api = SimpleNamespace(nvmlDeviceGetHandleByUUID=by_uuid, NVMLError=NvmlError)
    assert nvml.handle_of(api, 0) == asked[-1]
    assert seen == asked


def test_in_a_container_one_of_the_hosts_processes_is_this_one() -> None:
    from proftrack.capture import nvml

    def seen(*pids: int) -> Any:
        return SimpleNamespace(nvmlDeviceGetComputeRunningProcesses=lambda _: [SimpleNamespace(pid=p) for p in pids])

    assert nvml.other_processes(seen(os.getpid()), "") == 0
    assert nvml.other_processes(seen(os.getpid(), -1), "") == 1
    assert nvml.other_processes(seen(-1), "") == 0
    assert nvml.other_processes(seen(-1, -2, -3), "") == 2
    assert nvml.other_processes(seen(), "") == 0
    assert nvml.other_processes(SimpleNamespace(nvmlDeviceGetComputeRunningProcesses=None), "") is None


# ---- in a run --------------------------------------------------------------------------------------------------------


class Quiet:
    """Progress that shows nothing and remembers its phases."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    def phase(self, text: str, total: int | None = None, *, live: bool = False) -> Any:
        self.phases.append(text)
        return contextlib.nullcontext()

    def expect(self, seconds: float) -> None:
        pass

    def advance(self, amount: int = 1) -> None:
        pass


@pytest.fixture
def subject(gpu: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes an open workload whose steps do some work on the fake GPU."""

    def made(work: Work, *, counters: bool = True, **timing: str) -> measurement.OpenWorkload:
        bench = measurement.ReadyDevice(Gpu(), False, [])
        plan = Plan(
            step_seconds=work.seconds,
            count=False,
            ceilings=False,
            warm_up_seconds=5.0,
            timing_seconds=20.0,
            counters=counters,
            expected_seconds=1.0,
        )
        asked = experiment.load("matmul_add", timing)
        return measurement.OpenWorkload(asked, bench, lambda: gpu.run(work), 1.0, 1.0, plan, [])

    class OwnTime(Stopwatch):
        def __init__(self, step: Any, device: Any, **more: Any) -> None:
            super().__init__(step, device, clock=lambda: round(gpu.now * 1e9), **more)

    monkeypatch.setattr(measurement, "Stopwatch", OwnTime)
    monkeypatch.setattr(measurement, "state_of", lambda device: None)
    return made


def test_a_run_counts_after_it_has_timed_and_the_step_time_is_the_same(
    gpu: FakeNvml, subject: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readings take 3 ms of the clock that times, and are in no block; the GPU is not read before they are over."""
    gpu.call_s = 0.003
    read: list[int] = []
    ran: list[int] = []
    start = Meter.start
    monkeypatch.setattr(Meter, "start", lambda meter: (read.append(len(ran)), start(meter))[-1])
    progress = Quiet()
    of_run = subject(Work(0.001, **PRODUCT))
    step = of_run.step
    of_run.step = lambda: (ran.append(1), step())
    timed = measurement.time_alone(of_run, progress)
    timing = timed.timing
    blocks = len(timing.block_step_times_us) * timing.steps_per_block
    (first,) = read
    assert first >= timing.warmup_steps + blocks + len(timing.step_latencies_us)
    assert progress.phases == ["warm-up", "timing without the profiler", "hardware counters"]
    assert timed.timing.step_time_us == pytest.approx(1000, abs=0.01)
    assert all(us == pytest.approx(1000, abs=0.01) for us in timed.timing.block_step_times_us)
    assert timed.counters is not None and timed.counters.shares["tensor"] == pytest.approx(0.9, abs=0.02)
    assert of_run.notes == []


def test_without_counters_a_run_reads_nothing(gpu: FakeNvml, subject: Any) -> None:
    progress = Quiet()
    of_run = subject(Work(0.001, **PRODUCT), **{"timing.counters": "none"})
    assert measurement.time_alone(of_run, progress).counters is None
    assert measurement.count_hardware(of_run, 1000.0, progress) is None
    assert progress.phases == ["warm-up", "timing without the profiler"]
    assert of_run.notes == []


def test_what_is_counted_runs_back_to_back(gpu: FakeNvml, subject: Any) -> None:
    """In both modes: the judgement takes the u of such steps. A wait is idle for 1 ms; blocks of 50 steps of 1 ms."""

    class Waits(Gpu):
        def synchronize(self) -> None:
            gpu.run(Work(0.001, watts=100.0))

    for mode in ("throughput", "latency"):
        of_run = subject(Work(0.001, **PRODUCT), mode=mode)
        of_run.bench = measurement.ReadyDevice(Waits(), False, [])
        timed = measurement.time_alone(of_run, Quiet())
        assert timed.counters is not None and timed.timing.step_latency_us == pytest.approx(2000)
        assert timed.counters.shares["tensor"] == pytest.approx(0.9 * 50 / 51, abs=0.01)


def test_long_steps_are_counted_while_they_are_timed(gpu: FakeNvml, subject: Any) -> None:
    """50 steps of 0.4 s, and more one by one; none is repeated. Energy that is 0.1 s off is within 1 %."""
    progress = Quiet()
    begin = gpu.now
    timed = measurement.time_alone(subject(Work(0.4, watts=500.0, **PRODUCT)), progress)
    assert "hardware counters" not in progress.phases
    assert timed.counters is not None
    assert timed.counters.window_s == pytest.approx(20.0)
    assert timed.counters.energy_joules_per_step == pytest.approx(200, rel=0.01)
    assert timed.counters.shares["tensor"] == pytest.approx(0.9)
    steps = timed.timing.warmup_steps + 50 + len(timed.timing.step_latencies_us)
    assert gpu.now - begin == pytest.approx(0.4 * steps)


def test_three_long_steps_are_counted_though_the_budget_has_room_for_no_more(gpu: FakeNvml, subject: Any) -> None:
    """12 s, in a budget that plans 2.4 s: they must be timed in any case."""
    of_run = subject(Work(4.0, **PRODUCT))
    of_run.plan = msgspec.structs.replace(of_run.plan, counters=False, warm_up_seconds=0.0, timing_seconds=2.4)
    found = measurement.time_alone(of_run, Quiet()).counters
    assert found is not None and found.window_s == pytest.approx(12.0)
    assert not any("hardware counters" in note for note in of_run.notes)


def test_a_budget_without_room_leaves_the_counters_out_and_says_so(gpu: FakeNvml, subject: Any) -> None:
    of_run = subject(Work(0.001, **PRODUCT), counters=False)
    assert measurement.time_alone(of_run, Quiet()).counters is None
    assert of_run.notes == ["The budget of 60 s left no time for hardware counters; allow more with --budget."]


def test_a_variant_is_counted_like_a_run(gpu: FakeNvml, subject: Any) -> None:
    of_variant = subject(Work(0.002, **PRODUCT))
    found = measurement.count_hardware(of_variant, 2000.0, Quiet())
    assert found is not None and found.shares["hmma"] == pytest.approx(0.9)
    assert gpu.opened == 0


def test_a_step_that_cannot_be_repeated_so_often_is_told_how_to_run_less_often(gpu: FakeNvml, subject: Any) -> None:
    """Data for 3 more steps. Whatever stops them, nothing is left open."""
    for error, raised in ((StopIteration(), WorkloadError), (KeyboardInterrupt(), KeyboardInterrupt)):
        of_run = subject(Work(0.002, **PRODUCT))
        step, left = of_run.step, iter(range(3))

        def ends(step: Any = step, left: Any = left, error: BaseException = error) -> None:
            if next(left, None) is None:
                raise error
            step()

        of_run.step = ends
        with pytest.raises(raised) as caught:
            measurement.count_hardware(of_run, 2000.0, Quiet())
        assert (gpu.opened, gpu.samples) == (0, 0)
        if raised is WorkloadError:
            assert str(caught.value) == (
                "matmul_add: hardware counters: the step raised StopIteration: (no message); if it cannot be repeated "
                "so often, --counters none runs fewer steps"
            )


@pytest.mark.parametrize("answers", [{"others": 1}, {"gpm": False, "has_energy": False}])
def test_without_counters_no_step_is_repeated(gpu: FakeNvml, subject: Any, answers: dict[str, Any]) -> None:
    for name, value in answers.items():
        setattr(gpu, name, value)
    progress = Quiet()
    of_run = subject(Work(0.001))
    assert measurement.time_alone(of_run, progress).counters is None
    assert "hardware counters" not in progress.phases
    assert len(of_run.notes) == ("others" in answers)


def test_every_rank_runs_the_steps_that_rank_0_counts(gpu: FakeNvml, subject: Any) -> None:
    """Here rank 1, whose GPU is shared: it counts nothing, and runs as many steps as if it did."""

    class Pace:
        rank = 1
        asked: list[float] = []

        def agree(self, seconds: float) -> float:
            self.asked.append(seconds)
            return 1.0 if seconds == 0.0 else seconds  # rank 0 wants to count

        def in_turn(self, what: str) -> Any:
            return contextlib.nullcontext()

    class OwnTime(PacedStopwatch):
        def _seconds(self, steps: int, clock: Any) -> float:
            return super()._seconds(steps, lambda: round(gpu.now * 1e9))

    gpu.others = 1
    ran: list[int] = []
    of_rank = subject(Work(0.002))
    step = of_rank.step
    of_rank.step = lambda: (ran.append(1), step())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurement, "PacedStopwatch", OwnTime)
        timed = measurement.time_alone(of_rank, Quiet(), Pace())
    assert timed.counters is None
    before = timed.timing.warmup_steps + 10 * timed.timing.steps_per_block + len(timed.timing.step_latencies_us)
    # Blocks of 25 steps of 2 ms: five make the lead-in of 0.25 s, twenty the window of 1 s.
    assert len(ran) - before == pytest.approx(650, abs=25)  # or one more of each: the seconds add up to nearly that
    assert timed.timing.step_time_us == pytest.approx(2000)
    assert "1 other process" in of_rank.notes[0]


def test_a_budget_plans_the_repeated_steps() -> None:
    budget = Budget(experiment.load("matmul_add"), clock=lambda: 0.0)
    assert not budget.plan(0.001, 50).counters
    budget.counts_hardware = True
    plan = budget.plan(0.001, 50)
    assert plan.counters
    # 50 s less 8 steps, 2 counted ones, 6 s of ceilings and the 1.25 s of a lead-in and a window.
    assert plan.timing_seconds == pytest.approx(0.4 * (50 - 0.008 - 0.002 - 6 - 1.25))
    # Steps of 4 s: 8 of them leave 18 s, 2 counted ones 10; of what the ceilings leave, 8 s are more than a fifth.
    assert not budget.plan(4.0, 50).counters


@pytest.mark.parametrize(("counters", "planned"), [("auto", True), ("none", False)])
def test_only_wanted_counters_get_a_part_of_the_budget(counters: str, planned: bool) -> None:
    asked = experiment.load("matmul_add", {"timing.counters": counters})
    bench = measurement.ReadyDevice(Gpu(), False, [])
    with measurement.opened(lambda device, **params: lambda: None, asked, bench, Quiet()) as subject:
        assert subject.plan.counters is planned


def test_a_first_step_that_compiled_does_not_take_the_counters_time() -> None:
    """By its 3 s two more would be 6 of the 50 s, over a fifth of the rest; a second step tells what a step takes."""
    budget = Budget(experiment.load("matmul_add"), clock=lambda: 0.0)
    assert budget.is_ample(3.0, 50)
    budget.counts_hardware = True
    assert not budget.is_ample(3.0, 50)
    assert budget.is_ample(0.5, 50)


def test_what_is_around_the_blocks_is_outside_of_their_clock(gpu: FakeNvml) -> None:
    """And left before steps are timed one by one."""
    seen: list[str] = []

    @contextlib.contextmanager
    def around() -> Any:
        gpu.now += 1.0
        seen.append("in")
        yield
        seen.append("out")
        gpu.now += 1.0

    watch = gpu.watch(Work(0.001))
    watch.tick = lambda: seen.append("block")
    found, _ = time_steps(watch, TimingOptions(), 0.001, around=around())
    assert found.step_time_us == pytest.approx(1000)
    blocks = len(found.block_step_times_us)
    assert seen[: blocks + 2] == ["in", *["block"] * blocks, "out"]


# ---- what the device reaches -----------------------------------------------------------------------------------------

KNOWN = Ceilings(device="x", flops_per_s={}, bytes_per_s=1.0)


@pytest.fixture
def loads(gpu: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Loads on the fake GPU; the answer lists those that ran."""
    ran: list[str] = []

    def load(name: str, work: Work) -> Any:
        def make(device: Any) -> Any:
            ran.append(name)
            return lambda: gpu.run(work)

        return make

    def impossible(device: Any) -> Any:
        raise RuntimeError("CUDA out of memory")

    class OwnTime(Stopwatch):
        def __init__(self, step: Any, device: Any) -> None:
            super().__init__(step, device, clock=lambda: round(gpu.now * 1e9))

    monkeypatch.setattr(reachable, "Stopwatch", OwnTime)
    monkeypatch.setattr(
        reachable,
        "LOADS",
        (
            reachable.Load(("tensor", "hmma"), load("product", Work(0.002, **PRODUCT))),
            reachable.Load(("dram",), load("copy", Work(0.001, DRAM_BW_UTIL=85.0, INTEGER_UTIL=11.0))),
            reachable.Load(("fp32",), impossible),
            reachable.Load(("dmma", "fp64"), load("float64", Work(0.02, DFMA_TENSOR_UTIL=89.0)), dtype="float64"),
        ),
    )
    return ran


def test_each_load_gives_the_units_that_it_is_for(gpu: FakeNvml, loads: list[str]) -> None:
    found = reachable.with_reached(Gpu(), ["bfloat16"], KNOWN)
    # The copy's 11 % of integer work are not what integer work can reach.
    assert found.reachable == pytest.approx({"tensor": 0.9, "hmma": 0.9, "dram": 0.85})
    assert loads == ["product", "copy"]


def test_the_better_window_counts(gpu: FakeNvml, loads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    windows = iter([{"dram": 0.81, "fp32": 0.1}, None, None, {"dram": 0.85}])
    found: list[Any] = [None if w is None else Counters(source="gpm", window_s=0.4, shares=w) for w in windows]
    monkeypatch.setattr(reachable, "count", lambda *_: found.pop(0))
    load = reachable.Load(("dram", "fp32"), lambda device: lambda: None)
    with Meter(Gpu()) as meter:
        assert reachable._reached(Gpu(), meter, load) == {"dram": 0.81}
        assert reachable._reached(Gpu(), meter, load) == {"dram": 0.85}


def test_a_device_that_fails_is_not_copied_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch, "ones", fails)
    with pytest.raises(RuntimeError, match="illegal"):
        copy(CpuDevice(), 1 << 20)


def test_what_is_known_is_not_measured_again(gpu: FakeNvml, loads: list[str]) -> None:
    known = Ceilings(device="x", flops_per_s={}, bytes_per_s=1.0, reachable={"tensor": 0.91, "dram": 0.8, "fp32": 0.7})
    assert reachable.with_reached(Gpu(), ["bfloat16"], known) is known
    found = reachable.with_reached(Gpu(), ["float64"], known)
    assert found.reachable == pytest.approx({"tensor": 0.91, "dram": 0.8, "fp32": 0.7, "dmma": 0.89})
    assert loads == ["float64"]


@pytest.mark.parametrize("answers", [{"gpm": False}, {"others": 1}, {"gpm": NvmlError(4, "Insufficient Permissions")}])
def test_nothing_is_loaded_where_nothing_is_counted(gpu: FakeNvml, loads: list[str], answers: dict[str, Any]) -> None:
    for name, value in answers.items():
        setattr(gpu, name, value)
    assert reachable.with_reached(Gpu(), ["float64"], KNOWN) is KNOWN
    assert loads == []


def test_counters_know_what_is_reachable() -> None:
    found = Counters(source="gpm", window_s=0.5, shares={"dram": 0.8, "fp32": 0.8, "tensor": 0.95, "integer": 0.4})
    ceilings = Ceilings(
        device="x", flops_per_s={}, bytes_per_s=1, reachable={"dram": 0.85, "fp32": 0.76, "tensor": 0.9}
    )
    whole = reachable.with_reachable(found, ceilings)
    assert whole is not None and whole.reachable == ceilings.reachable
    assert whole.utilization("dram", 1.0) == pytest.approx(0.8 / 0.85)
    assert [whole.utilization(unit, 1.0) for unit in ("fp32", "tensor")] == [1.0, 1.0]  # capped
    assert whole.utilization("integer", 0.8) == pytest.approx(0.5)  # no load for it: its raw share
    assert reachable.with_reachable(found, None) is found
    assert reachable.with_reachable(None, ceilings) is None


# ---- in a loop -------------------------------------------------------------------------------------------------------


class LoopMeter:
    """Says when a loop starts and stops to count."""

    seen: list[Any] = []

    def __init__(self, device: Any) -> None:
        type(self).seen = []

    def start(self) -> None:
        self.seen.append("start")

    def stop(self) -> None:
        self.seen.append("stop")

    def count(self, steps: int, seconds: float) -> Counters:
        self.seen.append((steps, pytest.approx(seconds)))
        return Counters(source="gpm", window_s=seconds, shares={"dram": 0.5})

    def notes(self) -> list[str]:
        return ["a note"]

    def close(self) -> None:
        self.seen.append("close")


def looped(
    monkeypatch: pytest.MonkeyPatch, folder: Path, seconds: float, *, excluded_after: int = -1
) -> tuple[Counters | None, list[str]]:
    """A loop of 52 steps before the recorded ones: 11 to warm up, 3 blocks of 11, 8 single ones."""
    import proftrack

    now = [0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter_ns=lambda: now[0], time_ns=time.time_ns))
    monkeypatch.setattr(loop, "Meter", LoopMeter)
    schedule = {"wait": 52, "warmup": 1, "active": 2}
    options: dict[str, Any] = {"device": "cpu", "calibrate": False, "quiet": True, "mlflow": False}
    with proftrack.profile("e", schedule=schedule, output=folder / "o", **options) as profile:
        for number in range(55):
            now[0] += round(seconds * 1e9)
            profile.step()
            if number == excluded_after:
                with profile.excluded():
                    now[0] += 10**9
    record = profile.record
    assert record is not None and record.run is not None and record.timing is not None
    assert record.timing.step_time_us == pytest.approx(seconds * 1e6)
    return record.counters, record.run.notes


def test_a_loops_peak_memory_is_not_that_of_the_ceilings_loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str] = []
    monkeypatch.setattr(loop, "calibrated", lambda *_: seen.append("ceilings"))
    monkeypatch.setattr(CpuDevice, "reset_peak_memory", lambda self: seen.append("reset"))
    running = loop.LoopCapture(experiment.load("matmul_add", {"device": "cpu"}), tmp_path)
    running.start(Quiet(), calibrate=True)
    running.close()
    assert seen == ["ceilings", "reset"]


def test_a_loop_is_counted_over_its_timed_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Steps of 50 ms: the 10 that warm up after the first are lead-in enough, and the three blocks are counted."""
    found, notes = looped(monkeypatch, tmp_path, 0.05)
    assert LoopMeter.seen == ["start", "stop", (33, pytest.approx(1.65)), "close"]
    assert found is not None and found.shares == {"dram": 0.5}
    assert "a note" in notes


def test_a_loop_of_short_steps_begins_to_count_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Steps of 15 ms: 10 of them are 0.15 s, with the first block 0.315 s; two blocks are left."""
    looped(monkeypatch, tmp_path, 0.015)
    assert LoopMeter.seen == ["start", "stop", (22, pytest.approx(0.33)), "close"]


def test_a_loop_of_very_short_steps_is_not_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found, _ = looped(monkeypatch, tmp_path, 0.001)
    assert (found, LoopMeter.seen) == (None, ["close"])


@pytest.mark.parametrize(
    ("after", "seen"),
    [
        (5, ["start", "stop", (22, pytest.approx(1.1)), "close"]),  # while it warms up: a block more of lead-in
        (
            20,
            ["start", "start", "stop", (11, pytest.approx(0.55)), "close"],
        ),  # in the first block: only the last is left
        (40, ["start", "close"]),  # in the last block
        (45, ["start", "stop", (33, pytest.approx(1.65)), "close"]),  # after them
    ],
)
def test_what_a_loop_excludes_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, after: int, seen: list[Any]
) -> None:
    looped(monkeypatch, tmp_path, 0.05, excluded_after=after)
    assert LoopMeter.seen == seen


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_counters_of_a_real_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from proftrack.capture.device import CudaDevice

    device = CudaDevice()
    x, w = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    out = torch.empty_like(x)
    big = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(big)
    with Meter(device) as meter:
        if not meter.has_gpm:
            pytest.skip(f"no counters: {meter.missing}")
        product = count(Stopwatch(lambda: torch.mm(x, w, out=out), device), meter, 0.0015)
        copy = count(Stopwatch(lambda: other.copy_(big), device), meter, 0.0005)
    assert product is not None and copy is not None
    assert product.shares["tensor"] > 0.5 > product.shares["dram"]
    assert copy.shares["dram"] > 0.5 > copy.shares["tensor"]
    assert product.energy_joules_per_step and product.energy_joules_per_step > 0
