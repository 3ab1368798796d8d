"""Each name that torch does not promise, used as capture uses it; and that there are no others."""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version

PACKAGE = Path(__file__).resolve().parents[1] / "profiling" / "proftrack"
torch = pytest.importorskip("torch")

from proftrack.capture import compat  # noqa: E402  # torch first: without it these tests are skipped
from proftrack.capture.profiling import quiet  # noqa: E402

# The folders that import torch or click; MLflow's names have a module and a test of their own.
FOLDERS = ("capture", "cli", "experiment")
PYTHONS_OWN = {"_replace", "_make", "_asdict", "_fields", "_getframe", "_exit", "_DummyThread", "_thread"}


def private_names(path: Path) -> Iterator[str]:
    """Private names of something other than `self`: attributes, also by getattr, and parts of imported modules."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        ):
            yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
            yield from (str(each.value) for each in node.args[1:2] if isinstance(each, ast.Constant))
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module or "").split(".")
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (part for alias in node.names for part in alias.name.split("."))


@pytest.mark.parametrize("folder", FOLDERS)
def test_private_names_of_torch_and_click_are_in_compat_alone(folder: str) -> None:
    found = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in (PACKAGE / folder).rglob("*.py")
        if path.stem != "compat"
        for name in private_names(path)
        if name.startswith("_") and not name.startswith("__") and name not in PYTHONS_OWN
    }
    assert found == set()


def test_the_walk_sees_private_names(tmp_path: Path) -> None:
    """click needs no compat module: nothing of it that we use is private."""
    (tmp_path / "x.py").write_text("import torch._dynamo\nfrom a._b import c\ngetattr(d, '_e')\nf.g._h()\nself._i\n")
    names = [name for name in private_names(tmp_path / "x.py") if name.startswith("_")]
    assert sorted(names) == ["_b", "_dynamo", "_e", "_h"]


# ---- the profiler ----------------------------------------------------------------------------------------------------


def test_a_profiler_is_seen_while_it_is_on() -> None:
    assert not compat.profiler_is_on()
    with quiet(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        assert compat.profiler_is_on()
        torch.add(torch.ones(1), 1)
    assert not compat.profiler_is_on()
    assert "aten::add" in [event.name() for event in compat.recorded_events(profiler)]


def test_whoever_starts_a_profiler_is_told_first() -> None:
    def refuse() -> None:
        raise ValueError("no")

    from torch.autograd.profiler import profile

    before = profile._prepare_trace
    with compat.before_each_profiler(refuse), pytest.raises(ValueError, match="no"):
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]).__enter__()
    assert profile._prepare_trace is before
    assert not compat.profiler_is_on()


def test_every_thread_can_be_recorded_from_2_7_on() -> None:
    assert (compat.every_thread() is not None) == (Version(torch.__version__) >= Version("2.7"))


# ---- regions, hooks of modules, and optimizers -----------------------------------------------------------------------


def test_a_fast_region_is_an_operator_in_the_trace() -> None:
    with quiet(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        region = compat.fast_region()("ours: a (B)")
        with region:
            torch.add(torch.ones(1), 1)
    assert "ours: a (B)" in [event.name() for event in compat.recorded_events(profiler)]


def test_children_and_parameters_of_a_module_without_running_its_code() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    net.register_module("none", None)
    assert compat.children_of(net) == {"0": net[0], "1": net[1]}
    assert [compat.has_parameters(each) for each in (net, net[0], net[1])] == [False, True, False]
    assert compat.children_of(torch.nn.Module.__new__(torch.nn.Module)) == {}


def test_hooks_are_found_by_their_ids_in_a_copy() -> None:
    net = torch.nn.Linear(2, 2)
    handles = [net.register_forward_hook(_no_hook, always_call=True), net.register_forward_pre_hook(_no_hook)]
    kept = net.register_forward_hook(_no_hook)
    copied = copy.deepcopy(net)
    compat.remove_hooks(copied, {handle.id for handle in handles})
    assert list(copied._forward_hooks) == [kept.id]
    assert not copied._forward_pre_hooks
    assert not copied._forward_hooks_always_called
    assert len(net._forward_hooks) == 2


def _no_hook(*_: Any) -> None:
    pass


def test_a_replica_of_data_parallel_says_so() -> None:
    net = torch.nn.Linear(2, 2)
    assert not compat.is_replica(net)
    assert compat.is_replica(net._replicate_for_data_parallel())


def test_the_call_that_a_module_compiled_is_replaced_and_restored() -> None:
    net = torch.nn.Linear(2, 2)
    assert compat.compiled_call(net) is None
    net.compile(backend="eager")
    before = compat.compiled_call(net)
    assert compat.compiled_from(before) is not None
    with compat.around_compiled_call(net, lambda call: lambda *args: "ours"):
        assert net(torch.ones(2)) == "ours"
    assert compat.compiled_call(net) is before


def test_an_optimizer_is_followed_group_by_group() -> None:
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [each]} for each in parameters], lr=0.1)
    for each in parameters:
        each.grad = torch.ones(1)
    seen: list[Any] = []
    with compat.before_each_group(optimizer, seen.append, lambda: seen.append("ended")):
        optimizer.step()
    assert seen == [*optimizer.param_groups, "ended"]
    optimizer.step()
    assert len(seen) == 3
    assert not compat.works_by_groups(torch.optim.LBFGS(parameters))


def test_what_is_compiled_and_what_must_not_be() -> None:
    function = torch.compile(_no_hook, backend="eager")
    assert compat.compiled_from(function) is _no_hook
    assert compat.compiled_from(torch.compiler.disable(_no_hook)) is None
    assert compat.compiled_from(_no_hook) is None
    assert compat.may_have_compiled()
    assert not compat.guards_hooks()
    assert not compat.is_compiling()()
    compat.never_compile(_no_hook)


def test_graphs_of_the_compiler_are_no_models() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    net = torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert not compat.is_made_by_compiler(net)
    assert not compat.is_made_by_compiler(torch.fx.symbolic_trace(net))
    assert compat.is_made_by_compiler(make_fx(lambda x: x + 1)(torch.ones(2)))


# ---- operators -------------------------------------------------------------------------------------------------------


def test_a_dispatch_mode_sees_operators_and_their_arguments() -> None:
    seen: list[tuple[str, list[bool]]] = []

    class Mode(compat.dispatch_mode()):  # type: ignore[misc]  # torch is not followed
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            arguments = compat.arguments_of(func)
            writes = [each.alias_info is not None and each.alias_info.is_write for each in arguments]
            seen.append((compat.operator_of(func).__name__, writes))
            return func(*args, **(kwargs or {}))

    x = torch.ones(2)
    with Mode():
        x.add_(x)
        torch.mul(x, x)
    assert seen == [("add_", [True, False, False]), ("mul", [False, False])]


def test_tensors_in_a_tree_and_their_storages() -> None:
    x = torch.ones(4)
    tensors = compat.tensors_in({"a": [x, 1], "b": (x[1:], None, torch.ones(4))})
    assert [len(tensor) for tensor in tensors] == [4, 3, 4]
    storages = [compat.storage_of(tensor) for tensor in tensors]
    assert storages[0] == storages[1] != storages[2]


def test_a_composite_operator_is_one_that_the_device_has_no_kernel_of_its_own_for() -> None:
    aten = torch.ops.aten
    assert compat.is_composite(aten.linear.default, "cuda")
    assert compat.is_composite(aten.scaled_dot_product_attention.default, "cpu")
    assert not compat.is_composite(aten.mm.default, "cpu")
    assert not compat.is_composite(aten.sum.default, "cpu", strided=False)
    assert not compat.is_higher_order(aten.mm.default)


def test_the_parts_of_a_composite_operator_are_those_that_autograd_leaves() -> None:
    import torch._decomp  # has versions in Python of some of them, an LSTM's among them

    seen: list[str] = []

    class Mode(compat.dispatch_mode()):  # type: ignore[misc]  # torch is not followed
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if compat.is_composite(func, "cpu"):
                with self:
                    return compat.in_parts(func, args, kwargs or {})
            seen.append(str(compat.operator_of(func)))
            return func(*args, **(kwargs or {}))

    lstm, x = torch.nn.LSTM(8, 16), torch.ones(5, 3, 8)
    with torch.no_grad(), Mode():
        lstm(x)
    whole = [name for name in seen if name not in ("aten.detach", "aten.alias")]
    seen.clear()
    with torch.inference_mode(), Mode():
        lstm(x)
    assert [name for name in seen if name not in ("aten.detach", "aten.alias")] == whole
    assert torch._decomp is not None


def test_arguments_by_name_come_in_the_schemas_order() -> None:
    call = compat.bound(torch.ops.aten.embedding.default, ("w", "i"), {"sparse": True})
    assert list(call.items()) == [
        ("weight", "w"),
        ("indices", "i"),
        ("padding_idx", -1),
        ("scale_grad_by_freq", False),
        ("sparse", True),
    ]


def test_a_sparse_tensor_is_what_it_consists_of() -> None:
    coo = torch.eye(4).to_sparse()
    assert [tuple(part.shape) for part in compat.tensors_in([coo])] == [(2, 4), (4,)]
    assert not compat.all_strided([coo, torch.ones(1)])
    assert compat.all_strided([torch.ones(1), 2])


def test_a_storage_keeps_its_identifier_while_it_is_known() -> None:
    x = torch.ones(4)
    known, first = compat.weak_storage(x), compat.storage_of(x)
    del x
    others = [torch.ones(4) for _ in range(20)]
    assert first not in [compat.storage_of(other) for other in others]
    assert known is not None


def test_classes_that_wrap_tensors() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    assert compat.is_wrapped([TwoTensor])
    assert not compat.is_wrapped([torch.Tensor, torch.nn.Parameter])


def test_how_float32_is_multiplied_is_restored() -> None:
    matmul = torch.backends.cuda.matmul
    before = compat.float32_products()
    assert before == "ieee"
    with compat.products_in("tf32"):
        assert compat.float32_products() == "tf32"
        assert matmul.allow_tf32
    assert (compat.float32_products(), matmul.allow_tf32) == (before, False)
    assert torch.get_float32_matmul_precision() == "highest"
    assert compat.convolutions_in_tf32()


def test_float32_without_tf32_where_the_program_chose_it() -> None:
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = True
    try:
        with compat.products_in("ieee"):
            assert (compat.float32_products(), matmul.allow_tf32) == ("ieee", False)
        assert (compat.float32_products(), matmul.allow_tf32) == ("tf32", True)
    finally:
        matmul.allow_tf32 = False


def test_narrow_products() -> None:
    x = torch.ones(16, 32, dtype=torch.int8)
    assert compat.int8_product(x, x.t())().tolist() == [[32] * 16] * 16
    narrow = torch.ones(16, 32).to(torch.float8_e4m3fn)
    assert compat.float8_product(narrow, narrow.t())().tolist() == [[32] * 16] * 16
    assert not compat.capturing()


# ---- torch.compile ---------------------------------------------------------------------------------------------------


def test_compile_counters_are_numbers_by_group_and_name() -> None:
    import torch._dynamo.utils

    torch._dynamo.utils.counters["stats"]["unique_graphs"] += 0
    counters = compat.compile_counters()
    assert isinstance(counters["stats"]["unique_graphs"], int)


def test_compiled_code_runs_eagerly_inside() -> None:
    calls: list[str] = []

    def backend(graph: Any, _: Any) -> Any:
        calls.append("compiled")
        return graph.forward

    step = torch.compile(lambda: torch.ones(1) + 1, backend=backend)
    with compat.eager():
        step()
    assert calls == []
    step()
    assert calls == ["compiled"]


def test_whoever_captures_a_graph_is_told_first() -> None:
    calls: list[bool] = []
    graph = torch.cuda.CUDAGraph
    begin = graph.capture_begin

    def refuse() -> None:
        calls.append(True)
        raise ValueError("no GPU is needed to be asked")

    with compat.before_each_graph_capture(refuse), pytest.raises(ValueError, match="no GPU"):
        graph.capture_begin(None)
    assert (calls, graph.capture_begin) == ([True], begin)


def test_whoever_captures_or_replays_a_graph_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Graph:
        def capture_begin(self) -> None:
            calls.append("begin")

        def capture_end(self) -> None:
            calls.append("end")

        def replay(self) -> None:
            calls.append("replay")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    graph = Graph()

    def told(what: str) -> Any:
        return lambda *_: calls.append(what)

    with compat.around_each_graph_capture(told("begun"), told("ending")), compat.before_each_graph_replay(told("seen")):
        graph.capture_begin()
        graph.capture_end()
        graph.replay()
    graph.replay()
    assert calls == ["begin", "begun", "ending", "end", "seen", "replay", "replay"]


def test_a_whole_capture_and_a_whole_replay_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the keywords that torch passes; what fails has a beginning only."""
    calls: list[str] = []

    class Graph:
        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
            calls.append(f"begin {capture_error_mode}")

        def capture_end(self) -> None:
            calls.append("end")

        def replay(self) -> None:
            raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    methods = Graph.capture_begin, Graph.capture_end, Graph.replay
    graph = Graph()

    def told(what: str) -> Any:
        return lambda each: calls.append(what if each is graph else "another graph")

    told_of = {name: told(name) for name in ("begins", "ended", "replays", "replayed")}
    with compat.around_each_graph(**told_of):
        graph.capture_begin(capture_error_mode="thread_local")
        graph.capture_end()
        with pytest.raises(RuntimeError):
            graph.replay()
    assert calls == ["begins", "begin thread_local", "end", "ended", "replays"]
    assert methods == (Graph.capture_begin, Graph.capture_end, Graph.replay)


CHAIN = [(1, 2), (2, 3), (3, 4)]
FORK = [(1, 2), (1, 3), (3, 4)]
JOIN = [(1, 3), (2, 3), (3, 4)]


class FakeDriver:
    """Of NVIDIA's driver, what tells a graph's nodes and edges."""

    def __init__(self, nodes: int, edges: list[tuple[int, int]], code: int = 0) -> None:
        self.nodes, self.edges, self.code = nodes, edges, code

    def cuGraphGetNodes(self, _graph: Any, _nodes: Any, count: Any) -> int:
        count._obj.value = self.nodes
        return self.code

    def cuGraphGetEdges(self, _graph: Any, befores: Any, afters: Any, count: Any) -> int:
        count._obj.value = len(self.edges)
        for i, (before, after) in enumerate(self.edges if befores is not None else []):
            befores[i], afters[i] = before, after
        return self.code


class FakeNewDriver(FakeDriver):
    """One that has data of edges."""

    def cuGraphGetEdges_v2(self, graph: Any, befores: Any, afters: Any, data: Any, count: Any) -> int:
        assert data is None or len(bytes(data)) == 8 * len(self.edges)
        return super().cuGraphGetEdges(graph, befores, afters, count)

    def cuGraphGetEdges(self, *_: Any) -> int:
        return 1


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        (FakeDriver(4, CHAIN), True),
        (FakeNewDriver(4, CHAIN), True),
        (FakeNewDriver(4, [*CHAIN[1:], CHAIN[0]]), True),
        (FakeNewDriver(1, []), True),
        (FakeNewDriver(4, FORK), False),
        (FakeNewDriver(4, JOIN), False),
        (FakeNewDriver(5, CHAIN), False),  # a node beside the chain
        (FakeNewDriver(2, []), False),
        (FakeNewDriver(0, []), False),
        (FakeDriver(4, CHAIN, code=1), False),
        (SimpleNamespace(), False),
    ],
)
def test_a_graph_is_a_chain_if_each_node_follows_one_other(
    monkeypatch: pytest.MonkeyPatch, driver: Any, expected: bool
) -> None:
    made: list[bool] = []

    class Graph:
        def __new__(cls, keep_graph: bool = False) -> Graph:
            made.append(keep_graph)
            return super().__new__(cls)

        def raw_cuda_graph(self) -> int:
            return 7

        def instantiate(self) -> None:
            made.append(True)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(compat, "_driver", lambda: driver)
    with compat.kept_graphs() as is_chain:
        assert is_chain(Graph()) is expected
    Graph()
    assert made == [True, True, False]  # kept, instantiated as torch does without keeping it; and as before


def test_what_kept_nothing_is_not_known_to_be_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    class MadeBefore:
        def raw_cuda_graph(self) -> int:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized with ..."
            )

        instantiate = raw_cuda_graph

    class Old:
        pass

    for kind in (MadeBefore, Old):
        monkeypatch.setattr(torch.cuda, "CUDAGraph", kind)
        graph = kind()
        with compat.kept_graphs() as is_chain:
            assert not is_chain(graph)
        assert isinstance(kind(), kind)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_whoever_enters_autocast_is_seen_and_may_compile_it() -> None:
    calls: list[bool] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x

    with compat.after_each_autocast(lambda: calls.append(compat.autocasts("cpu"))):
        assert step(torch.ones(4, 4)).dtype is torch.bfloat16
        assert calls == [True, False]
        assert torch.jit.script(step)(torch.ones(4, 4)).dtype is torch.bfloat16
    calls.clear()
    step(torch.ones(4, 4))
    assert calls == []


def test_torchs_graph_has_the_methods_that_are_watched() -> None:
    assert all(hasattr(torch.cuda.CUDAGraph, name) for name in ("capture_begin", "capture_end", "replay"))


# ---- data loaders ----------------------------------------------------------------------------------------------------


def test_what_gets_a_batch_is_wrapped_and_then_as_before() -> None:
    from torch.utils.data import DataLoader, dataloader

    calls: list[str] = []

    def wrap(call: Any) -> Any:
        def wrapped(*arguments: Any) -> Any:
            calls.append(call.__name__)
            return call(*arguments)

        return wrapped

    before = DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__
    with compat.around_each_batch(wrap):
        assert list(DataLoader([1, 2], batch_size=None)) == [1, 2]  # type: ignore[arg-type]
    assert calls == ["__iter__", "__next__", "__next__", "__next__"]
    assert (DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__) == before


def test_all_iterators_of_a_loader_inherit_what_gets_a_batch() -> None:
    from torch.utils.data import dataloader

    kinds = dataloader._BaseDataLoaderIter.__subclasses__()
    assert {kind.__name__ for kind in kinds} >= {"_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"}
    assert not any("__next__" in vars(kind) for kind in kinds if kind.__module__ == dataloader.__name__)


def test_without_iterators_of_that_name_starting_them_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data import DataLoader, dataloader

    before = DataLoader.__iter__
    monkeypatch.delattr(dataloader, "_BaseDataLoaderIter")
    with compat.around_each_batch(functools.partial):
        assert DataLoader.__iter__ is not before
    assert DataLoader.__iter__ is before


def test_how_many_batches_a_loader_may_have_ready() -> None:
    from torch.utils.data import DataLoader

    ready = DataLoader([1], num_workers=2, prefetch_factor=3, multiprocessing_context="fork")  # type: ignore[arg-type]
    batches: Any = iter(ready)
    batches._shutdown_workers()
    assert compat.batches_ahead(batches) == 6
    assert compat.batches_ahead(iter(DataLoader([1]))) == 0  # type: ignore[arg-type]
    assert compat.batches_ahead(object()) == 0
