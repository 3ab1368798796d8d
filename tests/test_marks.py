"""Marks of module calls and parameter groups: real torch on the CPU, under a real profiler."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import gzip
import io
import json
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

import proftrack  # noqa: E402
from proftrack.capture import compat, live_objects, marks, measurement, profiling  # noqa: E402
from proftrack.capture.device import CpuDevice  # noqa: E402
from proftrack.capture.marks import marked  # noqa: E402
from proftrack.capture.module_names import named  # noqa: E402
from proftrack.experiment import Experiment, ProfilerOptions, Schedule  # noqa: E402


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: Any) -> Any:
        return x + self.mlp(x)


class Net(nn.Module):
    def __init__(self, block: type[nn.Module] = Block, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList([block() for _ in range(layers)])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


NET = (
    *("(Net)", "layers.0 (Block)", "layers.0.mlp (Sequential)", "layers.0.mlp.0 (Linear)", "layers.0.mlp.1 (ReLU)"),
    *("layers.1 (Block)", "layers.1.mlp (Sequential)", "layers.1.mlp.0 (Linear)", "layers.1.mlp.1 (ReLU)"),
)
X = torch.ones(2, 4)
THEIR_WARNINGS = pytest.mark.filterwarnings("ignore")
"""Those that torch.compile and torch.jit raise about themselves."""


@pytest.fixture(autouse=True)
def _nothing_of_other_tests() -> Iterator[None]:
    gc.collect()
    yield
    if compat.may_have_compiled():
        torch._dynamo.reset()


class Rows:
    """The regions of a profiler: name, thread, start, end in nanoseconds, in order of start."""

    def __init__(self, profiler: Any, start: str) -> None:
        events = [event for event in compat.recorded_events(profiler) if event.name().startswith(start)]
        rows = [
            (e.name().removeprefix(start), e.start_thread_id(), e.start_ns(), e.start_ns() + e.duration_ns())
            for e in events
        ]
        self.rows = sorted(rows, key=lambda row: (row[2], -row[3]))
        self.names = [row[0] for row in self.rows]

    def around(self, name: str) -> list[str]:
        """The names of the rows around the first of that name, outermost first."""
        row = next(row for row in self.rows if row[0] == name)
        return [r[0] for r in self.rows if r[1] == row[1] and r[2] <= row[2] and r[3] >= row[3] and r is not row]


@contextlib.contextmanager
def recording() -> Iterator[Any]:
    with profiling.quiet(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        yield profiler


def modules_of(step: Callable[[], Any], known: Callable[[], Any] | None = None) -> Rows:
    """The module regions of a marked step."""
    with marked(known or step), recording() as profiler:
        step()
    return Rows(profiler, "nn.Module: ")


def groups_of(step: Callable[[], Any]) -> Rows:
    with marked(step), recording() as profiler:
        step()
    return Rows(profiler, "proftrack: parameter group ")


def hooks_on(*modules: nn.Module) -> int:
    names = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_always_called")
    return sum(len(getattr(each, name)) for module in modules for each in module.modules() for name in names)


def paths(*modules: nn.Module, step: Callable[[], Any] = lambda: None) -> dict[int, str]:
    everything = [each for module in modules for each in module.modules()]
    return {id(each.module): each.path for each in named(everything, live_objects.reach(step))}


# ---- names -----------------------------------------------------------------------------------------------------------


def test_calls_have_the_names_of_named_modules() -> None:
    net = Net()
    rows = modules_of(lambda: net(X))
    assert rows.names == list(NET)
    assert rows.around("layers.1.mlp.0 (Linear)") == ["(Net)", "layers.1 (Block)", "layers.1.mlp (Sequential)"]
    assert hooks_on(net) == 0


def test_every_name_is_that_of_named_modules_also_of_shared_modules() -> None:
    net = nn.Module()
    net.embed = nn.Linear(4, 4)
    net.blocks = nn.ModuleDict({"a": Net(), "b": Net()})
    net.head = nn.ModuleList([net.embed, nn.Linear(4, 4)])
    expected = {id(module): name for name, module in net.named_modules()}
    assert paths(net) == expected
    assert expected[id(net.head[0])] == "embed"


def test_a_loss_has_its_class_and_leaves_the_models_names() -> None:
    net, loss = Net(layers=1), nn.MSELoss()
    assert paths(net, loss)[id(net.layers[0])] == "layers.0"
    assert paths(net, loss)[id(loss)] == "MSELoss"
    again = nn.MSELoss()
    assert [paths(net, loss, again)[id(each)] for each in (loss, again)] == ["MSELoss_1", "MSELoss_2"]
    assert paths(loss)[id(loss)] == "MSELoss"


def test_several_models_have_the_names_of_their_variables() -> None:
    generator, discriminator = Net(layers=1), Net(layers=1)
    found = paths(generator, discriminator, step=lambda: discriminator(generator(X)))
    assert found[id(generator)] == "generator"
    assert found[id(generator.layers[0])] == "generator.layers.0"
    assert found[id(discriminator.layers[0].mlp[0])] == "discriminator.layers.0.mlp.0"


def test_several_models_without_one_variable_each_have_their_class() -> None:
    nets = [Net(layers=1), Net(layers=1), nn.Linear(4, 4)]
    found = paths(*nets, step=lambda: [net(X) for net in nets])
    assert [found[id(net)] for net in nets] == ["Net_1", "Net_2", "Linear"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_they_are_numbered_as_the_step_holds_them_whichever_is_the_oldest(order: tuple[int, ...]) -> None:
    made = [nn.Linear(4, 4) for _ in order]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in made]
    nets, used = [made[i] for i in order], [optimizers[i] for i in order]

    def step() -> None:
        for net, optimizer in zip(nets, used, strict=True):
            net(X).sum().backward()
            optimizer.step()

    assert modules_of(step).names == [f"Linear_{number} (Linear)" for number in (1, 2, 3)]
    assert groups_of(step).names == ["SGD 1", "SGD 2", "SGD 3"]


def test_attributes_of_an_object_whose_method_is_the_step_are_variables() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.actor, self.critic = Net(layers=1), Net(layers=1)

        def step(self) -> Any:
            return self.critic(self.actor(X))

    trainer = Trainer()
    found = paths(trainer.actor, trainer.critic, step=functools.partial(trainer.step))
    assert [found[id(trainer.actor)], found[id(trainer.critic)]] == ["actor", "critic"]


@pytest.mark.parametrize(("version", "name"), [((3, 12), ""), ((3, 13), "model")])
def test_local_variables_of_the_caller_have_names_from_3_13_on(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], name: str
) -> None:
    model = Net()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", version)
        reached = live_objects.callers_globals()
    assert reached.variable(model) == name


def test_models_that_the_step_does_not_reach_leave_its_names() -> None:
    net, other = Net(layers=1), Net(layers=1)
    found = paths(other, net, step=lambda: net(X))
    assert found[id(net.layers[0])] == "layers.0"
    assert found[id(other.layers[0])] == "Net.layers.0"


class Holder:
    def __init__(self, net: nn.Module) -> None:
        self.parts = {"nets": [net]}

    def __call__(self) -> Any:
        return self.parts["nets"][0](X)


def test_a_model_that_another_hides_leaves_its_names() -> None:
    student, teacher = Net(layers=1), nn.Linear(4, 4)
    student.teacher = [teacher]
    found = paths(student, teacher, step=lambda: student(X))
    assert found[id(student.layers[0])] == "layers.0"
    assert found[id(teacher)] == "Linear"


@pytest.mark.parametrize("step_of", [lambda net: functools.partial(net, X), Holder, lambda net: net])
def test_steps_of_other_kinds_reach_their_model(step_of: Callable[[nn.Module], Any]) -> None:
    net = Net(layers=1)
    assert id(net) in live_objects.reach(step_of(net)).modules


class DistributedDataParallel(nn.Module):
    """Like torch's, as far as names go."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Any) -> Any:
        return self.module(x)


class CheckpointWrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._checkpoint_wrapped_module = module

    def forward(self, x: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        return checkpoint(self._checkpoint_wrapped_module, x, use_reentrant=False)


def test_a_wrapper_has_the_name_of_what_it_wraps_and_its_call_is_one() -> None:
    net = DistributedDataParallel(Net())
    assert modules_of(lambda: net(X)).names == list(NET)
    inner = Net()
    inner.layers[0] = CheckpointWrapper(inner.layers[0])
    assert modules_of(lambda: inner(X)).names == list(NET)


def test_a_wrapper_is_known_by_its_class_and_the_class_of_a_sharded_module_is_its_own() -> None:
    class FSDPModule:
        pass

    class Mlp(nn.Linear):
        pass

    class FSDPMlp(FSDPModule, Mlp):
        pass

    module = FSDPMlp(4, 4)
    assert [each.class_name for each in named([module], live_objects.Reach())] == ["Mlp"]
    wrapper = DistributedDataParallel(module)
    assert [each.class_name for each in named(wrapper.modules(), live_objects.Reach())] == ["Mlp", "Mlp"]


def test_odd_characters_survive_the_trace() -> None:
    net = nn.Sequential()
    net.add_module('a"b\\c\nä', nn.Linear(4, 4))
    assert modules_of(lambda: net(X)).names == ["(Sequential)", "a_b_c__ (Linear)"]


def test_objects_that_the_garbage_collector_was_told_to_leave_are_found_by_the_step() -> None:
    net = Net()
    gc.freeze()
    try:
        assert modules_of(lambda: net(X)).names == list(NET)
    finally:
        gc.unfreeze()


def test_a_module_that_was_never_initialised_is_left_alone() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            pass

    half, net = Half(), Net()
    assert modules_of(lambda: (net(X), half)[0]).names == list(NET)


# ---- calls -----------------------------------------------------------------------------------------------------------


def test_results_are_equal_and_hooks_of_the_program_run_inside() -> None:
    net, order = Net(), list[str]()
    net.layers[0].register_forward_pre_hook(lambda *_: order.append("before"))
    net.layers[0].register_forward_hook(lambda *_: order.append("after"))
    net.layers[0].register_full_backward_hook(lambda *_: order.append("backward"))
    x = X.clone().requires_grad_()
    want = net(x)
    (wanted,) = torch.autograd.grad(want.sum(), x)
    with marked(lambda: net(x)), recording():
        got = net(x)
        (gradient,) = torch.autograd.grad(got.sum(), x)
    assert torch.equal(want, got)
    assert torch.equal(wanted, gradient)
    assert order == ["before", "after", "backward"] * 2
    assert hooks_on(net) == 2


def test_an_exception_in_a_module_closes_its_region() -> None:
    class Fails(nn.Module):
        def forward(self, x: Any) -> Any:
            raise ValueError("no")

    net = Net(layers=1)
    net.layers[0].mlp.append(Fails())
    linear = nn.Linear(4, 4)

    def step() -> None:
        with pytest.raises(ValueError, match="no"):
            net(X)
        linear(X)

    rows = modules_of(step)
    assert rows.names[-2:] == ["net.layers.0.mlp.2 (Fails)", "linear (Linear)"]
    assert rows.around("linear (Linear)") == []


def test_a_region_that_ctrl_c_left_open_closes_with_the_module_around_it() -> None:
    class Interrupted(nn.Module):
        def forward(self, x: Any) -> Any:
            raise KeyboardInterrupt

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Interrupted()

        def forward(self, x: Any) -> Any:
            with contextlib.suppress(KeyboardInterrupt):
                self.inner(x)
            return x

    outer, linear = Outer(), nn.Linear(4, 4)
    rows = modules_of(lambda: linear(outer(X)))
    assert rows.around("(Linear)") == []


def test_recursive_calls_are_regions_of_their_own() -> None:
    class Recursive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Any, depth: int) -> Any:
            return self(self.linear(x), depth - 1) if depth else x

    net = Recursive()
    rows = modules_of(lambda: net(X, 2))
    assert rows.names == ["(Recursive)", "linear (Linear)"] * 2 + ["(Recursive)"]
    ends = [row[3] for row in rows.rows if row[0] == "(Recursive)"]
    assert ends == sorted(ends, reverse=True)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_modules_run_twice_the_second_time_in_backward(use_reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Net):
        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=use_reentrant)
            return x

    net = Checkpointed()
    rows = modules_of(lambda: net(X.clone().requires_grad_()).sum().backward())
    again = [*NET[5:], *NET[1:5]]
    # Without re-entry a recomputation stops when it has what backward needs: here the ReLU's result is the last.
    assert [name for name in rows.names if name.startswith("layers")] == [*NET[1:], *again]
    assert rows.names.count("(Net)") == 0
    assert rows.names[0] == "(Checkpointed)"
    (first, *_), last = rows.rows, rows.rows[-1]
    assert last[2] > first[3]


def test_each_threads_calls_nest_on_their_own() -> None:
    net = Net()
    both = threading.Barrier(2)

    def run() -> None:
        both.wait()
        net(X)

    def step() -> None:
        threads = [threading.Thread(target=run) for _ in range(2)]
        [each.start() for each in threads]
        [each.join() for each in threads]

    options = compat.every_thread()
    if options is None:
        pytest.skip("this torch records no threads of the program's")
    with (
        marked(lambda: net(X)),
        profiling.quiet(),
        profile(activities=[ProfilerActivity.CPU], experimental_config=options) as profiler,
    ):
        step()
    rows = Rows(profiler, "nn.Module: ").rows
    threads = {row[1] for row in rows}
    assert len(threads) == 2
    for thread in threads:
        mine = [row for row in rows if row[1] == thread]
        assert [row[0] for row in mine] == list(NET)
        assert all(row[3] <= mine[0][3] for row in mine)


def test_a_replica_for_another_gpu_is_marked_as_its_original() -> None:
    net = Net(layers=1)

    def step() -> None:
        replica = net._replicate_for_data_parallel()  # what DataParallel does; children are replaced by replicas
        linear = net.layers[0].mlp[0]._replicate_for_data_parallel()
        linear.weight, linear.bias = net.layers[0].mlp[0].weight, net.layers[0].mlp[0].bias
        assert replica is not net
        linear(X)

    assert modules_of(step, known=lambda: net(X)).names == ["layers.0.mlp.0 (Linear)"]


def test_a_copy_made_in_a_step_runs_its_own_weights_and_has_no_mark() -> None:
    net = Net(layers=1)
    copies: list[Any] = []

    def step() -> None:
        ema = copy.deepcopy(net)
        with torch.no_grad():
            for each in ema.parameters():
                each.zero_()
        assert torch.equal(ema(X), X)
        stream = io.BytesIO()
        torch.save(net, stream)
        stream.seek(0)
        loaded = torch.load(stream, weights_only=False)
        assert torch.equal(loaded(X), net(X))
        copies.extend([ema, loaded])

    rows = modules_of(step, known=lambda: net(X))
    assert rows.names == list(NET[:5])  # of `net(X)` alone
    assert hooks_on(net, *copies) == 0


def test_what_a_pickled_hook_becomes_needs_nothing_of_ours() -> None:
    net = nn.Linear(4, 4)
    with marked(lambda: net(X)):
        data = pickle.dumps(net)
    assert b"proftrack" not in data
    assert torch.equal(pickle.loads(data)(X), net(X))


def test_functional_calls_are_marked() -> None:
    net = Net(layers=1)
    zeros = {name: torch.zeros_like(each) for name, each in net.named_parameters()}

    def step() -> None:
        assert torch.equal(torch.func.functional_call(net, zeros, (X,)), X)
        batch = torch.func.vmap(lambda x: torch.func.functional_call(net, zeros, (x,)))(torch.ones(3, 2, 4))
        assert torch.equal(batch, torch.ones(3, 2, 4))

    assert modules_of(step, known=lambda: net(X)).names == list(NET[:5]) * 2


@THEIR_WARNINGS
def test_modules_that_forbid_hooks_are_left_out() -> None:
    class Forbids(nn.Linear):
        def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no hooks")

    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4)))
    net = nn.Sequential(nn.ReLU(), Forbids(4, 4), scripted)
    names = modules_of(lambda: net(X)).names
    assert names[:2] == ["(Sequential)", "0 (ReLU)"]
    assert not any("Forbids" in name for name in names)
    assert hooks_on(net[0], net[1]) == 0


class Wrapping(torch.optim.SGD):
    """Of an optimizer's class, but no optimizer itself: it was never initialised."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner


def test_what_only_wraps_an_optimizer_is_left_alone() -> None:
    net = nn.Linear(4, 4)
    inner = torch.optim.SGD([{"params": [net.weight]}, {"params": [net.bias]}], lr=0.1)
    wrapping = Wrapping(inner)

    def step() -> None:
        net(torch.ones(2, 4)).sum().backward()
        wrapping.inner.step()

    with marked():
        assert hooks_on(net)
        assert "_init_group" in inner.__dict__
    assert not hooks_on(net)
    assert "_init_group" not in inner.__dict__
    assert groups_of(step).names == ["0", "1"]


def test_a_failing_step_leaves_no_hook() -> None:
    net = Net()
    optimizer = torch.optim.AdamW([{"params": each.parameters()} for each in net.layers])

    def step() -> None:
        net(X)
        optimizer.step()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), marked(step):
        step()
    assert hooks_on(net) == 0
    assert "_init_group" not in vars(optimizer)
    assert not optimizer._optimizer_step_post_hooks


def test_a_model_is_freed_while_it_is_marked() -> None:
    import weakref

    nets = [nn.Linear(4, 4)]
    gone = weakref.ref(nets[0])
    with marked(lambda: nets):
        nets.clear()
        gc.collect()
        assert gone() is None


# ---- what torch.compile compiled -------------------------------------------------------------------------------------


class Broken(Block):
    def forward(self, x: Any) -> Any:
        y = self.mlp(x)
        torch._dynamo.graph_break()
        return x + self.mlp(y)


def _optimized_module(compiled: Any) -> Any:
    model = compiled(Net(Broken))
    return lambda: model(X)


def _compile_method(compiled: Any) -> Any:
    model = Net()
    model.compile(**compiled.keywords)
    return lambda: model(X)


def _layers_by_method(compiled: Any) -> Any:
    model = Net()
    for layer in model.layers:
        layer.compile(**compiled.keywords)
    return lambda: model(X)


def _layers(compiled: Any) -> Any:
    model = Net()
    model.layers = nn.ModuleList([compiled(layer) for layer in model.layers])
    return lambda: model(X)


def _forward(compiled: Any) -> Any:
    model = Net()
    model.forward = compiled(model.forward)
    return lambda: model(X)


def _function(compiled: Any) -> Any:
    model, head = Net(Broken), nn.Linear(4, 4)
    function = compiled(lambda x: -model(x))
    return lambda: head(function(X))


class Trainer:
    def __init__(self) -> None:
        self.state = {"model": Net()}

    def predict(self, x: Any) -> Any:
        return self.state["model"](x)


def _bound_method(compiled: Any) -> Any:
    function = compiled(Trainer().predict)
    return lambda: function(X)


def _argument(compiled: Any) -> Any:
    model = Net(Broken)
    function = compiled(lambda module, x: module(x))
    return lambda: function(model, X)


def _decorated(compiled: Any) -> Any:
    class Decorated(Net):
        @compiled
        def forward(self, x: Any) -> Any:
            return -self.layers[0](x)

    model = Decorated()
    return lambda: model(X)


def _step(compiled: Any) -> Any:
    model = Net()
    return compiled(lambda: model(X))


LAYERS = ["(Net)", "layers.0 (Block)", "layers.1 (Block)"]


@THEIR_WARNINGS
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (_optimized_module, ["(Net)"]),
        (_compile_method, ["(Net)"]),
        (_layers_by_method, LAYERS),
        (_layers, LAYERS),
        (_forward, ["(Net)"]),
        (_function, ["head (Linear)"]),
        (_bound_method, []),
        (_argument, None),
        (_decorated, ["(Decorated)"]),
        (_step, []),
    ],
)
def test_compiled_code_is_marked_from_outside_and_stays_as_it_is(make: Any, expected: Any, backend: str) -> None:
    step = make(functools.partial(torch.compile, backend=backend))
    step()
    want, counters = step(), compat.compile_counters()
    rows = modules_of(step)
    assert compat.compile_counters() == counters
    assert torch.equal(step(), want)
    assert compat.compile_counters() == counters
    if expected is not None:
        assert rows.names == expected
    with marked(step):
        assert torch.equal(step(), want)
    assert compat.compile_counters() == counters


@THEIR_WARNINGS
def test_code_that_compiles_while_it_is_marked_has_no_more_graphs_or_breaks() -> None:
    def graphs(mark: bool) -> tuple[int, int]:
        torch._dynamo.reset()
        compat_before = compat.compile_counters()
        model = Net()
        function = torch.compile(lambda module, x: module(x), backend="eager")
        with marked(lambda: None) if mark else contextlib.nullcontext():
            function(model, X)
        now = compat.compile_counters()
        return tuple(  # type: ignore[return-value]
            sum(now.get(group, {}).values()) - sum(compat_before.get(group, {}).values())
            if group == "graph_break"
            else now["stats"]["unique_graphs"] - compat_before.get("stats", {}).get("unique_graphs", 0)
            for group in ("stats", "graph_break")
        )

    assert graphs(True) == graphs(False) == (1, 0)


@THEIR_WARNINGS
def test_nothing_is_marked_where_hooks_would_compile_code_again() -> None:
    import torch._dynamo.config

    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
        model = Net()
        function = torch.compile(lambda module, x: module(x), backend="eager")
        step = functools.partial(function, model, X)
        step()
        counters = compat.compile_counters()
        assert modules_of(step).names == []
        assert compat.compile_counters() == counters


@THEIR_WARNINGS
def test_a_compiled_optimizer_is_left_alone() -> None:
    net = Net()
    optimizer = torch.optim.SGD([{"params": each.parameters()} for each in net.layers], lr=0.1)
    update = torch.compile(optimizer.step, backend="eager")

    def step() -> None:
        net(X).sum().backward()
        update()

    step()
    step()
    counters = compat.compile_counters()
    assert groups_of(step).names == []
    assert compat.compile_counters() == counters


# ---- parameter groups ------------------------------------------------------------------------------------------------


def training(optimizer_of: Callable[[Any], Any]) -> Callable[[], None]:
    net = Net()
    optimizer = optimizer_of(net)

    def step() -> None:
        optimizer.zero_grad()
        net(X).sum().backward()
        optimizer.step()

    step()
    return step


def two_groups(net: Net) -> list[dict[str, Any]]:
    return [{"params": net.layers[0].parameters(), "name": "first"}, {"params": net.layers[1].parameters()}]


OPTIMIZERS = [
    *((name, {}) for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adafactor", "Rprop")),
    *(("AdamW", options) for options in ({"foreach": True}, {"fused": True}, {"foreach": False})),
]


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_an_optimizers_work_for_each_of_its_groups(name: str, options: dict[str, Any]) -> None:
    step = training(lambda net: getattr(torch.optim, name)(two_groups(net), lr=0.01, **options))
    with marked(step), recording() as profiler:
        step()
    groups = Rows(profiler, "proftrack: parameter group ")
    assert groups.names == ["first", "1"]
    around = Rows(profiler, "")
    assert f"Optimizer.step#{name}.step" in around.around("proftrack: parameter group 1")
    first, second = groups.rows
    assert first[3] <= second[2]
    (update,) = [row for row in around.rows if row[0] == f"Optimizer.step#{name}.step"]
    assert second[3] <= update[3]


def test_one_group_is_the_optimizers_own_row() -> None:
    assert groups_of(training(lambda net: torch.optim.AdamW(net.parameters()))).names == []


def test_optimizers_of_one_class_are_told_apart() -> None:
    net, other = Net(), Net()
    opt_g, opt_d = torch.optim.SGD(two_groups(net), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.1)

    def step() -> None:
        other(net(X)).sum().backward()
        opt_g.step()
        opt_d.step()

    assert groups_of(step).names == ["opt_g, group first", "opt_g, group 1", "opt_d"]
    optimizers = [opt_g, opt_d]

    def without_variables() -> None:
        for each in optimizers:
            each.step()

    assert groups_of(without_variables).names == ["SGD 1, group first", "SGD 1, group 1", "SGD 2"]


def test_what_is_alive_has_one_order_whenever_garbage_was_collected() -> None:
    """What a collection has seen is of an older generation, and what came later must not come before it."""
    gc.disable()  # no other collection
    try:
        model, optimizer = Net(), torch.optim.SGD(Net().parameters(), lr=0.1)
        gc.collect(0)
        second = Net(), torch.optim.SGD(model.parameters(), lr=0.2)
        gc.collect(0)
        third = Net(), torch.optim.SGD(model.parameters(), lr=0.3)
        orders = []
        for _ in range(2):
            living = live_objects.program()
            ours = [each for each in living.optimizers if each in (optimizer, second[1], third[1])]
            orders.append([each.param_groups[0]["lr"] for each in ours])
            nets = [id(each) for each in living.modules if each in (model, second[0], third[0])]
            assert nets == [id(model), id(second[0]), id(third[0])]
            gc.collect()
        assert orders == [[0.1, 0.2, 0.3]] * 2
    finally:
        gc.enable()


def test_groups_keep_their_numbers_after_a_state_was_loaded() -> None:
    net = Net()
    optimizer = torch.optim.SGD([{"params": each.parameters()} for each in net.layers], lr=0.1, momentum=0.9)

    def step() -> None:
        optimizer.load_state_dict(optimizer.state_dict())
        net(X).sum().backward()
        optimizer.step(lambda: net(X).sum())

    assert groups_of(step).names == ["0", "1"]


def test_optimizers_without_groups_are_left_alone() -> None:
    net = Net()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = net(X).square().sum()
        loss.backward()
        return loss

    assert groups_of(lambda: optimizer.step(closure)).names == []


def test_an_optimizer_is_copied_and_saved_while_it_is_marked() -> None:
    net = Net()
    optimizer = torch.optim.SGD(two_groups(net), lr=0.1)
    with marked(lambda: optimizer):
        again = pickle.loads(pickle.dumps(copy.deepcopy(optimizer)))
    assert "_init_group" not in vars(again)
    again.step()


def test_a_failing_step_of_an_optimizer_closes_its_group() -> None:
    net = Net()
    optimizer = torch.optim.SGD(two_groups(net), lr=0.1)
    net(X).sum().backward()
    fails = [True]
    init = torch.optim.SGD._init_group

    class Fails(torch.optim.SGD):
        def _init_group(self, group: Any, *args: Any) -> Any:
            if fails.pop():
                raise ValueError("no")
            fails.append(False)
            return init(self, group, *args)

    optimizer.__class__ = Fails

    def step() -> None:
        with pytest.raises(ValueError, match="no"):
            optimizer.step()
        fails.append(False)
        optimizer.step()

    rows = groups_of(step)
    assert rows.names == ["first", "first", "1"]
    assert rows.rows[0][3] <= rows.rows[1][2]


# ---- where they are put ----------------------------------------------------------------------------------------------


def experiment(schedule: Schedule, *, modules: bool = True) -> Experiment:
    options = ProfilerOptions(modules=modules)
    return Experiment(name="marks", path=Path("x.yaml"), workload="x.py:build", schedule=schedule, profiler=options)


def profiled(schedule: Schedule, folder: Path, *, modules: bool = True) -> tuple[list[int], list[list[str]]]:
    """How many hooks there are in each step, and the module regions of each trace."""
    net, seen = Net(layers=1), list[int]()

    def step() -> None:
        seen.append(hooks_on(net))
        net(X)

    planned = experiment(schedule, modules=modules)
    recorded = profiling.profile_steps(step, CpuDevice(), planned, folder, step_seconds=0.01)
    assert hooks_on(net) == 0
    return seen, [regions_in(cycle.trace) for cycle in recorded]


def regions_in(trace: Path) -> list[str]:
    rows = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    found = sorted((row["ts"], row["name"]) for row in rows if str(row.get("name")).startswith("nn.Module: "))
    return [name.removeprefix("nn.Module: ") for _, name in found]


def test_modules_are_marked_from_the_step_before_each_window_to_its_end(tmp_path: Path) -> None:
    seen, regions = profiled(Schedule(skip_first=1, wait=1, warmup=2, active=2, repeat=2), tmp_path)
    # skip_first, wait, warmup, warmup, active, active; then from wait on again. Six modules (with the list), three
    # entries each.
    assert seen == [0, *[0, 0, 18, 18, 18] * 2]
    assert regions == [list(NET[:5]) * 2] * 2


def test_the_first_step_may_be_recorded(tmp_path: Path) -> None:
    seen, regions = profiled(Schedule(wait=0, warmup=0, active=1), tmp_path)
    assert seen == [18]
    assert regions == [list(NET[:5])]


def test_without_the_option_nothing_is_marked(tmp_path: Path) -> None:
    seen, regions = profiled(Schedule(wait=0, warmup=1, active=1), tmp_path, modules=False)
    assert seen == [0, 0]
    assert regions == [[]]


def test_a_workload_that_fails_while_it_is_recorded_leaves_no_hook(tmp_path: Path) -> None:
    net, left = Net(), [2]

    def step() -> None:
        net(X)
        if not left.pop():
            raise ValueError("no")
        left.append(left[-1] - 1 if left else 0)

    planned = experiment(Schedule(wait=0, warmup=1, active=2))
    with pytest.raises(ValueError, match="no"):
        profiling.profile_steps(step, CpuDevice(), planned, tmp_path, step_seconds=0.01)
    assert hooks_on(net) == 0


def test_steps_are_recorded_without_marks_if_a_module_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("odd module")

    monkeypatch.setattr(marks, "named", fail)
    planned, device = experiment(Schedule(wait=0, warmup=1, active=1)), CpuDevice()
    recorded = profiling.profile_steps(lambda: None, device, planned, tmp_path, step_seconds=0.01)
    notes = measurement.recorded_notes(recorded, device, planned)
    assert notes == ["Calls of modules are not marked in the trace: ValueError: odd module."]


model_of_this_file: Any = None


def test_a_users_own_loop_is_marked_with_the_names_of_its_globals(tmp_path: Path) -> None:
    global model_of_this_file  # noqa: PLW0603
    model_of_this_file = Net(layers=1)
    other = Net(layers=1)
    with proftrack.profile(
        "loop",
        schedule={"wait": 2, "warmup": 1, "active": 1},
        device="cpu",
        calibrate=False,
        quiet=True,
        mlflow=False,
        output=tmp_path / "run",
    ) as p:
        for _ in range(4):
            other(model_of_this_file(X))
            p.step()
    (trace,) = (tmp_path / "run" / "trace").iterdir()
    names = [name for name in regions_in(trace) if "layers" not in name]
    assert names[0] == "model_of_this_file (Net)"
    assert len(names) == 2
    assert hooks_on(model_of_this_file, other) == 0
    model_of_this_file = None
