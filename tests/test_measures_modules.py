"""Time by owner and pass: each kind of program by hand, then what real ones record."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from traces import BACKWARD, MAIN, TraceBuilder

from proftrack.measures import Measures, combine, measure
from proftrack.measures import modules as by_module
from proftrack.measures.nesting import nest
from proftrack.record.modules import MOST_PIECES, PASSES, Module, OwnedWork, tree
from proftrack.trace.categories import Kind

EVALUATE = "autograd::engine::evaluate_function: "


class Program(TraceBuilder):
    """Each operator launches one kernel, which runs 5 us after its launch for as long as is said."""

    def __init__(self) -> None:
        super().__init__()
        self.correlation = 0

    def module(self, path: str, kind: str, *, at: float, dur: float, **more: Any) -> Program:
        self.op(f"nn.Module: {path}{' ' if path else ''}({kind})", at=at, dur=dur, **more)
        return self

    def launched(self, us: float, *, at: float, name: str = "gemm", cat: str = "kernel", **more: Any) -> Program:
        self.correlation += 1
        self.launch(at=at, dur=1, correlation=self.correlation, **more)
        self.gpu(cat, name, at + 5, us, correlation=self.correlation, stream=self.correlation)
        return self

    def runs(
        self, us: float, *, at: float, name: str = "aten::mm", number: int | None = None, thread: Any = MAIN
    ) -> Program:
        """An operator of 8 us."""
        numbered = {} if number is None else {"Sequence_number": number, "Fwd_thread_id": 0}
        self.op(name, at=at, dur=8, thread=thread, **numbered)
        return self.launched(us, at=at + 2, thread=thread)

    def node(
        self, us: float, *, at: float, number: int | None = None, dur: float = 20, name: str = "MmBackward0"
    ) -> Program:
        """A node of the backward pass, which launches one kernel 2 us after its start (none if that takes no time)."""
        numbered = {} if number is None else {"Sequence_number": number, "Fwd_thread_id": 1}
        self.op(EVALUATE + name, at=at, dur=dur, thread=BACKWARD, **numbered)
        self.op(name, at=at + 1, dur=dur - 2, thread=BACKWARD, **numbered)
        return self.launched(us, at=at + 2, thread=BACKWARD) if us else self


def parts(measures: Measures) -> dict[tuple[str, str], dict[str, float]]:
    """The passes that take time, by kind and path."""
    assert sum(row.busy_us for row in measures.modules) == pytest.approx(measures.busy_us or 0.0, abs=1e-3)
    return {
        (row.kind, row.path): {part: row.part_us(part) for part in PASSES if row.part_us(part)}
        for row in measures.modules
        if row.busy_us
    }


def two_layers() -> Program:
    """Two layers in a model, the loss outside of it, backward on its own thread, an optimizer with two groups.

    forward: 0.lin 10, 0.act 3, 1.lin 11, model 2, loss 4; backward: loss 5, model 6, 1.lin 20, its gradient 1 ...
    """
    trace = Program()
    trace.step(1, at=0, dur=1000)
    trace.module("", "Net", at=10, dur=190)
    trace.module("layers.0", "Block", at=20, dur=60)
    trace.module("layers.0.lin", "Linear", at=25, dur=20).runs(10, at=30, number=1)
    trace.module("layers.0.act", "GELU", at=50, dur=20).runs(3, at=55, name="aten::gelu", number=2)
    trace.module("layers.1", "Block", at=100, dur=40)
    trace.module("layers.1.lin", "Linear", at=105, dur=20).runs(11, at=110, number=3)
    trace.runs(2, at=150, name="aten::add", number=4)
    trace.runs(4, at=220, name="aten::mse_loss", number=5)
    trace.node(5, at=300, number=5).node(6, at=330, number=4)
    trace.node(20, at=360, number=3).node(1, at=390, name="torch::autograd::AccumulateGrad")
    trace.node(7, at=420, number=2)
    trace.node(19, at=450, number=1).node(2, at=480, name="torch::autograd::AccumulateGrad")
    trace.region("Optimizer.step#AdamW.step", at=600, dur=100)
    trace.region("proftrack: parameter group decay", at=610, dur=20).runs(30, at=612)
    trace.region("proftrack: parameter group 1", at=650, dur=20).runs(8, at=652)
    trace.runs(0.5, at=680)
    trace.region("Optimizer.zero_grad#AdamW.zero_grad", at=720, dur=20).launched(
        1, at=722, name="Memset", cat="gpu_memset"
    )
    return trace


def test_forward_backward_and_optimizer_of_a_model() -> None:
    found = two_layers().measures()
    assert parts(found) == {
        ("module", "layers.0.lin"): {"forward": 10, "backward": 21},
        ("module", "layers.0.act"): {"forward": 3, "backward": 7},
        ("module", "layers.1.lin"): {"forward": 11, "backward": 21},
        ("module", ""): {"forward": 2, "backward": 6},
        ("none", ""): {"forward": 4, "backward": 5},
        ("optimizer", "AdamW.decay"): {"optimizer": 30},
        ("optimizer", "AdamW.group 1"): {"optimizer": 8},
        ("optimizer", "AdamW"): {"optimizer": 1.5},
    }
    rows = {row.path: row for row in found.modules if row.kind != "none"}
    assert {path: (row.class_name, row.calls) for path, row in rows.items()} == {
        "": ("Net", 1),
        "layers.0": ("Block", 1),
        "layers.0.lin": ("Linear", 1),
        "layers.0.act": ("GELU", 1),
        "layers.1": ("Block", 1),
        "layers.1.lin": ("Linear", 1),
        "AdamW": ("AdamW", 1),
        "AdamW.decay": ("AdamW", 1),
        "AdamW.group 1": ("AdamW", 1),
    }
    assert rows["layers.0.lin"].largest == [
        OwnedWork(operator="MmBackward0", kernel="gemm", part="backward", calls=1, busy_us=19),
        OwnedWork(operator="aten::mm", kernel="gemm", part="forward", calls=1, busy_us=10),
        OwnedWork(operator="torch::autograd::AccumulateGrad", kernel="gemm", part="backward", calls=1, busy_us=2),
    ]
    # What the module and its operator spend on the host, and its two nodes.
    assert rows["layers.0.lin"].host_us == 20 + 20 + 20
    assert sum(row.host_us for row in found.modules) == found.per_step[0].self_cpu_time_us
    assert tree(found.modules).busy_us == 10 + 21 + 3 + 7 + 11 + 21 + 2 + 6


def test_sites_name_the_owners_with_most_time_first() -> None:
    (mm,) = [site for site in two_layers().measures().sites if (site.operator, site.kernel) == ("aten::mm", "gemm")]
    assert mm.modules == ["AdamW.decay", "layers.1.lin", "layers.0.lin", "AdamW.group 1", "AdamW"]
    add = next(site for site in two_layers().measures().sites if site.operator == "aten::add")
    assert add.modules == ["(Net)"]


def test_nothing_without_a_marker() -> None:
    trace = Program()
    trace.step(1, at=0, dur=100)
    trace.region("forward", at=5, dur=50).runs(10, at=10)
    assert trace.measures().modules == []
    assert TraceBuilder().step(1, at=0, dur=10).measures().modules == []


def test_what_has_an_impossible_time_or_is_no_operator_marks_nothing() -> None:
    """A module call a day later, and a region with the numbers of a node, as some versions of torch write."""
    trace = Program()
    trace.step(1, at=0, dur=100)
    trace.region("clip", at=5, dur=40, Sequence_number=3, Fwd_thread_id=1).runs(5, at=10)
    assert trace.module("a", "Linear", at=1e11, dur=30).measures().modules == []


def test_regions_own_what_is_outside_of_modules() -> None:
    """The step's own region holds all of it and says nothing; a collective's title only where no region is around."""
    trace = Program()
    trace.step(1, at=0, dur=600).region("my experiment", at=5, dur=590)
    trace.region("loss", at=10, dur=50).runs(10, at=20, number=1)
    trace.module("", "Net", at=100, dur=60).region("inside", at=105, dur=40).runs(7, at=110)
    trace.runs(3, at=200)
    trace.region("sync", at=300, dur=50).region("nccl:all_reduce", at=310, dur=20)
    trace.launched(9, at=312, name="ncclDevKernel_AllReduce")
    trace.region("nccl:broadcast", at=400, dur=20).launched(5, at=402, name="ncclDevKernel_Broadcast")
    trace.node(2, at=500, number=1)
    found = trace.measures()
    assert parts(found) == {
        ("region", "loss"): {"forward": 10, "backward": 2},
        ("module", ""): {"forward": 7},
        ("none", ""): {"other": 3},
        ("region", "sync"): {"other": 9},
        ("region", "nccl:broadcast"): {"other": 5},
    }
    assert {row.path: (row.communication_us, row.calls) for row in found.modules if row.kind == "region"} == {
        "loss": (0, 1),
        "sync": (9, 1),
        "nccl:broadcast": (5, 1),
    }
    assert [row.calls for row in found.modules if row.kind == "module"] == [1]


def test_communication_and_copies_are_parts_of_their_owner() -> None:
    trace = Program()
    trace.step(1, at=0, dur=300)
    trace.module("fc", "Linear", at=10, dur=100).runs(4, at=20, number=1)
    trace.launched(6, at=40, name="Memcpy HtoD (Pageable -> Device)", cat="gpu_memcpy")
    trace.launched(2, at=60, name="Memcpy DtoD (Device -> Device)", cat="gpu_memcpy")
    trace.node(3, at=150, number=1).node(0, at=180, name="torch::autograd::AccumulateGrad", dur=30)
    trace.region("nccl:all_reduce", at=185, dur=10, thread=BACKWARD)
    trace.launched(20, at=187, name="ncclDevKernel_AllReduce_Sum", thread=BACKWARD)
    (row,) = [row for row in trace.measures().modules if row.kind == "module"]
    assert (row.forward_us, row.backward_us, row.communication_us, row.copies_us) == (12, 23, 20, 6)


def test_checkpointing_by_hand() -> None:
    """Reentrant: the module and its backward pass run in the node. Else the module runs before the node's own work."""
    trace = Program()
    trace.step(1, at=0, dur=1000)
    trace.module("a", "Linear", at=10, dur=40).op(
        "CheckpointFunction", at=12, dur=30, Sequence_number=1, Fwd_thread_id=0
    )
    trace.module("a.act", "GELU", at=15, dur=20).runs(5, at=20)
    trace.module("b", "Linear", at=60, dur=40).runs(6, at=70, number=2)
    trace.node(8, at=200, number=2, dur=100)
    trace.module("b", "Linear", at=220, dur=20, thread=BACKWARD).runs(6, at=225, number=3, thread=BACKWARD)
    trace.node(0, at=400, number=1, dur=300, name="CheckpointFunctionBackward")
    trace.module("a.act", "GELU", at=410, dur=30, thread=BACKWARD).runs(5, at=420, number=4, thread=BACKWARD)
    trace.node(11, at=500, number=4).node(1, at=530, name="torch::autograd::AccumulateGrad")
    found = trace.measures()
    assert parts(found) == {
        ("module", "a.act"): {"forward": 5, "recompute": 5, "backward": 12},
        ("module", "b"): {"forward": 6, "recompute": 6, "backward": 8},
    }
    assert {row.path: row.calls for row in found.modules if row.kind == "module"} == {"a": 1, "a.act": 1, "b": 1}


def test_a_function_that_is_run_again_is_no_module() -> None:
    """The node recomputes with numbers, then works without; with create_graph all of its work has numbers."""
    trace = Program()
    trace.step(1, at=0, dur=1000)
    trace.module("a", "Linear", at=10, dur=40).runs(6, at=20, number=1)
    trace.node(0, at=100, number=1, dur=80)
    trace.runs(7, at=110, number=2, thread=BACKWARD).runs(9, at=140, thread=BACKWARD)
    assert parts(trace.measures()) == {("module", "a"): {"forward": 6, "recompute": 7, "backward": 9}}
    twice = Program()
    twice.step(1, at=0, dur=1000)
    twice.module("a", "Linear", at=10, dur=40).runs(6, at=20, number=1)
    twice.node(0, at=100, number=1, dur=80)
    twice.runs(7, at=110, number=2, thread=BACKWARD).runs(9, at=140, number=3, thread=BACKWARD)
    twice.launched(1, at=165, thread=BACKWARD)  # by no operator
    twice.node(4, at=300, number=3).node(2, at=330, number=2)
    assert parts(twice.measures()) == {("module", "a"): {"forward": 6, "backward": 7 + 9 + 1 + 4 + 2}}


def test_a_compiled_region_is_one_owner() -> None:
    """Backward by the CompiledFunction in it; compiled parts of an optimizer are the optimizer's."""
    trace = Program()
    trace.step(1, at=0, dur=1000)
    trace.module("layers.3", "Block", at=10, dur=100)
    trace.op("TorchDynamo Cache Lookup", at=15, dur=5)
    trace.op("Torch-Compiled Region: 1/0", at=20, dur=80)
    trace.op("CompiledFunction", at=30, dur=60, Sequence_number=1, Fwd_thread_id=0)
    trace.region("## Call CompiledFxGraph fabc ##", at=35, dur=40).launched(9, at=40, name="triton_mm")
    trace.op("Torch-Compiled Region: 0/1", at=150, dur=30).launched(4, at=160, name="triton_add")
    trace.op(EVALUATE + "CompiledFunctionBackward", at=300, dur=50, thread=BACKWARD, Sequence_number=1, Fwd_thread_id=1)
    trace.op("CompiledFunctionBackward", at=301, dur=40, thread=BACKWARD, Sequence_number=1, Fwd_thread_id=1)
    trace.op("Torch-Compiled Region: 7/0", at=305, dur=20, thread=BACKWARD).launched(20, at=310, thread=BACKWARD)
    trace.region("Optimizer.step#SGD.step", at=500, dur=60).op("Torch-Compiled Region: 2/0", at=510, dur=30)
    trace.launched(3, at=520)
    trace.region("Optimizer.step#AdamW.step", at=700, dur=60).op("proftrack: parameter group 0", at=705, dur=50)
    trace.op("Torch-Compiled Region: 3/0", at=710, dur=30).launched(2, at=720)
    trace.op("Torch-Compiled Region: !0/0", at=600, dur=30).launched(6, at=610)
    found = trace.measures()
    assert parts(found) == {
        ("compiled", "layers.3.compiled 1/0"): {"forward": 9, "backward": 20},
        ("compiled", "compiled 0/1"): {"forward": 4},
        ("optimizer", "SGD"): {"optimizer": 3},
        ("optimizer", "AdamW.group 0"): {"optimizer": 2},
        ("compiled", "compiled !0/0"): {"backward": 6},
    }
    assert {row.path: row.calls for row in found.modules if row.calls} == {
        "layers.3": 1,
        "layers.3.compiled 1/0": 1,
        "compiled 0/1": 1,
        "SGD": 1,
        "AdamW": 1,
        "AdamW.group 0": 1,
    }


def test_a_compiled_region_that_is_run_again() -> None:
    trace = Program()
    trace.step(1, at=0, dur=1000)
    trace.module("a", "Block", at=10, dur=80).op("Torch-Compiled Region: 1/0", at=20, dur=50)
    trace.op("CompiledFunction", at=30, dur=30, Sequence_number=1, Fwd_thread_id=0).launched(5, at=35)
    trace.node(0, at=200, number=1, dur=90, name="CompiledFunctionBackward")
    trace.op("Torch-Compiled Region: 1/0", at=210, dur=20, thread=BACKWARD)
    trace.op("CompiledFunction", at=212, dur=15, thread=BACKWARD, Sequence_number=2, Fwd_thread_id=0)
    trace.launched(5, at=215, thread=BACKWARD).launched(12, at=250, thread=BACKWARD)
    trace.launched(2, at=228, thread=BACKWARD)  # in the region, behind its operator
    assert parts(trace.measures()) == {("compiled", "a.compiled 1/0"): {"forward": 5, "recompute": 7, "backward": 12}}


def test_other_optimizers_shared_modules_and_threads() -> None:
    trace = Program()
    trace.step(1, at=0, dur=1000)
    for at in (10, 60):
        trace.module("shared", "Linear", at=at, dur=30).runs(5, at=at + 5, number=at)
    trace.module("", "Net", at=20, dur=60, thread=7).module("elsewhere", "Linear", at=30, dur=30, thread=7)
    trace.runs(2, at=35, thread=7)
    trace.region("Optimizer.step#AdamW.step", at=200, dur=30).runs(9, at=205)
    trace.region("Optimizer.step#Muon.step", at=300, dur=30).runs(8, at=305)
    trace.region("Optimizer.step#LBFGS.step", at=400, dur=90)
    trace.module("shared", "Linear", at=420, dur=30).runs(5, at=425)
    found = trace.measures()
    assert parts(found) == {
        ("module", "shared"): {"forward": 15},
        ("module", "elsewhere"): {"forward": 2},
        ("optimizer", "AdamW"): {"optimizer": 9},
        ("optimizer", "Muon"): {"optimizer": 8},
    }
    assert next(row.calls for row in found.modules if row.path == "shared") == 3


def test_outermost_modules_of_several_models_have_their_classes() -> None:
    trace = Program()
    trace.step(1, at=0, dur=300)
    trace.module("", "Actor", at=10, dur=30).runs(5, at=15)
    trace.module("", "Critic", at=60, dur=30).runs(4, at=65)
    assert parts(trace.measures()) == {("module", "Actor"): {"forward": 5}, ("module", "Critic"): {"forward": 4}}


def test_a_module_of_another_class_takes_the_place_of_one() -> None:
    trace = Program()
    trace.step(1, at=0, dur=300)
    trace.module("fc", "Linear", at=10, dur=30).runs(5, at=15)
    trace.module("fc", "LoraLinear", at=60, dur=30).runs(4, at=65)
    assert parts(trace.measures()) == {("module", "fc"): {"forward": 9}}


def test_modules_of_recorded_stacks_are_named_by_how_they_nest() -> None:
    """torch numbers the modules of a class; a call during backward stands alone and says nothing about the place."""
    trace = Program()
    trace.step(1, at=0, dur=1000)
    trace.python("nn.Module: Llama_0", at=10, dur=90).python("nn.Module: MLP_1", at=20, dur=70)
    trace.python("nn.Module: Linear_7", at=25, dur=30).runs(5, at=30, number=1)
    trace.node(6, at=200, number=1, dur=60)
    trace.python("nn.Module: MLP_1", at=210, dur=30, thread=BACKWARD)
    trace.python("nn.Module: Linear_7", at=215, dur=20, thread=BACKWARD).runs(5, at=220, number=2, thread=BACKWARD)
    found = trace.measures()
    assert parts(found) == {("module", "MLP_1.Linear_7"): {"forward": 5, "recompute": 5, "backward": 6}}
    assert {(row.path, row.class_name, row.calls) for row in found.modules if row.kind == "module"} == {
        ("", "Llama", 1),
        ("MLP_1", "MLP", 1),
        ("MLP_1.Linear_7", "Linear", 1),
    }
    trace.python("nn.Module: CrossEntropyLoss_0", at=400, dur=30).runs(3, at=410)
    assert parts(trace.measures()) == {
        ("module", "Llama_0.MLP_1.Linear_7"): {"forward": 5, "recompute": 5, "backward": 6},
        ("module", "CrossEntropyLoss_0"): {"forward": 3},
    }
    # Regions of capture's say more.
    trace.module("model", "Llama", at=8, dur=95)
    assert ("module", "model") in parts(trace.measures())
    assert not any("MLP_1" in path for _, path in parts(trace.measures()))


def test_a_call_in_backward_does_not_tell_where_a_module_is() -> None:
    """Neither if it comes first, nor by the module that calls backward(), on whose thread the nodes run on a CPU."""
    first = Program()
    first.step(1, at=0, dur=1000).op(EVALUATE + "CheckpointFunctionBackward", at=10, dur=60, thread=BACKWARD)
    first.python("nn.Module: Linear_7", at=15, dur=20, thread=BACKWARD).runs(5, at=20, thread=BACKWARD)
    first.python("nn.Module: Llama_0", at=210, dur=90).python("nn.Module: MLP_1", at=220, dur=70)
    first.python("nn.Module: Linear_7", at=225, dur=30).runs(4, at=230)
    found = {row.path: row.busy_us for row in first.measures().modules if row.kind == "module"}
    assert found == {"": 0, "MLP_1": 0, "MLP_1.Linear_7": 9}
    within = Program()
    within.step(1, at=0, dur=1000).python("nn.Module: Trainer_0", at=10, dur=500)
    within.op(EVALUATE + "CheckpointFunctionBackward", at=100, dur=60)
    within.python("nn.Module: Linear_7", at=110, dur=30).runs(5, at=112)
    assert {row.path for row in within.measures().modules if row.kind == "module"} == {"Trainer_0", "Linear_7"}


def test_nodes_whose_forward_was_not_recorded() -> None:
    """They are nobody's, and so is what follows them without a number."""
    trace = Program()
    trace.step(1, at=0, dur=1000)
    trace.module("a", "Linear", at=10, dur=30).runs(1, at=15, number=50)
    trace.node(2, at=100, number=50).node(4, at=130, name="torch::autograd::AccumulateGrad")
    trace.node(8, at=160, number=49).node(16, at=190, name="torch::autograd::AccumulateGrad")
    trace.node(32, at=220, number=70).node(64, at=255, name="torch::autograd::AccumulateGrad")
    assert parts(trace.measures()) == {
        ("module", "a"): {"forward": 1, "backward": 2 + 4},
        ("none", ""): {"backward": 8 + 16 + 32 + 64},
    }


def test_a_node_has_the_number_of_the_row_within_that_is_the_node() -> None:
    """Torch gives the engine's row the number of the first row within it, which may be that of a tensor's hook."""
    trace = Program()
    trace.step(1, at=0, dur=1000)
    trace.module("a", "Linear", at=10, dur=30).runs(1, at=15, number=50)
    trace.module("b", "Linear", at=50, dur=30).runs(2, at=55, number=51)
    trace.node(4, at=100, number=51)
    for at, hook in ((130, {}), (200, {"Sequence_number": 52, "Fwd_thread_id": 0})):
        trace.op(EVALUATE + "MmBackward0", at=at, dur=40, thread=BACKWARD, **hook)
        trace.op("aten::clone", at=at + 1, dur=6, thread=BACKWARD, **hook).launched(8, at=at + 2, thread=BACKWARD)
        trace.op("MmBackward0", at=at + 10, dur=20, thread=BACKWARD, Sequence_number=50, Fwd_thread_id=1)
        trace.launched(16, at=at + 12, thread=BACKWARD)
    trace.node(32, at=250, name="torch::autograd::AccumulateGrad")
    assert parts(trace.measures()) == {
        ("module", "a"): {"forward": 1, "backward": 2 * (8 + 16) + 32},
        ("module", "b"): {"forward": 2, "backward": 4},
    }


def test_old_traces_have_nodes_without_the_engine_around_them() -> None:
    trace = Program()
    trace.step(1, at=0, dur=300)
    trace.region("Optimizer.step#SGD.step", at=200, dur=20).runs(4, at=205)
    trace.region("forward", at=10, dur=30).runs(5, at=15, number=1)
    trace.op("MmBackward", at=100, dur=20, thread=BACKWARD, Sequence_number=1, Fwd_thread_id=1)
    trace.launched(7, at=105, thread=BACKWARD)
    assert parts(trace.measures()) == {
        ("region", "forward"): {"forward": 5, "backward": 7},
        ("optimizer", "SGD"): {"optimizer": 4},
    }


def test_only_typical_steps_count() -> None:
    """Step 3 compiles: it is left out, with its work, its calls and its time on the host. The others take 5, 5, 9 and
    9 us: in the middle 7, from which each is 2.
    """
    trace = Program()
    for number, at in enumerate((0, 1000, 2000, 3000, 4000), 1):
        trace.step(number, at=at, dur=900)
        trace.module("a", "Linear", at=at + 10, dur=30).runs(5 if number < 3 else 9, at=at + 15)
        trace.runs(1, at=at + 880)
    trace.op("_compile.compile_inner (dynamo_timed)", at=2100, dur=600)
    found = trace.measures()
    assert found.window.outlier_steps == 1
    (row,) = [row for row in found.modules if row.kind == "module"]
    assert (row.forward_us, row.calls, row.host_us) == (28, 4, 4 * 30)
    assert (row.typical_us, row.deviation_us) == (7, pytest.approx(1.4826 * 2))
    assert sum(row.busy_us for row in found.modules) == pytest.approx(found.busy_us)


def test_what_is_between_steps_is_nobodys() -> None:
    trace = TraceBuilder().step(1, at=0, dur=100).step(2, at=200, dur=100)
    trace.op("nn.Module: a (Linear)", at=10, dur=30).op("nn.Module: b (Linear)", at=120, dur=50)
    found = trace.measures().modules
    assert [(row.path, row.calls, row.host_us) for row in found if row.kind == "module"] == [("a", 1, 30)]


def test_work_at_once_shares_its_time() -> None:
    """20-40 and 30-50 on two streams: 10 each alone, 5 each of what they share."""
    trace = TraceBuilder().step(1, at=0, dur=100)
    trace.op("nn.Module: a (A)", at=5, dur=5).launch(at=6, correlation=1)
    trace.op("nn.Module: b (B)", at=15, dur=5).launch(at=16, correlation=2)
    trace.kernel(at=20, dur=20, correlation=1, stream=7).kernel(at=30, dur=20, correlation=2, stream=8)
    found = trace.measures()
    assert {row.path: row.forward_us for row in found.modules if row.kind == "module"} == {"a": 15, "b": 15}


def test_without_gpu_work_times_are_those_of_the_host() -> None:
    trace = TraceBuilder().step(1, at=0, dur=1000)
    trace.op("nn.Module: a (Linear)", at=10, dur=50).op("aten::mm", at=20, dur=30, Sequence_number=1, Fwd_thread_id=0)
    trace.op(EVALUATE + "MmBackward0", at=100, dur=40, thread=BACKWARD, Sequence_number=1, Fwd_thread_id=1)
    trace.op("aten::mm", at=110, dur=25, thread=BACKWARD)
    trace.region("Optimizer.step#SGD.step", at=200, dur=60)
    found = trace.measures()
    assert [
        (r.kind, r.path, r.forward_us, r.backward_us, r.optimizer_us, r.other_us, r.host_us) for r in found.modules
    ] == [
        ("none", "", 0, 0, 0, 1000 - 50 - 60, 890),
        ("module", "a", 50, 40, 0, 0, 90),
        ("optimizer", "SGD", 0, 0, 60, 0, 60),
    ]
    assert sum(row.busy_us for row in found.modules) == found.totals.self_cpu_time_total_us
    assert found.modules[1].largest[0] == OwnedWork(operator="aten::mm", kernel="", part="forward", calls=1, busy_us=30)


def test_a_typical_step_is_the_median_of_gpu_time() -> None:
    """5, 50 and 7 us: the median is 7, and the steps are 2, 43 and 0 us from it."""
    trace = Program()
    for number, us in enumerate((5, 50, 7), 1):
        at = 1000 * number
        trace.step(number, at=at, dur=900)
        trace.module("a", "Linear", at=at + 10, dur=30).runs(us, at=at + 15)
    row = next(row for row in trace.measures().modules if row.path == "a")
    assert (row.forward_us, row.typical_us, row.deviation_us) == (62, 7, pytest.approx(1.4826 * 2))
    row = next(row for row in combine([trace.measures(), trace.measures()]).modules if row.path == "a")
    assert (row.forward_us, row.typical_us, row.deviation_us) == (124, 7, pytest.approx(1.4826 * 2))


def test_a_typical_step_is_the_least_of_the_hosts_time() -> None:
    """40, 30 and 80 us: their median is 10 us above the least."""
    trace = TraceBuilder()
    for number, us in enumerate((40, 30, 80), 1):
        trace.step(number, at=1000 * number, dur=900)
        trace.op("nn.Module: a (Linear)", at=1000 * number + 10, dur=us)
    row = next(row for row in trace.measures().modules if row.path == "a")
    assert (row.forward_us, row.typical_us, row.deviation_us) == (150, 30, 10)


def test_an_owner_of_few_steps_takes_nothing_in_a_typical_one() -> None:
    """In half of the steps 6 us, in fewer 8 us, in one alone 9 us; the last of the five steps is an outlier."""
    steps = {"half": (6, 6, 0, 0, 0), "always": (1, 2, 3, 4, 500), "one": (0, 0, 9, 0, 9), "late": (0, 0, 0, 0, 8)}
    code, step = (np.array(each) for each in np.nonzero(list(steps.values())))
    ns = np.array([us * 1000.0 for times in steps.values() for us in times if us])
    nothing = np.full(len(code), -1)
    pieces = by_module._Pieces(code.astype(np.int32), nothing.astype(np.int8), ns, nothing, nothing, nothing, step)
    typical = by_module._typical(pieces, 4, 5, [4], on_host=False)
    assert [us for us, _ in typical] == [3, 2.5, 0, 0]
    assert [deviation for _, deviation in typical] == pytest.approx([1.4826 * 3, 1.4826, 0, 0])
    assert by_module._typical(pieces, 4, 5, [4], on_host=True) == [(0, 3), (1, 1.5), (0, 0), (0, 0)]


def test_regions_named_after_their_step_need_no_table_of_all_steps() -> None:
    """A thousand steps with a region each would be a million cells, of which a thousand are not 0."""
    trace = TraceBuilder()
    for number in range(1, 1001):
        trace.step(number, at=100 * number, dur=90)
        trace.row("user_annotation", f"batch {number}", at=100 * number + 1, dur=50)
        trace.launch(at=100 * number + 10, correlation=number).kernel(at=100 * number + 20, dur=5, correlation=number)
        trace.row("user_annotation", "Optimizer.step#Adam.step", at=100 * number + 60, dur=5)
    table = trace.table()
    tracemalloc.start()
    rows = measure(table).modules
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 1000 * 1000
    assert {row.typical_us for row in rows} == {0}
    assert sum(row.busy_us for row in rows) == 5000


def test_one_step_is_not_typical() -> None:
    row = next(row for row in two_layers().measures().modules if row.path == "layers.0.lin")
    assert (row.typical_us, row.deviation_us) == (None, None)


def test_cycles_are_added_up() -> None:
    one = two_layers().measures()
    both = combine([one, one])
    assert sum(row.busy_us for row in both.modules) == pytest.approx(both.busy_us)
    before, after = (next(r for r in m.modules if r.path == "layers.0.lin") for m in (one, both))
    assert (after.calls, after.forward_us, after.backward_us, after.host_us) == (2, 20, 42, 2 * before.host_us)
    assert after.largest[0] == OwnedWork(operator="MmBackward0", kernel="gemm", part="backward", calls=2, busy_us=38)
    assert [site.modules for site in both.sites] == [site.modules for site in one.sites]


def test_too_many_rows_are_added_to_what_is_above_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the deepest the smallest first; a.b has no row, so its child goes to the outermost; a region to nobody."""
    rows = [
        Module(path="", forward_us=1.0, calls=1),
        Module(path="a.b.c", forward_us=2.0, calls=5),
        Module(path="a.b.d", forward_us=3.0, calls=5),
        Module(path="e", backward_us=4.0, calls=1),
        Module(path="e.f", backward_us=5.0, calls=1),
        Module(path="load", kind="region", other_us=0.5),
    ]
    for most, expected in (
        (
            5,
            {
                ("module", ""): 3.0,
                ("module", "a.b.d"): 3.0,
                ("module", "e"): 4.0,
                ("module", "e.f"): 5.0,
                ("region", "load"): 0.5,
            },
        ),
        (3, {("module", ""): 6.0, ("module", "e"): 9.0, ("region", "load"): 0.5}),
        (2, {("module", "e"): 9.0, ("none", ""): 6.5}),
    ):
        monkeypatch.setattr(by_module, "MOST", most)
        kept = by_module.bounded(rows)
        assert sum(row.busy_us for row in kept) == 15.5
        assert {(row.kind, row.path): row.busy_us for row in kept} == expected
        assert all(row.calls <= 1 for row in kept if row.path == "")


def test_a_row_lists_its_largest_pieces() -> None:
    trace = Program()
    trace.step(1, at=0, dur=900).module("a", "A", at=5, dur=800)
    for i in range(1, 9):
        trace.runs(i, at=i * 80, name=f"aten::op{i}")
    (row,) = [row for row in trace.measures().modules if row.kind == "module"]
    assert [work.busy_us for work in row.largest] == [8, 7, 6, 5, 4][:MOST_PIECES]


# ---- regions of modules change nothing else --------------------------------------------------------------------------


def plain(trace: TraceBuilder) -> TraceBuilder:
    """The same trace without regions of modules."""
    out = TraceBuilder()
    out.events = [event for event in trace.events if not str(event.get("name")).startswith("nn.Module: ")]
    return out


def others(measures: Measures) -> dict[str, Any]:
    """All figures but those that modules are about, self times, and counts of what was recorded on the host."""
    out = {
        name: value for name, value in vars(measures).items() if name not in ("modules", "ops", "host_rows", "graphs")
    }
    out["sites"] = [msgspec.structs.replace(site, modules=[]) for site in measures.sites]
    out["idle"] = (measures.idle.by_cause_us_per_step, [gap.duration_us for gap in measures.idle.largest])
    return out


def modules_everywhere() -> Program:
    """With what could be taken for an operator, for compilation or for a wait: by its name or by being in the way."""
    trace = Program()
    for number, start in enumerate((0, 4000, 8000), 1):
        trace.step(number, at=start, dur=3800)
        trace.module("compile_inner", "DataLoader", at=start + 10, dur=3000)
        trace.module("autotune.evaluate", "Validation", at=start + 20, dur=1500)
        trace.launched(30, at=start + 30)
        trace.op("CheckpointFunction", at=start + 60, dur=1400, Sequence_number=number, Fwd_thread_id=0)
        trace.module("inner", "CheckpointFunction", at=start + 65, dur=1390)
        trace.op("CheckpointFunction", at=start + 70, dur=100).launched(20, at=start + 80)
        trace.runs(10, at=start + 1440)
        trace.sync(at=start + 2000, dur=200)
        trace.runs(40, at=start + 2500)
        trace.region("Optimizer.step#SGD.step", at=start + 3200, dur=300).runs(11, at=start + 3250)
    return trace


def test_work_without_time_or_operator_is_listed_as_such() -> None:
    """A kernel of 0 us is no piece; what the step launches itself has no operator."""
    trace = Program()
    trace.step(1, at=0, dur=100)
    trace.module("a", "Linear", at=10, dur=30).runs(0, at=15)
    trace.launched(5, at=50)
    found = {row.kind: row for row in trace.measures().modules}
    assert (found["module"].calls, found["module"].largest) == (1, [])
    assert found["none"].largest == [OwnedWork(operator="", kernel="gemm", part="other", calls=1, busy_us=5)]


def test_regions_of_modules_change_no_other_figure() -> None:
    trace = modules_everywhere()
    with_modules, without = trace.measures(), plain(trace).measures()
    assert any(row.kind == "module" for row in with_modules.modules)
    assert others(with_modules) == others(without)
    assert not any(op.name.startswith("nn.Module") for op in with_modules.ops_in_steps)


def test_they_change_no_figure_on_the_cpu() -> None:
    trace = modules_everywhere()
    trace.events = [event for event in trace.events if event["cat"] not in ("kernel", "cuda_runtime")]
    found, without = trace.measures(), plain(trace).measures()
    assert others(found) == others(without)
    assert found.totals.self_cpu_time_total_us == without.totals.self_cpu_time_total_us


def test_a_forest_without_some_rows_is_as_if_they_had_not_been_recorded() -> None:
    table = modules_everywhere().table()
    is_module = table.of_kind(Kind.MODULE)
    forest = nest(table, table.host)
    left = forest.without(is_module[forest.rows])
    for found, expected in zip(left, nest(table, table.host & ~is_module), strict=True):
        assert np.array_equal(found, expected)
    assert forest.without(np.zeros(len(forest.rows), dtype=bool)) is forest
