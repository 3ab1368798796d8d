"""What a step must at least do, counted by running it: FLOPs and bytes worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from proftrack.capture.device import CpuDevice
from proftrack.capture.step_work import count_step
from proftrack.record.ceilings import Ceilings, StepWork


def work_of(step) -> StepWork:  # type: ignore[no-untyped-def]
    work, note = count_step(step, CpuDevice())
    assert work is not None, note
    return work


def test_matmul_add_moves_each_operand_once() -> None:
    x, w, b = (torch.ones(64, 32, dtype=torch.bfloat16), torch.ones(32, 16, dtype=torch.bfloat16), torch.ones(16))
    b = b.to(torch.bfloat16)
    work = work_of(lambda: torch.add(torch.matmul(x, w), b))
    assert work.flops_by_dtype == {"bfloat16": 2 * 64 * 32 * 16}
    # x, w, b read; the sum written. The product is made and used up inside.
    assert work.bytes == 2 * (64 * 32 + 32 * 16 + 16 + 64 * 16)


def test_a_chain_costs_its_ends_only() -> None:
    x = torch.ones(1000)

    def step() -> torch.Tensor:
        y = x
        for _ in range(5):
            y = y * 2.0
        return y

    assert work_of(step).bytes == 4 * (1000 + 1000)


def test_in_place_reads_and_writes() -> None:
    x = torch.ones(1000)
    assert work_of(lambda: x.mul_(2.0)).bytes == 4 * (1000 + 1000)


def test_views_count_their_own_elements() -> None:
    x = torch.ones(100, 10)
    assert work_of(lambda: x[:10] + 1.0).bytes == 4 * (100 + 100)
    assert work_of(lambda: x[0].expand(50, 10).sum(0)).bytes == 4 * (10 + 10)


def test_a_lookup_reads_the_rows_it_fetches() -> None:
    table, index = nn.Embedding(10_000, 8), torch.tensor([1, 2, 3])
    with torch.no_grad():
        work = work_of(lambda: table(index))
    assert work.bytes == 3 * 8 + 4 * (3 * 8) + 4 * (3 * 8)  # int64 indices, rows read, rows written


def test_training_step_of_sgd() -> None:
    model, x = nn.Linear(32, 16, bias=False), torch.ones(64, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    step()
    # Forward, and the weight's gradient; x needs none.
    assert work_of(step).flops_by_dtype == {"float32": 2 * (2 * 64 * 32 * 16)}


def test_what_dispatches_nothing_cannot_be_counted() -> None:
    work, note = count_step(lambda: None, CpuDevice())
    assert work is None
    assert note is not None and "no operator" in note


def test_a_step_that_does_not_bear_it_costs_a_note_only() -> None:
    def step() -> None:
        raise RuntimeError("not under a dispatch mode")

    work, note = count_step(step, CpuDevice())
    assert work is None
    assert note is not None and "not under a dispatch mode" in note


CEILINGS = Ceilings(device="d", flops_per_s={"bfloat16": 1e12, "float32": 1e11}, bytes_per_s=1e10)


def test_what_is_written_over_is_not_read() -> None:
    x, y = torch.ones(1000), torch.empty(1000)
    assert work_of(lambda: y.copy_(x)).bytes == 4 * (1000 + 1000)
    assert work_of(lambda: y.fill_(1.0)).bytes == 4 * 1000
    assert work_of(lambda: torch.mul(x, 2.0, out=y)).bytes == 4 * (1000 + 1000)


@pytest.mark.parametrize(
    ("flops", "size", "wanted"),
    [
        ({"bfloat16": 1e9}, 1e6, 1000.0),  # 1 ms of arithmetic, 0.1 ms of traffic
        ({"bfloat16": 1e9}, 1e8, 10_000.0),  # 10 ms of traffic
        ({"bfloat16": 1e9, "float32": 1e9}, 0.0, 11_000.0),  # arithmetic adds up over dtypes
        ({"float8": 1e9}, 1e6, None),  # no rate for this dtype: no stand-in
        ({}, None, None),
        ({}, 1e6, 100.0),
    ],
)
def test_roofline_time(flops: dict[str, float], size: float | None, wanted: float | None) -> None:
    found = StepWork(flops_by_dtype=flops, bytes=size, source="counted").roofline_time_us(CEILINGS)
    assert found == (None if wanted is None else pytest.approx(wanted))
