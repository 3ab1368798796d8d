"""Which steps hold evaluation: by the names of regions, by proftrack's own mark, else by the mix of operators."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from traces import BACKWARD, TraceBuilder, flags

from proftrack.measures.evaluation import evaluation_steps, says_evaluation
from proftrack.measures.view import view
from proftrack.record.figures import EXCLUDED_REGION

FORWARD = ("aten::linear", "aten::relu", "aten::linear")
TRAIN_US = 100
"""A training step below: a forward pass of 30 us, a backward pass of 40 us, an optimizer of 20 us."""


def forward(trace: TraceBuilder, at: float, names: tuple[str, ...] = FORWARD) -> float:
    """The operators of one forward pass, 10 us each; returns when they end."""
    for index, name in enumerate(names):
        trace.op(name, at=at + 10 * index, dur=10).op("aten::addmm", at=at + 10 * index + 2, dur=5)
    return at + 10 * len(names)


def train(trace: TraceBuilder, at: float, *, thread: int = BACKWARD, names: tuple[str, ...] = FORWARD) -> float:
    """One training pass that ends after TRAIN_US."""
    forward(trace, at, names)
    for index in range(4):
        node = f"autograd::engine::evaluate_function: AddmmBackward{index % 2}"
        trace.op(node, at=at + 40 + 10 * index, dur=9, thread=thread)
        trace.op("aten::mm", at=at + 41 + 10 * index, dur=5, thread=thread)
    trace.region("Optimizer.step#SGD.step", at=at + 80, dur=18).op("aten::_foreach_add_", at=at + 82, dur=10)
    return at + TRAIN_US


def training(evaluated: dict[int, int], steps: int = 5, *, region: str | None = None, **more: object) -> TraceBuilder:
    """Steps of training; those in `evaluated` begin with so many forward passes of evaluation, inside `region`."""
    trace, at = TraceBuilder(), 0.0
    for number in range(steps):
        begin = at
        for _ in range(evaluated.get(number, 0)):
            at = forward(trace, at)
        if region is not None and at > begin:
            trace.region(region, at=begin, dur=at - begin)
        at = train(trace, at, **more)  # type: ignore[arg-type]
        trace.step(number, at=begin, dur=at - begin)
    return trace


def found(trace: TraceBuilder) -> list[int]:
    seen = view(trace.table())
    return seen.steps.number[evaluation_steps(seen.table, seen.steps, seen.forest)].tolist()


# ---- by operators ----------------------------------------------------------------------------------------------------


def test_forward_passes_without_their_backward_pass_are_evaluation() -> None:
    """Ten batches beside the step's own: eleven forward passes and one backward pass."""
    assert found(training({2: 10})) == [2]


def test_on_a_cpu_the_backward_pass_runs_on_the_same_thread() -> None:
    assert found(training({3: 4}, thread=101)) == [3]


def test_two_batches_are_enough_and_one_is_not() -> None:
    assert found(training({1: 2})) == [1]  # three passes: at least 2.5
    assert found(training({1: 1})) == []


def test_a_forward_pass_alone_among_training_steps_is_evaluation() -> None:
    """Each batch of evaluation is a step of its own: 5 of training, and one of evaluation.

    In those behind it, one of the three operators of a forward pass runs, then none, and the last may be cut off.
    """
    trace = training({}, steps=5)
    forward(trace, 500)
    trace.step(5, at=500, dur=40).step(6, at=540, dur=40).op("aten::linear", at=550, dur=5)
    trace.step(7, at=580, dur=40).op("aten::item", at=590, dur=5).step(8, at=620, dur=40)
    assert found(trace) == [5]


def test_a_last_step_without_its_backward_pass_may_be_cut_off() -> None:
    trace = training({}, steps=4)
    forward(trace, 400)
    assert found(trace.step(4, at=400, dur=40)) == []


def test_forward_passes_in_every_third_step_are_a_part_of_the_loop() -> None:
    """Rollouts: the steps are flagged, since nobody knows, but no figure leaves them out."""
    trace = training({0: 8, 3: 8, 6: 8}, steps=9)
    assert found(trace) == []
    assert flags(trace.measures())["evaluation_in_steps"] == 3
    assert found(training({0: 8, 4: 8}, steps=9)) == [0, 4]  # 2 of 9
    assert found(training({0: 8, 3: 8, 6: 8}, steps=9, region="eval")) == [0, 3, 6]


def test_of_two_steps_the_shorter_one_is_typical() -> None:
    assert found(training({1: 8}, steps=2)) == [1]


def repeating(one: Callable[[TraceBuilder, float], float], *passes: int) -> TraceBuilder:
    """Steps that do `one` so many times each."""
    trace, at = TraceBuilder(), 0.0
    for number, count in enumerate(passes):
        begin = at
        for _ in range(count):
            at = one(trace, at)
        trace.step(number, at=begin, dur=at - begin)
    return trace


def test_a_step_of_more_micro_batches_is_training() -> None:
    """Four forward and four backward passes."""
    assert found(repeating(train, 1, 1, 4, 1)) == []


def test_a_loop_without_backward_passes_has_no_typical_one() -> None:
    """Inference: one step decodes twenty tokens, the others one."""
    assert found(repeating(forward, 1, 1, 20, 1)) == []


@pytest.mark.parametrize("in_every_step", [False, True])
def test_other_operators_than_the_models_are_no_evaluation(in_every_step: bool) -> None:
    """A thousand copies between the two passes of a step: a new epoch is shuffled, a batch is collated."""
    trace = training({})
    for index in range(1000):
        trace.op("aten::item", at=230 + index / 200, dur=0.004)
    for at in (0, 100, 300, 400) if in_every_step else ():
        trace.op("aten::item", at=at + 32, dur=1)
    assert found(trace) == []


def test_operators_inside_a_backward_pass_are_not_the_forward_passes() -> None:
    """Checkpointing runs the forward pass again inside of the backward pass, ten times in one step.

    The node takes from 240 to 249, its own product from 241 to 246.
    """
    trace = training({}, thread=101)
    for index in range(10 * len(FORWARD)):
        trace.op(FORWARD[index % len(FORWARD)], at=246.1 + 0.08 * index, dur=0.07)
    assert found(trace) == []


def test_compiled_regions_are_known_without_their_numbers() -> None:
    """Compiled for training as 0/0, for evaluation (no gradients) as 0/1."""
    trace, at = TraceBuilder(), 0.0
    for number in range(4):
        begin = at
        for _ in range(6 if number == 2 else 0):
            at = forward(trace, at, ("Torch-Compiled Region: 0/1",))
        at = train(trace, at, names=("Torch-Compiled Region: 0/0",))
        trace.step(number, at=begin, dur=at - begin)
    assert found(trace) == [2]


def test_the_flag_says_what_the_figures_do() -> None:
    """Step 2 takes 10 x 30 + 100 us, the others 100."""
    trace = training({2: 10})
    for number, at in enumerate((0, 100, 200, 600, 700)):
        trace.work(number + 1, launch=at + 5, at=at + 7, dur=20)
    (flag,) = [f for f in trace.measures().flags if f.code == "evaluation_in_steps"]
    assert flag.message.endswith(
        "In step 2: at most 400 us, beside 100 us without it. A step's figures leave such steps out."
    )
    trace = training({1: 2, 3: 2}, steps=4, region=EXCLUDED_REGION)
    for at in (0, 260):
        trace.region(EXCLUDED_REGION, at=at, dur=20)
    (flag,) = [f for f in trace.measures().flags if f.code == "evaluation_in_steps"]
    assert flag.count == 4
    assert flag.message.endswith("In steps 0, 1, 2 and 3: at most 160 us. A step's figures include it.")


# ---- by regions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("region", ["validation", "run_eval", EXCLUDED_REGION, "[pl][profile]run_evaluation"])
def test_a_region_says_so(region: str) -> None:
    """One batch: by its operators it would not be seen."""
    assert found(training({1: 1, 3: 1}, region=region)) == [1, 3]


def test_a_region_in_every_step_sets_none_apart() -> None:
    """A loss in a region called `eval loss`, and a loop that is nothing but evaluation."""
    assert found(training(dict.fromkeys(range(5), 1), region="eval loss")) == []
    trace = TraceBuilder()
    for number in range(3):
        at = 100 * number
        trace.step(number, at=at, dur=100).region(f"evaluate part {number}", at=at, dur=90)
        forward(trace, at)
    assert found(trace) == []


def test_a_region_that_takes_next_to_nothing_is_not_worth_naming() -> None:
    trace = training({}).region("evaluate metric", at=201, dur=9)  # 9 of the 100 us of step 2
    assert found(trace) == []
    assert found(training({}).region("evaluate metric", at=201, dur=11)) == [2]


def test_a_region_over_several_steps_is_in_each_of_them() -> None:
    """Lightning's profiler counts each batch of validation as a step."""
    assert found(training({}).region("[pl][profile]run_evaluation", at=200, dur=200)) == [2, 3]


def test_functions_of_a_trace_with_stacks() -> None:
    for name in ("transformers/trainer.py(2805): evaluate", "/home/me/train.py(12): validate_epoch"):
        assert found(training({}).python(name, at=250, dur=40)) == [2]
    for name in ("torch/fx/experimental/symbolic_shapes.py(7): evaluate", "pydantic/main.py(2): validate_python"):
        assert found(training({}).python(name, at=250, dur=40)) == []


@pytest.mark.parametrize(
    "name",
    [
        "eval",
        "Evaluate",
        "model evaluation",
        "val",
        "val_epoch",
        "ValidationLoop",
        "test_step",
        "## validation ##",
        "[pl][profile][Strategy]SingleDeviceStrategy.validation_step",
        "[pl][profile][_EvaluationLoop].val_next",
        "[pl][profile]evaluation_step_and_end",
    ],
)
def test_names_that_say_evaluation(name: str) -> None:
    assert says_evaluation(name)


@pytest.mark.parametrize(
    "name",
    [
        "autograd::engine::evaluate_function: AddmmBackward0",
        "torch/_dynamo/eval_frame.py",
        "evaluate_guards",
        "retrieval",
        "interval",
        "key value",
        "test",
        "train/val",
        "medieval",
        "[pl][module]my.Net: val_head",
        "q k val",
        "[pl][profile]run_training_batch",
        "[pl][profile][Callback]EarlyStopping{'monitor': 'val_loss', 'mode': 'min'}.on_train_batch_end",
        "[pl][profile][LightningModule]ValidationNet.training_step",
        "Optimizer.step#EvalSGD.step",
    ],
)
def test_names_that_do_not(name: str) -> None:
    assert not says_evaluation(name)
