"""Steps that hold evaluation: validation between two training batches is no part of a step, but a trace has it in one.

    host  |-- step 7 --|------------------- step 8 --------------------|-- step 9 --|
            fwd bwd opt   evaluation: fwd fwd fwd fwd fwd   fwd bwd opt   fwd bwd opt

A region with a telling name says so. Without one, the mix of operators does: the forward pass repeats, and the backward
pass does not.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from proftrack.measures.identifiers import words_of
from proftrack.measures.intervals import union
from proftrack.measures.nesting import Forest
from proftrack.measures.window import Steps
from proftrack.record.figures import EXCLUDED_REGION
from proftrack.trace.categories import Kind
from proftrack.trace.table import NONE, Bools, EventTable, Ints

WORTH_NAMING = 0.1
"""Share of a step that regions of evaluation must cover: a metric computed on the way makes no step a different one."""
REPEATED = 2.5
"""Forward passes of a step over those of a typical one, from which on they are more than the step's own.

Two batches of evaluation beside the step's own are three; one batch alone makes no outlier.
"""
AS_MANY = 1.5
"""Backward operators over those of a typical step, up to which a step still has one step's backward pass.

More micro-batches in a step repeat both passes.
"""

A_PASS = 0.5
"""Forward passes from which on a step without any backward pass is a batch of evaluation, rather than of nothing."""
OFTEN = 0.25
"""Share of the steps above which forward passes that no region names are a part of the loop."""

_SAYS_SO = {"eval", "evaluate", "evaluating", "evaluation", "validate", "validating", "validation"}
_MAY_SAY_SO = {"val", "test"}
"""Evaluation only beside one of `_PART`: `val` may be a value, and `test` anything."""
_PART = {"batch", "dataloader", "epoch", "forward", "loader", "loop", "next", "pass", "phase", "step"}
_SAYS_OTHERWISE = {"expr", "frame", "function", "guard", "guards", "train", "training"}
"""`eval_frame` and `evaluate_guards` are torch.compile's, `evaluate_function` is autograd's."""
_LIGHTNING = "[pl][profile]"
"""How the names of Lightning's actions begin. `[pl][module]` and the name of a module follow for its forward pass."""
_PYTHON = re.compile(
    r"^(?!(?:.*/)?(?:torch|sympy)/).*\.py\(\d+\): (?:(?:run|do)_)?"
    r"(?:evaluate|evaluation_loop|prediction_step|(?:eval|evaluate|validate|val)_(?:batch|epoch|loop|step)"
    r"|(?:test|validation|evaluation)_(?:epoch|loop|step)|run_(?:eval|evaluation|validation))$"
)
"""Functions of a program or a training library; in a trace with stacks."""
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$")
_NUMBER = re.compile(r"\d+")


def evaluation_steps(table: EventTable, steps: Steps, forest: Forest) -> Bools:
    """Which of the steps hold evaluation, and are left out of a step's figures for it.

    None if all of them do, since evaluation is then what was profiled. None without a telling name if they recur: a
    loop may run its model forward now and then (rollouts, sampling), and that is then a part of it.
    """
    held, named = _held(table, steps, forest)
    recur = not named and held.sum() > max(1, OFTEN * len(steps))
    return np.zeros(len(steps), dtype=bool) if held.all() or recur else held


def steps_with_evaluation(table: EventTable, steps: Steps, forest: Forest) -> Bools:
    """Which of the steps hold evaluation, left out or not; none if evaluation is what was profiled.

    It is not if proftrack's own mark is in every step: a part of each is then no part of a step.
    """
    held, _ = _held(table, steps, forest)
    return np.zeros(len(steps), dtype=bool) if held.all() and not marked_steps(table, steps).all() else held


def _held(table: EventTable, steps: Steps, forest: Forest) -> tuple[Bools, bool]:
    """The steps in which anything points to evaluation, and whether that is a name."""
    named = marked_steps(table, steps)
    if len(steps) < 2:
        return named, True
    named |= _named(table, steps)
    return (named, True) if named.any() else (_by_operators(table, steps, forest), False)


def marked_steps(table: EventTable, steps: Steps) -> Bools:
    """Which of the steps hold a region that proftrack itself put around what is no part of a step."""
    ours = table.of_kind(Kind.ANNOTATION) & table.named(lambda name: name == EXCLUDED_REGION)
    return _covered(table, steps, [np.flatnonzero(ours & table.valid)])


@lru_cache(maxsize=65536)
def says_evaluation(name: str) -> bool:
    """Whether the name of a region, by its whole words, says that evaluation runs inside."""
    if name.startswith(_LIGHTNING):
        name = name.rsplit(".", 1)[-1]  # a hook or an action; before it stand classes, and what a callback monitors
    elif name.startswith(("[pl]", "Optimizer.", "nn.Module:")):
        return False
    words = {word for word in words_of(name).split() if not word.isdigit()}
    if words & _SAYS_OTHERWISE:
        return False
    return bool(words & _SAYS_SO) or words == {"val"} or bool(words & _MAY_SAY_SO and words & _PART)


def _named(table: EventTable, steps: Steps) -> Bools:
    """Steps with regions or functions that say evaluation; a name that every step has sets none of them apart."""
    says = table.of_kind(Kind.ANNOTATION) & table.named(says_evaluation)
    says |= table.of_kind(Kind.PYTHON) & table.named(lambda name: _PYTHON.match(name) is not None)
    rows = np.flatnonzero(says & table.valid)
    by_name = [rows[table.name[rows] == name] for name in np.unique(table.name[rows]).tolist()]
    return _covered(table, steps, [mine for mine in by_name if (_within(table, steps, mine) == 0).any()])


def _covered(table: EventTable, steps: Steps, groups: list[Ints]) -> Bools:
    """Steps of which these rows cover enough to be worth naming."""
    rows = np.concatenate([np.zeros(0, dtype=np.int64), *groups])
    within = _within(table, steps, rows)
    return np.asarray((within > 0) & (within >= WORTH_NAMING * (steps.end - steps.start)))


def _within(table: EventTable, steps: Steps, rows: Ints) -> Ints:
    """Nanoseconds of each step that the rows cover."""
    return union(table.ts[rows], table.end[rows]).covered_within(steps.start, steps.end)


def _by_operators(table: EventTable, steps: Steps, forest: Forest) -> Bools:
    """Steps whose forward pass repeats, against the typical step, while the backward pass does not, or is missing."""
    backward = np.flatnonzero(table.of_kind(Kind.CPU_OP) & table.named(lambda n: _BACKWARD.search(n) is not None))
    step = steps.containing(table.ts[backward])
    passes = np.bincount(step[step != NONE], minlength=len(steps))
    typical = _lower_median(passes)
    if not typical:
        return np.zeros(len(steps), dtype=bool)  # no training: any loop may repeat a forward pass
    forward = _forward_passes(table, steps, forest)
    alone = (forward >= A_PASS) & (passes == 0)
    alone[-1] = False  # recording may have stopped before its backward pass
    return np.asarray((forward >= REPEATED) & (passes <= AS_MANY * typical) | alone)


def _forward_passes(table: EventTable, steps: Steps, forest: Forest) -> npt.NDArray[np.float64]:
    """How often each step runs what a typical step's forward pass runs once: the median over its operators."""
    rows = _outermost_operators(table, forest)
    step = steps.containing(table.ts[rows])
    here = step != NONE
    here[here] = table.thread[rows[here]] == steps.thread[step[here]]
    rows, step = rows[here], step[here]
    # Compiled regions have numbers in their names, which differ between training and evaluation.
    codes, name = np.unique(table.name[rows], return_inverse=True)
    spelt = [_NUMBER.sub("#", table.names[code]) for code in codes.tolist()]
    number_of = {each: index for index, each in enumerate(dict.fromkeys(spelt))}
    name = np.array([number_of[each] for each in spelt], dtype=np.int64)[name]
    # What a typical step has is there at least once in every other step; that also bounds the table of counts.
    frequent = np.bincount(name, minlength=len(number_of)) * 2 >= len(steps)
    position = np.cumsum(frequent) - 1
    keep = frequent[name]
    counts = np.bincount(position[name[keep]] * len(steps) + step[keep], minlength=int(frequent.sum()) * len(steps))
    counts = counts.reshape(-1, len(steps))
    once = _lower_median(counts)
    if not once.any():
        return np.zeros(len(steps))
    return np.asarray(np.median(counts[once > 0] / once[once > 0, None], axis=0))


def _outermost_operators(table: EventTable, forest: Forest) -> Ints:
    """Rows of the operators that run in no other one, without those of the backward pass and of optimizers."""
    operator = table.of_kind(Kind.CPU_OP)[forest.rows]
    other = table.named(lambda name: _BACKWARD.search(name) is not None or name.startswith("Optimizer."))[forest.rows]
    covering = np.flatnonzero(operator | other)
    change = np.zeros(len(forest.rows) + 1, dtype=np.int64)
    np.add.at(change, covering, 1)
    np.add.at(change, forest.last[covering], -1)
    outermost: Ints = forest.rows[operator & ~other & (np.cumsum(change[:-1]) == 1)]
    return outermost


def _lower_median(values: Ints) -> Ints:
    """Along the last axis, a value that is there: of two steps the smaller one is typical."""
    middle = (values.shape[-1] - 1) // 2
    return np.asarray(np.partition(values, middle, axis=-1)[..., middle], dtype=np.int64)
