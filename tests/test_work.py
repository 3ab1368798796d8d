"""What a step must at least do, counted by running it: FLOPs and bytes worked out by hand."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from proftrack.capture import compat
from proftrack.capture.device import CpuDevice
from proftrack.capture.op_flops import pairs
from proftrack.capture.step_work import CapturedGraphs, count_step
from proftrack.record.ceilings import REPLAYED_GRAPH, Ceilings, StepWork


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


def test_a_transposed_or_reshaped_view_is_read_once() -> None:
    part = torch.ones(100, 8)[:10]
    assert work_of(lambda: part @ part.t()).bytes == 4 * (80 + 100)
    assert work_of(lambda: part.view(5, 16).sum() + part.sum()).bytes == 4 * (80 + 1)
    other = torch.ones(100, 8)  # of which two parts are read
    assert work_of(lambda: other[:10] @ other[10:20].t()).bytes == 4 * (80 + 80 + 100)
    # Some rows looked up before or after the whole is read
    table, index = torch.ones(100, 8), torch.tensor([1, 2, 3])
    assert work_of(lambda: table.sum() + table[index].sum()).bytes == 4 * (800 + 1) + 8 * 3
    assert work_of(lambda: table[index].sum() + table.sum()).bytes == 4 * (800 + 1) + 8 * 3


def test_a_tensor_of_the_same_shape_is_not_read() -> None:
    x, index = torch.ones(1000), torch.tensor([1, 2, 3])
    for like in (torch.zeros_like, torch.empty_like, torch.rand_like, lambda t: t.new_full((1000,), 2.0)):
        assert work_of(lambda like=like: like(x)).bytes == 4 * 1000, like  # type: ignore[misc]  # the result
    # A gradient of a table: the rows that are added, the indices, and the result.
    rows = torch.ones(3, 10)
    table = torch.ones(100, 10)
    assert work_of(lambda: torch.zeros_like(table).index_add_(0, index, rows)).bytes == 4 * (30 + 1000) + 8 * 3


@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")
def test_what_changes_some_rows_moves_these() -> None:
    table, index, rows = torch.ones(100, 10), torch.tensor([1, 2, 3]), torch.ones(3, 10)
    assert work_of(lambda: table.index_fill_(0, index, 2.0)).bytes == 8 * 3 + 4 * 30
    assert work_of(lambda: table.index_fill_(-1, index, 2.0)).bytes == 8 * 3 + 4 * 300
    assert work_of(lambda: table.put_(index, rows[0, :3])).bytes == 8 * 3 + 4 * (3 + 3)
    reduced = work_of(lambda: table.index_reduce_(0, index, rows, "amax"))
    assert reduced.bytes == 8 * 3 + 4 * (30 + 30 + 30)  # the rows that are there are read, too


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


# ---- what torch composes of other operators --------------------------------------------------------------------------

X, Q, IMAGE = torch.ones(2, 8, 32), torch.ones(2, 4, 16, 8), torch.ones(2, 8, 12, 12)
INT8 = torch.ones(32, 64, dtype=torch.int8)
FLOAT8 = torch.ones(32, 64).to(torch.float8_e4m3fn)
ONE = torch.ones(())
COO = torch.eye(16).to_sparse()
BAG = nn.EmbeddingBag(1000, 8)
MLP = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
LSTM = nn.LSTM(8, 16, 2, bidirectional=True)
ENCODER = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
CASES: dict[str, tuple[Callable[[], Any], float, float | None]] = {
    # 16 rows through 32 x 64 and 64 x 32; x, two weights with their biases, and the result.
    "mlp": (lambda: MLP(X), 2 * 16 * 32 * 64 * 2, 4 * (512 + 2 * 2048 + 96 + 512)),
    # 136 = 16 x 17 / 2 pairs of query and key in 8 heads, each a product of 8 twice; q and the result move.
    "attention": (lambda: F.scaled_dot_product_attention(Q, Q, Q, is_causal=True), 2 * 8 * 136 * 16, 4 * 2 * 1024),
    "attention without a mask": (lambda: F.scaled_dot_product_attention(Q, Q, Q), 2 * 8 * 256 * 16, 4 * 2 * 1024),
    # 10 x 10 positions of 6 channels, each of 8 x 3 x 3.
    "convolution": (lambda: F.conv2d(IMAGE, torch.ones(6, 8, 3, 3)), 2 * 2 * 600 * 72, 4 * (2304 + 2 * 600)),
    # Three sequences of 5, each in the gates of two directions: layer 1 of 8 + 16 inputs, layer 2 of 32 + 16.
    "lstm": (lambda: LSTM(torch.ones(5, 3, 8))[0], 2 * 15 * 2 * 64 * (24 + 48), None),
    # 20 rows of 8 added to 5 bags; int64 indices and offsets, the rows, the bags.
    "bag": (lambda: BAG(torch.arange(20), torch.arange(0, 20, 4)), 160, 4 * (160 + 40)),
    # 16 transforms of 12 x 12 points; the input of 4 bytes a value, the result of 8.
    "fourier": (lambda: torch.fft.fft2(IMAGE), 5 * 16 * 144 * math.log2(144), 12 * 2304),
    "int8": (lambda: torch._int_mm(INT8, INT8.t()), 2 * 32 * 64 * 32, 2048 + 4 * 1024),
    "float8": (
        lambda: torch._scaled_mm(FLOAT8, FLOAT8.t(), ONE, ONE, out_dtype=torch.bfloat16),
        2 * 32 * 64 * 32,
        2048 + 4 + 2 * 1024,
    ),
    # 16 elements in rows of 4.
    "sparse": (lambda: torch.sparse.mm(COO, torch.ones(16, 4)), 2 * 16 * 4, 2 * 8 * 16 + 4 * 16 + 4 * 64),
    # 8192 elements of weights for each of 16 tokens; 8 x 8 pairs twice for each of 2 sequences.
    "encoder": (lambda: ENCODER(X), 2 * 16 * 8192 + 4 * 2 * 64 * 32, None),
}


def _under(mode: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def around(step: Callable[[], Any]) -> Callable[[], Any]:
        def inside() -> Any:
            with mode():
                return step()

        return inside

    return around


@pytest.mark.parametrize("case", CASES)
def test_the_same_step_has_the_same_work_however_it_is_run(case: str) -> None:
    step, flops, size = CASES[case]
    variants = [step, _under(torch.no_grad)(step), _under(torch.inference_mode)(step)]
    variants.append(torch.compile(step, backend="eager"))
    found = [work_of(variant) for variant in variants]
    assert [each.flops for each in found] == [pytest.approx(flops)] * 4
    assert len({each.bytes for each in found}) == 1
    assert found[0].uncounted_ops == []
    assert size is None or found[0].bytes == size


def test_types_of_products() -> None:
    assert work_of(CASES["int8"][0]).dtypes == ["int8"]
    assert work_of(CASES["float8"][0]).flops_by_dtype == {"float8_e4m3fn": 2 * 32 * 64 * 32}
    z = torch.ones(4, 4, dtype=torch.complex64)
    assert work_of(lambda: z @ z).flops_by_dtype == {"float32": 4 * 2 * 64}  # four real products each
    whole = torch.ones(4, 4, dtype=torch.int64)
    work = work_of(lambda: whole @ whole)
    assert (work.flops_by_dtype, work.uncounted_ops) == ({}, ["aten.mm"])


def test_gradients_need_twice_the_forward() -> None:
    weight = torch.ones(8, 1, 3, 3, requires_grad=True)  # each channel for itself
    image = IMAGE.clone().requires_grad_()
    work = work_of(lambda: F.conv2d(image, weight, groups=8).sum().backward())
    assert work.flops == 3 * 2 * 2 * 800 * 9
    q, k, v = (Q.clone().requires_grad_() for _ in range(3))
    work = work_of(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward())
    assert work.flops == 2 * 8 * 136 * (16 + 5 * 8)
    assert work_of(lambda: LSTM(torch.ones(5, 3, 8))[0].sum().backward()).flops == 3 * CASES["lstm"][1]


@pytest.mark.parametrize(
    ("queries", "keys", "rule", "wanted"),
    [
        (3, 5, {}, 15),
        (3, 5, {"causal": True}, 1 + 2 + 3),
        (3, 5, {"causal": True, "bottom": True}, 3 + 4 + 5),
        (5, 3, {"causal": True}, 1 + 2 + 3 + 3 + 3),
        (5, 3, {"causal": True, "bottom": True}, 0 + 0 + 1 + 2 + 3),
        (6, 6, {"causal": True, "left": 2}, 1 + 2 + 3 + 3 + 3 + 3),
        (4, 4, {"left": 1, "right": 1}, 2 + 3 + 3 + 2),
        (1, 4096, {"causal": True, "bottom": True}, 4096),
    ],
)
def test_pairs_of_queries_and_keys(queries: int, keys: int, rule: dict[str, Any], wanted: int) -> None:
    assert pairs(queries, keys, **rule) == wanted


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_what_has_no_formula_is_named() -> None:
    assert work_of(lambda: torch.sort(X)[0]).uncounted_ops == ["aten.sort"]
    assert work_of(lambda: X * 2 + X.sum()).uncounted_ops == []
    sparse = work_of(lambda: torch.sparse.mm(COO, COO))
    assert sparse.uncounted_ops == ["aten._sparse_sparse_matmul"]


def test_a_custom_operator_is_named_or_counted_by_its_own_formula() -> None:
    from torch.utils.flop_counter import flop_registry

    @torch.library.custom_op("proftrack_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert work_of(lambda: twice(X)).uncounted_ops == ["proftrack_test.twice"]
    flop_registry[torch.ops.proftrack_test.twice] = lambda *_, out_val, **__: out_val.numel()
    try:
        work = work_of(lambda: twice(X))
    finally:
        del flop_registry[torch.ops.proftrack_test.twice]
    assert (work.flops_by_dtype, work.uncounted_ops) == ({"float32": 512}, [])


def test_a_tensor_that_consists_of_others_is_counted_by_them() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    both = TwoTensor(torch.ones(4, 8), torch.ones(4, 8))
    work = work_of(lambda: both.mm(both.t()))
    assert (work.flops, work.uncounted_ops) == (2 * 2 * 4 * 8 * 4, [])


@pytest.mark.parametrize(
    ("a", "b", "offsets", "flops"),
    [
        ((12, 8), (3, 8, 4), True, 2 * 12 * 8 * 4),  # rows of three groups
        ((8, 12), (12, 4), True, 2 * 12 * 8 * 4),  # the gradient of their weights
        ((3, 5, 8), (8, 12), True, 2 * 5 * 8 * 12),  # columns of three groups
        ((3, 5, 8), (3, 8, 4), False, 2 * 3 * 5 * 8 * 4),
    ],
)
def test_products_of_groups(a: tuple[int, ...], b: tuple[int, ...], offsets: bool, flops: int) -> None:
    from proftrack.capture.op_flops import flops_of

    ends = torch.tensor([4, 8, 12], dtype=torch.int32) if offsets else None
    operator = torch.ops.aten._grouped_mm.default
    assert flops_of(operator, (torch.ones(a), torch.ones(b), ends), {}, None) == flops


def test_packed_sequences_have_their_own_lengths() -> None:
    from proftrack.capture.op_flops import flops_of

    q, ends = torch.ones(7, 2, 8), torch.tensor([0, 3, 7], dtype=torch.int32)
    operator = torch.ops.aten._flash_attention_forward.default
    found = flops_of(operator, (q, q, q, ends, ends, 4, 4, 0.0, True, False), {}, None)
    assert found == 2 * 2 * (6 + 10) * 16  # 3 x 4 / 2 and 4 x 5 / 2 pairs in 2 heads


def test_lengths_cannot_be_read_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    from proftrack.capture.op_flops import Unknown, flops_of

    monkeypatch.setattr(compat, "capturing", lambda: True)
    q, ends = torch.ones(7, 2, 8), torch.tensor([0, 3, 7], dtype=torch.int32)
    operator = torch.ops.aten._flash_attention_forward.default
    with pytest.raises(Unknown):
        flops_of(operator, (q, q, q, ends, ends, 4, 4, 0.0, True, False), {}, None)


def test_a_cache_is_written_where_it_changes() -> None:
    cache, row, at = torch.zeros(4, 1000, 8), torch.ones(4, 1, 8), torch.tensor([3])
    # The row and its index read, the row written.
    assert work_of(lambda: cache.index_copy_(1, at, row)).bytes == 4 * 32 + 8 + 4 * 32
    total = torch.zeros(1000, 8)
    found = work_of(lambda: total.index_add_(0, at, torch.ones(1, 8)))
    assert found.bytes == 8 + 4 * 8 + 4 * 8  # the new row is the step's own; the old one is read


def test_what_the_step_wrote_whole_is_not_read_again() -> None:
    source, place = torch.ones(1000), torch.zeros(1000)

    def step() -> torch.Tensor:
        place.copy_(source)
        return place * 2

    assert work_of(step).bytes == 4 * (1000 + 1000 + 1000)


def test_fused_optimizers_do_not_write_gradients() -> None:
    model = nn.Linear(32, 16, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.ones(4, 32)).sum().backward()
    optimizer.step()
    # Weight, gradient and two averages read; all but the gradient written; a step count each.
    assert work_of(optimizer.step).bytes == 4 * 512 * (4 + 3) + 4 * 2


# ---- CUDA graphs and Triton ------------------------------------------------------------------------------------------


class FakeGraph:
    """A CUDA graph as torch has it, without a GPU: a replay does nothing."""

    def capture_begin(self) -> None:
        """Begin."""

    def capture_end(self) -> None:
        """End."""

    def replay(self) -> None:
        """Replay."""


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> CapturedGraphs:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(compat, "has_compiled", lambda: False)  # other tests of this process compile
    return CapturedGraphs("cpu")


def captured(step: Callable[[], Any]) -> tuple[FakeGraph, Any]:
    graph = FakeGraph()
    graph.capture_begin()
    result = step()
    graph.capture_end()
    return graph, result


def counted(step: Callable[[], Any], graphs: CapturedGraphs) -> tuple[StepWork | None, str | None]:
    return count_step(step, CpuDevice(), graphs)


def replay_of(graph: FakeGraph, result: Any) -> Callable[[], Any]:
    def step() -> Any:
        graph.replay()
        return result

    return step


@pytest.mark.parametrize("case", ["mlp", "attention", "int8"])
def test_a_replay_does_what_was_captured(graphs: CapturedGraphs, case: str) -> None:
    eager = CASES[case][0]
    with graphs.watching(), torch.inference_mode():
        graph, result = captured(eager)
    work, note = counted(replay_of(graph, result), graphs)
    assert (work, note) == (work_of(eager), None)


def test_a_graph_that_is_replayed_twice_counts_twice_and_reads_its_inputs_once(graphs: CapturedGraphs) -> None:
    with graphs.watching():
        graph, result = captured(lambda: MLP(X))

    def step() -> Any:
        graph.replay()
        graph.replay()
        return result

    work, _ = counted(step, graphs)
    assert work is not None and (work.flops, work.bytes) == (2 * CASES["mlp"][1], CASES["mlp"][2])


def test_an_input_that_is_copied_for_the_graph_is_written_and_not_read(graphs: CapturedGraphs) -> None:
    place = torch.zeros(2, 8, 32)
    with graphs.watching(), torch.no_grad():
        graph, result = captured(lambda: MLP(place))

    def step() -> Any:
        place.copy_(X)
        graph.replay()
        return result

    work, _ = counted(step, graphs)
    assert work is not None and work.bytes == 4 * (512 + 2 * 2048 + 96 + 512) + 4 * 512


def test_a_graph_of_before_is_named(graphs: CapturedGraphs) -> None:
    graph, result = captured(lambda: MLP(X))
    work, note = counted(replay_of(graph, result), graphs)
    assert work is None
    assert note is not None and "whose capture was not seen" in note

    def step() -> Any:
        graph.replay()
        return X * 2

    work, _ = counted(step, graphs)
    assert work is not None and work.uncounted_ops == [REPLAYED_GRAPH]


def test_compiled_code_meets_no_counter_while_it_is_captured(
    graphs: CapturedGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "has_compiled", lambda: True)
    with graphs.watching():
        graph, _ = captured(lambda: MLP(X))
    assert counted(graph.replay, graphs)[0] is None


def test_a_capture_inside_the_counted_step_is_no_work(graphs: CapturedGraphs) -> None:
    def step() -> Any:
        graph, result = captured(lambda: MLP(X))
        graph.replay()
        return result

    work, _ = counted(step, graphs)
    assert work is not None and work.flops == CASES["mlp"][1]


def test_a_capture_that_fails_leaves_no_counter_behind(graphs: CapturedGraphs) -> None:
    with pytest.raises(RuntimeError, match="stop"), graphs.watching():
        FakeGraph().capture_begin()
        raise RuntimeError("stop")
    assert work_of(lambda: MLP(X)).flops == CASES["mlp"][1]


TOKENS, FORMS = torch.ones(2, 8, 32) / 3, torch.ones(3, 32, 32) / 7
CELLS = nn.LSTM(32, 16, batch_first=True).eval()
IN_AUTOCAST: dict[str, Callable[[], Any]] = {
    "einsum": lambda: torch.einsum("bsd,btd->bst", TOKENS, TOKENS),  # of what autocast has no rule for, the parts
    "lstm": lambda: CELLS(TOKENS)[0],
    "bilinear": lambda: F.bilinear(TOKENS[0], TOKENS[0], FORMS),  # a kernel that calls a product itself
    "distance": lambda: torch.cdist(TOKENS, TOKENS),  # autocast's rule is float32, and that of its parts would not be
    "off": lambda: off(lambda: torch.einsum("bsd,btd->bst", TOKENS, TOKENS)),
}


def off(work: Callable[[], Any]) -> Any:
    with torch.autocast("cpu", enabled=False):
        return work()


@pytest.mark.parametrize("case", IN_AUTOCAST)
@pytest.mark.parametrize("grad", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_what_is_captured_or_counted_is_computed_as_without(graphs: CapturedGraphs, case: str, grad: Any) -> None:
    """Autocast entered inside and outside of the capture."""

    def step() -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return IN_AUTOCAST[case]()

    with grad():
        alone = step()
        with graphs.watching():
            seen = [captured(step)[1]]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                seen.append(captured(IN_AUTOCAST[case])[1])
        counted(lambda: seen.append(step()), graphs)
    assert len(seen) == 3
    for result in seen:
        assert result.dtype is alone.dtype and torch.equal(result, alone)


def test_products_inside_of_an_operator_count_in_autocasts_type() -> None:
    def step() -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.einsum("bsd,btd->bst", TOKENS, TOKENS)

    for grad in (torch.inference_mode, torch.enable_grad):
        with grad():
            assert work_of(step).flops_by_dtype == {"bfloat16": 2 * 2 * 8 * 8 * 32}


def test_threads_capture_at_the_same_time(graphs: CapturedGraphs) -> None:
    """The first to begin is the first to end; a third never ends its capture."""
    made = [(FakeGraph(), torch.ones(rows, 32)) for rows in (4, 8)]
    with graphs.watching(), contextlib.ExitStack() as stack:
        *threads, third = (stack.enter_context(ThreadPoolExecutor(1)) for _ in range(3))
        third.submit(FakeGraph().capture_begin).result()
        for thread, (graph, _) in zip(threads, made, strict=True):
            thread.submit(graph.capture_begin).result()
        results = [thread.submit(MLP, x).result() for thread, (_, x) in zip(threads, made, strict=True)]
        for thread, (graph, _) in zip(threads, made, strict=True):
            thread.submit(graph.capture_end).result()
    works = [counted(replay_of(graph, result), graphs)[0] for (graph, _), result in zip(made, results, strict=True)]
    # Of the 16 rows of X.
    assert [work and work.flops for work in works] == [CASES["mlp"][1] / 4, CASES["mlp"][1] / 2]


def test_a_graph_that_is_captured_again_does_what_was_captured_last(
    graphs: CapturedGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with graphs.watching():
        graph, result = captured(lambda: MLP(X))
        monkeypatch.setattr(compat, "has_compiled", lambda: True)
        graph.capture_begin()
        MLP(X)
        graph.capture_end()
    assert counted(replay_of(graph, result), graphs)[0] is None


def test_kernels_that_python_launches_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class JITFunction:
        __name__ = "poly_kernel"

        def run(self, *, warmup: bool) -> None:
            """Launch."""

    monkeypatch.setitem(sys.modules, "triton.runtime.jit", SimpleNamespace(JITFunction=JITFunction))
    kernel = JITFunction()

    def step() -> Any:
        kernel.run(warmup=True)  # compiles only
        kernel.run(warmup=False)
        return X * 2

    assert work_of(step).launched_kernels == ["poly_kernel"]
    assert work_of(lambda: X * 2).launched_kernels == []


CEILINGS = Ceilings(device="d", flops_per_s={"bfloat16": 1e12, "float32": 1e11}, bytes_per_s=1e10)


def test_what_is_written_over_is_not_read() -> None:
    x, y = torch.ones(1000), torch.empty(1000)
    assert work_of(lambda: y.copy_(x)).bytes == 4 * (1000 + 1000)
    assert work_of(lambda: y.fill_(1.0)).bytes == 4 * 1000
    assert work_of(lambda: torch.mul(x, 2.0, out=y)).bytes == 4 * (1000 + 1000)


def test_float32_that_may_use_tf32_has_its_rate_or_that_of_float32() -> None:
    work = StepWork(flops_by_dtype={"tfloat32": 1e9}, bytes=None, source="counted")
    assert work.roofline_time_us(CEILINGS) == pytest.approx(10_000)
    faster = Ceilings(device="d", flops_per_s={**CEILINGS.flops_per_s, "tfloat32": 5e11}, bytes_per_s=1e10)
    assert work.roofline_time_us(faster) == pytest.approx(2000)


@pytest.mark.parametrize(
    ("flops", "size", "wanted"),
    [
        ({"bfloat16": 1e9}, 1e6, 1000.0),  # 1 ms of arithmetic, 0.1 ms of traffic
        ({"bfloat16": 1e9}, 1e8, 10_000.0),  # 10 ms of traffic
        ({"bfloat16": 1e9, "float32": 1e9}, 0.0, 11_000.0),  # arithmetic adds up over dtypes
        ({"float8_e4m3fn": 1e9}, 1e6, None),  # no rate for this dtype: no stand-in
        ({}, None, None),
        ({}, 1e6, 100.0),
    ],
)
def test_roofline_time(flops: dict[str, float], size: float | None, wanted: float | None) -> None:
    found = StepWork(flops_by_dtype=flops, bytes=size, source="counted").roofline_time_us(CEILINGS)
    assert found == (None if wanted is None else pytest.approx(wanted))
