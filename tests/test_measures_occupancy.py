"""Occupancy, waves and tail, derived from a kernel's launch; worked out by hand from the rules of cuda_occupancy.h."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import TraceBuilder, table_of

from proftrack.measures import combine
from proftrack.measures.occupancy import BLOCKS_PER_SM, SmLimits, fill, limits_of
from proftrack.record.columns import columns_of, values_of
from proftrack.record.figures import Kernel, Occupancy
from proftrack.trace.parquet import read_events, write_events
from proftrack.trace.table import NONE, LaunchConfig
from proftrack.verdict.filling import filling, fills_at_most

DATA = Path(__file__).parent / "data"


def device(major: int, minor: int, sms: int, threads: int, shared_kb: int, **more: Any) -> dict[str, Any]:
    """A device as torch describes it."""
    return {
        "id": 0,
        "name": "Test GPU",
        "computeMajor": major,
        "computeMinor": minor,
        "warpSize": 32,
        "numSms": sms,
        "maxThreadsPerMultiprocessor": threads,
        "regsPerMultiprocessor": 65536,
        "sharedMemPerMultiprocessor": shared_kb << 10,
        **more,
    }


V100 = device(7, 0, 80, 2048, 96)
A100 = device(8, 0, 108, 2048, 164)
RTX3090 = device(8, 6, 82, 1536, 100)
H200 = device(9, 0, 132, 2048, 228)
RTX5090 = device(12, 0, 170, 1536, 100)


def occupancy(properties: dict[str, Any], *launches: dict[str, Any]) -> Occupancy | None:
    """Of one kernel with these launches: `at`, `dur`, and what `work` takes."""
    trace = TraceBuilder().member(deviceProperties=[properties])
    for i, launch in enumerate(launches):
        trace.work(i + 1, launch=10 * i, at=1000 * i + 500, **{"dur": 10, **launch})
    [kernel] = trace.measures().kernels
    return kernel.occupancy


def launch(blocks: int, threads: int, registers: Any, shared: Any, **more: Any) -> dict[str, Any]:
    return {
        "grid": [blocks, 1, 1],
        "block": [threads, 1, 1],
        "registers per thread": registers,
        "shared memory": shared,
        **more,
    }


# -- one launch, by hand


def test_hopper_matmul_with_all_of_the_shared_memory() -> None:
    # 384 threads are 12 warps. Registers: 168 x 32 = 5376 a warp, a multiple of 256; a quarter of the file has 16384:
    # 3 warps, so 12 on the multiprocessor: 1 block. Shared: 213220 + 1024 = 214244, up to 214272: 233472 holds 1.
    # Warps: 64 // 12 = 5. One block of 12 of 64 warps. 128 blocks on 132 multiprocessors.
    found = occupancy(H200, launch(128, 384, 168, 213220))
    assert found == Occupancy(
        theoretical=0.1875,
        at_most=round(128 * 12 / (132 * 64), 5),
        waves=round(128 / 132, 5),
        last_wave_share=round(128 / 132, 5),
        tail=round(4 / 132, 5),
        limited_by=["grid"],
        covered_us=10,
        blocks_per_sm=1,
        registers=168,
        shared_bytes=213220,
        block_threads=384,
        shape_share=1,
    )
    found = occupancy(H200, launch(132, 384, 168, 213220))
    assert found and (found.waves, found.last_wave_share, found.tail) == (1, 1, 0)
    assert found.limited_by == ["registers", "shared memory"]


def test_ampere_elementwise_kernel_with_a_tail() -> None:
    # 128 threads are 4 warps: 64 // 4 = 16 blocks. Registers: 34 x 32 = 1088, up to 1280; 16384 // 1280 = 12 a
    # quarter, 48 warps: 12 blocks. 48 of 64 warps. 108 x 12 = 1296 blocks at a time: 1500 are a wave and 204 of 1296.
    found = occupancy(A100, launch(1500, 128, 34, 0))
    assert found and (found.theoretical, found.blocks_per_sm, found.limited_by) == (0.75, 12, ["registers"])
    assert (found.waves, found.last_wave_share) == (round(1500 / 1296, 5), round(204 / 1296, 5))
    assert found.tail == round(1 - 1500 / 2592, 5)
    assert found.at_most == 0.75


def test_volta_has_larger_units_of_shared_memory_and_reserves_none() -> None:
    # 32768 is a multiple of 256: 98304 // 32768 = 3 blocks of 4 warps. Registers: 128 x 32 = 4096: 4 warps a quarter,
    # 16: 4 blocks.
    found = occupancy(V100, launch(800, 128, 128, 32768))
    assert found and (found.theoretical, found.blocks_per_sm) == (12 / 64, 3)
    assert found.limited_by == ["shared memory"]
    found = occupancy(V100, launch(800, 128, 32, 32768 + 1))  # up to 33024: 2
    assert found and found.blocks_per_sm == 2
    # 8832 is 69 times 128, but up to 8960 in units of 256: 98304 // 8960 = 10, not 11. Registers and warps allow 16.
    found = occupancy(V100, launch(800, 128, 32, 8832))
    assert found and (found.blocks_per_sm, found.limited_by) == (10, ["shared memory"])


@pytest.mark.parametrize(
    ("properties", "config", "blocks", "limited_by"),
    [
        (H200, (32, 32, 0), 32, ["blocks"]),  # one warp each: 64 by warps, 228 by shared memory, but 32 blocks
        (RTX3090, (32, 32, 0), 16, ["blocks"]),
        (device(8, 9, 128, 1536, 100), (32, 32, 0), 24, ["blocks"]),
        (RTX5090, (32, 32, 0), 24, ["blocks"]),
        (device(7, 5, 40, 1024, 64), (32, 32, 0), 16, ["blocks"]),
        (RTX3090, (256, 32, 0), 6, ["threads"]),  # 8 of 48 warps
        (RTX3090, (256, 33, 0), 6, ["threads"]),  # 33 x 32 up to 1280: 12 a quarter, 48: all warps all the same
        (RTX3090, (1024, 32, 0), 1, ["threads"]),  # 32 of 48 warps: a second block does not fit
        (RTX3090, (96, 40, 0), 16, ["threads"]),  # 48 // 3, 12 x 4 // 3 and the most are all 16: no room is left
        (H200, (1000, 32, 0), 2, ["threads"]),  # 32 warps with the last one half empty
        (H200, (1000, 33, 0), 1, ["registers"]),  # 1280 a warp: 48 warps, one block of 32
        (A100, (128, 24, 20000), 7, ["shared memory"]),  # 21024 up to 21120: 167936 // 21120 = 7
        (A100, (128, 24, 19968), 8, ["shared memory"]),  # 20992 = 164 x 128: 167936 // 20992 = 8
        (H200, (256, 255, 0), 1, ["registers"]),  # 255 x 32 = 8160 up to 8192: 2 a quarter
        (device(6, 0, 56, 2048, 64), (64, 40, 0), 25, ["registers"]),  # halves: 32768 // 1280 = 25, 50 warps
        (device(6, 1, 28, 2048, 96), (64, 40, 0), 24, ["registers"]),  # quarters: 16384 // 1280 = 12, 48 warps
    ],
)
def test_blocks_on_a_multiprocessor(
    properties: dict[str, Any], config: tuple[int, int, int], blocks: int, limited_by: list[str]
) -> None:
    found = occupancy(properties, launch(10_000_000, *config))
    assert found and (found.blocks_per_sm, found.limited_by) == (blocks, limited_by)


# -- what is not known


@pytest.mark.parametrize(
    "properties",
    [
        {**H200, "computeMajor": 13},
        {**H200, "computeMinor": 4},  # gfx942, and no NVIDIA GPU
        {**H200, "computeMajor": "9"},
        {**H200, "warpSize": 64},
        {**H200, "maxSharedMemoryPerMultiProcessor": 65536},  # ROCm's name for it
        {**H200, "numSms": 0},
        {**H200, "numSms": "132"},
        {**H200, "maxThreadsPerMultiprocessor": 2**70},
        {**H200, "maxThreadsPerMultiprocessor": 1},
        {**H200, "regsPerMultiprocessor": 1},
        {**H200, "regsPerMultiprocessor": True},
        {key: value for key, value in H200.items() if key != "sharedMemPerMultiprocessor"},
        {"id": 0, "name": "Made-up GPU", "numSms": 132},
        {**H200, "id": 1},
    ],
)
def test_an_unknown_device_has_no_occupancy(properties: dict[str, Any]) -> None:
    assert occupancy(properties, launch(100, 1, 32, 0)) is None


@pytest.mark.parametrize(
    "more",
    [
        {"grid": [0, 0, 0]},
        {"block": [0, 1, 1]},
        {"block": [4096, 1, 1]},
        {"block": "128"},
        {"registers per thread": 0},
        {"registers per thread": None},
        {"registers per thread": [32]},
        {"registers per thread": 2**61},
        {"shared memory": None},
        {"shared memory": 233_473},
        {"shared memory": {"static": 1}},
        {"shared memory": -1},
    ],
)
def test_a_launch_that_does_not_say_or_cannot_be_has_no_occupancy(more: dict[str, Any]) -> None:
    assert occupancy(H200, {**launch(100, 128, 32, 0), **more}) is None


def test_copies_have_none_and_numbers_as_text_count() -> None:
    trace = TraceBuilder().member(deviceProperties=[H200]).memcpy(at=0, dur=5).memset(at=9, dur=5)
    assert [kernel.occupancy for kernel in trace.measures().kernels] == [None, None]
    found = occupancy(H200, launch(100, 128, "34", "0"))
    assert found and found.blocks_per_sm == 12


def test_rows_of_a_repaired_file_keep_their_launch() -> None:
    trace = TraceBuilder().member(deviceProperties=[H200]).work(1, launch=0, at=5, dur=10, **launch(128, 384, 168, 4))
    text = trace.json().replace(b'"gemm"', b'"ge"mm"')
    table = table_of(text)
    assert table.notes.repaired
    assert LaunchConfig(128, 384, 168, 4) in table.configs


# -- several launches


def test_launches_of_one_name_are_weighed_by_time() -> None:
    # 30 us: 4 warps a block, 64 // 4 = 16 blocks: all warps; 2112 x 2 blocks are two full waves.
    # 10 us: 12 blocks by registers: 48 of 64 warps; 792 blocks are half a wave of 1584.
    found = occupancy(H200, launch(4224, 128, 32, 0, dur=30), launch(792, 128, 40, 0))
    assert found and found.theoretical == (30 * 1 + 10 * 0.75) / 40
    assert found.at_most == (30 * 1 + 10 * 0.375) / 40
    assert (found.waves, found.last_wave_share) == ((30 * 2 + 10 * 0.5) / 40, (30 * 1 + 10 * 0.5) / 40)
    assert (found.tail, found.covered_us) == (10 * 0.5 / 40, 40)
    assert (found.registers, found.blocks_per_sm, found.shape_share) == (32, 16, 0.75)
    assert found.limited_by == ["threads"]


def test_what_limits_is_what_limits_most_of_the_time() -> None:
    # Every grid is another, but all blocks are alike: 6 + 5 us are under a wave, 10 us are not.
    found = occupancy(H200, launch(2112, 128, 32, 0), launch(100, 128, 32, 0, dur=6), launch(200, 128, 32, 0, dur=5))
    assert found and (found.limited_by, found.shape_share) == (["grid"], 1)


def test_only_known_launches_count() -> None:
    found = occupancy(H200, launch(2112, 128, 32, 0), launch(9, 128, None, 0, dur=90))
    assert found and (found.covered_us, found.theoretical) == (10, 1)


def test_launches_without_length_count_alike() -> None:
    found = occupancy(H200, launch(4224, 128, 32, 0, dur=0), launch(792, 128, 40, 0, dur=0))
    assert found and (found.theoretical, found.covered_us) == (0.875, 0)


def test_devices_have_limits_of_their_own() -> None:
    trace = TraceBuilder().member(deviceProperties=[H200, {**RTX3090, "id": 1}])
    trace.work(1, launch=0, at=5, dur=10, **launch(10**6, 256, 32, 0))
    trace.work(2, launch=1, at=5, dur=30, device=1, **launch(10**6, 1024, 32, 0))
    [kernel] = trace.measures().kernels
    assert kernel.occupancy and kernel.occupancy.theoretical == (10 * 1 + 30 * 32 / 48) / 40
    assert kernel.occupancy.block_threads == 1024


def test_cycles_are_weighed_by_time() -> None:
    def cycle(*launches: dict[str, Any]) -> Any:
        trace = TraceBuilder().member(deviceProperties=[H200])
        for i, each in enumerate(launches):
            trace.work(i + 1, launch=i, at=100 * i + 5, **{"dur": 10, **each})
        return trace.measures()

    first = cycle(launch(4224, 128, 32, 0, dur=20), launch(792, 128, 40, 0))
    second = cycle(launch(4224, 128, 32, 0))
    unknown = cycle(launch(4224, 128, None, 0, dur=50))
    [kernel] = combine([first, second, unknown]).kernels
    found = kernel.occupancy
    assert found and found.theoretical == pytest.approx((30 + 10 * 0.75) / 40)
    assert found.waves == pytest.approx((30 * 2 + 10 * 0.5) / 40, abs=1e-5)
    assert (found.covered_us, found.registers) == (40, 32)
    assert found.shape_share == pytest.approx(0.75, abs=1e-5)
    assert combine([unknown, unknown]).kernels[0].occupancy is None


# -- for any launch


LIMITS = st.sampled_from(
    [limits_of({**H200, "computeMajor": major, "computeMinor": minor}) for major, minor in BLOCKS_PER_SM]
    + [limits_of(RTX3090), limits_of(V100), limits_of(RTX5090)]
)


def filled(limits: SmLimits, blocks: int, threads: int, registers: int, shared: int) -> dict[str, Any]:
    found = fill(limits, *(np.array([number], dtype=np.int64) for number in (blocks, threads, registers, shared)))
    return {name: values[0] for name, values in found._asdict().items()}


@given(LIMITS, st.integers(1, 10**9), st.integers(1, 1024), st.integers(16, 255), st.integers(0, 99 << 10))
def test_properties(limits: SmLimits, blocks: int, threads: int, registers: int, shared: int) -> None:
    found = filled(limits, blocks, threads, registers, shared)
    if not found["blocks_per_sm"]:  # more registers or shared memory than a multiprocessor has
        return
    assert 0 < found["theoretical"] <= 1
    assert 0 < found["last_wave_share"] <= 1
    assert 0 <= found["tail"] < 1
    slots = int(found["blocks_per_sm"]) * limits.sms
    assert found["waves"] == pytest.approx(blocks / slots)
    assert found["last_wave_share"] == pytest.approx((blocks % slots or slots) / slots)
    assert found["blocks_per_sm"] * threads <= limits.threads + 31 * found["blocks_per_sm"]
    assert found["blocks_per_sm"] * threads * registers <= limits.registers
    assert found["blocks_per_sm"] * shared <= limits.shared_bytes
    hungrier = filled(limits, blocks, threads, registers + 1, shared)
    larger = filled(limits, blocks, threads, registers, shared + 1)
    assert hungrier["blocks_per_sm"] <= found["blocks_per_sm"] >= larger["blocks_per_sm"]
    twice = filled(limits, 2 * blocks, threads, registers, shared)
    assert twice["waves"] == pytest.approx(2 * found["waves"])
    assert twice["theoretical"] == found["theoretical"]


def test_many_launches_are_the_same_as_one_after_the_other() -> None:
    limits = limits_of(H200)
    assert limits is not None
    random = np.random.default_rng(3)
    columns = [random.integers(low, high, 500) for low, high in ((-1, 10**6), (-1, 1100), (-1, 270), (-1, 250_000))]
    together = fill(limits, *columns)
    for i in range(500):
        alone = filled(limits, *(int(column[i]) for column in columns))
        assert alone == {name: values[i] for name, values in together._asdict().items()}


# -- against torch's own estimate


@pytest.mark.parametrize("name", ["llama_train", "mlp_train", "sync_item", "two_streams", "tracelens_h100_qwen"])
def test_torch_says_the_same_of_every_launch_with_up_to_48_kb_of_shared_memory(name: str) -> None:
    """torch bounds the blocks by the grid, counts threads where NVIDIA counts warps, and rounds to whole percents.

    For more shared memory, which a kernel has to ask for, it says 0.
    """
    trace = json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))
    limits = limits_of(trace["deviceProperties"][0])
    assert limits is not None
    launches = [event["args"] for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    columns = [
        np.array(values)
        for values in zip(
            *(
                (math.prod(a["grid"]), math.prod(a["block"]), a["registers per thread"], a["shared memory"])
                for a in launches
            ),
            strict=True,
        )
    ]
    blocks, threads, _, shared = columns
    running = np.minimum(fill(limits, *columns).blocks_per_sm, blocks / limits.sms)
    estimate = np.floor(100 * running * threads / limits.threads + 0.5)
    torchs = np.array([a["est. achieved occupancy %"] for a in launches])
    large = shared > 48 << 10
    assert (estimate[~large] == torchs[~large]).all()
    assert (estimate[large] > 0).all() and not torchs[large].any()


# -- tables, and words


def test_flat_tables() -> None:
    names = columns_of(Kernel)
    assert names[:3] == ["name", "kind", "calls"]
    assert names[-12:-7] == [f"occupancy_{n}" for n in ("theoretical", "at_most", "waves", "last_wave_share", "tail")]
    trace = (
        TraceBuilder().member(deviceProperties=[H200]).work(1, launch=0, at=5, dur=10, **launch(132, 384, 168, 213220))
    )
    kernel, copy = trace.memcpy(at=50, dur=1).measures().kernels
    row = dict(zip(names, values_of(kernel), strict=True))
    assert (row["occupancy_theoretical"], row["occupancy_limited_by"]) == (0.1875, "registers, shared memory")
    assert set(values_of(copy)[-12:]) == {None}
    assert json.loads(msgspec.json.encode(values_of(kernel)))


def test_events_keep_the_launch(tmp_path: Path) -> None:
    table = TraceBuilder().work(1, launch=0, at=5, dur=10, **launch(128, 384, 168, 213220)).memset(at=50, dur=1).table()
    write_events([table], tmp_path / "events.parquet")
    [back] = read_events(tmp_path / "events.parquet")
    assert [back.configs[code] for code in back.config.tolist() if code != NONE] == [
        LaunchConfig(128, 384, 168, 213220)
    ]
    assert back.blocks.tolist() == table.blocks.tolist()


def test_events_of_an_older_version_are_read(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "events.parquet"
    write_events([TraceBuilder().work(1, launch=0, at=5, dur=10, **launch(128, 384, 168, 4)).table()], path)
    whole = pq.read_table(path)
    pq.write_table(whole.drop_columns(["block_threads", "registers", "shared_bytes"]), path)
    [back] = read_events(path)
    assert back.configs == [LaunchConfig(128, NONE, NONE, NONE)]


def kernels(*launches: tuple[str, float, dict[str, Any]]) -> list[Kernel]:
    trace = TraceBuilder().member(deviceProperties=[H200])
    for i, (name, dur, config) in enumerate(launches):
        trace.work(i + 1, launch=i, at=1000 * i + 5, dur=dur, name=name, **config)
    return trace.measures().kernels


def test_the_sentence_names_the_busiest_kernels_and_what_limits_them() -> None:
    found = kernels(
        ("matmul", 60, launch(1320, 384, 168, 213220)),
        ("small", 30, launch(528, 128, 32, 0)),
        ("tail", 6, launch(2400, 128, 32, 0)),
        ("rare", 4, launch(528, 128, 32, 0)),
    )
    # 60 x 0.1875 + 30 x 0.25 + 6 x 1 + 4 x 0.25 = 25.75 of 100
    assert fills_at_most(found) == pytest.approx(0.2575)
    assert filling(found) == (
        "Launches can fill at most 26% of the GPU's room for warps (derived, not measured): "
        "matmul, 60% of the time, at most 19% (limited by registers and shared memory); "
        "small, 30% of the time, at most 25% (its grid is 0.25 waves); "
        "tail, 6% of the time, at most 100%, and 43% of the places in its 1.1 waves stay empty."
    )


def test_a_kernel_with_grids_of_both_kinds_and_one_that_is_not_worth_a_word() -> None:
    # 128 threads of 32 registers fill all 64 warps, 16 blocks on 132 multiprocessors: 21120 are ten waves, 528 a
    # quarter of one. 90 us at 1 and 60 at 0.25: 0.7 of 150. `rare` has 4 of 154 us.
    full, part = launch(21120, 128, 32, 0), launch(528, 128, 32, 0)
    found = kernels(("mixed", 90, full), ("mixed", 60, part), ("rare", 4, part))
    assert filling(found) == (
        "Launches can fill at most 69% of the GPU's room for warps (derived, not measured): "
        "mixed, 97% of the time, at most 70% (some of its grids are under a wave)."
    )
    # Nor has any launch the 4.15 waves of the mean.
    mostly_small = kernels(("mixed", 40, full), ("mixed", 60, part))
    assert mostly_small[0].occupancy is not None and mostly_small[0].occupancy.waves == pytest.approx(4.15)
    said = filling(mostly_small)
    assert said is not None
    assert said.endswith("mixed, 100% of the time, at most 55% (some of its grids are under a wave).")


def test_no_sentence_where_too_little_is_known() -> None:
    known, unknown = launch(528, 128, 32, 0), launch(528, 128, None, 0)
    assert filling(kernels(("a", 40, known), ("b", 60, unknown))) is None
    assert filling([]) is None
    said = filling(kernels(("a", 60, known), ("b", 40, unknown)))
    assert said is not None and said.endswith("a, 60% of the time, at most 25% (its grid is 0.25 waves).")
