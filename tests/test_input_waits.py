"""How long steps wait for their data: counted by a clock that is moved by hand, and for real loaders and loops."""

from __future__ import annotations

import contextlib
import copy
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import proftrack
from proftrack.capture import in_turns, timing
from proftrack.capture.input_waits import InputWaits
from proftrack.experiment import TimingOptions
from proftrack.record.figures import LOADING_REGION

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset, IterableDataset, dataloader  # noqa: E402  # torch first

from proftrack.capture.device import CpuDevice  # noqa: E402

SLEEP_US = 5000
Methods = tuple[Any, Any]


def methods() -> Methods:
    return DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__


class Clock:
    """Nanoseconds that pass when told."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def microseconds(self, count: int) -> int:
        self.now += count * 1000
        return count


class Takes(Dataset[int]):
    """Items that each take their own value in microseconds."""

    def __init__(self, clock: Clock, *items: int) -> None:
        self.clock, self.items = clock, items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> int:
        return self.clock.microseconds(self.items[index])


class Slow(Dataset[int]):
    """Items that sleep: never shorter than that."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        time.sleep(SLEEP_US / 1e6)
        return index


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        index = 0
        while True:
            time.sleep(SLEEP_US / 1e6)
            yield index
            index += 1


def loader(*items: int, clock: Clock) -> DataLoader[int]:
    return DataLoader(Takes(clock, *items), batch_size=None)


# ---- what counts -----------------------------------------------------------------------------------------------------


def test_time_in_the_loader_counts_and_what_is_between_does_not() -> None:
    clock = Clock()
    with InputWaits(clock) as waits:
        batches = iter(loader(3, 4, clock=clock))
        next(batches)
        assert waits.lap_us() == 3
        clock.microseconds(100)  # the step
        next(batches)
        with pytest.raises(StopIteration):
            next(batches)
        assert waits.lap_us() == 4
        assert waits.lap_us() == 0
    assert waits.calls == 4  # the iterator, two batches, the end


def test_an_iterator_that_was_there_before_counts_and_none_does_afterwards() -> None:
    clock, before = Clock(), methods()
    batches = iter(loader(1, 2, 4, clock=clock))
    next(batches)
    with InputWaits(clock) as waits:
        assert methods() != before
        next(batches)
    assert methods() == before
    next(batches)
    assert (waits.lap_us(), waits.calls) == (2, 1)


def test_a_loader_within_a_loader_counts_once() -> None:
    clock = Clock()
    inner = loader(3, 4, clock=clock)

    class Outer(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            for item in inner:
                yield item + clock.microseconds(10)

    with InputWaits(clock) as waits:
        assert list(DataLoader(Outer(), batch_size=None)) == [13, 14]
        with proftrack.loading():
            assert list(proftrack.loading(inner)) == [3, 4]
    assert waits.lap_us() == 27 + 7


def test_another_threads_loader_does_not_count() -> None:
    clock = Clock()
    with InputWaits(clock) as waits:
        other = threading.Thread(target=lambda: list(loader(3, 4, clock=clock)))
        other.start()
        other.join()
        assert (waits.lap_us(), waits.calls) == (0, 0)
        next(iter(loader(5, clock=clock)))
        assert waits.lap_us() == 5


def test_an_error_in_the_loader_reaches_the_program_and_its_time_counts() -> None:
    clock = Clock()

    class Fails(Dataset[int]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            clock.microseconds(6)
            raise KeyError(index)

    with InputWaits(clock) as waits:
        batches = iter(DataLoader(Fails(), batch_size=None))
        for _ in range(2):
            with pytest.raises(KeyError):
                next(batches)
    assert waits.lap_us() == 12


def test_what_is_ignored_does_not_count() -> None:
    clock = Clock()
    with InputWaits(clock) as waits:
        with waits.ignored():
            assert list(loader(3, 4, clock=clock)) == [3, 4]
        assert list(loader(5, clock=clock)) == [5]
    assert waits.lap_us() == 5


def test_what_is_ignored_ends_with_the_outermost() -> None:
    clock = Clock()
    with InputWaits(clock) as waits:
        with waits.ignored():
            with waits.ignored():
                clock.microseconds(1)
            assert list(loader(3, 4, clock=clock)) == [3, 4]
        with waits.waiting(), waits.ignored():
            clock.microseconds(6)
        assert list(loader(5, clock=clock)) == [5]
    assert (waits.lap_us(), waits.calls) == (11, 4)  # what waits, the iterator, one batch, the end


def test_a_loader_is_not_kept_alive() -> None:
    """With its workers."""
    with InputWaits(Clock()) as waits:
        batches = iter(loader(3, 4, clock=Clock()))
        next(batches)
        gone = weakref.ref(batches)
        del batches
    gc.collect()
    assert (gone(), waits.calls) == (None, 2)


def test_whoever_replaces_the_methods_meanwhile_keeps_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, iterator = Clock(), dataloader._BaseDataLoaderIter
    original = iterator.__next__
    with InputWaits(clock):
        ours = iterator.__next__

        def theirs(self: Any) -> Any:
            return ours(self)

        monkeypatch.setattr(iterator, "__next__", theirs)
    assert iterator.__next__ is theirs
    assert list(loader(3, clock=clock)) == [3]
    monkeypatch.undo()
    iterator.__next__ = original  # type: ignore[method-assign]


# ---- what a program marks --------------------------------------------------------------------------------------------


def test_a_marked_iterable_counts() -> None:
    clock = Clock()
    with InputWaits(clock) as waits:
        assert list(proftrack.loading(map(clock.microseconds, (3, 4)))) == [3, 4]
        assert next(proftrack.loading(map(clock.microseconds, (5,)))) == 5
        with proftrack.loading():
            clock.microseconds(6)
    assert waits.lap_us() == 18


def test_what_is_marked_is_the_innermosts_and_nobodys_afterwards() -> None:
    clock = Clock()
    with InputWaits(clock) as outer:
        with InputWaits(clock) as inner, proftrack.loading():
            clock.microseconds(3)
        with proftrack.loading():
            clock.microseconds(4)
    with proftrack.loading():
        clock.microseconds(5)
    assert (inner.lap_us(), outer.lap_us()) == (3, 4)


def test_what_is_marked_and_fails_counts() -> None:
    clock = Clock()
    with InputWaits(clock) as waits:
        with pytest.raises(KeyError), proftrack.loading():
            clock.microseconds(4)
            raise KeyError
        with proftrack.loading():
            clock.microseconds(5)
    assert (waits.lap_us(), waits.calls) == (9, 2)


def test_a_marked_iterable_is_still_what_it_was() -> None:
    marked = proftrack.loading(loader(3, 4, clock=Clock()))
    assert len(marked) == 2
    assert marked.batch_size is None
    assert list(marked) == list(marked) == list(copy.copy(marked)) == [3, 4]
    with pytest.raises(AttributeError, match="zorp"):
        _ = marked.zorp


def test_the_error_of_a_marked_iterable_is_its_own() -> None:
    def fails() -> Iterator[int]:
        yield 1
        raise KeyError("x")

    batches = iter(proftrack.loading(fails()))
    assert next(batches) == 1
    with pytest.raises(KeyError):
        next(batches)


def test_what_is_marked_is_a_region_of_the_trace() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        assert list(proftrack.loading([1, 2])) == [1, 2]
    names = [event.name for event in profiler.events()]
    assert names.count(LOADING_REGION) == 4  # the iterator, two items, the end


# ---- the timing ------------------------------------------------------------------------------------------------------


def stopwatch(step: Any) -> timing.Stopwatch:
    return timing.Stopwatch(step, CpuDevice())


QUICK = TimingOptions(min_steps=10, min_seconds=0.05, max_seconds=5)


def test_steps_wait_at_least_as_long_as_their_items_sleep() -> None:
    batches = iter(DataLoader(Slow(), batch_size=2))
    found, _ = timing.time_steps(stopwatch(lambda: next(batches)), QUICK, step_seconds=0.01)
    assert found.input_wait_us is not None and found.input_wait_us >= 2 * SLEEP_US
    assert found.batches_ahead == 0
    assert found.steps == len(found.block_step_times_us) * found.steps_per_block + len(found.step_latencies_us)
    for times, waits in (
        (found.block_step_times_us, found.block_input_waits_us),
        (found.step_latencies_us, found.latency_input_waits_us),
    ):
        assert len(times) == len(waits) > 0
        assert all(2 * SLEEP_US <= wait <= time for wait, time in zip(waits, times, strict=True))


def test_the_wait_is_that_of_the_steps_that_t_is_of() -> None:
    batches = iter(DataLoader(Slow(), batch_size=1))
    options = TimingOptions(mode="latency", min_steps=5, min_seconds=0.02, max_seconds=5)
    found, _ = timing.time_steps(stopwatch(lambda: next(batches)), options, step_seconds=0.005)
    assert found.input_wait_us == found.chosen.input_wait_us() == found.synchronised.input_wait_us()  # type: ignore[union-attr]
    assert found.input_wait_us != found.back_to_back.input_wait_us()


def test_steps_without_a_loader_have_no_wait() -> None:
    found, _ = timing.time_steps(stopwatch(lambda: None), QUICK, step_seconds=0.001)
    assert (found.input_wait_us, found.block_input_waits_us, found.latency_input_waits_us) == (None, [], [])
    assert found.batches_ahead is None


@pytest.mark.parametrize("data", [Slow, Endless])
@pytest.mark.parametrize("more", [{}, {"persistent_workers": True, "prefetch_factor": 4}])
def test_worker_processes(data: type[Any], more: dict[str, Any]) -> None:
    """How long a step waits depends on the machine; that it does, and never longer than it takes, does not."""
    batches = iter(DataLoader(data(), batch_size=2, num_workers=2, multiprocessing_context="fork", **more))
    try:
        found, _ = timing.time_steps(stopwatch(lambda: next(batches)), QUICK, step_seconds=0.005)
    finally:
        batches._shutdown_workers()  # type: ignore[attr-defined]
    assert found.input_wait_us is not None
    assert 0 < found.input_wait_us <= max(found.block_step_times_us)
    assert found.batches_ahead == 2 * more.get("prefetch_factor", 2)


def test_variants_have_waits_of_their_own() -> None:
    batches = iter(DataLoader(Slow(), batch_size=1))
    fed, starved = in_turns.take_turns([stopwatch(lambda: None), stopwatch(lambda: next(batches))], [5, 2], 3)
    assert fed.blocks.waits_us == fed.singles.waits_us == []
    assert len(starved.blocks.waits_us) == 3 and len(starved.singles.waits_us) == 3 * in_turns.SINGLES
    assert min(starved.blocks.waits_us + starved.singles.waits_us) >= SLEEP_US
    slow = in_turns.take_turns([stopwatch(lambda: next(batches))], [1], 2)[0]
    assert slow.singles == slow.blocks


# ---- a loop of the user's own ----------------------------------------------------------------------------------------

LOOP: dict[str, Any] = {"device": "cpu", "calibrate": False, "quiet": True, "mlflow": False}
SCHEDULE = {"wait": 12, "warmup": 1, "active": 2}


def looped(output: Path, batches: Any, **more: Any) -> Any:
    x = torch.ones(8)
    with proftrack.profile("e", schedule=SCHEDULE, output=output, **LOOP, **more) as p:
        for _, number in zip(batches, range(15), strict=False):
            torch.add(x, x)
            p.step()
            if number == 6:
                with p.excluded(), contextlib.closing(iter(Endless())) as validation:
                    for _ in range(10):
                        next(proftrack.loading(validation))
    assert p.record is not None and p.record.timing is not None
    return p.record.timing


@pytest.mark.parametrize("mode", ["throughput", "latency"])
def test_a_loops_wait_is_between_its_steps(tmp_path: Path, mode: str) -> None:
    before = methods()
    found = looped(tmp_path / "o", DataLoader(Slow(), batch_size=2), timing=mode)
    assert methods() == before
    assert found.input_wait_us >= 2 * SLEEP_US
    assert all(w <= t for w, t in zip(found.block_input_waits_us, found.block_step_times_us, strict=True))


def test_evaluation_between_the_steps_is_not_waited_for(tmp_path: Path) -> None:
    found = looped(tmp_path / "o", range(20))
    assert found.input_wait_us is None


def test_a_loop_that_ends_early_leaves_the_loader_as_it_was(tmp_path: Path) -> None:
    before = methods()
    with (
        pytest.raises(KeyError),
        proftrack.profile("e", schedule=SCHEDULE, output=tmp_path / "o", **LOOP) as p,
    ):
        p.step()
        assert methods() != before
        raise KeyError
    assert methods() == before


# ---- which samples are T's -------------------------------------------------------------------------------------------


def samples(times: list[float], waits: list[float]) -> timing.Timing:
    return timing.timing_of("throughput", timing.Samples(times, waits), 10, timing.Samples([]))


def test_the_wait_belongs_to_the_median() -> None:
    """The first blocks find a full queue, the others starve, or the reverse: each T has the wait of its kind."""
    starving = samples([20, 20, 100, 101, 102, 103, 104], [0, 0, 80, 81, 82, 83, 84])
    assert (starving.step_time_us, starving.input_wait_us) == (101, (80 + 81 + 82 + 83) / 4)
    fed = samples([20, 21, 22, 100, 23], [0, 1, 2, 80, 3])
    assert (fed.step_time_us, fed.input_wait_us) == (22, (1 + 2 + 3) / 3)
    assert fed.chosen.input_wait_us(100) == pytest.approx((80 + 3 + 2) / 3)


def test_a_single_sample_is_its_own() -> None:
    assert samples([20], [5]).input_wait_us == 5


def test_what_ran_before_the_first_block_is_not_its_wait() -> None:
    """Counters need a lead-in; its steps wait, too."""
    batches = iter(DataLoader(Slow(), batch_size=1))

    @contextlib.contextmanager
    def lead_in() -> Iterator[None]:
        for _ in range(20):
            next(batches)
        yield

    found, _ = timing.time_steps(stopwatch(lambda: next(batches)), QUICK, step_seconds=0.005, around=lead_in())
    for times, waits in (
        (found.block_step_times_us, found.block_input_waits_us),
        (found.step_latencies_us, found.latency_input_waits_us),
    ):
        assert all(wait <= time for wait, time in zip(waits, times, strict=True))
