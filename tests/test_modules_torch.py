"""Owners in what torch records here: checkpointing, several optimizers, graphs of gradients, compilation, threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proftrack.measures import Measures, measure
from proftrack.record.modules import Module
from proftrack.trace.reader import read

torch = pytest.importorskip("torch")
checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint
nn, profiler = torch.nn, torch.profiler

Step = Callable[[], None]
LAYERS = ["layers.0.0", "layers.0.1", "layers.1.0", "layers.1.1"]


class Net(nn.Module):
    """Two layers, checkpointed in one of two ways or not at all."""

    def __init__(self, reentrant: bool | None = None, shared: bool = False) -> None:
        super().__init__()
        first = nn.Sequential(nn.Linear(8, 8), nn.GELU())
        second = first if shared else nn.Sequential(nn.Linear(8, 8), nn.GELU())
        self.reentrant, self.layers, self.norm = reentrant, nn.ModuleList([first, second]), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            kept = self.reentrant is None
            x = x + (layer(x) if kept else checkpoint(layer, x, use_reentrant=self.reentrant))
        return self.norm(x).square().mean()


def marked(model: nn.Module) -> nn.Module:
    """With a region around each call of each module, as capture names them."""
    names = {module: name for name, module in model.named_modules()}
    opened: list[profiler.record_function] = []

    def before(module: nn.Module, _: object) -> None:
        path = names[module]
        opened.append(profiler.record_function(f"nn.Module: {path}{' ' if path else ''}({type(module).__name__})"))
        opened[-1].__enter__()

    def after(module: nn.Module, _: object, __: object) -> None:
        opened.pop().__exit__(None, None, None)

    for module in names:
        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)
    return model


def training(model: nn.Module, *optimizers: torch.optim.Optimizer, called: nn.Module | None = None) -> Step:
    x = torch.randn(4, 8, requires_grad=True)

    def step() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        (model if called is None else called)(x).backward()
        for optimizer in optimizers:
            optimizer.step()

    return step


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Callable[..., Measures]]:
    """Records two steps, after some that are not recorded."""

    def record(step: Step, **options: object) -> Measures:
        step()
        where = str(tmp_path / "trace.json")
        with profiler.profile(
            activities=[profiler.ProfilerActivity.CPU],
            schedule=profiler.schedule(wait=0, warmup=1, active=2, repeat=1),
            on_trace_ready=lambda each: each.export_chrome_trace(where),
            **options,  # type: ignore[arg-type]
        ) as running:
            for _ in range(3):
                step()
                running.step()
        found = measure(read(Path(where)).table)
        in_steps = sum(each.self_cpu_time_us for each in found.per_step)
        assert sum(row.busy_us for row in found.modules) == pytest.approx(in_steps, abs=1e-3)
        return found

    yield record


def by_path(found: Measures) -> dict[str, Module]:
    return {row.path: row for row in found.modules if row.kind != "none"}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_model_in_training(recorded: Callable[..., Measures]) -> None:
    model = marked(Net())
    found = recorded(training(model, sgd(model)))
    rows = by_path(found)
    assert {path: row.calls for path, row in rows.items()} == {
        **dict.fromkeys(["", "layers.0", "layers.1", "norm", *LAYERS], 2),
        "SGD": 2,
    }
    for path in ("", "norm", *LAYERS):
        assert rows[path].forward_us > 0 and rows[path].backward_us > 0, path
    assert not any(row.recompute_us or row.other_us for row in rows.values())
    # The nodes without a number, which add up the gradients, are the modules' as well.
    assert not any(row.backward_us for row in found.modules if row.kind == "none")


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_checkpointed_is_recomputed(recorded: Callable[..., Measures], reentrant: bool) -> None:
    model = marked(Net(reentrant=reentrant))
    rows = by_path(recorded(training(model, sgd(model))))
    for path in LAYERS:
        row = rows[path]
        assert row.forward_us > 0 and row.backward_us > 0 and row.recompute_us > 0, path
        assert row.calls == 2
    assert not rows["norm"].recompute_us and not rows[""].recompute_us


def test_a_checkpointed_function_is_recomputed_for_its_module(recorded: Callable[..., Measures]) -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(lambda y: (y * 2).sin().exp(), x, use_reentrant=False)

    model = marked(nn.Sequential(nn.Linear(8, 8), Scaled(), nn.Linear(8, 8)))
    x = torch.randn(4, 8)
    rows = by_path(recorded(lambda: model(x).sum().backward()))
    assert rows["1"].recompute_us > 0 and rows["1"].backward_us > 0
    assert not rows["0"].recompute_us and not rows["2"].recompute_us


def test_a_graph_of_gradients_is_no_recomputation(recorded: Callable[..., Measures]) -> None:
    model = marked(Net())
    x = torch.randn(4, 8, requires_grad=True)

    def step() -> None:
        model.zero_grad()
        (gradient,) = torch.autograd.grad(model(x), x, create_graph=True)
        gradient.square().sum().backward()

    rows = by_path(recorded(step))
    assert not any(row.recompute_us for row in rows.values())
    assert all(rows[path].backward_us > 0 for path in LAYERS)


def test_shared_modules_and_two_optimizers(recorded: Callable[..., Measures]) -> None:
    model = marked(Net(shared=True))
    optimizers = [torch.optim.AdamW(model.layers.parameters()), sgd(model.norm)]  # type: ignore[union-attr, arg-type]
    rows = by_path(recorded(training(model, *optimizers)))
    assert rows["layers.0.0"].calls == 4 and "layers.1" not in rows
    assert rows["AdamW"].calls == rows["SGD"].calls == 2
    assert rows["AdamW"].optimizer_us > 0 and rows["SGD"].optimizer_us > 0


def test_a_compiled_model_is_one_owner(recorded: Callable[..., Measures]) -> None:
    model = Net()
    rows = by_path(recorded(training(model, sgd(model), called=torch.compile(model, backend="aot_eager"))))
    (compiled,) = [row for row in rows.values() if row.kind == "compiled"]
    assert compiled.path.startswith("compiled") and compiled.calls == 2
    assert compiled.forward_us > 0 and compiled.backward_us > 0
    assert set(rows) == {compiled.path, "SGD"}


def test_modules_of_recorded_stacks(recorded: Callable[..., Measures]) -> None:
    model = Net(reentrant=False)
    rows = by_path(recorded(training(model, sgd(model)), with_stack=True))
    linear = next(row for path, row in rows.items() if path.endswith(".Linear_0"))
    assert linear.path.split(".")[0].startswith("Sequential_") and linear.class_name == "Linear" and linear.calls == 2
    assert linear.forward_us > 0 and linear.backward_us > 0 and linear.recompute_us > 0


def test_a_model_in_another_thread(recorded: Callable[..., Measures]) -> None:
    config = pytest.importorskip("torch._C._profiler")._ExperimentalConfig
    try:
        every = config(profile_all_threads=True)
    except TypeError:
        pytest.skip("this torch does not record other threads")
    model = marked(Net())
    x = torch.randn(4, 8)

    def step() -> None:
        losses: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: losses.append(model(x)))
        thread.start()
        thread.join()
        losses[0].backward()

    rows = by_path(recorded(step, experimental_config=every))
    assert all(rows[path].forward_us > 0 and rows[path].backward_us > 0 for path in LAYERS)


def test_distributed_training_in_one_process(recorded: Callable[..., Measures]) -> None:
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = marked(Net())
        wrapped = nn.parallel.DistributedDataParallel(model)
        rows = by_path(recorded(training(model, sgd(model), called=wrapped)))
    finally:
        distributed.destroy_process_group()
    assert all(rows[path].forward_us > 0 and rows[path].backward_us > 0 for path in LAYERS)
    assert rows["DistributedDataParallel.forward"].kind == "region"
